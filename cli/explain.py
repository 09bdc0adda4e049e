"""`mmdiff explain`: the path on which a label came to a test point or a row of the collection."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mmdiff.cli import show
from mmdiff.cli.options import DEFAULT_STORE, AsJson, StorePlace, complete_score_names, open_store
from mmdiff.text import printable

Images = Annotated[
    str | None,
    typer.Option(
        "--images",
        metavar="DIR|TEMPLATE",
        help="A folder with an image for each id, or a path or URL with `{id}` (and `{role}`) in it.",
        show_default=False,
    ),
]


def command(
    test: Annotated[
        str | None, typer.Option("--test", metavar="ID", help="The id of a test point.", show_default=False)
    ] = None,
    id_: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The id of a row of the collection.", show_default=False)
    ] = None,
    class_: Annotated[
        str | None,
        typer.Option("--class", metavar="NAME", help="A class, by name or number.", show_default="the true and the predicted"),
    ] = None,
    scores: Annotated[
        str, typer.Option("--scores", metavar="NAME", help="The diffusion to explain.", autocompletion=complete_score_names)
    ] = "diffusion",
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels",
            metavar="FILE",
            help="The labels that the diffusion was given, if not the stored ones.",
            show_default=False,
        ),
    ] = None,
    images: Images = None,
    store: StorePlace = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Show the path on which a label came to a test point or a row of the collection: back from it, the largest term each time.

    The share of a node is its part in the score of the next one. A node can follow itself: it is its own neighbour.
    """
    found = open_store(store).explain(test, id_=id_, class_=class_, scores=scores, labels=labels, images=images)
    if json:
        show.as_json(found)
        return
    for sentence in found["notes"]:
        show.note(printable(sentence))
    point, what = (found["test"], "test point") if "test" in found else (found["row"], "row")
    truth = "; ".join(map(printable, point["labels"])) or "not labelled"
    predicted = printable(point["predicted"] or "nothing")
    show.result(f"{what} {printable(point['id'])}: {truth}")
    show.result(f"{found['scores']}, {found['iterations']} iterations: predicted {predicted}")
    for path in found["paths"]:
        _show_path(path, found)


def _show_path(path: dict[str, Any], found: dict[str, Any]) -> None:
    roles = [role for role in ("true", "predicted") if path[role]]
    title = f"{' and '.join(roles) or 'asked for'}: {printable(path['class'])}"
    standing = "not among its best classes" if path["rank"] is None else f"rank {path['rank']}, score {path['score']:.4g}"
    show.result(f"\n{title} ({standing})")
    steps = path["steps"]
    if not steps:
        show.result(f"  no label of this class reaches the point within {found['iterations']} iterations")
        return
    rows = []
    for place, step in enumerate(steps):
        stays = place > 0 and all(step[key] == steps[place - 1][key] for key in ("role", "id"))
        name = f"{step['role']} {step['id']}" + (" (stays)" if stays else "")
        rows.append([str(step["iteration"]), name, f"{step['share']:.1%}", step.get("image") or "(no image)"])
    point = found.get("test") or found["row"]
    if "test" in found:
        # A row is a node: the path ends in itself.
        rows.append(["", f"test {point['id']}", "", point.get("image") or "(no image)"])
    columns = ["after iteration", "node", "share of the next", "image"]
    shown = len(columns) if "image" in point else len(columns) - 1
    show.table(columns[:shown], [row[:shown] for row in rows], right=(0, 2))
    if path["own_label"] < 1:
        node = printable(f"{steps[0]['role']} {steps[0]['id']}")
        show.result(f"  the label of {node} itself is {path['own_label']:.1%} of its score there")

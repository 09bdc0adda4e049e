"""`mmdiff explain`: the path on which a label came to a test point."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mmdiff.cli import show
from mmdiff.cli.options import DEFAULT_STORE, AsJson, StorePlace, open_store
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
    test: Annotated[str, typer.Option("--test", metavar="ID", help="The id of the test point.", show_default=False)],
    class_: Annotated[
        str | None,
        typer.Option("--class", metavar="NAME", help="A class, by name or number.", show_default="the true and the predicted"),
    ] = None,
    scores: Annotated[str, typer.Option("--scores", metavar="NAME", help="The diffusion to explain.")] = "diffusion",
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
    """Show the path on which a label came from a seed to a test point: back from the point, the largest term each time.

    The share of a node is its part in the score of the next one. A node can follow itself: it is its own neighbour.
    """
    found = open_store(store).explain(test, class_=class_, scores=scores, labels=labels, images=images)
    if json:
        show.as_json(found)
        return
    for sentence in found["notes"]:
        show.note(printable(sentence))
    point = found["test"]
    truth = "; ".join(map(printable, point["labels"])) or "not labelled"
    predicted = printable(point["predicted"] or "nothing")
    show.result(f"test point {printable(point['id'])}: {truth}")
    show.result(f"{found['scores']}, {found['iterations']} iterations: predicted {predicted}")
    for path in found["paths"]:
        _show_path(path, found)


def _show_path(path: dict[str, Any], found: dict[str, Any]) -> None:
    roles = [role for role in ("true", "predicted") if path[role]]
    title = f"{' and '.join(roles) or 'asked for'}: {printable(path['class'])}"
    show.result(f"\n{title} (rank {path['rank']}, score {path['score']:.4g})")
    steps = path["steps"]
    if not steps:
        show.result(f"  no label of this class reaches the point within {found['iterations']} iterations")
        return
    rows = []
    for place, step in enumerate(steps):
        stays = place > 0 and all(step[key] == steps[place - 1][key] for key in ("role", "id"))
        name = f"{step['role']} {step['id']}" + (" (stays)" if stays else "")
        rows.append([str(step["iteration"]), name, f"{step['share']:.1%}", step.get("image") or "(no image)"])
    rows.append(["", f"test {found['test']['id']}", "", found["test"].get("image") or "(no image)"])
    columns = ["after iteration", "node", "share of the next", "image"]
    shown = len(columns) if "image" in found["test"] else len(columns) - 1
    show.table(columns[:shown], [row[:shown] for row in rows], right=(0, 2))
    if path["own_label"] < 1:
        node = printable(f"{steps[0]['role']} {steps[0]['id']}")
        show.result(f"  the label of {node} itself is {path['own_label']:.1%} of its score there")

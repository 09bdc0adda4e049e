"""`mmdiff explain`: how labels came to a test point."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mmdiff.cli import show
from mmdiff.cli.options import DEFAULT_PLACE, AsJson, StorePlace
from mmdiff.cli.reading import open_store

Images = Annotated[
    str | None,
    typer.Option(
        "--images",
        metavar="DIR|TEMPLATE",
        help="A folder with an image for each id, or a path or URL with `{id}` (and `{role}`) in it.",
        show_default=False,
    ),
]
DiffusionScores = Annotated[str, typer.Option("--scores", metavar="NAME", help="The diffusion to explain.")]


def command(
    test: Annotated[str, typer.Option("--test", metavar="ID", help="The test point, by its id.", show_default=False)],
    chosen: Annotated[
        str | None,
        typer.Option("--class", metavar="NAME", help="A class, by name or number.", show_default="the true and the predicted"),
    ] = None,
    scores: DiffusionScores = "diffusion",
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels", metavar="FILE", help="The labels that the diffusion was given, if not the seeds'.", show_default=False
        ),
    ] = None,
    images: Images = None,
    store: StorePlace = DEFAULT_PLACE,
    json: AsJson = False,
) -> None:
    """Show the path on which a label came from a seed to a test point: back from the point, the largest term each time.

    The share of a node is its part in the score of the next one. A node can follow itself: it is its own neighbour.
    """
    from mmdiff.explain.stage import Request, explain

    found = explain(open_store(store), Request(test, chosen, scores, labels, images))
    if json:
        show.as_json(found)
        return
    for text in found["notes"]:
        show.note(text)
    point = found["test"]
    truth = "; ".join(point["labels"]) or "not labelled"
    show.result(f"test point {point['id']}: {truth}")
    show.result(f"{found['scores']}, {found['iterations']} iterations: taken for {point['predicted'] or 'nothing'}")
    for path in found["paths"]:
        _show_path(path, found)


def _show_path(path: dict[str, Any], found: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    roles = [role for role in ("true", "predicted") if path[role]]
    what = f"{' and '.join(roles) or 'asked for'}: {path['class']}"
    show.result(f"\n{what} (rank {path['rank']}, score {path['score']:.4g})")
    if not path["steps"]:
        show.result(f"  no label of this class comes to the point within {found['iterations']} iterations")
        return
    images = "image" in found["test"]
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("  after iteration", justify="right")
    table.add_column("node")
    table.add_column("share of the next", justify="right")
    if images:
        table.add_column("image", overflow="fold")
    for place, step in enumerate(path["steps"]):
        stays = place > 0 and all(step[key] == path["steps"][place - 1][key] for key in ("role", "id"))
        image = [escape(step["image"] or "(no image)")] if images else []
        name = escape(f"{step['role']} {step['id']}") + (" (stays)" if stays else "")
        table.add_row(str(step["iteration"]), name, f"{step['share']:.1%}", *image)
    last = [escape(found["test"]["image"] or "(no image)")] if images else []
    table.add_row("", f"test {escape(str(found['test']['id']))}", "", *last)
    show.rich_result(table)
    if path["own_label"] < 1:
        first = path["steps"][0]
        show.result(f"  the label of {first['role']} {first['id']} itself is {path['own_label']:.1%} of its score there")

"""`mmdiff fuse`: two classifiers as one."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mmdiff.cli import show
from mmdiff.cli.options import DEFAULT_STORE, AsJson, StorePath, this_command


def command(
    first: Annotated[str, typer.Argument(metavar="A", help="Scores that --weight is the weight of.")] = "scores/logreg",
    second: Annotated[str, typer.Argument(metavar="B", help="The scores that have the rest of it.")] = "scores/diffusion",
    weight: Annotated[float | None, typer.Option(help="0 is B alone, 1 is A alone. Default: 0.5.", show_default=False)] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Choose the weight with the best top-5 accuracy on the labelled test points.")
    ] = False,
    iteration: Annotated[
        int | None, typer.Option(help="The iteration of the diffusion. Default: the last.", show_default=False)
    ] = None,
    name: Annotated[str, typer.Option(help="The name of what is made: `scores/NAME`.")] = "fusion",
    store: StorePath = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Fuse a logistic regression with a diffusion: weight x log-probabilities of A + (1 - weight) x those of B.

    The accuracy at every weight is kept with the scores, where the test points have labels. Repeated, it does nothing.
    """
    from mmdiff.fusion.stage import Request, fuse_scores

    request = Request(first, second, weight, tune, iteration, name, this_command())
    summary = fuse_scores(store, request, show.progress).summary()
    if json:
        show.as_json(summary)
        return
    for text in summary["notes"]:
        show.note(text)
    facts = summary["facts"]
    took = "unchanged" if summary["reused"] else f"in {show.duration(summary['seconds'])}"
    show.result(
        f"{summary['artifact']}: {facts['tests']:,} test points, {facts['classes']:,} classes, weight {facts['weight']:g}, "
        f"{show.size(summary['bytes'])} on disk, {took}"
    )
    if "curve" in facts:
        _show_curve(facts)


def _show_curve(facts: dict[str, Any]) -> None:
    """A point for every fourth weight, and the one that is used."""
    from rich.table import Table

    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 2))
    for column in ("weight", "top-1", "top-5"):
        table.add_column(column, justify="right")
    for number, point in enumerate(facts["curve"]):
        used = point["weight"] == facts["weight"]
        if number % 4 == 0 or used:
            table.add_row(f"{point['weight']:g}{' *' if used else ''}", f"{point['top1']:.1%}", f"{point['top5']:.1%}")
    show.rich_result(table)
    if facts["weight_chosen_on"]:
        show.note(f"the weight was chosen on {facts['weight_chosen_on']}: what it reaches there, it need not reach elsewhere.")

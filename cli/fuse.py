"""`mmdiff fuse`: late fusion of two classifiers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mmdiff import text
from mmdiff.cli import show
from mmdiff.cli.options import DEFAULT_STORE, AsJson, StorePlace, complete_scores, open_store


def command(
    first: Annotated[
        str, typer.Argument(metavar="A", help="The scores that --weight belongs to.", autocompletion=complete_scores)
    ] = "scores/logreg",
    second: Annotated[
        str, typer.Argument(metavar="B", help="The other scores.", autocompletion=complete_scores)
    ] = "scores/diffusion",
    weight: Annotated[float | None, typer.Option(help="0 is B alone, 1 is A alone. Default: 0.5.", show_default=False)] = None,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="Choose the weight with the best top-5 accuracy on the labelled test points, else on held-out labels.",
        ),
    ] = False,
    iteration: Annotated[
        int | None, typer.Option(help="The iteration of the diffusion. Default: the last.", show_default=False)
    ] = None,
    name: Annotated[str, typer.Option(help="The result is `scores/NAME`.")] = "fusion",
    store: StorePlace = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Fuse a logistic regression with a diffusion: weight x log-probabilities of A + (1 - weight) x those of B.

    The accuracy at every weight is kept with the scores, where the test points have labels. Where both have the best classes of
    the rows of the collection, these are fused too. Repeated, it does nothing.
    """
    fused = open_store(store).fuse(first, second, weight=weight, tune=tune, iteration=iteration, name=name)
    summary = fused.summary
    if json:
        show.as_json(summary)
        return
    for sentence in summary["notes"]:
        show.note(text.printable(sentence))
    facts = summary["facts"]
    points = text.count(facts["tests"], "test point") if facts["tests"] else "all rows of the collection"
    took = "unchanged" if summary["reused"] else f"in {text.duration(summary['seconds'])}"
    show.result(
        f"{summary['artifact']}: {points}, "
        f"{text.count(facts['classes'], 'class', 'classes')}, weight {facts['weight']:g}, "
        f"{text.size(summary['bytes'])} on disk, {took}"
    )
    if "curve" in facts:
        _show_curve(facts)


def _show_curve(facts: dict[str, Any]) -> None:
    """One line for every fourth weight, and for the one that is used."""
    points = [(point, point["weight"] == facts["weight"]) for point in facts["curve"]]
    rows = [
        (f"{point['weight']:g}{' *' if used else ''}", f"{point['top1']:.1%}", f"{point['top5']:.1%}")
        for number, (point, used) in enumerate(points)
        if number % 4 == 0 or used
    ]
    show.table(("weight", "top-1", "top-5"), rows, right=(0, 1, 2))
    if facts["weight_chosen_on"]:
        show.note(f"the weight was chosen on {facts['weight_chosen_on']}, so its accuracy there is optimistically biased.")

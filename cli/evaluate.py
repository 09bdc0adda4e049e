"""`mmdiff evaluate`: how good scores are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmdiff.cli import show
from mmdiff.cli.options import DEFAULT_PLACE, AsJson, StorePlace
from mmdiff.cli.reading import open_store

if TYPE_CHECKING:
    from rich.table import Table

_TITLE_LENGTH = 24


def command(
    scores: Annotated[
        list[str] | None,
        typer.Argument(metavar="SCORES", help="E.g. `scores/diffusion`. Default: all of the store.", show_default=False),
    ] = None,
    top: Annotated[
        list[int] | None,
        typer.Option(metavar="K", help="Count a point as right if its class is among the best K. Default: 1 and 5."),
    ] = None,
    novel: Annotated[
        str | None,
        typer.Option(
            metavar="CLASSES",
            help="Report these classes apart too: a file with a class number or name a line, or a list such as `3,17,21`.",
        ),
    ] = None,
    per_class: Annotated[bool, typer.Option("--per-class", help="Report every class.")] = False,
    store: StorePlace = DEFAULT_PLACE,
    json: AsJson = False,
) -> None:
    """Compare scores with the labels of the test points: accuracy among the best K, with 95 % intervals of the bootstrap.

    Ties never count in a method's favour, and points of a class that no seed has count as misses. For scores that you name,
    the margins between best and second are shown too, and the worst classes with what they are taken for.
    """
    from mmdiff.evaluation.stage import Request, evaluate

    request = Request(scores or [], top or (1, 5), novel, per_class)
    evaluated = evaluate(open_store(store), request, show.progress)
    if json:
        show.as_json(evaluated)
        return
    for text in evaluated["notes"]:
        show.note(text)
    for group in _of_the_same_points(evaluated["scores"]):
        _show_accuracies(group)
    # For several scores the table is enough; mistakes are shown for those that are named.
    for found in evaluated["scores"] if scores or len(evaluated["scores"]) == 1 else []:
        _show_mistakes(found)
        if per_class:
            _show_classes(found)
    if not scores and len(evaluated["scores"]) > 1:
        show.note(f"`mmdiff evaluate {evaluated['scores'][0]['artifact']}` shows its worst classes too.")


def _of_the_same_points(evaluations: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Evaluations that share a table: those of the same points and classes."""
    for _, group in groupby(evaluations, lambda evaluation: evaluation["test"]):
        yield list(group)


def _show_accuracies(evaluations: list[dict[str, Any]]) -> None:
    points = evaluations[0]["test"]
    groups = {"all": f"{points['labelled']:,} test points, {points['classes']:,} classes"}
    if "novel" in points:
        groups["novel"] = f"{points['novel']['points']:,} of them of {points['novel']['classes']:,} novel classes"
    show.result("; ".join(groups.values()))
    tops = list(evaluations[0]["iterations"][0]["all"])
    table = _table("scores", "iteration", *(f"{_title(top)} {group}" for group in groups for top in tops))
    for evaluation in evaluations:
        for number, found in enumerate(evaluation["iterations"]):
            name = evaluation["artifact"] if number == 0 else ""
            iteration = "" if found["iteration"] is None else str(found["iteration"])
            table.add_row(name, iteration, *(_figure(found[group], top) for group in groups for top in tops))
    show.rich_result(table)


def _show_mistakes(found: dict[str, Any]) -> None:
    margin = found["margin"]
    medians = [f"{margin[which]:.4g} where {which}" for which in ("right", "wrong") if margin[which] is not None]
    parts = [f"margin of the best over the second: median {', '.join(medians)}"]
    if margin["separation"] is not None:
        parts.append(f"larger where right in {margin['separation']:.1%} of pairs")
    parts.append(f"top-1 of the surer half {margin['top1_of_surer_half']:.1%}")
    show.result(f"\n{found['artifact']}\n  {'; '.join(parts)}")
    if found["undecided"]:
        show.result(f"  {found['undecided']:,} points have no single best class")
    table = _table("  worst classes", "points", "top-1", "taken for")
    for entry in found["worst"]:
        taken = "; ".join(f"{_short(mistake['class'])} ({mistake['points']})" for mistake in entry["taken_for"])
        table.add_row(f"  {_short(entry['class'])}", str(entry["points"]), f"{entry['top1']:.1%}", taken or "-")
    show.rich_result(table)


def _show_classes(found: dict[str, Any]) -> None:
    tops = [key for key in found["per_class"][0] if key.startswith("top")]
    table = _table("  every class", "points", *map(_title, tops))
    for entry in found["per_class"]:
        figures = ["-" if entry[top] is None else f"{entry[top]:.1%}" for top in tops]
        title = _short(entry["class"]) + ("" if entry["seeds"] else " (no seeds)")
        table.add_row(f"  {title}", str(entry["points"]), *figures)
    show.rich_result(table)


def _figure(figures: dict[str, Any] | None, top: str) -> str:
    if figures is None:
        return "no points"
    figure = figures[top]
    return f"{figure['accuracy']:.1%} ({100 * figure['low']:.1f}-{100 * figure['high']:.1f})"


def _title(top: str) -> str:
    return top.replace("top", "top-")


def _short(title: str | None) -> str:
    if title is None:
        return "undecided"
    return title if len(title) <= _TITLE_LENGTH else title[: _TITLE_LENGTH - 3] + "..."


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, overflow="fold", justify="left" if number == 0 or column == "taken for" else "right")
    return table

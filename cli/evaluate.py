"""`mmdiff evaluate`: accuracy of scores."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Annotated, Any

import typer

from mmdiff.cli import show
from mmdiff.cli.options import DEFAULT_STORE, AsJson, Dask, Memory, StorePlace, Threads, complete_scores, open_store
from mmdiff.text import printable

_TITLE_LENGTH = 24


def command(
    scores: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCORES",
            help="E.g. `scores/diffusion`. Default: all of the store.",
            show_default=False,
            autocompletion=complete_scores,
        ),
    ] = None,
    top: Annotated[
        list[int] | None,
        typer.Option(metavar="K", help="Count a point as right if its class is among the best K. Default: 1 and 5."),
    ] = None,
    novel: Annotated[
        str | None,
        typer.Option(
            metavar="CLASSES",
            help="Classes to report separately too: a file with a class number or name a line, or a list such as `3,17,21`.",
        ),
    ] = None,
    per_class: Annotated[bool, typer.Option("--per-class", help="Report every class.")] = False,
    folds: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Hold labelled rows out in N folds, and evaluate on them, also where there are test points.",
            show_default="5 without test points, fewer where labels are few",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the folds.")] = 0,
    memory: Memory = "8G",
    threads: Threads = None,
    dask: Dask = None,
    store: StorePlace = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Measure the accuracy among the best K, with 95 % bootstrap intervals: on test points, else on held-out labels.

    Scores are compared with the labels of the test points. Where there are none, labelled rows are held out in folds, each is
    scored without the labels of its fold (with the options of the scores, or the defaults), and compared with its own label;
    these scores are kept as `folds/NAME`. Labels that `mmdiff label --holdout` keeps out take the place of folds.

    Ties never count in favour of a method, and points of a class without seeds count as errors. For scores that you name, the
    margins between best and second are shown too, and the worst classes with the classes they are mistaken for.
    """
    found = open_store(store, memory=memory, threads=threads, dask=dask).evaluate(
        *scores or (), top=top or (1, 5), novel=novel, per_class=per_class, folds=folds, seed=seed
    )
    if json:
        show.as_json(found)
        return
    for sentence in found["notes"]:
        show.note(printable(sentence))
    for group in _of_the_same_points(found["scores"]):
        _show_accuracies(group)
    # Several scores get one table; mistakes are shown for scores that are named.
    for one in found["scores"] if scores or len(found["scores"]) == 1 else []:
        _show_mistakes(one)
        if per_class:
            _show_classes(one)
    if not scores and len(found["scores"]) > 1:
        show.note(f"`mmdiff evaluate {found['scores'][0]['artifact']}` shows its worst classes too.")


def _of_the_same_points(evaluations: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Evaluations that go into one table: those over the same points and classes."""
    for _, group in groupby(evaluations, _points):
        yield list(group)


def _points(evaluation: dict[str, Any]) -> dict[str, Any]:
    """The counts of the test points, or of the held-out rows."""
    found: dict[str, Any] = evaluation["test" if "test" in evaluation else "held_out"]
    return found


def _show_accuracies(evaluations: list[dict[str, Any]]) -> None:
    points = _points(evaluations[0])
    if "folds" not in points:
        kind = "test points"
    else:
        kind = "rows kept out" if points["scheme"] == "holdout" else f"labelled rows held out in {points['folds']} folds"
    groups = {"all": f"{points['labelled']:,} {kind}, {points['classes']:,} classes"}
    if "novel" in points:
        groups["novel"] = f"{points['novel']['points']:,} of them of {points['novel']['classes']:,} novel classes"
    show.result("; ".join(groups.values()))
    tops = list(evaluations[0]["iterations"][0]["all"])
    columns = ["scores", "iteration", *(f"{_title(top)} {group}" for group in groups for top in tops)]
    rows = [
        [
            evaluation["artifact"] if number == 0 else "",
            "" if step["iteration"] is None else str(step["iteration"]),
            *(_figure(step[group], top) for group in groups for top in tops),
        ]
        for evaluation in evaluations
        for number, step in enumerate(evaluation["iterations"])
    ]
    show.table(columns, rows, right=range(1, len(columns)))


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
    rows = []
    for entry in found["worst"]:
        taken = "; ".join(f"{_short(mistake['class'])} ({mistake['points']})" for mistake in entry["taken_for"])
        rows.append((_short(entry["class"]), str(entry["points"]), f"{entry['top1']:.1%}", taken or "-"))
    show.table(("worst classes", "points", "top-1", "mistaken for"), rows, right=(1, 2))


def _show_classes(found: dict[str, Any]) -> None:
    tops = [key for key in found["per_class"][0] if key.startswith("top")]
    rows = []
    for entry in found["per_class"]:
        figures = ["-" if entry[top] is None else f"{entry[top]:.1%}" for top in tops]
        title = _short(entry["class"]) + ("" if entry["seeds"] else " (no seeds)")
        rows.append((title, str(entry["points"]), *figures))
    show.table(("every class", "points", *map(_title, tops)), rows, right=range(1, 2 + len(tops)))


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

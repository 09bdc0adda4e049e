"""`mmdiff audit`: labels to doubt, near-duplicates, leaks into the evaluation, outliers."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from mmdiff import text
from mmdiff.cli import show
from mmdiff.cli.options import DEFAULT_STORE, AsJson, Memory, StorePlace, Threads, complete_score_names, open_store

_PARTS = ("labels", "duplicates", "leaks", "outliers")
_TITLE_LENGTH = 40


class What(StrEnum):
    """The part to audit."""

    all = "all"
    labels = "labels"
    duplicates = "duplicates"
    leaks = "leaks"
    outliers = "outliers"


def command(
    what: Annotated[
        What,
        typer.Argument(
            help="`labels` that the graph contradicts, near-`duplicates`, test points and held-out rows that are "
            "near-duplicates of labelled ones (`leaks`), `outliers`; or all that the store has data for."
        ),
    ] = What.all,
    above: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            help="The similarity, 0 to 1, from which on rows are near-duplicates.",
            show_default="found from the lists of neighbours",
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write all rows of the part to this file: `.parquet`, `.csv` or `.jsonl` (JSON lines). `-` writes CSV to "
            "stdout.",
            show_default=False,
        ),
    ] = None,
    scores: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The scores whose method judges labels, and whose accuracy is shown without leaks: `scores/NAME`.",
            autocompletion=complete_score_names,
        ),
    ] = "diffusion",
    memory: Memory = "8G",
    threads: Threads = None,
    store: StorePlace = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Find labels that the graph contradicts, near-duplicates, leaks into the evaluation, and outliers; the worst first.

    A few rows of each are shown, all of them are kept as `audit/PART`. Each label is judged by the labels of other rows; the
    rest is read off the lists of neighbours. Unchanged audits are found, not computed again.
    """
    opened = open_store(store, memory=memory, threads=threads)
    target: Any = show.Output() if out == "-" else out
    found = opened.audit(what.value, target, above=above, scores=scores)
    if json and out != "-":
        show.as_json(found)
        return
    for sentence in found["notes"]:
        show.note(text.printable(sentence))
    for part in _PARTS:
        if part in found:
            for sentence in found[part]["notes"]:
                show.note(text.printable(sentence))
            # Where the rows go to stdout, what is said about them goes to stderr.
            if out == "-":
                show.note(text.printable(found[part]["headline"]))
            else:
                _show(found[part])


def _show(found: dict[str, Any]) -> None:
    show.result(text.printable(found["headline"]))
    if found["worst"]:
        columns = list(found["worst"][0])
        numbers = [place for place, name in enumerate(columns) if _is_number(found["worst"][0][name]) and name != "id"]
        show.table([name.replace("_", " ") for name in columns], map(_cells, found["worst"]), right=numbers)
    if "file" in found:
        show.result(f"{text.printable(found['file'])}: {text.count(found['rows'], 'row')}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cells(row: dict[str, Any]) -> list[str]:
    return [_cell(value) for value in row.values()]


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 0.001 else f"{value:.4g}"
    shown = str(value)
    return shown if len(shown) <= _TITLE_LENGTH else shown[: _TITLE_LENGTH - 3] + "..."

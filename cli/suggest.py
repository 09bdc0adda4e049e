"""`mmdiff suggest`: the rows to label next."""

from __future__ import annotations

import csv
import io
import json as json_module
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any

import typer

from mmdiff import text
from mmdiff.cli import show
from mmdiff.cli.errors import INTERRUPTED, fail
from mmdiff.cli.options import DEFAULT_STORE, AsJson, Memory, StorePlace, Threads, open_store
from mmdiff.errors import BadOption, Parameter


class By(StrEnum):
    """The worth of a suggestion."""

    coverage = "coverage"
    uncertainty = "uncertainty"
    mixed = "mixed"


def command(
    n: Annotated[int, typer.Argument(metavar="N", help="How many rows to suggest.", show_default=False)],
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write them to a file instead of showing them: `.parquet`, `.csv` or `.jsonl` (JSON lines). `-` writes CSV to "
            "stdout.",
            show_default=False,
        ),
    ] = None,
    by: Annotated[
        By,
        typer.Option(
            help="`coverage`: rows whose labels would reach the most that none reaches yet; `uncertainty`: rows whose present "
            "prediction is least sure, no look-alikes; `mixed`: coverage of rows that are unsure. The last two need "
            "`mmdiff diffuse --predict-nodes`."
        ),
    ] = By.coverage,
    per_class: Annotated[bool, typer.Option("--per-class", help="Suggest N rows of each class that is predicted now.")] = False,
    candidates: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Suggest only among the rows of this file, a column of ids. Labelled rows are left out.",
            show_default=False,
        ),
    ] = None,
    memory: Memory = "8G",
    threads: Threads = None,
    store: StorePlace = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Suggest the rows to label next, best first, each with the reasons; labels need not exist yet.

    One row each: `rank`, `id`, `reaches` (rows that its label would newly reach within two iterations), `gain` (the coverage it
    adds), `nearest`, `nearest_label` and `similarity` of the most similar labelled row, `label` and `margin` of the present
    prediction. Labels that exist count: after labelling, the next suggestions go on from there.
    """
    if json and out == "-":
        raise BadOption(Parameter("json", True), ": the suggestions go to stdout. Name a file for them, or leave it out.")
    opened = open_store(store, memory=memory, threads=threads)
    asked: dict[str, Any] = {"by": by.value, "per_class": per_class, "candidates": candidates}
    shown, table = io.BytesIO(), None
    try:
        if json and out is None:
            table = opened.suggest(n, **asked)
            found = json_module.loads(table.schema.metadata[b"mmdiff"])
        else:
            target: Any = show.Output() if out == "-" else out or shown
            found = opened.suggest(n, target, **asked)
    except KeyboardInterrupt:
        fail("interrupted. The store is as it was before, and nothing is written.", INTERRUPTED)
    for sentence in found["notes"]:
        show.note(text.printable(sentence))
    if json:
        show.as_json(found if table is None else {**found, "suggested": table.to_pylist()})
        return
    if out is None:
        _show(csv.DictReader(io.StringIO(shown.getvalue().decode(), newline="")))
    # Where suggestions go to stdout, what is said about them goes to stderr.
    say = show.note if out == "-" else show.result
    say(_summary(found))


def _show(rows: Iterable[dict[str, str]]) -> None:
    columns = ["rank", "id", "reaches", "gain", "nearest labelled", "similarity", "predicted", "margin"]
    cells = [
        [
            row["rank"],
            row["id"],
            f"{int(row['reaches']):,}",
            _number(row["gain"]),
            f"{row['nearest']} ({row['nearest_label']})" if row["nearest"] else "-",
            _number(row["similarity"]),
            row["label"] or "-",
            _number(row["margin"]),
        ]
        for row in rows
    ]
    show.table(columns, cells, right=(0, 2, 3, 5, 7))


def _number(value: str) -> str:
    return f"{float(value):.3f}" if value else "-"


def _summary(found: dict[str, Any]) -> str:
    written = "" if found.get("file") is None else f"{text.printable(found['file'])}: "
    more, rows = found["reached_with"] - found["reached"], text.count(found["rows"], "row")
    labelled = text.count(found["labelled"], "labelled row")
    return (
        f"{written}{text.count(found['suggestions'], 'suggestion')} by {found['by']}: {more:,} more of {rows} reached within "
        f"two iterations, beside {found['reached']:,} by {labelled}; in {text.duration(found['seconds'])}"
    )

"""`mmdiff predict`: a class with a confidence for every row."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from mmdiff import text
from mmdiff.cli import show
from mmdiff.cli.errors import INTERRUPTED, fail
from mmdiff.cli.options import DEFAULT_STORE, AsJson, Memory, StorePlace, Threads, complete_score_names, open_store
from mmdiff.errors import BadOption, Parameter


class Rows(StrEnum):
    """The rows to predict."""

    all = "all"
    collection = "collection"
    test = "test"


def command(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="The file to write: `.parquet`, `.csv` or `.jsonl` (JSON lines). `-` writes CSV to stdout.",
            show_default=False,
        ),
    ],
    min_confidence: Annotated[
        float, typer.Option(metavar="P", help="Leave predictions with less confidence, 0 to 1, unlabelled.")
    ] = 0.0,
    scores: Annotated[
        str,
        typer.Option(metavar="NAME", help="The scores to predict from: `scores/NAME`.", autocompletion=complete_score_names),
    ] = "diffusion",
    rows: Annotated[Rows, typer.Option(help="Predict the rows of the collection, the test points, or both.")] = Rows.all,
    memory: Memory = "8G",
    threads: Threads = None,
    store: StorePlace = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Write a class with a confidence for every row of the collection, then for every test point.

    One row each: `id`, `label`, `confidence`, `margin`, `second`, `second_confidence`, `iteration`, `source` (`given` or
    `predicted`). The confidence is the probability that the label is right, calibrated on labels that are held out; rows that
    no label has reached have no label and confidence 0. An existing file is replaced once the new one is complete.
    """
    if json and file == "-":
        raise BadOption(Parameter("json", True), ": the predictions go to stdout. Name a file for them, or leave it out.")
    opened = open_store(store, memory=memory, threads=threads)
    try:
        target: Any = show.Output() if file == "-" else file
        found = opened.predict(target, scores=scores, min_confidence=min_confidence, rows=rows.value)
    except KeyboardInterrupt:
        left = "the rest is not written" if file == "-" else f"{file} is as it was before"
        fail(f"interrupted. Held-out scores that are finished are kept; {left}.", INTERRUPTED)
    for sentence in found["notes"]:
        show.note(text.printable(sentence))
    if json:
        show.as_json(found)
        return
    # Where predictions go to stdout, what is said about them goes to stderr.
    say = show.note if file == "-" else show.result
    say(_counts(found, "predictions" if file == "-" else text.printable(found["file"])))
    for line in _promises(found):
        say(line)


def _counts(found: dict[str, Any], name: str) -> str:
    rows = f"{name}: {text.count(found['rows'], 'row')}, {found['given']:,} given, {found['labelled']:,} predicted"
    left = [f"{found['unlabelled']:,} left unlabelled"] if found["unlabelled"] else []
    if found["unreached"]:
        left.append(f"{found['unreached']:,} of them reached by no label")
    took = f"in {text.duration(found['seconds'])}"
    return "; ".join([rows, *left, took])


def _promises(found: dict[str, Any]) -> list[str]:
    """The share that is labelled, the precision to expect, and what it was on held-out labels."""
    if found["labelled_share"] is None:
        return []
    lines = []
    if found["expected_precision"] is not None:
        lines.append(
            f"{found['labelled_share']:.1%} of the rows without a given label are labelled; expected precision "
            f"{found['expected_precision']:.1%}"
        )
    held_out = found["held_out"]
    if held_out["precision"] is not None:
        lines.append(
            f"of {text.count(held_out['rows'], 'held-out label')} {held_out['labelled']:,} would be predicted so, and "
            f"{held_out['precision']:.1%} of those are right"
        )
    return lines

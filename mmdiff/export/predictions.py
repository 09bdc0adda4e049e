"""Scores as a table of predictions, a row for each test point: what people open in a spreadsheet or a notebook.

Columns: `id`, the user's; `label`, what the point is (several with `; ` between them); `predicted`, the best class, empty where
none is best alone; `score` and `margin`, its score and what it has more than the second; `rank`, that of the true class. Of a
diffusion it is the last iteration that counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.classes import UNLABELLED
from mmdiff.evaluation.ranks import NO_RANK, predictions, ranks_of
from mmdiff.export.arrow import arrow
from mmdiff.export.csvs import cell
from mmdiff.formats.errors import Stale
from mmdiff.formats.store import Artifact, Store
from mmdiff.ids import ids_of
from mmdiff.progress import Progress
from mmdiff.scores import TEST, Scores, Truth, open_truth, test_points_of

_BLOCK_ROWS = 1 << 14
_COLUMNS = ("id", "label", "predicted", "score", "margin", "rank")


@dataclass(frozen=True)
class Row:
    """One test point; None where there is nothing to say."""

    id: int | str
    label: str | None
    predicted: str | None
    score: float
    margin: float | None
    rank: int | None


def write_predictions_csv(store: Store, artifact: Artifact, stream: IO[bytes], progress: Progress) -> None:
    stream.write((",".join(_COLUMNS) + "\n").encode())
    for rows in _blocks(store, artifact, progress):
        lines = [",".join(_text(getattr(row, column)) for column in _COLUMNS) + "\n" for row in rows]
        stream.write("".join(lines).encode())


def write_predictions_parquet(store: Store, artifact: Artifact, stream: IO[bytes], progress: Progress) -> None:
    pa, parquet = arrow("writing .parquet")
    test = store.open_artifact(TEST)
    types = (
        pa.string() if "ids_offsets" in test else pa.int64(),
        *(pa.string(), pa.string(), pa.float32(), pa.float32(), pa.int32()),
    )
    schema = pa.schema(list(zip(_COLUMNS, types, strict=True)))
    with parquet.ParquetWriter(stream, schema) as writer:
        for rows in _blocks(store, artifact, progress):
            columns = {column: [getattr(row, column) for row in rows] for column in _COLUMNS}
            writer.write_table(pa.table(columns, schema=schema))


def _blocks(store: Store, artifact: Artifact, progress: Progress) -> Iterator[list[Row]]:
    scores = Scores.of(artifact)
    if test_points_of(store, artifact) != store.id(TEST):
        raise Stale(f"{artifact.name}: {TEST} has changed since, so its ids are those of other points. {artifact.remedy}")
    truth, ids, plane = open_truth(store, scores), ids_of(store.open_artifact(TEST)), scores.plane()
    with progress(f"exporting {artifact.name}", len(plane), "rows") as advance:
        for start in range(0, len(plane), _BLOCK_ROWS):
            stop = min(start + _BLOCK_ROWS, len(plane))
            yield list(_rows(scores, truth, ids, plane, start, stop))
            advance(stop - start)


def _rows(scores: Scores, truth: Truth | None, ids: Any, plane: NDArray[np.float32], start: int, stop: int) -> Iterator[Row]:
    block = plane[start:stop]
    best, margins = predictions(block)
    ranks = None if truth is None else ranks_of(block, truth.labels[start:stop])
    for i, (predicted, margin) in enumerate(zip(best.tolist(), margins.tolist(), strict=True)):
        identity = ids[start + i]
        yield Row(
            identity if isinstance(identity, str) else int(identity),
            None if truth is None else _label(scores, truth, start + i),
            None if predicted == UNLABELLED else scores.classes.title(predicted),
            float(block[i].max()),
            margin if np.isfinite(margin) else None,
            None if ranks is None or ranks[i] == NO_RANK else int(ranks[i]),
        )


def _label(scores: Scores, truth: Truth, point: int) -> str | None:
    """What a point is, called as predictions are where the scores have its class."""
    titles = []
    for own in truth.own[point][truth.own[point] != UNLABELLED].tolist():
        column = int(truth.columns[own])
        titles.append(truth.classes.title(own) if column == UNLABELLED else scores.classes.title(column))
    return "; ".join(titles) or None


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.9g}"
    return "" if value is None else cell(str(value))

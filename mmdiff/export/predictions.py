"""Predictions as tables: of the collection (`diffuse` with `predict_nodes`), and of test points (export of scores).

Nodes, as Parquet: `id`; `label`, the number of the best class, -1 where no label reaches the node; `name`, where classes have
names; `classes` and `scores`, the best few classes and their scores in L, best first.

Test points, as Parquet or CSV: `id`; `label`, the true classes, separated by `; `; `predicted`, the best class, empty where
several are best; `score`, and `margin` over the second class; `rank` of the true class. The last iteration counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.evaluation.metrics import NO_RANK, predictions, ranks_of
from mmdiff.evaluation.scores import TEST, Scores, Truth, open_truth, test_points_of
from mmdiff.export.tables import arrow, cell, strings_column
from mmdiff.export.target import check_place, whole_file
from mmdiff.formats.errors import BadOption, Parameter, Stale
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.labels.classes import UNLABELLED, Classes, labels_of
from mmdiff.labels.collection import Collection
from mmdiff.labels.ids import ids_of
from mmdiff.runtime.progress import Progress

_BLOCK_ROWS = 1 << 18


def check_predictions(file: Path, store: Store, background: int) -> None:
    """Refuses a file that cannot be written, or a graph without background nodes, before the diffusion runs."""
    given = Parameter("predict_nodes", str(file))
    if file.suffix.lower() != ".parquet":
        raise BadOption(given, ": predictions are written to Parquet. Name a file that ends in .parquet.")
    if not background:
        raise BadOption(given, ": the graph has no background nodes. Leave it out.")
    check_place(file, store)
    arrow("writing .parquet")


def write_predictions(store: Store, artifact: Artifact, file: Path, progress: Progress) -> Json:
    """Writes the predictions of the collection in the user's row order; counts the rows, and those that labels reach."""
    pa, parquet = arrow("writing .parquet")
    classes = Classes.of(artifact)
    top, scores = labels_of(artifact, classes, "top_classes"), artifact.array("top_scores")
    collection = Collection.of(store)
    numbers = np.arange(len(classes)) if classes.numbers is None else classes.numbers
    names = None if classes.names is None else pa.array([*classes.names, None])
    reached = 0
    with whole_file(file) as stream:
        writer = None
        with progress("writing predictions", len(top), "rows") as advance:
            for start in range(0, max(1, len(top)), _BLOCK_ROWS):
                rows = slice(start, min(start + _BLOCK_ROWS, len(top)))
                best = top[rows]
                given = best != UNLABELLED
                offsets = pa.array(np.append(0, np.cumsum(given.sum(axis=1))).astype(np.int32))
                label = np.where(given[:, 0], numbers[best[:, 0]], UNLABELLED)
                columns: dict[str, Any] = {"id": _ids(pa, collection, rows), "label": pa.array(label)}
                if names is not None:
                    columns["name"] = names.take(pa.array(np.where(given[:, 0], best[:, 0], len(classes))))
                columns["classes"] = pa.ListArray.from_arrays(offsets, pa.array(numbers[best[given]]))
                columns["scores"] = pa.ListArray.from_arrays(offsets, pa.array(scores[rows][given]))
                table = pa.table(columns)
                writer = writer or parquet.ParquetWriter(stream, table.schema)
                writer.write_table(table)
                reached += int(given[:, 0].sum())
                advance(len(best))
        if writer is not None:
            writer.close()
    return {"file": str(file), "rows": len(top), "reached": reached}


def _ids(pa: Any, collection: Collection, rows: slice) -> Any:
    """The ids of some rows; row numbers where an imported graph has no descriptors."""
    ids = collection.ids(rows.start, rows.stop) if collection.parts else np.arange(rows.start, rows.stop)
    return strings_column(pa, ids) if isinstance(ids, Strings) else pa.array(ids)


_SCORE_ROWS = 1 << 14
_COLUMNS = ("id", "label", "predicted", "score", "margin", "rank")


@dataclass(frozen=True)
class Row:
    """The prediction for a test point; None where there is no value."""

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
        raise Stale(f"{artifact.name}: {TEST} has changed since, so the ids belong to other points. {artifact.remedy}")
    truth, ids, values = open_truth(store, scores), ids_of(store.open_artifact(TEST)), scores.after()
    with progress(f"exporting {artifact.name}", len(values), "rows") as advance:
        for start in range(0, len(values), _SCORE_ROWS):
            stop = min(start + _SCORE_ROWS, len(values))
            yield list(_rows(scores, truth, ids, values, start, stop))
            advance(stop - start)


def _rows(scores: Scores, truth: Truth | None, ids: Any, values: NDArray[np.float32], start: int, stop: int) -> Iterator[Row]:
    block = values[start:stop]
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
    """The true classes of a point, named as predictions name them where the scores have the class."""
    titles = []
    for own in truth.own[point][truth.own[point] != UNLABELLED].tolist():
        column = int(truth.columns[own])
        titles.append(truth.classes.title(own) if column == UNLABELLED else scores.classes.title(column))
    return "; ".join(titles) or None


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.9g}"
    return "" if value is None else cell(str(value))

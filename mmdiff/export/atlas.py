"""Lists of neighbours as a table for Embedding Atlas: a row for each node, with its neighbours in a column of structs.

The columns are `id`; `label`, where rows have labels, and `predicted` and `score`, where a method has predicted them;
`projection_x` and `projection_y`, where the user gives them; and `neighbors`: the `ids` of the neighbours, which are the
numbers of their rows in the table, and their cosine `distances`. Classes have their names, else their numbers as text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.export.graphs import Task, rows_of_lists
from mmdiff.export.neighbours import RowIds, UserLists, cosine_lists, parts_of_nodes, require_nodes, require_unit_length
from mmdiff.export.tables import arrow, strings_column
from mmdiff.formats.errors import BadRow, CountMismatch, Parameter
from mmdiff.formats.sources.base import Source
from mmdiff.formats.sources.in_memory import source_of
from mmdiff.formats.sources.opening import open_source
from mmdiff.formats.storage.strings import Strings
from mmdiff.labels.classes import UNLABELLED, Classes, labels_of
from mmdiff.labels.label_set import find_label_set
from mmdiff.runtime.progress import Progress
from mmdiff.runtime.staleness import require_current, stale_artifacts


def write_atlas(task: Task, stream: IO[bytes], progress: Progress) -> int:
    """Writes the table, a block of rows at a time."""
    pa, parquet = arrow("writing .parquet")
    lists = UserLists.of(task.artifact)
    require_nodes(lists, "table")
    require_unit_length(lists, "embedding-atlas")
    columns = [_ids(pa, task, lists), *_labels(pa, task, lists), *_predictions(pa, task, lists), *_projection(pa, task, lists)]
    pairs = pa.struct([("ids", pa.list_(pa.int64())), ("distances", pa.list_(pa.float32()))])
    schema = pa.schema([*((column.name, column.type) for column in columns), ("neighbors", pairs)])
    with (
        progress(f"exporting {task.artifact.name}", lists.rows, "rows") as advance,
        parquet.ParquetWriter(stream, schema) as writer,
    ):
        for block in lists.blocks(rows_of_lists(lists)):
            neighbors, distances = cosine_lists(lists, block, task.self_loops)
            given = neighbors >= 0
            offsets = pa.array(np.append(0, np.cumsum(given.sum(axis=1))).astype(np.int32))
            ids = pa.ListArray.from_arrays(offsets, pa.array(neighbors[given]))
            near = pa.StructArray.from_arrays(
                [ids, pa.ListArray.from_arrays(offsets, pa.array(distances[given]))], fields=list(pairs)
            )
            start, stop = block.start, block.start + len(neighbors)
            arrays = [column.values(start, stop) for column in columns]
            writer.write_table(pa.Table.from_arrays([*arrays, near], schema=schema))
            advance(stop - start)
    return lists.rows


@dataclass(frozen=True)
class _Column:
    """A column: `values` has those of rows start..stop-1 as an arrow array."""

    name: str
    type: Any
    values: Callable[[int, int], Any]


def _ids(pa: Any, task: Task, lists: UserLists) -> _Column:
    ids = RowIds.of_nodes(task.store, task.artifact, lists.nodes)

    def values(start: int, stop: int) -> Any:
        found = ids.take(np.arange(start, stop))
        return strings_column(pa, found) if isinstance(found, Strings) else pa.array(found)

    return _Column("id", pa.string() if ids.are_strings else pa.int64(), values)


def _labels(pa: Any, task: Task, lists: UserLists) -> list[_Column]:
    """The given labels of the rows, several of one row separated by `; `."""
    parts = parts_of_nodes(task.store, lists.nodes)
    found = find_label_set(task.store) if parts else None
    if found is None or not len(found.rows):
        return []
    require_current(task.store, task.artifact)
    titles, rows = [found.classes.title(index) for index in range(len(found.classes))], found.rows

    def values(start: int, stop: int) -> Any:
        texts: list[str | None] = [None] * (stop - start)
        first, last = np.searchsorted(rows, (start, stop)).tolist()
        for row, labels in zip(rows[first:last].tolist(), found.labels[first:last].tolist(), strict=True):
            texts[row - start] = "; ".join(titles[label] for label in labels if label != UNLABELLED)
        return pa.array(texts, pa.string())

    return [_Column("label", pa.string(), values)]


def _predictions(pa: Any, task: Task, lists: UserLists) -> list[_Column]:
    """The best class of each row of the collection and its score, by the first scores of the store that have them."""
    store = task.store
    named = [name for name in store.names() if name.startswith("scores/")]
    scores = next((found for found in map(store.open_artifact, named) if "top_classes" in found), None)
    if scores is None or not parts_of_nodes(store, lists.nodes):
        return []
    if stale_artifacts(store, scores):
        task.notes.append(
            f"{scores.name} is stale, so its predictions are left out. To make it anew, run: {scores.run['command']}"
        )
        return []
    require_current(store, task.artifact)
    classes = Classes.of(scores)
    titles = pa.array([*(classes.title(index) for index in range(len(classes)))], pa.string())
    best, values = labels_of(scores, classes, "top_classes"), scores.array("top_scores")

    def first_of(array: NDArray[Any], start: int, stop: int, none: Any) -> NDArray[Any]:
        """The first column of some rows; seeds and test points come after the collection, and have no predictions."""
        inside = array[start : min(stop, len(array)), 0]
        return np.append(inside, np.full(stop - start - len(inside), none, array.dtype))

    def predicted(start: int, stop: int) -> Any:
        found = first_of(best, start, stop, UNLABELLED)
        return titles.take(pa.array(found, mask=found == UNLABELLED))

    def score(start: int, stop: int) -> Any:
        return pa.array(first_of(values, start, stop, 0), mask=first_of(best, start, stop, UNLABELLED) == UNLABELLED)

    return [_Column("predicted", pa.string(), predicted), _Column("score", pa.float32(), score)]


def _projection(pa: Any, task: Task, lists: UserLists) -> list[_Column]:
    given = task.projection
    if given is None:
        return []
    source: Source = open_source([str(given)]) if isinstance(given, (str, Path)) else source_of(given)
    what = Parameter("projection")
    if (source.rows, source.width) != (lists.rows, 2):
        raise CountMismatch(
            what,
            f": {source.name} is of shape ({source.rows:,}, {source.width:,}), but {task.artifact.name} has {lists.rows:,} "
            "rows. Give x and y for each, in the order of the rows.",
        )

    def axis(column: int) -> Callable[[int, int], Any]:
        def values(start: int, stop: int) -> Any:
            found = source.read(start, stop)[:, column].astype(np.float64)
            if not np.isfinite(found).all():
                row = start + int(np.argmin(np.isfinite(found)))
                raise BadRow(what, f": {source.locate(row)}: NaN or Inf. Give x and y for each row.")
            return pa.array(found)

        return values

    return [_Column(f"projection_{name}", pa.float64(), axis(column)) for column, name in enumerate("xy")]

"""Descriptors as tables: `.parquet` and `.csv`, written in blocks of rows; and pyarrow, which other tables need as well.

Tables hold the user's ids (else row numbers) and class names (else the user's class numbers), not the indices that are stored.

`.parquet`: columns `id`, `label` (where there are labels) and `embedding`, a row group for each block.
`.csv`: columns `id`, `label` (`label0`, `label1`, ... where rows have several) and `v0`, `v1`, ... for the vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.export.reading import Selection, rows_per_block
from mmdiff.formats.errors import BadOption, Parameter
from mmdiff.formats.extras import load
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.store import Artifact
from mmdiff.labels.classes import UNLABELLED, Classes, labels_of
from mmdiff.labels.ids import ids_of
from mmdiff.runtime.progress import Progress


def arrow(needed_for: str) -> tuple[Any, Any]:
    """The modules pyarrow and pyarrow.parquet."""
    return load("pyarrow", needed_for), load("pyarrow.parquet", needed_for)


def strings_column(pa: Any, values: Strings) -> Any:
    """Strings as an arrow column over the same bytes."""
    offsets = pa.py_buffer(values.offsets.astype(np.int32))
    return pa.StringArray.from_buffers(len(values), offsets, pa.py_buffer(values.utf8))


MATRICES = ("vectors", "raw")


@dataclass(frozen=True)
class Block:
    """Some rows. `labels` are indices into the classes, -1 for none, `labels_per_row` in each row."""

    ids: NDArray[np.int64] | Strings
    labels: NDArray[np.int32] | None
    vectors: NDArray[Any]


class Table:
    """The rows of descriptors; `matrix` names the array of their vectors, `vectors` or `raw`."""

    def __init__(self, artifact: Artifact, matrix: str) -> None:
        if matrix not in MATRICES:
            present = " or ".join(name for name in MATRICES if name in artifact)
            raise BadOption(
                Parameter("array", matrix),
                ": a table holds ids, labels and one array of vectors. Choose the vectors with ",
                Parameter("array"),
                f": {present}. Or export {matrix} to a .npy file.",
            )
        self.rows, self.width = artifact.spec(matrix).shape
        self.dtype = np.dtype(artifact.spec(matrix).dtype)
        self.classes = Classes.of(artifact)
        self.string_ids = "ids_offsets" in artifact
        self._row_bytes = artifact.spec(matrix).row_bytes
        self._vectors = artifact[matrix]
        self._labels = labels_of(artifact, self.classes) if "labels" in artifact else None
        self._ids = ids_of(artifact)

    @property
    def labels_per_row(self) -> int:
        """Labels that each row can have; 0 without labels."""
        return 0 if self._labels is None else int(np.prod(self._labels.shape[1:], dtype=int))

    def blocks(self) -> Iterator[Block]:
        size = rows_per_block(self._row_bytes)
        for start in range(0, self.rows, size):
            stop = min(start + size, self.rows)
            labels = None if self._labels is None else self._labels[start:stop].reshape(stop - start, -1)
            ids = self._ids.span(start, stop) if isinstance(self._ids, Strings) else np.asarray(self._ids[start:stop], np.int64)
            yield Block(ids, labels, self._vectors[start:stop])


def write_parquet(selection: Selection, stream: IO[bytes], progress: Progress) -> None:
    """Writes descriptors as a table that pyarrow, pandas, polars or DuckDB open."""
    table = Table(selection.artifact, selection.arrays[0])
    columns = _Columns(table)
    # Embeddings neither repeat nor compress; trying takes time.
    plain = {"compression": "none", "use_dictionary": ["label", "label.list.element"], "write_statistics": ["id", "label"]}
    with (
        progress(f"exporting {selection.artifact.name}", table.rows, "rows") as advance,
        columns.parquet.ParquetWriter(stream, columns.schema(), **plain) as writer,
    ):
        for block in table.blocks():
            writer.write_table(columns.of(block), row_group_size=len(block.vectors))
            advance(len(block.vectors))


class _Columns:
    """Blocks of a table as arrow columns."""

    def __init__(self, table: Table) -> None:
        self.pa, self.parquet = arrow("writing .parquet")
        self.table = table

    @cached_property
    def titles(self) -> Any:
        """The name of each class, else its number."""
        classes = self.table.classes
        return self.pa.array(classes.numbers if classes.names is None else classes.names, self._title_type())

    def schema(self) -> Any:
        pa, table = self.pa, self.table
        fields = [("id", pa.string() if table.string_ids else pa.int64())]
        if table.labels_per_row:
            fields.append(("label", self._title_type() if table.labels_per_row == 1 else pa.list_(self._title_type())))
        fields.append(("embedding", pa.list_(pa.from_numpy_dtype(table.dtype), table.width)))
        return pa.schema(fields)

    def of(self, block: Block) -> Any:
        columns = [strings_column(self.pa, block.ids) if isinstance(block.ids, Strings) else self.pa.array(block.ids)]
        if block.labels is not None:
            columns.append(self._labels(block.labels))
        columns.append(self.pa.FixedSizeListArray.from_arrays(self.pa.array(block.vectors.reshape(-1)), self.table.width))
        return self.pa.Table.from_arrays(columns, schema=self.schema())

    def _title_type(self) -> Any:
        return self.pa.int64() if self.table.classes.names is None else self.pa.string()

    def _labels(self, labels: NDArray[np.int32]) -> Any:
        given = labels != UNLABELLED
        if self.table.labels_per_row == 1:
            return self.titles.take(self.pa.array(labels[:, 0], mask=~given[:, 0]))
        offsets = np.zeros(len(labels) + 1, np.int32)
        np.cumsum(given.sum(axis=1), out=offsets[1:])
        nowhere = self.pa.array(~given.any(axis=1))
        return self.pa.ListArray.from_arrays(offsets, self.titles.take(self.pa.array(labels[given])), mask=nowhere)


# Digits that reading back to the same value takes.
_NUMBERS = {"float32": "%.9g", "float16": "%.5g", "uint8": "%d", "int8": "%d"}

# Lines of text made at a time: text is many times the size of the values.
_LINES = 1024


def write_csv(selection: Selection, stream: IO[bytes], progress: Progress) -> None:
    """Writes descriptors as text."""
    table = Table(selection.artifact, selection.arrays[0])
    titles = {index: cell(table.classes.title(index)) for index in range(len(table.classes))} | {UNLABELLED: ""}
    numbers = ",".join([_NUMBERS[table.dtype.name]] * table.width)
    stream.write((",".join(_header(table)) + "\n").encode())
    with progress(f"exporting {selection.artifact.name}", table.rows, "rows") as advance:
        for block in table.blocks():
            for start in range(0, len(block.vectors), _LINES):
                lines = list(_lines(block, start, titles, numbers))
                stream.write("".join(lines).encode())
                advance(len(lines))


def cell(text: str) -> str:
    """A value of a CSV file, quoted where necessary."""
    if any(special in text for special in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


def _header(table: Table) -> list[str]:
    several = table.labels_per_row > 1
    labels = [f"label{i}" if several else "label" for i in range(table.labels_per_row)]
    return ["id", *labels, *(f"v{i}" for i in range(table.width))]


def _lines(block: Block, start: int, titles: dict[int, str], numbers: str) -> Iterator[str]:
    vectors = block.vectors[start : start + _LINES].tolist()
    labels = (np.empty((len(vectors), 0), int) if block.labels is None else block.labels[start : start + _LINES]).tolist()
    for row, (vector, classes) in enumerate(zip(vectors, labels, strict=True), start):
        yield ",".join([cell(str(block.ids[row])), *(titles[index] for index in classes), numbers % tuple(vector)]) + "\n"

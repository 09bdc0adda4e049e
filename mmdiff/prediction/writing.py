"""Predictions as CSV, JSON lines, Parquet or an Arrow table: the same columns everywhere, written block by block.

| column | Arrow type | content |
|---|---|---|
| `id` | string or int64 | the user's id, else the row number |
| `label` | string or int64 | the class, by name where classes have names, else by number; null for none |
| `confidence` | float32 | the probability that `label` is right |
| `margin` | float32 | first share minus second |
| `second` | as `label` | the second class; null for none |
| `second_confidence` | float32 | the probability that `second` is right |
| `iteration` | int32 | the iteration of the diffusion; null for other methods and for given labels |
| `source` | string | `given` or `predicted` |

In CSV null is an empty field. Numbers are written with as many digits as reading them back takes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mmdiff.export.columns import ending_of
from mmdiff.export.tables import arrow, cell, strings_column
from mmdiff.formats.storage.strings import Strings
from mmdiff.labels.classes import UNLABELLED, Classes
from mmdiff.prediction.rows import Block

COLUMNS = ("id", "label", "confidence", "margin", "second", "second_confidence", "iteration", "source")

# Lines of text made at a time: text is many times the size of the values.
_LINES = 1 << 13


class Form(NamedTuple):
    """The class table of predictions, the iteration that they come from, and whether ids are strings."""

    classes: Classes
    iteration: int | None
    string_ids: bool


class Writer(Protocol):
    """Writes blocks to a stream; closed by leaving its context."""

    def write(self, block: Block) -> None: ...
    def __enter__(self) -> Writer: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


class _Text:
    """Lines of text, one for each row; `line` makes one of the texts of its values."""

    def __init__(self, stream: IO[bytes], form: Form, line: _Line) -> None:
        self._stream, self._line, self._iteration = stream, line, form.iteration
        titles = [line.title(form.classes, index) for index in range(len(form.classes))]
        # The entry appended to the titles is the one that index -1, no label, finds.
        self._titles = np.array([*titles, line.null], object)
        stream.write(line.header.encode())

    def __enter__(self) -> _Text:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Text needs no end."""

    def write(self, block: Block) -> None:
        for start in range(0, len(block), _LINES):
            self._stream.write("".join(self._lines(block, slice(start, min(start + _LINES, len(block))))).encode())

    def _lines(self, block: Block, rows: slice) -> Iterable[str]:
        line = self._line
        ids = block.ids.span(rows.start, rows.stop) if isinstance(block.ids, Strings) else block.ids[rows].tolist()
        given = block.given[rows]
        iteration = line.null if self._iteration is None else str(self._iteration)
        columns = (
            map(line.text if isinstance(ids, Strings) else str, ids),
            self._titles[block.label[rows]],
            shortest(block.confidence[rows]),
            shortest(block.margin[rows]),
            self._titles[block.second[rows]],
            shortest(block.second_confidence[rows]),
            np.where(given, line.null, iteration),
            np.where(given, line.text("given"), line.text("predicted")),
        )
        return map(line.join, zip(*columns, strict=True))


class _Line:
    """A line of CSV."""

    header = ",".join(COLUMNS) + "\n"
    null = ""

    def text(self, value: str) -> str:
        return cell(value)

    def title(self, classes: Classes, index: int) -> str:
        return self.text(classes.title(index)) if classes.names is not None else classes.title(index)

    def join(self, values: tuple[str, ...]) -> str:
        return ",".join(values) + "\n"


class _JsonLine(_Line):
    """An object of JSON in a line."""

    header = ""
    null = "null"
    _form = "{" + ", ".join(f'"{column}": %s' for column in COLUMNS) + "}\n"

    def text(self, value: str) -> str:
        return json.dumps(value, ensure_ascii=False)

    def join(self, values: tuple[str, ...]) -> str:
        return self._form % values


def shortest(values: NDArray[np.float32]) -> NDArray[np.str_]:
    """The shortest texts that are read back as the same float32."""
    distinct, place = np.unique(values, return_inverse=True)
    return distinct.astype(np.str_)[place]


class ArrowBlocks:
    """Blocks as Arrow record batches of one schema."""

    def __init__(self, form: Form, needed_for: str) -> None:
        self._pa, self.parquet = arrow(needed_for)
        pa, classes = self._pa, form.classes
        self._iteration = form.iteration
        title = pa.int64() if classes.names is None else pa.string()
        types = (
            pa.string() if form.string_ids else pa.int64(),
            *(title, pa.float32(), pa.float32(), title, pa.float32(), pa.int32(), pa.string()),
        )
        self.schema = pa.schema(list(zip(COLUMNS, types, strict=True)))
        self._titles = pa.array(classes.numbers if classes.names is None else classes.names, title)
        self._sources = pa.array(["predicted", "given"])

    def of(self, block: Block) -> Any:
        pa = self._pa
        iteration = np.full(len(block), -1 if self._iteration is None else self._iteration, np.int32)
        columns = (
            strings_column(pa, block.ids) if isinstance(block.ids, Strings) else pa.array(block.ids),
            self._titles.take(pa.array(block.label, mask=block.label == UNLABELLED)),
            pa.array(block.confidence),
            pa.array(block.margin),
            self._titles.take(pa.array(block.second, mask=block.second == UNLABELLED)),
            pa.array(block.second_confidence),
            pa.array(iteration, mask=block.given | (self._iteration is None)),
            self._sources.take(pa.array(block.given.astype(np.int8))),
        )
        return pa.RecordBatch.from_arrays(list(columns), schema=self.schema)

    def table(self, blocks: Iterable[Block]) -> Any:
        return self._pa.Table.from_batches(map(self.of, blocks), schema=self.schema)


class _Parquet:
    """A Parquet file with a row group for each block."""

    def __init__(self, stream: IO[bytes], blocks: ArrowBlocks) -> None:
        self._blocks, self._writer = blocks, blocks.parquet.ParquetWriter(stream, blocks.schema)

    def __enter__(self) -> _Parquet:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._writer.close()

    def write(self, block: Block) -> None:
        self._writer.write_batch(self._blocks.of(block), row_group_size=len(block))


Opening = Callable[[IO[bytes], Form], Writer]
"""Begins a file."""


def _csv(stream: IO[bytes], form: Form) -> Writer:
    return _Text(stream, form, _Line())


def _jsonl(stream: IO[bytes], form: Form) -> Writer:
    return _Text(stream, form, _JsonLine())


def _parquet(stream: IO[bytes], form: Form) -> Writer:
    return _Parquet(stream, ArrowBlocks(form, "writing .parquet"))


WRITERS: dict[str, Opening] = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}


def writer_of(file: Path) -> Opening:
    """The writer for the ending of a file; Parquet without pyarrow is refused before anything is computed."""
    return WRITERS[ending_of(file, "predictions")]

"""Columns of Arrow IPC files (`.arrow`, `.feather`), decoded one record batch at a time, and embeddings in their list columns.

Of a batch only the buffers of the wanted column are read. Arrow trusts what it decodes, so every array is validated in full
before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.extras import load
from mmdiff.formats.sources.arrow_messages import Batch, Message, Stream, extract, read_schema_message, scan
from mmdiff.formats.sources.base import Matrix, Rows
from mmdiff.formats.sources.limits import most_bytes, readable
from mmdiff.formats.sources.parquet import RowGroupCache, choose_lists, dtype_of_lists, matrix_of_lists
from mmdiff.formats.sources.rawfile import RawFile

ENDINGS = (".arrow", ".feather")

# Uncompressed size of a buffer, in front of a compressed one; -1 where it is stored as it is.
_SIZE_BYTES = 8


class ArrowFile:
    """The columns of an Arrow IPC file or stream."""

    def __init__(self, path: Path) -> None:
        self._pyarrow = load("pyarrow", f"reading {path}")
        self._ipc = load("pyarrow.ipc", f"reading {path}")
        self.path, self.file = path, RawFile(path)
        schema = read_schema_message(self.file)
        self._schema_bytes = np.empty(schema.size, np.uint8)
        self.file.read_into(self._schema_bytes, schema.start)
        with readable(str(path), "Arrow IPC"):
            self.schema = self._ipc.read_schema(self._pyarrow.py_buffer(self._schema_bytes))
            # Names are decoded when they are asked for, and may not be UTF-8.
            self.names: list[str] = self.schema.names

    @cached_property
    def stream(self) -> Stream:
        """The places of all messages."""
        return scan(self.file)

    @property
    def rows(self) -> int:
        return sum(batch.rows for batch in self.stream.batches)

    def decode(self, column: str, batch: Batch) -> Any:
        """One column of a batch as an arrow array, validated in full."""
        index = self.names.index(column)
        with readable(f"{self.path}::{column}", "Arrow IPC"):
            content = self._content(self.stream.dictionaries_of(batch), batch.message, self._buffers_of(index))
            options = self._ipc.IpcReadOptions(included_fields=[index], use_threads=False)
            with self._ipc.open_stream(self._pyarrow.py_buffer(content), options=options) as opened:
                decoded = opened.read_next_batch()
            decoded.validate(full=True)
            if decoded.num_rows != batch.rows:
                raise ValueError(f"a batch of {decoded.num_rows:,} rows, where its metadata say {batch.rows:,}")
            return decoded.column(0)

    def _content(self, dictionaries: list[Message], batch: Message, wanted: slice) -> NDArray[np.uint8]:
        """A stream of one batch with the wanted buffers. Refuses compressed buffers that expand too much."""
        with self.file.reading() as read:
            extracts = [extract(read, dictionary, slice(None)) for dictionary in dictionaries]
            extracts.append(extract(read, batch, wanted))
            at = len(self._schema_bytes)
            content = np.zeros(at + sum(len(each.head) + each.body for each in extracts), np.uint8)
            content[:at] = self._schema_bytes
            for each in extracts:
                content[at : at + len(each.head)] = np.frombuffer(each.head, np.uint8)
                at += len(each.head)
                expanded = 0
                for position, size, place in each.buffers:
                    buffer = content[at + place : at + place + size]
                    read(buffer, position)
                    if each.compressed and size >= _SIZE_BYTES:
                        expanded += max(0, int.from_bytes(buffer[:_SIZE_BYTES].tobytes(), "little", signed=True))
                if expanded > most_bytes(each.stored):
                    raise ValueError(f"{each.stored:,} bytes that expand to {expanded:,}")
                at += each.body
        return content

    def _buffers_of(self, index: int) -> slice:
        """The buffers of a column among those of a batch; all of them where a column before it has a number of its own."""
        counts = [_buffer_count(self._pyarrow.types, field.type) for field in self.schema][: index + 1]
        known = [count for count in counts if count is not None]
        return slice(sum(known[:-1]), sum(known)) if len(known) == len(counts) else slice(None)


def _buffer_count(types: Any, kind: Any) -> int | None:
    """The number of buffers that a column of this type has in a batch; None for types that are not known here."""
    kind = getattr(kind, "storage_type", kind)
    if types.is_null(kind):
        return 0
    if types.is_dictionary(kind) or types.is_primitive(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind):
        return 2
    if any(test(kind) for test in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)):
        return 3
    if types.is_fixed_size_list(kind):
        own, inner = 1, [kind.value_type]
    elif types.is_list(kind) or types.is_large_list(kind):
        own, inner = 2, [kind.value_type]
    elif types.is_map(kind):
        # A list of pairs.
        own, inner = 3, [kind.key_type, kind.item_type]
    elif types.is_struct(kind):
        own, inner = 1, [kind.field(i).type for i in range(kind.num_fields)]
    else:
        return None
    counts = [_buffer_count(types, each) for each in inner]
    return None if None in counts else own + sum(count for count in counts if count is not None)


class ArrowSource(Matrix):
    """A column of lists: the one that `inner` names, or the only one of readable values."""

    def __init__(self, file: ArrowFile, inner: str | None = None, cache: RowGroupCache | None = None) -> None:
        self._file, path = file, file.path
        self._cache = cache or RowGroupCache()
        schema = file.schema
        self.column = choose_lists(str(path), schema, inner)
        name = f"{path}::{self.column}"
        dtype = dtype_of_lists(name, schema.field(self.column).type)
        self._batches = [batch for batch in self._file.stream.batches if batch.rows]
        self._starts = np.concatenate([[0], np.cumsum([batch.rows for batch in self._batches], dtype=np.int64)])
        width = 0
        if self._batches:
            first = self._file.decode(self.column, self._batches[0]).slice(0, 1)
            width = matrix_of_lists(name, first, 0, None, dtype).shape[1]
        super().__init__(name, (int(self._starts[-1]), width), dtype, (path,))
        for number, batch in enumerate(self._batches):
            needed = batch.rows * self.width * self.dtype.itemsize
            if needed > most_bytes(batch.message.body):
                raise UnreadableSource(
                    f"{name}: record batch {number} takes {needed:,} bytes of memory, but has {batch.message.body:,} in the "
                    "file. Write it again in smaller batches."
                )

    def _read(self, start: int, stop: int) -> Rows:
        rows = np.empty((stop - start, self.width), self.dtype)
        for number, first, low, high in self._spans(start, stop):
            rows[low - start : high - start] = self._decoded(number)[low - first : high - first]
        return rows

    def _spans(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """The batches of a range of rows: number, first row of the batch, and the rows of the range in it."""
        while start < stop:
            number = int(np.searchsorted(self._starts, start, side="right")) - 1
            end = min(stop, int(self._starts[number + 1]))
            yield number, int(self._starts[number]), start, end
            start = end

    def _decoded(self, number: int) -> Rows:
        batch, first = self._batches[number], int(self._starts[number])

        def decode() -> Rows:
            return matrix_of_lists(self.name, self._file.decode(self.column, batch), first, self.width, self.dtype)

        size = batch.rows * self.width * self.dtype.itemsize
        return self._cache.get((self._file.path, self.column, number), size, decode)

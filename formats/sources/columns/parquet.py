"""Labels or ids from a Parquet column: integers, strings, dictionaries, or lists of them for several labels per row.

Values are converted as whole arrow buffers: a Python loop over 10^8 ids would take minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import CountMismatch, UnreadableSource
from mmdiff.formats.extras import load
from mmdiff.formats.sources.base import Column
from mmdiff.formats.sources.columns.integers import int64_or_strings, integers_or_strings, whole_numbers
from mmdiff.formats.sources.limits import most_bytes
from mmdiff.formats.sources.parquet import open_parquet
from mmdiff.formats.sources.parquet_footer import ColumnSize, column_sizes
from mmdiff.formats.sources.rawfile import RawFile
from mmdiff.formats.sources.spec import choose_column
from mmdiff.formats.storage.strings import Strings

# Bytes of memory for each row, beside `most_bytes`: a constant column of any number of rows takes few bytes in a file.
_ROW_BYTES = 512

# Rows that are decoded at a time. A dictionary can hold a long text once for millions of rows, so few of them are decoded where
# the column has room for long ones.
_BATCH_ROWS = 1 << 16
_LEAST_BATCH_ROWS = 256
_BATCH_BYTES = 256 << 20


def read_parquet_column(path: Path, inner: str | None = None, rows: int | None = None) -> Column:
    """The column `inner`; by default the only one, or the only one named label, labels, class or id.

    A column of another number of rows than `rows` is refused before it is decoded.
    """
    file = RawFile(path)
    with open_parquet(file) as opened:
        column = choose_column(str(path), inner, opened.schema_arrow.names)
        name = f"{path}::{column}"
        sizes = column_sizes(name, file, column)
        found = opened.metadata.num_rows
        if rows is not None and found != rows:
            raise CountMismatch(f"{name}: {found:,} values for {rows:,} rows. Give one for each row, null where there is none.")
        needed = max(8 * sum(size.values for size in sizes), max((size.encoded for size in sizes), default=0))
        _refuse_more(name, needed, file.size, found)
        return _Reader(name, file.size).column(_decoded(name, opened, column, sizes, file.size))


def _decoded(name: str, opened: Any, column: str, sizes: Sequence[ColumnSize], stored: int) -> Any:
    """The column as an arrow array, decoded in batches until it takes too much memory."""
    pyarrow = load("pyarrow", f"reading {name}")
    longest = max((size.encoded for size in sizes), default=0)
    batch_rows = min(_BATCH_ROWS, max(_LEAST_BATCH_ROWS, _BATCH_BYTES // max(1, longest)))
    batches, rows, needed = [], 0, 0
    for batch in opened.iter_batches(batch_size=batch_rows, columns=[column]):
        # Arrow does not look whether texts are UTF-8 unless it is asked to.
        batch.validate(full=True)
        batches.append(batch.column(0))
        rows += len(batch)
        needed += batch.nbytes
        _refuse_more(name, needed, stored, rows)
    return pyarrow.chunked_array(batches, opened.schema_arrow.field(column).type)


def _refuse_more(name: str, needed: int, stored: int, rows: int) -> None:
    if needed > most_bytes(stored) + _ROW_BYTES * rows:
        raise UnreadableSource(
            f"{name}: {rows:,} rows take {needed:,} bytes of memory or more, in a file of {stored:,} bytes. Give shorter "
            "labels or ids, and fewer of them per row."
        )


class _Reader:
    """Conversions of arrow columns, with the modules of pyarrow."""

    def __init__(self, name: str, stored: int) -> None:
        self.name, self.stored = name, stored
        self.pa = load("pyarrow", f"reading {name}")
        self.pc = load("pyarrow.compute", f"reading {name}")

    def column(self, chunked: Any) -> Column:
        if len(chunked) == 0:
            raise UnreadableSource(f"{self.name}: holds no rows. Check how it was written.")
        if not hasattr(chunked.type, "value_field"):
            return Column(self._values(chunked))
        lengths = self.pc.fill_null(self.pc.list_value_length(chunked), 0).to_numpy().astype(np.int64)
        return Column.of_lists(self._values(self.pc.list_flatten(chunked)), lengths, self.name)

    def _values(self, chunked: Any) -> NDArray[np.int64] | Strings:
        types = self.pa.types
        if types.is_dictionary(chunked.type):
            self._refuse_long_texts(chunked)
            chunked = self.pc.cast(chunked, chunked.type.value_type)
        kind = chunked.type
        if types.is_null(kind):
            return np.full(len(chunked), -1, np.int64)
        if types.is_uint64(kind):
            # Unsigned integers have no -1 for none.
            return self._strings(chunked) if chunked.null_count else int64_or_strings(chunked.to_numpy())
        if types.is_integer(kind):
            integers: NDArray[np.int64] = self.pc.fill_null(self.pc.cast(chunked, self.pa.int64()), -1).to_numpy()
            return integers
        if types.is_floating(kind):
            return whole_numbers(self.pc.cast(chunked, self.pa.float64()).to_numpy(), self.name)
        if types.is_string(kind) or types.is_large_string(kind):
            return self._strings(chunked)
        raise UnreadableSource(f"{self.name}: a column of {kind}, expected integers or strings. Name another column.")

    def _refuse_long_texts(self, chunked: Any) -> None:
        """Refuses a dictionary whose texts would take too much memory when they are repeated for each row."""
        kind = chunked.type.value_type
        if not (self.pa.types.is_string(kind) or self.pa.types.is_large_string(kind)):
            return
        needed = 0
        for chunk in chunked.chunks:
            lengths = self.pc.take(self.pc.binary_length(chunk.dictionary), chunk.indices)
            needed += self.pc.sum(lengths).as_py() or 0
        _refuse_more(self.name, needed, self.stored, len(chunked))

    def _strings(self, chunked: Any) -> NDArray[np.int64] | Strings:
        # 32-bit offsets overflow when the chunks are joined, so they are widened first.
        texts = self.pc.fill_null(self.pc.cast(chunked, self.pa.large_string()), "")
        joined = texts.combine_chunks()
        _, offset_buffer, byte_buffer = joined.buffers()
        offsets = np.frombuffer(offset_buffer, np.int64)[joined.offset : joined.offset + len(joined) + 1]
        utf8 = np.frombuffer(byte_buffer, np.uint8)[offsets[0] : offsets[-1]]
        return integers_or_strings(Strings(offsets - offsets[0], utf8))

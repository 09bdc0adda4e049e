"""Values of arrow columns as labels or ids: integers, strings, dictionaries, or lists of them for several labels per row.

Values are converted as whole arrow buffers: a Python loop over 10^8 ids would take minutes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.extras import load
from mmdiff.formats.sources.base import Column
from mmdiff.formats.sources.columns.integers import int64_or_strings, integers_or_strings, whole_numbers
from mmdiff.formats.sources.limits import most_bytes
from mmdiff.formats.storage.strings import Strings

# Bytes of memory for each row, beside `most_bytes`: a constant column of any number of rows takes few bytes in a file.
ROW_BYTES = 512


def refuse_more(name: str, needed: int, stored: int, rows: int) -> None:
    """Refuses columns that take more memory than a file of `stored` bytes may ask for."""
    if needed > most_bytes(stored) + ROW_BYTES * rows:
        raise UnreadableSource(
            f"{name}: {rows:,} rows take {needed:,} bytes of memory or more, in a file of {stored:,} bytes. Give shorter "
            "labels or ids, and fewer of them per row."
        )


class ArrowColumns:
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
        chunked = self.without_dictionary(chunked)
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
        if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
            return self._strings(chunked)
        raise UnreadableSource(f"{self.name}: a column of {kind}, expected integers or strings. Name another column.")

    def without_dictionary(self, array: Any) -> Any:
        """An array or chunked array with the values that a dictionary has for its numbers; others as they are."""
        if not self.pa.types.is_dictionary(array.type):
            return array
        self._refuse_long_texts(array)
        return self.pc.cast(array, array.type.value_type)

    def _refuse_long_texts(self, array: Any) -> None:
        """Refuses a dictionary whose texts would take too much memory when they are repeated for each row."""
        kind = array.type.value_type
        if not (self.pa.types.is_string(kind) or self.pa.types.is_large_string(kind)):
            return
        needed = 0
        for chunk in getattr(array, "chunks", [array]):
            lengths = self.pc.take(self.pc.binary_length(chunk.dictionary), chunk.indices)
            needed += self.pc.sum(lengths).as_py() or 0
        refuse_more(self.name, needed, self.stored, len(array))

    def _strings(self, chunked: Any) -> NDArray[np.int64] | Strings:
        # 32-bit offsets overflow when the chunks are joined, so they are widened first.
        texts = self.pc.fill_null(self.pc.cast(chunked, self.pa.large_string()), "")
        joined = texts.combine_chunks()
        _, offset_buffer, byte_buffer = joined.buffers()
        offsets = np.frombuffer(offset_buffer, np.int64)[joined.offset : joined.offset + len(joined) + 1]
        utf8 = np.frombuffer(byte_buffer, np.uint8)[offsets[0] : offsets[-1]]
        return integers_or_strings(Strings(offsets - offsets[0], utf8))

"""Labels or ids from a Parquet column: integers, strings, dictionaries, or lists of them for several labels per row.

Values are converted as whole arrow buffers: a Python loop over 10^8 ids would take minutes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.extras import load
from mmdiff.formats.sources.base import Column
from mmdiff.formats.sources.columns.integers import int64_or_strings, integers_or_strings, whole_numbers
from mmdiff.formats.sources.parquet import open_parquet
from mmdiff.formats.sources.rawfile import RawFile
from mmdiff.formats.sources.spec import choose_column
from mmdiff.formats.storage.strings import Strings


def read_parquet_column(path: Path, inner: str | None = None) -> Column:
    """The column `inner`; by default the only one, or the only one named label, labels, class or id."""
    with open_parquet(RawFile(path)) as opened:
        column = choose_column(str(path), inner, opened.schema_arrow.names)
        chunked = opened.read(columns=[column]).column(0)
        return _Reader(f"{path}::{column}").column(chunked)


class _Reader:
    """Conversions of arrow columns, with the modules of pyarrow."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pa = load("pyarrow", f"reading {name}")
        self.pc = load("pyarrow.compute", f"reading {name}")

    def column(self, chunked: Any) -> Column:
        if len(chunked) == 0:
            raise UnreadableSource(f"{self.name}: holds no rows. Check how it was written.")
        if not hasattr(chunked.type, "value_field"):
            return Column(self._values(chunked))
        lengths = self.pc.fill_null(self.pc.list_value_length(chunked), 0).to_numpy().astype(np.int64)
        return Column.of_lists(self._values(self.pc.list_flatten(chunked)), lengths)

    def _values(self, chunked: Any) -> NDArray[np.int64] | Strings:
        types = self.pa.types
        if types.is_dictionary(chunked.type):
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

    def _strings(self, chunked: Any) -> NDArray[np.int64] | Strings:
        # 32-bit offsets overflow when the chunks are joined, so they are widened first.
        texts = self.pc.fill_null(self.pc.cast(chunked, self.pa.large_string()), "")
        joined = texts.combine_chunks()
        _, offset_buffer, byte_buffer = joined.buffers()
        offsets = np.frombuffer(offset_buffer, np.int64)[joined.offset : joined.offset + len(joined) + 1]
        utf8 = np.frombuffer(byte_buffer, np.uint8)[offsets[0] : offsets[-1]]
        return integers_or_strings(Strings(offsets - offsets[0], utf8))

"""Columns of strings as two flat arrays, offsets and UTF-8 bytes: mappable, and readable without mmdiff."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import Corrupt, call

# Strings that are copied at a time: their positions take eight bytes for each byte of text.
_BLOCK = 1 << 16


@dataclass(frozen=True)
class Strings:
    """`offsets` has one entry more than there are strings; string i is utf8[offsets[i]:offsets[i + 1]]."""

    offsets: NDArray[np.int64]
    utf8: NDArray[np.uint8]

    @classmethod
    def of(cls, values: Iterable[str]) -> Strings:
        encoded = [value.encode() for value in values]
        offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(value) for value in encoded], out=offsets[1:])
        return cls(offsets, np.frombuffer(b"".join(encoded), np.uint8))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> str:
        if not 0 <= i < len(self):
            raise IndexError(i)
        text = self.utf8[self.offsets[i] : self.offsets[i + 1]].tobytes()
        try:
            return text.decode()
        except UnicodeDecodeError:
            raise Corrupt(f"string {i} is not UTF-8 ({text[:40]!r}). Find the damage with ", call("verify"), ".") from None

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def span(self, start: int, stop: int) -> Strings:
        """Strings start..stop-1, as a view."""
        offsets = self.offsets[start : stop + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        return Strings(offsets - first, self.utf8[first:last])

    def take(self, rows: NDArray[np.int64]) -> Strings:
        """The strings of the given rows, in that order."""
        lengths = self.offsets[rows + 1] - self.offsets[rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        utf8 = np.empty(offsets[-1], np.uint8)
        for start in range(0, len(rows), _BLOCK):
            block = slice(start, min(start + _BLOCK, len(rows)))
            low, high = offsets[block.start], offsets[block.stop]
            shift = np.repeat(self.offsets[rows[block]] - offsets[block], lengths[block])
            utf8[low:high] = self.utf8[shift + np.arange(low, high)]
        return Strings(offsets, utf8)

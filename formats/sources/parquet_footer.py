"""Sizes of the columns of a Parquet file, read from its footer (Thrift, compact protocol).

They tell what a column takes in memory before it is decoded. pyarrow gives the same figures, but ends the process where the
metadata of a column contradict themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.sources.rawfile import RawFile

_TRAILER = 8
_MOST_LEVELS = 32

# Types of the protocol that stand for a value by themselves.
_TRUE, _FALSE = 1, 2


@dataclass(frozen=True)
class ColumnSize:
    """The size of a column in one row group: bytes in the file, and bytes once decompressed but still encoded."""

    rows: int
    values: int
    stored: int
    encoded: int


def column_sizes(name: str, file: RawFile, column: str) -> list[ColumnSize]:
    """The sizes of a column in all row groups; UnreadableSource where they contradict each other."""
    try:
        footer = _footer(file)
        sizes = [_column_size(group, column.encode()) for group in footer.get(4, [])]
        rows = footer[3]
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise UnreadableSource(f"{name}: a damaged footer. Copy or write it again.") from error
    negative = any(min(size.rows, size.values, size.stored, size.encoded) < 0 for size in sizes)
    if negative or sum(size.rows for size in sizes) != rows:
        raise UnreadableSource(f"{name}: sizes in the footer that contradict each other. Copy or write it again.")
    return sizes


def _column_size(group: dict[int, Any], column: bytes) -> ColumnSize:
    leaves = [chunk[3] for chunk in group[1] if chunk[3][3][0] == column]
    return ColumnSize(
        group[3],
        sum(leaf[5] for leaf in leaves),
        sum(leaf[7] for leaf in leaves),
        sum(leaf[6] for leaf in leaves),
    )


def _footer(file: RawFile) -> dict[int, Any]:
    trailer = np.empty(_TRAILER, np.uint8)
    if file.size < _TRAILER:
        raise ValueError("no trailer")
    file.read_into(trailer, file.size - _TRAILER)
    length = int.from_bytes(trailer[:4].tobytes(), "little")
    if length > file.size - _TRAILER:
        raise ValueError("a footer longer than the file")
    content = np.empty(length, np.uint8)
    file.read_into(content, file.size - _TRAILER - length)
    return _Compact(content.tobytes()).struct(0)


class _Compact:
    """A reader of the compact protocol. A struct becomes a dict by the numbers of its fields."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def struct(self, level: int) -> dict[int, Any]:
        found: dict[int, Any] = {}
        number = 0
        while header := self._byte():
            kind = header & 15
            number = number + (header >> 4) if header >> 4 else self._integer()
            found[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, level + 1)
        return found

    def _value(self, kind: int, level: int) -> Any:
        if level > _MOST_LEVELS:
            raise ValueError("nested too deeply")
        match kind:
            case 1 | 2 | 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._integer()
            case 7:
                return self._bytes(8)
            case 8:
                return self._bytes(self._varint())
            case 9 | 10:
                header = self._byte()
                size = header >> 4 if header >> 4 < 15 else self._varint()
                return [self._value(header & 15, level + 1) for _ in range(size)]
            case 11:
                size = self._varint()
                kinds = self._byte() if size else 0
                return [(self._value(kinds >> 4, level + 1), self._value(kinds & 15, level + 1)) for _ in range(size)]
            case 12:
                return self.struct(level)
        raise ValueError(f"no type {kind}")

    def _byte(self) -> int:
        self._at += 1
        return self._content[self._at - 1]

    def _bytes(self, size: int) -> bytes:
        self._at += size
        if self._at > len(self._content):
            raise ValueError("a text beyond the end")
        return self._content[self._at - size : self._at]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError("an endless number")

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

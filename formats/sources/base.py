"""The interface of sources of embeddings, and the base of their readers: rows by number, from any thread, in bounded memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadLabels, UnreadableSource
from mmdiff.formats.storage.strings import Strings

Rows = NDArray[Any]

# A row is read as a whole. No network makes rows of millions of values.
MOST_WIDTH = 1 << 24

# Cells of a table with several labels per row: any table may have so many, and else so many for each row and each label.
_FREE_CELLS = 1 << 24
_CELLS_PER_LABEL = 16

READABLE_DTYPES = tuple(np.dtype(name) for name in ("float16", "float32", "float64", "uint8", "int8"))


@dataclass(frozen=True)
class Column:
    """Labels or ids as read: integers or strings, `per_row` of them for each row (row-major, padded with -1 or "").

    In a column of integers -1 stands for "none", in a column of strings the empty string does.
    """

    values: NDArray[np.int64] | Strings
    per_row: int = 1

    @classmethod
    def of_lists(cls, values: NDArray[np.int64] | Strings, lengths: NDArray[np.int64], name: str) -> Column:
        """Lists of the given lengths, one after the other in `values`, padded to the longest; `name` is used in messages.

        Refuses lists of which one is so long that nearly all of the table would be padding.
        """
        per_row = max(1, int(lengths.max()))
        most = most_per_row(len(lengths), len(values))
        if per_row > most:
            raise BadLabels(
                f"{name}, row {int(lengths.argmax())}: {per_row:,} labels. {len(lengths):,} rows with {len(values):,} labels "
                f"in all may have at most {most:,} in one row. Keep the most important labels of such rows."
            )
        return cls(_padded(values, np.arange(per_row) < lengths[:, None]), per_row)

    def widened(self, per_row: int) -> Column:
        """The same rows with room for `per_row` values, of which the last are none."""
        filled = np.broadcast_to(np.arange(per_row) < self.per_row, (len(self), per_row))
        return Column(_padded(self.values, filled), per_row)

    def __len__(self) -> int:
        return len(self.values) // self.per_row


def most_per_row(rows: int, values: int) -> int:
    """The most labels that one of the rows may have, since all rows are padded to as many."""
    return max(_FREE_CELLS, _CELLS_PER_LABEL * (rows + values)) // rows


def _padded(values: NDArray[np.int64] | Strings, filled: NDArray[np.bool_]) -> NDArray[np.int64] | Strings:
    """A table of -1 or "" with the values, in their order, where it is `filled`."""
    if isinstance(values, Strings):
        # Empty strings take no bytes, so padding only repeats offsets.
        sizes = np.zeros(filled.shape, np.int64)
        sizes[filled] = np.diff(values.offsets)
        offsets = np.zeros(sizes.size + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        return Strings(offsets, values.utf8)
    padded = np.full(filled.shape, -1, np.int64)
    padded[filled] = values
    return padded.reshape(-1)


class Source(Protocol):
    """A matrix of embeddings: a file, several files, or an array in memory."""

    @property
    def name(self) -> str:
        """The name that the user gave: `vectors.npy`, `data.h5::embeddings`; "array" in memory."""

    @property
    def rows(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the rows that `read` returns, in native byte order; one of READABLE_DTYPES."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that is read, in order; none for an array in memory."""

    def read(self, start: int, stop: int) -> Rows:
        """Rows start..stop-1 as a new C-contiguous array. May be called from several threads at once."""

    def locate(self, row: int) -> str:
        """The place of a row in the user's words: `part_2.npy, row 17`."""

    def ids(self) -> Column | None:
        """The ids that come with the file, if any."""


READABLE_NAMES = ", ".join(str(dtype) for dtype in READABLE_DTYPES)


def is_readable(dtype: np.dtype[Any]) -> bool:
    return dtype.newbyteorder("=") in READABLE_DTYPES


class Matrix(ABC):
    """The base of the readers: checks the shape and dtype, and the range of rows. Implements `Source`."""

    def __init__(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], files: tuple[Path, ...]) -> None:
        if len(shape) != 2:
            raise UnreadableSource(
                f"{name}: has {len(shape)} dimension{'' if len(shape) == 1 else 's'} (shape {shape}), expected 2: rows "
                "x width. Give one embedding per row."
            )
        if not is_readable(dtype):
            raise UnreadableSource(
                f"{name}: holds values of type {dtype}, expected one of {READABLE_NAMES}. Convert it to float32."
            )
        self.name = name
        self.rows, self.width = shape
        self.dtype = dtype.newbyteorder("=")
        self._files = files
        if self.rows == 0:
            raise UnreadableSource(f"{name}: holds no rows (shape {shape}). Check how it was made.")
        if self.width > MOST_WIDTH:
            raise UnreadableSource(
                f"{name}: rows of {self.width:,} values, expected at most {MOST_WIDTH:,}. Give one embedding per row."
            )
        if self.width == 0:
            raise UnreadableSource(f"{name}: holds rows of no values (shape {shape}). Check how it was made.")

    @property
    def files(self) -> tuple[Path, ...]:
        return self._files

    def read(self, start: int, stop: int) -> Rows:
        if not 0 <= start <= stop <= self.rows:
            raise IndexError(f"{self.name}: rows {start} to {stop} of {self.rows}")
        return self._read(start, stop)

    @abstractmethod
    def _read(self, start: int, stop: int) -> Rows: ...

    def locate(self, row: int) -> str:
        return f"{self.name}, row {row}"

    def ids(self) -> Column | None:
        return None

    def unreadable(self) -> NDArray[np.int64]:
        """The rows that stand for something that could not be read, and are bad whatever their values; known after reading."""
        return np.empty(0, np.int64)

    def facts(self) -> dict[str, Any]:
        """The origin of the rows, as an artifact made of them records it."""
        return {}


def unreadable_rows(source: Source) -> NDArray[np.int64]:
    """The rows that a source, all of which was read, knows to be bad."""
    return source.unreadable() if isinstance(source, Matrix) else np.empty(0, np.int64)


def facts_of(source: Source) -> dict[str, Any]:
    """The origin of the rows of a source, as an artifact made of them records it."""
    return source.facts() if isinstance(source, Matrix) else {}

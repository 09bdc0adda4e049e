"""What all readers of a matrix share: a name, a shape and dtype that have been judged, a checked range of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.sources.base import READABLE_DTYPES, Column, Rows

READABLE_NAMES = ", ".join(str(dtype) for dtype in READABLE_DTYPES)


def is_readable(dtype: np.dtype[Any]) -> bool:
    return dtype.newbyteorder("=") in READABLE_DTYPES


class Matrix(ABC):
    """The base of the readers; satisfies `Source`."""

    def __init__(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], files: tuple[Path, ...]) -> None:
        if len(shape) != 2:
            raise UnreadableSource(
                f"{name}: has {len(shape)} dimension{'' if len(shape) == 1 else 's'} (shape {shape}), expected 2: rows "
                "x width. Save it with one embedding per row."
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
            raise UnreadableSource(f"{name}: holds no rows (shape {shape}). Check how it was written.")
        if self.width == 0:
            raise UnreadableSource(f"{name}: holds rows of no values (shape {shape}). Check how it was written.")

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

"""`.fbin`, `.u8bin`, `.i8bin`, `.f16bin` of the billion-scale benchmarks: two uint32 (rows, width), then the values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.sources.base import Rows
from mmdiff.formats.sources.matrix import Matrix
from mmdiff.formats.sources.rawfile import RawFile

VALUE_TYPES: dict[str, np.dtype[Any]] = {
    ".fbin": np.dtype("<f4"),
    ".u8bin": np.dtype("u1"),
    ".i8bin": np.dtype("i1"),
    ".f16bin": np.dtype("<f2"),
}

HEADER_SIZE = 8


class BinSource(Matrix):
    """A matrix behind a header of eight bytes."""

    def __init__(self, path: Path) -> None:
        self._file = RawFile(path)
        self._stored = VALUE_TYPES[path.suffix.lower()]
        head = self._file.head(HEADER_SIZE)
        if len(head) < HEADER_SIZE:
            raise UnreadableSource(
                f"{path}: {len(head)} bytes, expected at least {HEADER_SIZE} for the numbers of rows and values. "
                "It is truncated: copy or write it again."
            )
        rows, width = map(int, np.frombuffer(head, "<u4"))
        promise = f"the header promises {rows} x {width} {self._stored}"
        self._file.expect_data(HEADER_SIZE, rows * width * self._stored.itemsize, promise)
        super().__init__(str(path), (rows, width), self._stored, (path,))

    def _read(self, start: int, stop: int) -> Rows:
        values = np.empty((stop - start, self.width), self._stored)
        self._file.read_into(values, HEADER_SIZE + start * self.width * self._stored.itemsize)
        return values.astype(self.dtype, copy=False)

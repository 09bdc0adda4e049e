"""Binary formats of nearest-neighbour benchmarks.

`.fvecs`, `.bvecs` and `.ivecs` (SIFT, Deep): each row is preceded by its width, an int32.
`.fbin`, `.u8bin`, `.i8bin` and `.f16bin` (billion-scale): two uint32 (rows, width), then the values.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import UnreadableSource, WidthMismatch
from mmdiff.formats.sources.base import Matrix, Rows
from mmdiff.formats.sources.rawfile import RawFile, expect_data, first_bytes

VECS_DTYPES: dict[str, np.dtype[Any]] = {".fvecs": np.dtype("<f4"), ".bvecs": np.dtype("u1")}

HEADER = np.dtype("<i4")


class VecsFile:
    """Rows that are each preceded by their width. The width of a row is checked when the row is read."""

    def __init__(self, path: Path, stored: np.dtype[Any]) -> None:
        self._file = RawFile(path)
        self._stored = stored
        head = first_bytes(self._file, HEADER.itemsize)
        if not head:
            raise UnreadableSource(f"{path}: holds no rows (the file is empty). Check how it was written.")
        if len(head) < HEADER.itemsize:
            raise UnreadableSource(
                f"{path}: {len(head)} bytes, expected at least 4 for the first row's width. It is truncated: copy or "
                "write it again."
            )
        self.width = int(np.frombuffer(head, HEADER)[0])
        if self.width <= 0:
            raise UnreadableSource(
                f"{path}, row 0: a width of {self.width}, expected 1 or more. It is not a {path.suffix} file: check how it "
                "was written."
            )
        self._row_size = HEADER.itemsize + self.width * stored.itemsize
        self.rows, rest = divmod(self._file.size, self._row_size)
        if rest:
            raise UnreadableSource(
                f"{path}: row 0 has {self.width:,} values, so each row takes {self._row_size:,} bytes, but the file's "
                f"{self._file.size:,} bytes are {self.rows:,} such rows and {rest:,} bytes. It is truncated or its rows "
                "differ in width: write it again."
            )

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start..stop-1, C-contiguous."""
        raw = np.empty((stop - start, self._row_size), np.uint8)
        self._file.read_into(raw, start * self._row_size)
        widths = np.ascontiguousarray(raw[:, : HEADER.itemsize]).view(HEADER).reshape(-1)
        wrong = np.flatnonzero(widths != self.width)
        if len(wrong):
            row = int(wrong[0])
            raise WidthMismatch(
                f"{self._file.name}, row {start + row}: found a width of {widths[row]:,}, expected {self.width:,} as in row 0. "
                "The file is damaged or its rows differ in width: write it again."
            )
        return np.ascontiguousarray(raw[:, HEADER.itemsize :]).view(self._stored)


class VecsSource(Matrix):
    """Embeddings in an `.fvecs` or `.bvecs` file."""

    def __init__(self, path: Path) -> None:
        stored = VECS_DTYPES[path.suffix.lower()]
        self._rows = VecsFile(path, stored)
        super().__init__(str(path), (self._rows.rows, self._rows.width), stored, (path,))

    def _read(self, start: int, stop: int) -> Rows:
        return self._rows.read(start, stop).astype(self.dtype, copy=False)


BIN_DTYPES: dict[str, np.dtype[Any]] = {
    ".fbin": np.dtype("<f4"),
    ".u8bin": np.dtype("u1"),
    ".i8bin": np.dtype("i1"),
    ".f16bin": np.dtype("<f2"),
}

HEADER_SIZE = 8


class BinSource(Matrix):
    """A matrix after a header of eight bytes."""

    def __init__(self, path: Path) -> None:
        self._file = RawFile(path)
        self._stored = BIN_DTYPES[path.suffix.lower()]
        head = first_bytes(self._file, HEADER_SIZE)
        if len(head) < HEADER_SIZE:
            raise UnreadableSource(
                f"{path}: {len(head)} bytes, expected at least {HEADER_SIZE} for the numbers of rows and values. "
                "It is truncated: copy or write it again."
            )
        rows, width = map(int, np.frombuffer(head, "<u4"))
        promise = f"the header promises {rows} x {width} {self._stored}"
        expect_data(self._file, HEADER_SIZE, rows * width * self._stored.itemsize, promise)
        super().__init__(str(path), (rows, width), self._stored, (path,))

    def _read(self, start: int, stop: int) -> Rows:
        values = np.empty((stop - start, self.width), self._stored)
        self._file.read_into(values, HEADER_SIZE + start * self.width * self._stored.itemsize)
        return values.astype(self.dtype, copy=False)

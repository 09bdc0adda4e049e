"""Lists of neighbours in somebody's file: `.ivecs` (as benchmarks give the ground truth) or `.npy`, integers, -1 for none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.sources.npy import read_header, read_rows
from mmdiff.formats.sources.rawfile import RawFile
from mmdiff.formats.sources.vecs import VecsFile

ENDINGS = (".ivecs", ".npy")


class NeighbourFile:
    """One list a row, read by position from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.suffix.lower() == ".ivecs":
            vecs = VecsFile(path, np.dtype("<i4"))
            self.rows, self.width, self._read = vecs.rows, vecs.width, vecs.read
            return
        file = RawFile(path)
        header = read_header(file)
        if len(header.shape) != 2 or header.dtype.kind not in "iu":
            raise UnreadableSource(
                f"{path}: {header.dtype} of shape {header.shape}, expected integers of shape (nodes, k). "
                "Save for each node the numbers of its neighbours."
            )
        if 0 in header.shape:
            raise UnreadableSource(f"{path}: holds no neighbours (shape {header.shape}). Check how it was written.")
        self.rows, self.width = header.shape
        self._read = lambda start, stop: read_rows(file, header, start, stop)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start..stop-1 as they are in the file."""
        return self._read(start, stop)

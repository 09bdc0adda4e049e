"""Embeddings in memory: a 2-D array as a source, and memory maps of whole `.npy` files as those files."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.sources.base import Matrix, Rows, Source
from mmdiff.formats.sources.npy import NpySource

NAME = "array"


class ArraySource(Matrix):
    """A 2-D array of any memory layout and byte order."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)
        super().__init__(NAME, self.values.shape, self.values.dtype, ())

    def _read(self, start: int, stop: int) -> Rows:
        return np.array(self.values[start:stop], self.dtype, order="C")

    def locate(self, row: int) -> str:
        return f"row {row} of the array"


def source_of(values: Any) -> Source:
    """The source of an array: its file where it is the map of a whole `.npy` file, so that both give the same artifact."""
    if isinstance(values, np.memmap):
        # Where the file is no .npy file, or is gone, the map still has the values.
        with suppress(UnreadableSource):
            return _file_of(values)
    return ArraySource(values)


def _file_of(values: np.memmap[Any, Any]) -> NpySource:
    """The `.npy` file that an array maps; UnreadableSource unless the array is all of it, unchanged in memory."""
    # Changes to a copy-on-write map ("c") are not in the file.
    if values.filename is None or values.mode == "c":
        raise UnreadableSource("an array without a file.")
    source = NpySource(Path(values.filename))
    header = source.header
    contiguous = values.flags.f_contiguous if header.fortran else values.flags.c_contiguous
    # A slice keeps the offset of the map that it was taken from.
    if (values.shape, values.dtype, values.offset) != (header.shape, header.dtype, header.data_start) or not contiguous:
        raise UnreadableSource("a part of a file.")
    return source

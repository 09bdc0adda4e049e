"""A list of numbers that somebody brings along: `.npy`, or text with one number a line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.sources.npy import read_header, read_rows
from mmdiff.formats.sources.rawfile import RawFile
from mmdiff.formats.sources.text import read_lines


def read_values(path: Path) -> NDArray[np.float64]:
    """All numbers of a file, as one vector."""
    if path.suffix.lower() == ".npy":
        file = RawFile(path)
        header = read_header(file)
        if len(header.shape) != 1 or header.dtype.kind not in "iuf":
            raise UnreadableSource(f"{path}: {header.dtype} of shape {header.shape}. Save one vector of numbers.")
        return read_rows(file, header, 0, header.shape[0]).astype(np.float64)
    values = []
    for number, line in enumerate(read_lines(path), 1):
        try:
            values.append(float(line))
        except ValueError:
            raise UnreadableSource(f"{path}, line {number}: {line!r} is not a number. Write one number a line.") from None
    return np.array(values, np.float64)

"""Text files: lines of a `.txt`, cells of a `.csv`, in UTF-8 with or without a byte order mark; and vectors of numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.sources.limits import readable
from mmdiff.formats.sources.npy import read_header, read_rows
from mmdiff.formats.sources.rawfile import RawFile

_BLOCK = 1 << 24

LIST_BYTES = 16 << 20
"""The most bytes of a list of classes."""


def read_text(path: Path, most: int | None = None) -> str:
    """The whole file, which must be a regular one of at most `most` bytes, with all line ends as \\n."""
    file = RawFile(path)
    if most is not None and file.size > most:
        raise UnreadableSource(f"{path}: {file.size:,} bytes, expected at most {most:,}. Check that it is the file you mean.")
    with readable(str(path), "text"):
        content = np.empty(file.size, np.uint8)
        for start in range(0, file.size, _BLOCK):
            block = content[start : start + _BLOCK]
            file.read_into(block, start)
            # A sparse file is all zeros: it is refused before it fills the memory.
            if not block.all():
                raise UnreadableSource(
                    f"{path}: byte {start + int(block.argmin()):,} is zero, so it is not a text file. Save it as UTF-8 text."
                )
        try:
            text = str(content.data, "utf-8-sig")
        except UnicodeDecodeError as error:
            raise UnreadableSource(
                f"{path}: byte {error.start:,} is not UTF-8. Save the file as UTF-8, for example with iconv."
            ) from error
        return text.replace("\r\n", "\n")


def read_lines(path: Path, most: int | None = None) -> list[str]:
    """One value per line, without surrounding blanks. The last line may or may not end in a newline."""
    text = read_text(path, most)
    if not text:
        return []
    return [line.strip() for line in text.removesuffix("\n").split("\n")]


def read_cells(path: Path, most: int | None = None) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file without surrounding blanks, each with the number of its last line, counted from 1."""
    reader = csv.reader(io.StringIO(read_text(path, most), newline=""), strict=True, skipinitialspace=True)
    try:
        for cells in reader:
            # The csv module yields no cells for a blank line; in a file of one column it is an empty cell.
            yield reader.line_num, [cell.strip() for cell in cells] or [""]
    except csv.Error as error:
        raise UnreadableSource(f"{path}, line {reader.line_num}: not readable as CSV ({error}). Fix the line.") from error


def read_values(path: Path) -> NDArray[np.float64]:
    """The numbers of a `.npy` file, or of a text file with one number per line, as a vector."""
    if path.suffix.lower() == ".npy":
        file = RawFile(path)
        header = read_header(file)
        if len(header.shape) != 1 or header.dtype.kind not in "iuf":
            raise UnreadableSource(f"{path}: {header.dtype} of shape {header.shape}. Save one vector of numbers.")
        with readable(file.name, "numbers"):
            return read_rows(file, header, 0, header.shape[0]).astype(np.float64)
    values = []
    for number, line in enumerate(read_lines(path), 1):
        try:
            values.append(float(line))
        except ValueError:
            raise UnreadableSource(f"{path}, line {number}: {line!r} is not a number. Write one number per line.") from None
    return np.array(values, np.float64)

"""Text that people write by hand: lines of a `.txt`, cells of a `.csv`, in UTF-8 with or without a byte order mark."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.sources.rawfile import RawFile


def read_text(path: Path) -> str:
    """The whole file, with any kind of line end as \\n."""
    file = RawFile(path)
    try:
        text = file.head(file.size).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableSource(
            f"{path}: byte {error.start:,} is not UTF-8. Save the file as UTF-8, for example with iconv."
        ) from error
    return text.replace("\r\n", "\n")


def read_lines(path: Path) -> list[str]:
    """One value per line, without surrounding blanks. The last line may or may not end in a newline."""
    text = read_text(path)
    if not text:
        return []
    return [line.strip() for line in text.removesuffix("\n").split("\n")]


def read_cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file without surrounding blanks, each with the number of its last line, counted from 1."""
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True, skipinitialspace=True)
    try:
        for cells in reader:
            # The csv module gives a blank line as no cells, but in a file of one column it is an empty one.
            yield reader.line_num, [cell.strip() for cell in cells] or [""]
    except csv.Error as error:
        raise UnreadableSource(f"{path}, line {reader.line_num}: not readable as CSV ({error}). Fix the line.") from error

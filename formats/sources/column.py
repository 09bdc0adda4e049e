"""Labels, ids and class names that people bring along.

`read_column` takes one row per embedding from
- `.npy`: integers of any width (2-D: several labels per row), strings, or whole floats with NaN for none;
- `.txt`: one per line;
- `.csv`: `file.csv::column`, or else the only column, or else the one that is named label, labels, class or id. The
  first row is a header, unless no column was asked for, there is only one, and its first cell is not one of label,
  labels, class, id, ids, name (in upper or lower case);
- Parquet: `file.parquet::column`, with the same rule; lists are several labels per row, null is none.

The values are integers when all that are not empty are, however they are stored; otherwise strings. An empty one means
"none" and is -1 or "". Blanks around the values of text files are dropped.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.sources.base import Column
from mmdiff.formats.sources.choice import choose_column
from mmdiff.formats.sources.class_names import read_class_names
from mmdiff.formats.sources.integers import integers_or_strings
from mmdiff.formats.sources.npy_column import read_npy_column
from mmdiff.formats.sources.parquet_column import read_parquet_column
from mmdiff.formats.sources.spec import refuse_inner, split_spec
from mmdiff.formats.sources.text import read_cells, read_lines
from mmdiff.formats.strings import Strings

__all__ = ["read_class_names", "read_column"]

HEADERS = ("label", "labels", "class", "id", "ids", "name")


def read_column(spec: str) -> Column:
    """Labels or ids from `file` or `file::column`."""
    path, inner = split_spec(spec)
    match path.suffix.lower():
        case ".npy":
            refuse_inner(path, inner)
            return read_npy_column(path)
        case ".txt":
            refuse_inner(path, inner)
            return _of_texts(path, _joined(read_lines(path)))
        case ".csv":
            return _of_texts(path, Strings.of(_csv_values(path, inner)))
        case ".parquet":
            return read_parquet_column(path, inner)
    raise UnreadableSource(
        f"{path}: labels and ids are read from .npy, .txt, .csv and .parquet, "
        f"not from {path.suffix or 'a file without ending'}. Convert it to one of these."
    )


def _of_texts(path: Path, texts: Strings) -> Column:
    if not len(texts):
        raise UnreadableSource(f"{path}: holds no rows. Check how it was written.")
    return Column(integers_or_strings(texts))


def _joined(lines: list[str]) -> Strings:
    """What `Strings.of` gives, for values without a newline in them: one object instead of 10^7."""
    if not lines:
        return Strings.of([])
    utf8 = np.frombuffer("\n".join(lines).encode(), np.uint8)
    newline = utf8 == ord("\n")
    offsets = np.zeros(len(lines) + 1, np.int64)
    # Before the end of line i there are i newlines, none of which is kept.
    offsets[1:] = np.append(np.flatnonzero(newline), len(utf8)) - np.arange(len(lines))
    return Strings(offsets, utf8[~newline])


def _csv_values(path: Path, wanted: str | None) -> list[str]:
    rows = read_cells(path)
    _, first = next(rows, (0, []))
    if not first:
        return []
    has_header = wanted is not None or len(first) > 1 or first[0].lower() in HEADERS
    position = first.index(choose_column(str(path), wanted, first)) if has_header else 0
    values = [] if has_header else [first[0]]
    for line, cells in rows:
        if len(cells) != len(first):
            raise UnreadableSource(
                f"{path}, line {line}: {len(cells)} cells, expected {len(first)} as in line 1. Fix the line; a comma "
                "within a value needs quotes around the value."
            )
        values.append(cells[position])
    return values

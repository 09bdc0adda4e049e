"""Labels, ids and class names from files.

`read_column` reads one row per embedding from
- `.npy`: integers of any width (2-D: several labels per row), strings, or whole floats with NaN for none;
- `.txt`: one value per line;
- `.csv`: `file.csv::column`, by default the only column, or the only one named label, labels, class or id. The first row is a
  header, unless no column was named, there is only one, and its first cell is none of label, labels, class, id, ids, name (in
  upper or lower case);
- Parquet, Arrow IPC (`.arrow`, `.feather`) and folders of the library datasets: `file.parquet::column`, with the same rule;
  lists are several labels per row, null is none;
- `.npz` and `.safetensors`: `file.npz::array`, with the same rule; values as in `.npy`.

The values are integers if all that are not empty are integers, however they are stored; otherwise strings. An empty value
means "none" and becomes -1 or "". Blanks around the values of text files are dropped.

`read_class_names` reads the names of class numbers. Each number has one name, and each name one number.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mmdiff.formats.errors import BadLabels, UnreadableSource, shortened
from mmdiff.formats.sources.arrow import ArrowFile
from mmdiff.formats.sources.base import Column
from mmdiff.formats.sources.columns.arrow import read_arrow_column, read_dataset_column
from mmdiff.formats.sources.columns.integers import MAX_DIGITS, integers_or_strings
from mmdiff.formats.sources.columns.npy import read_member_column, read_npy_column
from mmdiff.formats.sources.columns.parquet import read_parquet_column
from mmdiff.formats.sources.datasets import is_dataset, open_dataset
from mmdiff.formats.sources.documents import read_json
from mmdiff.formats.sources.npz import read_npz
from mmdiff.formats.sources.safetensors import read_tensors
from mmdiff.formats.sources.spec import choose_column, refuse_inner, split_spec
from mmdiff.formats.sources.text import read_cells, read_lines
from mmdiff.formats.storage.strings import Strings

# Names of a million classes.
NAMES_BYTES = 16 << 20

HEADERS = ("label", "labels", "class", "id", "ids", "name")


def read_class_names(path: str | Path) -> dict[int, str]:
    """Class names from `.txt` (line i, counted from 0, is class i), `.json` (a list, number -> name or name -> number) or
    `.csv` (number,name; a first row whose first cell is not a number is a header)."""
    path = Path(path)
    readers = {".txt": _from_lines, ".json": _from_json, ".csv": _from_csv}
    if path.suffix.lower() not in readers:
        raise UnreadableSource(f"{path}: class names are read from .txt, .json and .csv. Convert it to one of these.")
    names: dict[int, str] = {}
    where_number: dict[int, str] = {}
    where_name: dict[str, str] = {}
    for where, number, name in readers[path.suffix.lower()](path):
        if not name:
            raise BadLabels(f"{path}, {where}: class {number} has an empty name. Give it one.")
        if not is_unicode(name):
            raise BadLabels(f"{path}, {where}: the name {name!r} has half a character (a lone surrogate). Correct it.")
        if number in where_number:
            raise BadLabels(f"{path}: class {number} in {where_number[number]} and again in {where}. Remove one of them.")
        if name in where_name:
            raise BadLabels(f"{path}: the name {name!r} in {where_name[name]} and again in {where}. Rename one of them.")
        names[number] = name
        where_number[number] = where_name[name] = where
    if not names:
        raise UnreadableSource(f"{path}: holds no class names. Check how it was written.")
    return names


def _from_lines(path: Path) -> Iterator[tuple[str, int, str]]:
    for i, name in enumerate(read_lines(path, NAMES_BYTES)):
        yield f"line {i + 1}", i, name


def _from_csv(path: Path) -> Iterator[tuple[str, int, str]]:
    for i, (line, cells) in enumerate(read_cells(path, NAMES_BYTES)):
        if i == 0 and not _is_number(cells[0]):
            continue
        if len(cells) != 2 or not _is_number(cells[0]):
            raise UnreadableSource(
                f"{path}, line {line}: found {shortened(','.join(cells))}, expected number,name "
                f"with a number of at most {MAX_DIGITS} digits. Fix the line."
            )
        yield f"line {line}", int(cells[0]), cells[1]


def _from_json(path: Path) -> Iterator[tuple[str, int, str]]:
    # Pairs, since a dict would silently keep the last of two equal keys.
    content = read_json(path, tuple)
    pairs = enumerate(content) if isinstance(content, list) else content
    if not isinstance(content, list | tuple):
        raise UnreadableSource(f"{path}: found a single {type(content).__name__}, expected a list or an object.")
    for i, (key, value) in enumerate(pairs):
        yield f"entry {i + 1}", *_entry(path, i, key, value)


def _entry(path: Path, i: int, key: int | str, value: Any) -> tuple[int, str]:
    if isinstance(value, str) and _is_number(str(key)):
        return int(key), value
    if isinstance(key, str) and type(value) is int and 0 <= value < 10**MAX_DIGITS:
        return value, key
    raise UnreadableSource(
        f"{path}, entry {i + 1}: found {shortened(key)}: {shortened(value)}, expected a list of names, number -> name or "
        "name -> number. "
        f"Class numbers are 0 or more, and have at most {MAX_DIGITS} digits. Fix the entry."
    )


def _is_number(text: str) -> bool:
    """Whether a text is a class number, of at most as many digits as labels may have."""
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS


def is_unicode(name: str) -> bool:
    """Whether a name can be stored as UTF-8; JSON escapes can spell half a character."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_column(spec: str, rows: int | None = None) -> Column:
    """Labels or ids from `file` or `file::column`.

    `rows` is the number of embeddings, where it is known: a compressed column of another length is not decoded.
    """
    return read_part(*split_spec(spec), rows)


def read_part(path: Path, inner: str | None, rows: int | None = None) -> Column:
    """Labels or ids from a file or folder, and the column in it."""
    if is_dataset(path):
        return read_dataset_column(open_dataset(path), inner, rows)
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
            return read_parquet_column(path, inner, rows)
        case ".arrow" | ".feather":
            return read_arrow_column(ArrowFile(path), inner, rows)
        case ".npz":
            return read_member_column(path, inner, read_npz(path))
        case ".safetensors":
            return read_member_column(path, inner, read_tensors(path))
    raise UnreadableSource(
        f"{path}: labels and ids are read from .npy, .txt, .csv, .parquet, .arrow, .feather, .npz and .safetensors, "
        f"not from {path.suffix or 'a file without ending'}. Convert it to one of these."
    )


def _of_texts(path: Path, texts: Strings) -> Column:
    if not len(texts):
        raise UnreadableSource(f"{path}: holds no rows. Check how it was written.")
    return Column(integers_or_strings(texts))


def _joined(lines: list[str]) -> Strings:
    """The same as `Strings.of`, for values without newlines: one bytes object instead of 10^7."""
    if not lines:
        return Strings.of([])
    utf8 = np.frombuffer("\n".join(lines).encode(), np.uint8)
    newline = utf8 == ord("\n")
    offsets = np.zeros(len(lines) + 1, np.int64)
    # Before the end of line i there are i newlines, which are dropped.
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

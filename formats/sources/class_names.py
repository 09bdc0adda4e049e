"""Names for class numbers, from a file that people write by hand. Each number has one name and each name one number."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmdiff.formats.errors import BadLabels, UnreadableSource
from mmdiff.formats.sources.text import read_cells, read_lines, read_text


def read_class_names(path: str | Path) -> dict[int, str]:
    """From `.txt` (line i, counted from 0, is class i), `.json` (a list, number -> name or name -> number) or `.csv`
    (number,name; a first row whose first cell is not a number is a header)."""
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
    for i, name in enumerate(read_lines(path)):
        yield f"line {i + 1}", i, name


def _from_csv(path: Path) -> Iterator[tuple[str, int, str]]:
    for i, (line, cells) in enumerate(read_cells(path)):
        if i == 0 and not _is_number(cells[0]):
            continue
        if len(cells) != 2 or not _is_number(cells[0]):
            raise UnreadableSource(f"{path}, line {line}: found {','.join(cells)!r}, expected number,name. Fix the line.")
        yield f"line {line}", int(cells[0]), cells[1]


def _from_json(path: Path) -> Iterator[tuple[str, int, str]]:
    try:
        # Pairs instead of a dict, which would silently keep the last of two equal keys.
        content = json.loads(read_text(path), object_pairs_hook=tuple)
    except (json.JSONDecodeError, RecursionError) as error:
        raise UnreadableSource(f"{path}: not readable as JSON ({error}). Fix the file.") from error
    pairs = enumerate(content) if isinstance(content, list) else content
    if not isinstance(content, list | tuple):
        raise UnreadableSource(f"{path}: found a single {type(content).__name__}, expected a list or an object.")
    for i, (key, value) in enumerate(pairs):
        yield f"entry {i + 1}", *_entry(path, i, key, value)


def _entry(path: Path, i: int, key: int | str, value: Any) -> tuple[int, str]:
    if isinstance(value, str) and _is_number(str(key)):
        return int(key), value
    if isinstance(key, str) and type(value) is int and value >= 0:
        return value, key
    raise UnreadableSource(
        f"{path}, entry {i + 1}: found {key!r}: {value!r}, expected a list of names, number -> name or name -> number. "
        "Fix the entry."
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()

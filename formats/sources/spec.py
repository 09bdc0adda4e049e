"""Names of sources as the user types them: `file`, `file::inner`, or a pattern such as `'parts/*.npy'`.

Files that match a pattern are sorted by number (part_2 before part_10). In a file with several arrays or columns, the one named
after `::` is read, or the only one that fits.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.sources.base import READABLE_NAMES, is_readable


def natural_order(path: str | Path) -> tuple[list[str | int], str]:
    """A sort key that puts part_2 before part_10. Text and numbers alternate in it, so they are never compared."""
    text = str(path)
    return [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", text)], text


SEPARATOR = "::"


def exists(path: str | Path) -> bool:
    """Whether there is something at a path. One that is too long, or in a folder that cannot be searched, leads nowhere."""
    try:
        return Path(path).exists()
    except OSError:
        return False


def is_file(text: str) -> bool:
    """Whether a text is the path of a file. A long list of classes exceeds the longest path, which is an OSError."""
    return exists(text) and Path(text).is_file()


def split_spec(spec: str) -> tuple[Path, str | None]:
    """The path, and the array or column inside it. An existing path is taken whole; otherwise the last `::` separates."""
    if exists(spec):
        return Path(spec), None
    position = spec.find(SEPARATOR)
    while position >= 0:
        path = spec[:position]
        if path and exists(path):
            return Path(path), spec[position + len(SEPARATOR) :] or None
        position = spec.find(SEPARATOR, position + 1)
    path, separator, inner = spec.rpartition(SEPARATOR)
    return (Path(path), inner or None) if separator else (Path(spec), None)


def expand_spec(spec: str) -> list[tuple[Path, str | None]]:
    """The files of a spec: the path if it exists, else the matches of the pattern in natural order."""
    path, inner = split_spec(spec)
    if exists(path):
        return [(path, inner)]
    if not glob.has_magic(str(path)):
        raise UnreadableSource(f"{path}: no such file or folder. Check the path (the current folder is {Path.cwd()}).")
    # Path.glob also matches hidden files, and refuses absolute patterns.
    matches = sorted(glob.glob(str(path), recursive=True), key=natural_order)  # noqa: PTH207
    if not matches:
        raise UnreadableSource(f"{path}: nothing matches this pattern. Check the path (the current folder is {Path.cwd()}).")
    return [(Path(match), inner) for match in matches]


def refuse_inner(path: Path, inner: str | None) -> None:
    """Refuses `::inner` for formats that hold one array."""
    if inner is not None:
        raise UnreadableSource(f"{path}: holds one array, so there is no {inner!r} in it. Leave ::{inner} off.")


Arrays = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]

COLUMN_NAMES = ("label", "labels", "class", "id")


def choose(name: str, wanted: str | None, present: Collection[str], fitting: Mapping[str, str], what: str) -> str:
    """The wanted name, else the only one in `fitting`, which describes the candidates among `present`; `what` is their kind."""
    chosen = next(iter(fitting)) if wanted is None and len(fitting) == 1 else wanted
    if chosen is not None and chosen in present:
        if (copies := sum(key == chosen for key in present)) > 1:
            raise UnreadableSource(f"{name}: {copies} columns are named {chosen!r}. Rename or remove all but one.")
        return chosen
    if not fitting:
        found = f"found {', '.join(present)}" if present else "found nothing at all"
        problem = f"there is not {what}" if wanted is None else f"no {wanted!r}"
        raise UnreadableSource(f"{name}: {problem} in it, {found}. Say what to read, as in {name}::NAME.")
    problem = f"no {wanted!r} in it" if wanted is not None else f"{len(fitting)} candidates for {what}"
    listing = "; ".join(f"{name}::{key}{about}" for key, about in fitting.items())
    raise UnreadableSource(f"{name}: {problem}. Say which to read: {listing}.")


def choose_array(name: str, wanted: str | None, arrays: Arrays) -> str:
    """The matrix to read."""
    fitting = {
        key: f" ({' x '.join(map(str, shape))} {dtype})"
        for key, (shape, dtype) in arrays.items()
        if len(shape) == 2 and is_readable(dtype)
    }
    return choose(name, wanted, arrays, fitting, f"a 2-D array of {READABLE_NAMES}")


def choose_column(name: str, wanted: str | None, columns: Collection[str]) -> str:
    """The column of labels or ids to read: the only one, or the only one named in COLUMN_NAMES."""
    # Where the wanted column is missing, the message lists all that are there.
    fitting = {key: "" for key in columns if wanted is not None or len(columns) == 1 or key.strip().lower() in COLUMN_NAMES}
    return choose(name, wanted, columns, fitting, f"a column named {', '.join(COLUMN_NAMES)}")

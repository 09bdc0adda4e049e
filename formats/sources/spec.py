"""What the user types to name a source: `file`, `file::inner`, or a pattern such as `'parts/*.npy'`."""

from __future__ import annotations

import glob
from pathlib import Path

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.sources.natural import natural_order

SEPARATOR = "::"


def split_spec(spec: str) -> tuple[Path, str | None]:
    """The path and what is asked for inside it. Whatever exists is a path; otherwise the last `::` separates."""
    if Path(spec).exists():
        return Path(spec), None
    position = spec.find(SEPARATOR)
    while position >= 0:
        path = spec[:position]
        if path and Path(path).exists():
            return Path(path), spec[position + len(SEPARATOR) :] or None
        position = spec.find(SEPARATOR, position + 1)
    path, separator, inner = spec.rpartition(SEPARATOR)
    return (Path(path), inner or None) if separator else (Path(spec), None)


def expand_spec(spec: str) -> list[tuple[Path, str | None]]:
    """All that a spec stands for: itself if it exists, else what the pattern matches, in natural order."""
    path, inner = split_spec(spec)
    if path.exists():
        return [(path, inner)]
    if not glob.has_magic(str(path)):
        raise UnreadableSource(f"{path}: no such file or folder. Check the path (the current folder is {Path.cwd()}).")
    # Path.glob would take hidden files too, and refuses absolute patterns.
    matches = sorted(glob.glob(str(path), recursive=True), key=natural_order)  # noqa: PTH207
    if not matches:
        raise UnreadableSource(f"{path}: nothing matches this pattern. Check the path (the current folder is {Path.cwd()}).")
    return [(Path(match), inner) for match in matches]


def refuse_inner(path: Path, inner: str | None) -> None:
    """For files that hold one array."""
    if inner is not None:
        raise UnreadableSource(f"{path}: a file of one array, so there is no {inner!r} in it. Leave ::{inner} off.")

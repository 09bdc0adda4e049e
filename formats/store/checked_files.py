"""Chunk files that this process has checked: an unchanged file is not checked again, and one that changes is noticed.

A file is recognised by its inode, size and modification time. A file that was modified just before it was checked may be
modified again within the same tick of the clock, so it is checked again when it is opened again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path

Identity = tuple[int, int, int, int]
"""Device, inode, size and modification time (ns)."""

# The coarsest clock of a file system in use, with some room.
_TICK_NS = 2_000_000_000

_identities: dict[Path, Identity] = {}
_settled: set[tuple[Path, Identity, int]] = set()


def identity_of(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def remember_checked(path: Path, identity: Identity, crc: int) -> None:
    """Records that a file, as identified before, has the checksum that was published."""
    _identities[path] = identity
    if time.time_ns() - identity[-1] > _TICK_NS:
        _settled.add((path, identity, crc))


def was_checked(path: Path, identity: Identity, crc: int) -> bool:
    """Whether this process has checked the same, unchanged file before."""
    return (path, identity, crc) in _settled


def changed_files(objects: Path, names: Collection[str]) -> Iterator[Path]:
    """The files of some objects that were written to since they were checked in this run.

    A file that is gone, or has another in its place, was not written to: the map of the old one remains.
    """
    for path, identity in list(_identities.items()):
        folder = path.parent.parent
        if folder.parent == objects and folder.name in names:
            try:
                now = identity_of(path.stat())
            except OSError:
                continue
            if now[:2] == identity[:2] and now != identity:
                yield path


def end_run() -> None:
    """Forgets which files a run has checked, so that the next run does not answer for them."""
    _identities.clear()

"""Chunk files that this process has checked: an unchanged file is not checked again, and one that changes is noticed.

A file is recognised by its inode, size and modification time. A file that was modified just before it was checked may be
modified again within the same tick of the clock, so it is checked again when it is opened again.

A killed process notices nothing. So a draft keeps stamps of the files that it is computed from, for the run that continues it.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from mmdiff.formats.errors import Damaged
from mmdiff.formats.storage.disk_errors import explained
from mmdiff.formats.store.manifest import Recipe, id_of

Identity = tuple[int, int, int, int]
"""Device, inode, size and modification time (ns)."""

# The coarsest clock of a file system in use, with some room.
_TICK_NS = 2_000_000_000

_settled: set[tuple[Path, Identity, int]] = set()

# Thousands of files are compared at the end of each run: their paths are text here, which compares far quicker than paths do.
_Use = tuple[str, Identity]

_lock = threading.Lock()
_runs: list[CheckedInputs] = []
# Files in use that no run has answered for yet: a stage may open its inputs before its run begins.
_before: set[_Use] = set()


def identity_of(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def remember_checked(path: Path, identity: Identity, crc: int) -> None:
    """Records that a file, as identified before, has the checksum that was published."""
    if time.time_ns() - identity[-1] > _TICK_NS:
        _settled.add((path, identity, crc))


def was_checked(path: Path, identity: Identity, crc: int) -> bool:
    """Whether this process has checked the same, unchanged file before."""
    return (path, identity, crc) in _settled


def note_use(path: Path, identity: Identity) -> None:
    """Notes for all runs in progress, or for the next one, that they may read a file that was checked."""
    with _lock:
        for files in (_before, *(run.files for run in _runs)):
            files.add((str(path), identity))


class CheckedInputs:
    """The checked files below a folder that a run may have read. Each run has its own: others end at any time."""

    def __init__(self, folder: Path) -> None:
        self._below = str(folder.absolute()).rstrip(os.sep) + os.sep
        with _lock:
            self.files: set[_Use] = set(_before)
            _runs.append(self)

    def changed(self, ids: Collection[str] | None = None) -> Iterator[Path]:
        """The files, of the objects with these ids, that were written to since they were checked.

        A file that is gone, or has another in its place, was not written to: the map of the old one remains.
        """
        with _lock:
            files = sorted(use for use in self.files if use[0].startswith(self._below))
        for name, identity in files:
            path = Path(name)
            if ids is None or id_of(path.parent.parent.name) in ids:
                try:
                    now = identity_of(path.stat())
                except OSError:
                    continue
                if now[:2] == identity[:2] and now != identity:
                    yield path

    def refuse_changed(self, ids: Collection[str] | None = None) -> None:
        """Raises Damaged if a file has changed since it was checked: results may come of either state."""
        for path in self.changed(ids):
            raise Damaged(f"{path}: changed while it was in use. Nothing that came of it is kept: run the same command again.")

    def end(self) -> None:
        """Ends the run: the next one does not answer for its files."""
        with _lock:
            _runs.remove(self)
            _before.difference_update({use for use in self.files if use[0].startswith(self._below)})


def input_stamps(objects: Path, recipe: Recipe) -> dict[str, str]:
    """A digest for each input of a recipe: of its files, as they are on disk now.

    Copies of an object that replaced a damaged one count too. Sources are the files of the source fingerprint.
    """
    inputs = {name: [Path(path) for path, *_ in files] for name, files in recipe.source_fingerprints.items()}
    with explained(objects, "list the folder"):
        for identity in recipe.object_ids:
            found = objects.glob(f"{identity}*/*/c.*")
            inputs[identity] = [file for file in found if id_of(file.parent.parent.name) == identity]
    return {name: _stamp(objects, files) for name, files in inputs.items()}


def _stamp(objects: Path, files: Iterable[Path]) -> str:
    """A digest of the names, inodes, sizes and times of files.

    The time of the last change (ctime) cannot be set: a file that was overwritten and restored, old modification time
    included, is still told from one that was left alone.
    """
    digest = hashlib.blake2b(digest_size=12)
    for file in sorted(files):
        # A store that was moved as a whole is the same store.
        name = file.relative_to(objects) if file.is_relative_to(objects) else file
        digest.update(os.fsencode(name))
        with explained(file, "find out its size and times"):
            try:
                status = file.lstat()
                digest.update(f"\0{status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}\0".encode())
            except FileNotFoundError:
                digest.update(b"\0gone\0")
    return digest.hexdigest()

"""Garbage collection: removes drafts of interrupted runs, and objects that no name refers to."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mmdiff.formats.errors import Corrupt, Locked
from mmdiff.formats.storage import seam
from mmdiff.formats.storage.disk_errors import explaining
from mmdiff.formats.store.files import entries
from mmdiff.formats.store.manifest import is_object_name
from mmdiff.formats.store.store import Store
from mmdiff.formats.store.verify import problems_of_names


@dataclass(frozen=True)
class Garbage:
    """A folder that can be removed, and the reason."""

    folder: Path
    bytes: int
    why: str


def find_garbage(store: Store) -> list[Garbage]:
    """The folders that `collect` would remove: those in `work/`, then objects without a name.

    Raises Corrupt where names are lost: their objects only look like garbage.
    """
    store.check_folders()
    for problem in problems_of_names(store):
        raise Corrupt(f"{problem.artifact}: {problem.what}. {problem.remedy} Then collect again.")
    return unnamed(store)


def unnamed(store: Store) -> list[Garbage]:
    """The folders in `work/`, and the objects without a name."""
    named = {store.object_name(name) for name in store.names()}
    left = [_garbage(folder, "left by an interrupted run") for folder in _folders(store.work)]
    return left + [
        _garbage(folder, "no name refers to it")
        for folder in _folders(store.objects)
        if is_object_name(folder.name) and folder.name not in named
    ]


@explaining
def collect(store: Store) -> list[Garbage]:
    """Removes all garbage, under an exclusive lock. Readers keep the maps they have."""
    with _exclusive(store):
        garbage = find_garbage(store)
        _remove(store, [item.folder for item in garbage])
        return garbage


@explaining
def discard(store: Store, object_names: Sequence[str]) -> None:
    """Removes these objects, as far as they are there and no name refers to them, under an exclusive lock."""
    if not object_names:
        return
    with _exclusive(store):
        named = {store.object_name(name) for name in store.names()}
        folders = [store.objects / name for name in object_names if is_object_name(name) and name not in named]
        _remove(store, [folder for folder in folders if folder.is_dir() and not folder.is_symlink()])


def _remove(store: Store, folders: Sequence[Path]) -> None:
    for folder in folders:
        doomed = folder
        if folder.parent == store.objects:
            # Moved first: a half-removed folder must not look like an object.
            seam.make_folder(store.work)
            doomed = store.work / f"removed.{folder.name}"
            seam.move_folder(folder, doomed)
        seam.remove_folder(doomed)
    seam.remove_empty_folder(store.work)


@contextmanager
def _exclusive(store: Store) -> Iterator[None]:
    lock = seam.lock_folder(store.path, exclusive=True)
    if lock is None:
        raise Locked(f"{store.path}: a run is writing to the store. Wait for it to end, then collect again.")
    try:
        yield
    finally:
        os.close(lock)


def _garbage(folder: Path, why: str) -> Garbage:
    """A folder and the bytes that its removal frees: a chunk that another object shares stays.

    A run that is still at work may remove files, or all of it, at the same time.
    """
    total = 0
    for parent, _, files in os.walk(folder, onerror=_unless_gone):
        for file in files:
            with suppress(FileNotFoundError):
                status = Path(parent, file).lstat()
                total += status.st_size if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 else 0
    return Garbage(folder, total, why)


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _folders(parent: Path) -> list[Path]:
    return [path for path in entries(parent) if path.is_dir() and not path.is_symlink()]

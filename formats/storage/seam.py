"""The seam: every change to a store is made by one of the functions here, and by no other code.

Files are complete and on the disk (fsync) before they get their name; folders are synced before anything refers to them; a name
changes hands by one `rename`. So whatever is killed, full or broken in between, what can be found by name is whole.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import DiskFull, call
from mmdiff.formats.storage.arrays import PAGE_BYTES
from mmdiff.formats.storage.direct import past_the_cache, whole_pages

Bytes = bytes | NDArray[Any]

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

# How often a lock is looked for whose folder other runs keep removing, before we take it that it cannot be made.
_ATTEMPTS = 100


def make_folder(folder: Path) -> None:
    """Makes a folder and its parents, each on the disk before the next."""
    if not folder.is_dir():
        make_folder(folder.parent)
        with _room_for(folder):
            folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def write_file(path: Path, *pieces: Bytes, cached: bool = True) -> None:
    """Writes a file that has its name only when it is whole; room is claimed first, so that a full disk is an error here."""
    unfinished = path.with_name(path.name + ".part")
    _write(unfinished, path, pieces, cached)
    unfinished.rename(path)


def write_worker_chunk(path: Path, *pieces: Bytes, cached: bool = True) -> str:
    """Writes a file under a provisional, unique name and returns that name; `adopt_worker_chunk` gives it its final one."""
    unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    _write(unfinished, path, pieces, cached)
    return unfinished.name


def adopt_worker_chunk(loose: str, path: Path) -> bool:
    """Gives a file beside `path` that name; False where there is no such file."""
    try:
        path.with_name(loose).rename(path)
    except FileNotFoundError:
        return False
    return True


def _write(unfinished: Path, path: Path, pieces: Iterable[Bytes], cached: bool = True) -> None:
    with _room_for(path):
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        with _room_for(path):
            views = [
                piece.reshape(-1).view(np.uint8).data if isinstance(piece, np.ndarray) else memoryview(piece)
                for piece in pieces
            ]
            os.posix_fallocate(descriptor, 0, sum(view.nbytes for view in views))
            for view in views:
                if not cached:
                    view = view[_write_pages(descriptor, view) :]
                while view:
                    view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_pages(descriptor: int, view: memoryview) -> int:
    """Writes the whole pages of some bytes past the cache, where the file stands; returns how many bytes those are."""
    whole, done = whole_pages(view), 0
    with past_the_cache(descriptor) as possible:
        # Behind a part of a page, the rest would not begin with one.
        while possible and done < whole and done % PAGE_BYTES == 0:
            done += os.write(descriptor, view[done:whole])
    return done


class Part:
    """A file that grows under a provisional name, PATH.part; it gets its name when it is whole and on the disk."""

    def __init__(self, path: Path) -> None:
        """Begins a file; a part that is there already keeps its bytes."""
        self.path = path
        self.unfinished = path.with_name(path.name + ".part")
        with _room_for(path):
            self.descriptor = os.open(self.unfinished, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, piece: Bytes, at: int) -> None:
        view = piece.reshape(-1).view(np.uint8).data if isinstance(piece, np.ndarray) else memoryview(piece)
        with _room_for(self.path):
            while view:
                count = os.pwrite(self.descriptor, view, at)
                view, at = view[count:], at + count

    def cut(self, size: int) -> None:
        """Drops what lies behind; an interrupted run may have written further."""
        os.ftruncate(self.descriptor, size)

    def sync(self) -> None:
        """Puts what was written on the disk."""
        with _room_for(self.path):
            os.fsync(self.descriptor)

    def finish(self, size: int) -> None:
        """Ends the file at `size` and gives it its name."""
        try:
            os.ftruncate(self.descriptor, size)
            self.sync()
        finally:
            self.close()
        self.unfinished.rename(self.path)

    def discard(self) -> None:
        self.close()
        self.unfinished.unlink()

    def close(self) -> None:
        """Leaves the file as it is, to be continued or not."""
        os.close(self.descriptor)


def place_file(path: Path, text: bytes, scratch: Path) -> None:
    """Writes a file that other runs may be writing at the same time; it is made in the scratch folder, which is ours alone."""
    make_folder(path.parent)
    made = scratch / path.name
    write_file(made, text)
    made.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Puts the names in a folder on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def move_folder(source: Path, target: Path) -> bool:
    """Gives a finished folder its final place, if that is free."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        return False
    sync_folder(target.parent)
    return True


def point(name: Path, target: str, scratch: Path) -> None:
    """Makes `name` a symlink to `target`, in one step for whoever reads it; the new link is made in the scratch folder."""
    make_folder(name.parent)
    link = scratch / "link"
    link.unlink(missing_ok=True)
    with _room_for(name):
        link.symlink_to(target)
        link.replace(name)
    sync_folder(name.parent)


def remove_folder(folder: Path) -> None:
    """Removes a folder that nothing refers to."""
    shutil.rmtree(folder)


def remove_empty_folder(folder: Path) -> None:
    """Removes a folder if there is nothing in it, and if it can be removed: a mounted disk stays, empty as it is."""
    with suppress(OSError):
        folder.rmdir()


def remove_file(path: Path) -> None:
    path.unlink(missing_ok=True)


def open_lock(path: Path) -> int | None:
    """Takes the lock that a file stands for; None when another process has it. The lock ends with the descriptor."""
    return _lock(path, path.parent, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX)


def lock_folder(folder: Path, exclusive: bool) -> int | None:
    """Locks a folder against exclusive holders, or exclusively; None when that has to wait."""
    return _lock(folder, folder, os.O_RDONLY | os.O_DIRECTORY, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)


def make_exclusive(descriptor: int) -> bool:
    """Turns a lock that we share into one of our own, if nobody else shares it; if not, it may be lost."""
    return _try_lock(descriptor, fcntl.LOCK_EX)


def describe_lock(path: Path, descriptor: int, holder: bytes) -> None:
    """Writes into a lock that we hold who we are, for those who find it taken."""
    with _room_for(path):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder, 0)


def free_bytes(folder: Path) -> int:
    """The room that is left for us on the disk of a folder, or of its first parent that exists."""
    while not folder.exists():
        folder = folder.parent
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _lock(path: Path, folder: Path, flags: int, operation: int) -> int | None:
    """Opens and locks a path within a folder, which is made where needed.

    Its last holder may remove either while we look: then there is nothing to open, or we hold a lock on nothing.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            make_folder(folder)
            with _room_for(path):
                descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            if attempt == _ATTEMPTS:
                raise
            continue
        if not _try_lock(descriptor, operation):
            os.close(descriptor)
            return None
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)
    return None


def _try_lock(descriptor: int, operation: int) -> bool:
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _room_for(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise DiskFull(
            f"{path}: the disk is full ({free_bytes(path.parent):,} bytes free). Finished work is kept: make room (",
            call("gc"),
            " may help) and run the same command again.",
        ) from None

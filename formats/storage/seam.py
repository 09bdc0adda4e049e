"""The seam: the only module that creates, renames or removes files of a store.

Files are complete and on disk (fsync) before they get their name; folders are synced before anything refers to them; a name is
replaced by one `rename`. So a killed process, a full disk or a crash never leaves an incomplete file under its final name.
Every refusal of the system is a `DiskError` or `DiskFull` that names the file and the operation (`disk_errors.py`).
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
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import Corrupt, DiskError
from mmdiff.formats.storage.arrays import PAGE_BYTES
from mmdiff.formats.storage.direct import direct_io, page_aligned, whole_pages
from mmdiff.formats.storage.disk_errors import explained

Bytes = bytes | NDArray[Any]

# Attempts to take a lock while other runs remove its folder.
_ATTEMPTS = 100

# Hard links are not possible: none on this file system, or to this file, or no more of them.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK)

# Bytes that are copied to page-aligned memory at a time, few enough to stay in the processor's cache.
_COPIED_BYTES = 4 << 20


def make_folder(folder: Path) -> None:
    """Makes a folder and its parents, and syncs each one before the next."""
    with explained(folder, "make the folder"):
        if not folder.is_dir():
            make_folder(folder.parent)
            folder.mkdir(exist_ok=True)
            sync_folder(folder.parent)


def write_file(path: Path, *pieces: Bytes, cached: bool = True) -> None:
    """Writes a file that gets its name when it is complete. Space is allocated first, so that a full disk is an error here."""
    unfinished = path.with_name(path.name + ".part")
    _write(unfinished, path, pieces, cached)
    with explained(path, "give the file its name"):
        unfinished.rename(path)


def write_worker_chunk(path: Path, *pieces: Bytes, cached: bool = True) -> str:
    """Writes a file under a unique temporary name and returns that name; `adopt_worker_chunk` renames it."""
    unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    _write(unfinished, path, pieces, cached)
    return unfinished.name


def adopt_worker_chunk(written: str, path: Path) -> bool:
    """Renames the file `written` in the folder of `path` to `path`; False if there is no such file."""
    with explained(path, "give the file its name"):
        try:
            path.with_name(written).rename(path)
        except FileNotFoundError:
            return False
    return True


def _write(unfinished: Path, path: Path, pieces: Iterable[Bytes], cached: bool = True) -> None:
    views = [_view(piece) for piece in pieces]
    with explained(path, "create the file"):
        descriptor = _open_unfinished(unfinished, os.O_WRONLY | os.O_TRUNC)
    with _closing(path, descriptor):
        size = sum(view.nbytes for view in views)
        with explained(path, f"reserve {size:,} bytes for the file"):
            os.posix_fallocate(descriptor, 0, size)
        with explained(path, "write the file"):
            for view in views:
                if not cached:
                    view = view[_write_pages(descriptor, view) :]
                while view:
                    view = view[os.write(descriptor, view) :]
        with explained(path, "flush the file to disk"):
            os.fsync(descriptor)


def _open_unfinished(path: Path, flags: int) -> int:
    """Opens or creates a file. A link in its place is removed: it would lead out of the store."""
    if path.is_symlink():
        path.unlink()
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


def _view(piece: Bytes) -> memoryview:
    return piece.reshape(-1).view(np.uint8).data if isinstance(piece, np.ndarray) else memoryview(piece)


@contextmanager
def _closing(path: Path, descriptor: int) -> Iterator[None]:
    """Closes a descriptor at the end. Network file systems report errors of earlier writes here."""
    try:
        yield
    finally:
        with explained(path, "close the file"):
            os.close(descriptor)


def _write_pages(descriptor: int, view: memoryview) -> int:
    """Writes the whole pages of `view` by direct I/O at the current position; returns the number of bytes written."""
    whole, done = view.nbytes // PAGE_BYTES * PAGE_BYTES, 0
    aligned = None if whole_pages(view) == whole else page_aligned((min(whole, _COPIED_BYTES),), "uint8")
    with direct_io(descriptor) as possible:
        # After a partial page the rest is not aligned.
        while possible and done < whole and done % PAGE_BYTES == 0:
            piece = view[done:whole]
            if aligned is not None:
                size = min(len(piece), len(aligned))
                aligned[:size] = piece[:size]
                piece = aligned[:size].data
            done += os.write(descriptor, piece)
    return done


class Part:
    """A file that grows under a temporary name, PATH.part, and gets its name when it is complete and on disk."""

    def __init__(self, path: Path) -> None:
        """Opens or creates the part; an existing one keeps its bytes."""
        self.path = path
        self.unfinished = path.with_name(path.name + ".part")
        with explained(path, "create the file"):
            self.descriptor = _open_unfinished(self.unfinished, os.O_RDWR)

    def write(self, piece: Bytes, at: int) -> None:
        view = _view(piece)
        with explained(self.path, "write the file"):
            while view:
                count = os.pwrite(self.descriptor, view, at)
                view, at = view[count:], at + count

    def cut(self, size: int) -> None:
        """Truncates the file; an interrupted run may have written further."""
        with explained(self.path, f"set the size of the file to {size:,} bytes"):
            os.ftruncate(self.descriptor, size)

    def sync(self) -> None:
        """Flushes the file to disk."""
        with explained(self.path, "flush the file to disk"):
            os.fsync(self.descriptor)

    def finish(self, size: int) -> None:
        """Truncates the file to `size`, syncs it and gives it its name."""
        with _closing(self.path, self.descriptor):
            self.cut(size)
            self.sync()
        with explained(self.path, "give the file its name"):
            self.unfinished.rename(self.path)

    def discard(self) -> None:
        self.close()
        with explained(self.path, "remove the unfinished file"):
            self.unfinished.unlink()

    def close(self) -> None:
        """Closes the part; a later run may continue it."""
        with explained(self.path, "close the file"):
            os.close(self.descriptor)


def link_file(source: Path, path: Path) -> bool:
    """Gives a finished file, which is never written to again, a second name; False where the file system has no hard links.

    The file itself is on disk already; its new name is when the folder of `path` is synced.
    """
    with explained(path, f"link {source} there"):
        path.unlink(missing_ok=True)
        try:
            os.link(source, path, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return False
    return True


def place_file(path: Path, text: bytes, scratch: Path) -> None:
    """Writes a file that other runs may write at the same time: in `scratch`, a folder of this run alone, then renamed."""
    make_folder(path.parent)
    made = scratch / path.name
    write_file(made, text)
    with explained(path, "give the file its name"):
        made.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flushes the entries of a folder to disk."""
    with explained(folder, "flush the folder to disk"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with _closing(folder, descriptor):
            os.fsync(descriptor)


def move_folder(source: Path, target: Path) -> bool:
    """Moves a finished folder to its final path; False if that is taken."""
    with explained(target, f"move {source} there"):
        try:
            source.rename(target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            return False
    sync_folder(target.parent)
    return True


def point(name: Path, target: str, scratch: Path) -> None:
    """Makes `name` a symlink to `target`, atomically: the new link is made in `scratch`, then renamed."""
    make_folder(name.parent)
    link = scratch / "link"
    with explained(name, "make the link"):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        link.replace(name)
    sync_folder(name.parent)


def remove_folder(folder: Path) -> None:
    """Removes a folder that nothing refers to; of a link in its place, only the link."""
    with explained(folder, "remove the folder"):
        if folder.is_symlink():
            folder.unlink()
        else:
            shutil.rmtree(folder)


def remove_empty_folder(folder: Path) -> None:
    """Removes a folder if it is empty and can be removed; a mount point cannot."""
    with suppress(OSError):
        folder.rmdir()


def remove_file(path: Path) -> None:
    with explained(path, "remove the file"):
        path.unlink(missing_ok=True)


def remove_link(link: Path) -> None:
    """Removes a symlink for good; what it leads to stays. Anything else in its place is left alone."""
    if link.is_symlink():
        remove_file(link)
        sync_folder(link.parent)


def open_lock(path: Path) -> int | None:
    """Takes the exclusive lock on a file; None if another process holds it. Closing the descriptor releases the lock."""
    try:
        return _lock(path, path.parent, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, fcntl.LOCK_EX)
    except DiskError:
        if path.is_symlink():
            raise Corrupt(f"{path}: a link where the lock should be. Remove it.") from None
        raise


def lock_folder(folder: Path, exclusive: bool) -> int | None:
    """Takes a shared or exclusive lock on a folder; None if another process holds a conflicting one."""
    return _lock(folder, folder, os.O_RDONLY | os.O_DIRECTORY, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)


def make_exclusive(descriptor: int) -> bool:
    """Turns a shared lock into an exclusive one, if no other process shares it; otherwise the lock may be lost."""
    with suppress(OSError):
        return _try_lock(descriptor, fcntl.LOCK_EX)
    return False


def describe_lock(path: Path, descriptor: int, holder: bytes) -> None:
    """Writes a description of the holder into a lock file, for the message of other processes."""
    with explained(path, "describe the holder of the lock"):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder, 0)


def free_bytes(folder: Path) -> int:
    """Free disk space at a folder, or at its first parent that exists."""
    with explained(folder, "find out how much space is free"):
        while not folder.exists():
            folder = folder.parent
        status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _lock(path: Path, folder: Path, flags: int, operation: int) -> int | None:
    """Opens and locks a path within a folder, which is made where needed.

    The last holder may remove both at the same time: then the open fails, or the lock is on a removed file.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            make_folder(folder)
            with explained(path, "open the lock"):
                descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
        except DiskError as error:
            if attempt == _ATTEMPTS or not isinstance(error.__cause__, FileNotFoundError):
                raise
            continue
        try:
            with explained(path, "take the lock"):
                taken = _try_lock(descriptor, operation)
                removed = os.fstat(descriptor).st_nlink == 0
        except BaseException:
            os.close(descriptor)
            raise
        if taken and not removed:
            return descriptor
        os.close(descriptor)
        if not taken:
            return None
    return None


def _try_lock(descriptor: int, operation: int) -> bool:
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def temporary_folder(size: int) -> Iterator[Path]:
    """A folder that is removed at the end: in shared memory if `size` bytes take little of it, else with temporary files."""
    memory = Path("/dev/shm")
    small = memory.is_dir() and os.access(memory, os.W_OK) and 4 * size < free_bytes(memory)
    with explained(memory if small else Path(os.environ.get("TMPDIR", "/tmp")), "make a temporary folder"):
        made = TemporaryDirectory(prefix="mmdiff-", dir=memory if small else None, ignore_cleanup_errors=True)
    with made as folder:
        yield Path(folder)

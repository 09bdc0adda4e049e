"""Files read by position: without a map (a short file under a map is a SIGBUS) and without a shared file position.

The file is opened for each read and closed after it, so that ten thousand parts need one descriptor. Size and modification time
are compared each time, so that a file replaced in between is noticed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import UnreadableSource

ReadInto = Callable[[NDArray[Any], int], None]
"""Fills a C-contiguous array with the bytes at an offset."""


class Bytes(Protocol):
    """Bytes that are read by position from any thread: a file, a part of one, or a member of an archive."""

    name: str
    size: int

    def read_into(self, array: NDArray[Any], offset: int) -> None:
        """Fills a C-contiguous array with the bytes at `offset`."""

    def reading(self) -> AbstractContextManager[ReadInto]:
        """`read_into` for many small reads, which opens the file once."""


def first_bytes(file: Bytes, size: int) -> bytes:
    """The first bytes, fewer if there are fewer."""
    start = np.empty(min(size, file.size), np.uint8)
    file.read_into(start, 0)
    return start.tobytes()


def expect_data(file: Bytes, start: int, expected: int, promise: str) -> None:
    """Raises UnreadableSource unless `expected` bytes follow from `start` on; `promise` says what the header announced."""
    found = file.size - start
    if found != expected:
        verdict = "is truncated" if found < expected else f"has {found - expected:,} bytes too many"
        raise UnreadableSource(
            f"{file.name}: {promise} ({expected:,} bytes of data) but the file holds {found:,}. "
            f"It {verdict}: copy or write it again."
        )


def pread_into(fd: int, array: NDArray[Any], offset: int, name: str) -> None:
    """Fills a C-contiguous array with the bytes at `offset`."""
    flat = array.reshape(-1).view(np.uint8)
    done = 0
    while done < len(flat):
        got = os.preadv(fd, [flat[done:].data], offset + done)
        if got == 0:
            raise UnreadableSource(
                f"{name}: the file ended at byte {offset + done:,} while bytes {offset:,} to {offset + len(flat):,} "
                "were read. It was cut short during the run: copy or write it again."
            )
        done += got


class RawFile:
    """A regular file, or a part of it, with the size and modification time the file had when it was first opened."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.path = path
        self.name = name or str(path)
        with self._explained():
            found = path.stat()
        # Opening a pipe would block, and reading a folder would fail.
        if not stat.S_ISREG(found.st_mode):
            raise UnreadableSource(f"{self.name}: not a regular file. Give the path of a file on disk.")
        self.size = self._whole = found.st_size
        self._modified = found.st_mtime_ns
        self._start = 0

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise UnreadableSource(f"{self.name}: no such file. Check the path.") from error
        except OSError as error:
            raise UnreadableSource(
                f"{self.name}: cannot be read ({error.strerror}). Check its permissions and the disk."
            ) from error

    def check_unchanged(self, fd: int | None = None) -> None:
        """Raises UnreadableSource if the file has changed; `fd` is its open descriptor, if there is one."""
        with self._explained():
            found = self.path.stat() if fd is None else os.fstat(fd)
        if (found.st_size, found.st_mtime_ns) != (self._whole, self._modified):
            raise UnreadableSource(
                f"{self.name}: the file changed while it was being read (it had {self._whole:,} bytes, now "
                f"{found.st_size:,}). Start again once nothing writes to it."
            )

    @contextmanager
    def opened(self) -> Iterator[int]:
        """A descriptor of the unchanged file."""
        with self._explained():
            fd = os.open(self.path, os.O_RDONLY)
            try:
                self.check_unchanged(fd)
                yield fd
            finally:
                os.close(fd)

    def within(self, start: int, size: int, name: str) -> RawFile:
        """A part of this file as a file of its own; it must lie within this one."""
        if not 0 <= start <= start + size <= self.size:
            raise UnreadableSource(
                f"{name}: bytes {start:,} to {start + size:,} of a file of {self.size:,}. It is damaged: copy or write it "
                "again."
            )
        part = copy(self)
        part.name, part.size, part._start = name, size, self._start + start
        return part

    @contextmanager
    def reading(self) -> Iterator[ReadInto]:
        """`read_into` for many small reads, which opens the file once."""
        with self.opened() as fd:
            yield lambda array, offset: pread_into(fd, array, self._start + offset, self.name)

    def read_into(self, array: NDArray[Any], offset: int) -> None:
        """Fills a C-contiguous array with the bytes at `offset`."""
        with self.reading() as read:
            read(array, offset)

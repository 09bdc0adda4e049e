"""A file of raw bytes, read by position: no map (a short file under a map is a SIGBUS) and no shared file position.

The file is opened for each read and closed after it, so that ten thousand parts need one descriptor and none is left
behind; size and modification time are compared each time, so that a file replaced in between is noticed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import UnreadableSource


def pread_into(fd: int, array: NDArray[Any], offset: int, name: str) -> None:
    """Fill a C-contiguous array from the bytes at `offset`."""
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
    """A regular file as it was when it was first looked at."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.path = path
        self.name = name or str(path)
        with self._explained():
            found = path.stat()
        # A pipe would block on open, and a folder would open and then fail to read.
        if not stat.S_ISREG(found.st_mode):
            raise UnreadableSource(f"{self.name}: not a regular file. Give the path of a file on disk.")
        self.size = found.st_size
        self._modified = found.st_mtime_ns

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
        """Compare with what was found at first, for an open descriptor or for readers that open the path themselves."""
        with self._explained():
            found = self.path.stat() if fd is None else os.fstat(fd)
        if (found.st_size, found.st_mtime_ns) != (self.size, self._modified):
            raise UnreadableSource(
                f"{self.name}: the file changed while it was being read (it had {self.size:,} bytes, now "
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

    def read_into(self, array: NDArray[Any], offset: int) -> None:
        """Fill a C-contiguous array from the bytes at `offset`."""
        with self.opened() as fd:
            pread_into(fd, array, offset, self.name)

    def head(self, size: int) -> bytes:
        """The first bytes, fewer if the file has fewer."""
        start = np.empty(min(size, self.size), np.uint8)
        self.read_into(start, 0)
        return start.tobytes()

    def expect_data(self, start: int, expected: int, promise: str) -> None:
        """Compare what the header promises with what lies behind it."""
        found = self.size - start
        if found != expected:
            verdict = "is truncated" if found < expected else f"has {found - expected:,} bytes too many"
            raise UnreadableSource(
                f"{self.name}: {promise} ({expected:,} bytes of data) but the file holds {found:,}. "
                f"It {verdict}: copy or write it again."
            )

"""Arrays that go to the disk and back past the page cache: for what is read once, and soon, by the one who wrote it.

The system would copy each byte, and give up other pages for it. Past the cache, the disk moves whole pages between its files
and memory that begins with a page; where a file system does not do that, and for what does not fill a page, the usual way is
taken.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.storage.arrays import PAGE_BYTES

_LARGE_PAGE_BYTES = 2 << 20


def page_aligned(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """An array of zeros that begins with a page, of the large ones where it fills one.

    With large pages the processor finds rows that lie anywhere sooner, and the disk moves more at once. The system has the
    memory back as soon as nobody holds it; from the allocator, threads would keep some of it.
    """
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    spare = _LARGE_PAGE_BYTES if size >= _LARGE_PAGE_BYTES else 1
    room = mmap.mmap(-1, size + spare, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        room.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(room, np.uint8)
    first = -whole.__array_interface__["data"][0] % spare
    return whole[first : first + size].view(dtype).reshape(shape)


def read_pages(descriptor: int, out: NDArray[Any]) -> None:
    """Reads the first bytes of a file over an array."""
    view, done = out.reshape(-1).view(np.uint8).data, 0
    whole = whole_pages(view)
    with past_the_cache(descriptor) as possible:
        # Behind a part of a page, the rest would not begin with one.
        count = -1
        while possible and count and done < whole and done % PAGE_BYTES == 0:
            count = os.preadv(descriptor, [view[done:whole]], done)
            done += count
    while done < view.nbytes:
        count = os.preadv(descriptor, [view[done:]], done)
        if count == 0:
            raise EOFError(f"a file of {done} bytes, where {view.nbytes} were written")
        done += count


def whole_pages(view: memoryview) -> int:
    """How many of some bytes fill whole pages, and can go past the cache: none, unless they begin with a page."""
    if not view.nbytes or np.frombuffer(view, np.uint8).__array_interface__["data"][0] % PAGE_BYTES:
        return 0
    return view.nbytes // PAGE_BYTES * PAGE_BYTES


def go_past_the_cache(descriptor: int) -> bool:
    """From here on, all that is done with a file goes past the cache, where that is possible."""
    flags, direct = fcntl.fcntl(descriptor, fcntl.F_GETFL), getattr(os, "O_DIRECT", 0)
    with suppress(OSError):
        return bool(direct) and fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | direct) == 0
    return False


@contextmanager
def past_the_cache(descriptor: int) -> Iterator[bool]:
    """Whether the file can be reached past the cache; if so, all that is done with it meanwhile goes that way."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    possible = go_past_the_cache(descriptor)
    try:
        yield possible
    except OSError as error:
        # Only on trying does it turn out that some file systems want larger blocks, or do not do it at all.
        if error.errno != errno.EINVAL:
            raise
    finally:
        if possible:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)

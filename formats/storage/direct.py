"""Direct I/O (O_DIRECT): reading and writing arrays past the page cache, for data that is moved once and in bulk.

The page cache would copy each byte and evict other pages for it, and allocating its pages can take longer than the disk. Direct
I/O moves whole pages between the disk and page-aligned memory. Partial pages, and file systems without direct I/O, use buffered
I/O.
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

_HUGE_PAGE_BYTES = 2 << 20


def page_aligned(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """A page-aligned array of zeros; an array of 2 MiB or more is aligned to huge pages.

    Huge pages make random access faster (fewer TLB misses) and transfers larger. The memory is mapped, so it returns to the
    system as soon as the array is freed; the allocator would keep some of it for each thread.
    """
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    spare = _HUGE_PAGE_BYTES if size >= _HUGE_PAGE_BYTES else 1
    try:
        memory = mmap.mmap(-1, size + spare, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        # As every other allocation: an OSError would read as the failure of a disk.
        raise MemoryError(f"cannot allocate {size:,} bytes") from error
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, np.uint8)
    first = -whole.__array_interface__["data"][0] % spare
    return whole[first : first + size].view(dtype).reshape(shape)


def read_pages(descriptor: int, out: NDArray[Any]) -> None:
    """Fills an array with the first bytes of a file, by direct I/O where possible."""
    view, done = out.reshape(-1).view(np.uint8).data, 0
    whole = whole_pages(view)
    with direct_io(descriptor) as possible:
        # After a partial page the rest is not aligned.
        count = -1
        while possible and count and done < whole and done % PAGE_BYTES == 0:
            count = os.preadv(descriptor, [view[done:whole]], done)
            done += count
    while done < view.nbytes:
        count = os.preadv(descriptor, [view[done:]], done)
        if count == 0:
            raise EOFError(f"the file ends after {done} of {view.nbytes} bytes")
        done += count


def whole_pages(view: memoryview) -> int:
    """The number of leading bytes that direct I/O can move: whole pages, or 0 where the memory is not page-aligned."""
    if not view.nbytes or np.frombuffer(view, np.uint8).__array_interface__["data"][0] % PAGE_BYTES:
        return 0
    return view.nbytes // PAGE_BYTES * PAGE_BYTES


def enable_direct_io(descriptor: int) -> bool:
    """Switches an open file to direct I/O; returns whether that is possible."""
    flags, direct = fcntl.fcntl(descriptor, fcntl.F_GETFL), getattr(os, "O_DIRECT", 0)
    with suppress(OSError):
        return bool(direct) and fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | direct) == 0
    return False


@contextmanager
def direct_io(descriptor: int) -> Iterator[bool]:
    """Direct I/O within the context; yields whether it is possible."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    possible = enable_direct_io(descriptor)
    try:
        yield possible
    except OSError as error:
        # Some file systems accept the flag, and then refuse the transfer: they need larger blocks, or have no direct I/O.
        if error.errno != errno.EINVAL:
            raise
    finally:
        if possible:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)

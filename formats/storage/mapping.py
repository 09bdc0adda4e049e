"""Many chunk files as one read-only ndarray, zero-copy: `mmap` with MAP_FIXED into one reserved address range.

Address space is reserved first (PROT_NONE, so that nothing else is mapped there), then each file replaces its part of it. The
caller checks the size of every file before: a short file under a map is a SIGBUS, not an exception.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import StoreError
from mmdiff.formats.storage.arrays import PAGE_BYTES, ArraySpec

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_PROT_NONE = 0
MADV_WILLNEED, _MADV_DONTNEED, _MADV_POPULATE_READ = 3, 4, 22
_FAILED = ctypes.c_void_p(-1).value


OpenChunk = Callable[[int], int]
"""Opens a chunk file for reading it other than through the map; returns a new descriptor."""


class FlatMap:
    """The address range of a mapped array; it is unmapped when the last ndarray over it is gone."""

    def __init__(self, spec: ArraySpec, open_chunk: OpenChunk | None = None) -> None:
        self.spec, self.open_chunk = spec, open_chunk
        self.size = spec.chunks * spec.chunk_bytes
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self.address = _map(None, self.size, _PROT_NONE, flags, -1)
        # Not at exit: daemon threads and exit handlers may still read the map.
        weakref.finalize(self, _libc.munmap, self.address, self.size).atexit = False

    def place(self, chunk: int, descriptor: int) -> None:
        """Maps an open chunk file, without its checksum, to its address."""
        at = self.address + chunk * self.spec.chunk_bytes
        _map(at, self.spec.chunk_bytes, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, descriptor)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": (self.spec.planes * self.spec.chunks_per_plane * self.spec.rows_per_chunk, *self.spec.table[1:]),
            "typestr": np.dtype(self.spec.dtype).newbyteorder("<").str,
            "data": (self.address, True),
        }


def map_chunks(spec: ArraySpec, descriptors: Iterable[int], open_chunk: OpenChunk | None = None) -> NDArray[Any]:
    """The array over all of its chunk files, in order. A descriptor may be closed when the next one is taken."""
    if spec.chunks == 0:
        empty = np.empty(spec.shape, spec.dtype)
        empty.flags.writeable = False
        return empty
    flat = FlatMap(spec, open_chunk)
    for chunk, descriptor in enumerate(descriptors):
        flat.place(chunk, descriptor)
    rows = np.asarray(flat)
    return rows.reshape(spec.planes, -1, spec.shape[2])[:, : spec.length] if len(spec.shape) == 3 else rows[: spec.length]


def request(values: NDArray[Any], start: int, stop: int) -> None:
    """Reads rows start..stop-1 of a mapped array into the page cache, and waits for them."""
    if not _advise(values, start, stop, _MADV_POPULATE_READ):
        announce(values, start, stop)


def announce(values: NDArray[Any], start: int, stop: int) -> None:
    """Starts to read rows start..stop-1 of a mapped array into the page cache, without waiting."""
    _advise(values, start, stop, MADV_WILLNEED)


def release(values: NDArray[Any], start: int, stop: int) -> None:
    """Unmaps the pages of rows start..stop-1 of a mapped array; the page cache may evict them."""
    _advise(values, start, stop, _MADV_DONTNEED)


def is_mapped(values: NDArray[Any]) -> bool:
    """Whether an array is the map of chunk files. Pages of other memory must not be released: their content would be lost."""
    return map_of(values) is not None


def map_of(values: NDArray[Any]) -> FlatMap | None:
    """The map that an array is a view of."""
    owner: Any = values
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return owner if isinstance(owner, FlatMap) else None


def _advise(values: NDArray[Any], start: int, stop: int, advice: int) -> bool:
    if start >= stop or not is_mapped(values):
        return True
    address = values.__array_interface__["data"][0]
    first = (address + start * values.strides[0]) // PAGE_BYTES * PAGE_BYTES
    return bool(_libc.madvise(first, address + stop * values.strides[0] - first, advice) == 0)


def _map(address: int | None, size: int, protection: int, flags: int, descriptor: int) -> int:
    mapped = _libc.mmap(address, size, protection, flags, descriptor, 0)
    if mapped == _FAILED:
        code = ctypes.get_errno()
        raise StoreError(f"cannot map {size:,} bytes: {os.strerror(code)}. See `ulimit -v` and vm.max_map_count.")
    return int(mapped)

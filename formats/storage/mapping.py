"""Many chunk files as one read-only ndarray, zero-copy: `mmap` with MAP_FIXED into one reserved address range.

Address space is reserved first (PROT_NONE, so that nothing else is mapped there), then each file replaces its part of it. The
caller checks the size of every file before: a short file under a map is a SIGBUS, not an exception. A file that is shortened
later ends the process with a sentence (`bus_errors.py`).

Mapping reads nothing. A chunk is checked against its checksum when it is first touched: `touch` comes before reading. The
arrays that `touch_all` or `MappedArray` return have been touched already. The checksum is taken from the file that is mapped,
which is read several times as fast as the map: a read copies whole blocks into the processor's cache.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from mmdiff.formats.errors import Damaged, DiskError, StoreError
from mmdiff.formats.storage.arrays import PAGE_BYTES, ArraySpec
from mmdiff.formats.storage.bus_errors import forget_map, report_bus_errors_in
from mmdiff.formats.storage.crc import crc32c, crc32c_of_file
from mmdiff.formats.storage.disk_errors import disk_error

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

# The checksum of a chunk is computed in pieces, with a pause that gives up the GIL: threads that compute want it in between.
_PIECE_BYTES = 512 << 10

# Threads that check the chunks of an array together: while one waits for the disk, another computes.
_CHECKERS = 4

OpenChunk = Callable[[int], int]
"""Opens the mapped file of a chunk again, for reading it other than through the map; returns a new descriptor."""


def _nothing(_: int) -> None: ...


@dataclass(frozen=True)
class Origin:
    """The origin of a mapped array: its name for messages, how to repair it, the file of each chunk, and its checksum.

    Without checksums nothing is checked: the array belongs to a draft of this process, or the user asked for no checks.
    `checked` are the chunks that this process has checked before, known once all files are open; `remember` is called with each
    chunk that it checks now.
    """

    name: str
    remedy: Callable[[], str]
    path: Callable[[int], Path]
    crcs: Sequence[int] | None = None
    checked: Collection[int] = ()
    remember: Callable[[int], None] = _nothing


class FlatMap:
    """The address range of a mapped array; it is unmapped when the last ndarray over it is gone."""

    def __init__(self, spec: ArraySpec, open_chunk: OpenChunk | None = None, origin: Origin | None = None) -> None:
        self.spec, self.open_chunk, self.origin = spec, open_chunk, origin
        self.size = spec.chunks * spec.chunk_bytes
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self.address = _map(None, self.size, _PROT_NONE, flags, -1)
        self.unchecked: set[int] = set()
        if origin is not None and origin.crcs is not None:
            self.unchecked = set(range(spec.chunks))
        self._locks = {chunk: threading.Lock() for chunk in self.unchecked}
        # Not at exit: daemon threads and exit handlers may still read the map.
        weakref.finalize(self, _unmap, self.address, self.size).atexit = False
        if origin is not None:
            report_bus_errors_in(self.address, self.size, spec.chunk_bytes, origin.path)

    def place(self, chunk: int, descriptor: int) -> None:
        """Maps an open chunk file, without its checksum, to its address."""
        at = self.address + chunk * self.spec.chunk_bytes
        _map(at, self.spec.chunk_bytes, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, descriptor)

    def chunks_of(self, view: NDArray[Any]) -> range:
        """The chunks from the first to the last byte of a view of the array."""
        if not view.size:
            return range(0)
        low, high = byte_bounds(view)
        return range((low - self.address) // self.spec.chunk_bytes, -(-(high - self.address) // self.spec.chunk_bytes))

    def touch_chunks(self, chunks: Iterable[int]) -> bool:
        """Checks those of the chunks that were not checked before; returns whether there were any."""
        fresh = [chunk for chunk in chunks if chunk in self.unchecked]
        _in_threads(self._touch, fresh)
        return bool(fresh)

    def _touch(self, chunk: int) -> None:
        with self._locks[chunk]:
            # Another thread may have checked it meanwhile.
            if chunk in self.unchecked:
                self._check(chunk)
                self.unchecked.discard(chunk)

    def _check(self, chunk: int) -> None:
        """Raises Damaged unless the bytes of a chunk match their checksum, and DiskError if they cannot be read."""
        assert self.origin is not None
        assert self.origin.crcs is not None
        if not self._file_matches(chunk, self.origin.crcs[chunk]):
            self._check_map(chunk, self.origin.crcs[chunk])
        self.origin.remember(chunk)

    def _file_matches(self, chunk: int, crc: int) -> bool:
        """Whether the mapped file can be opened again, and its content matches the checksum."""
        if self.open_chunk is None:
            return False
        try:
            descriptor = self.open_chunk(chunk)
        except StoreError:
            return False
        try:
            # The kernel may read the whole chunk ahead, as it does for the map.
            os.posix_fadvise(descriptor, 0, self.spec.chunk_bytes, os.POSIX_FADV_WILLNEED)
            return crc32c_of_file(descriptor, self.spec.chunk_bytes) == crc
        except OSError:
            return False
        finally:
            os.close(descriptor)

    def _check_map(self, chunk: int, crc: int) -> None:
        """Checks a chunk in the map itself: it counts where its file has been replaced, or says why it cannot be read."""
        size = self.spec.chunk_bytes
        at = self.address + chunk * size
        # Reads the pages first: where the disk fails or the file is too short, this is an error, and a plain access a SIGBUS.
        if _libc.madvise(at, size, _MADV_POPULATE_READ) != 0:
            code = ctypes.get_errno()
            if code not in (errno.EINVAL, errno.EINTR):
                raise self._unreadable(chunk, errno.EIO if code == errno.EFAULT else code)
        content = np.asarray(self).reshape(-1).view(np.uint8)[chunk * size : (chunk + 1) * size]
        found = 0
        for start in range(0, size, _PIECE_BYTES):
            found = crc32c(content[start : start + _PIECE_BYTES], found)
            time.sleep(0)
        if found != crc:
            raise self.damaged(f"chunk {self.spec.chunk_file(chunk)} does not match its checksum.")

    def _unreadable(self, chunk: int, code: int) -> StoreError:
        """The error for a chunk whose pages cannot be read: it is damaged if its file is another now, else the system failed.

        The system says EFAULT both for a file that was shortened and for a disk that fails.
        """
        assert self.origin is not None
        assert self.open_chunk is not None
        try:
            os.close(self.open_chunk(chunk))
        except DiskError as error:
            return error
        except StoreError:
            return self.damaged(f"chunk {self.spec.chunk_file(chunk)} cannot be read: the file was shortened or replaced.")
        return disk_error(OSError(code, os.strerror(code)), self.origin.path(chunk), "read the file")

    def damaged(self, problem: str) -> Damaged:
        """The error for a problem of this array."""
        return Damaged(problem if self.origin is None else f"{self.origin.name}: {problem} {self.origin.remedy()}")

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": (self.spec.planes * self.spec.chunks_per_plane * self.spec.rows_per_chunk, *self.spec.table[1:]),
            "typestr": np.dtype(self.spec.dtype).newbyteorder("<").str,
            "data": (self.address, True),
        }


def map_chunks(
    spec: ArraySpec,
    descriptors: Iterable[int],
    open_chunk: OpenChunk | None = None,
    origin: Origin | None = None,
) -> NDArray[Any]:
    """The array over all of its chunk files, in order. A descriptor may be closed when the next one is taken.

    Where the origin has checksums, the caller touches the rows before reading them.
    """
    if spec.chunks == 0:
        empty = np.empty(spec.shape, spec.dtype)
        empty.flags.writeable = False
        return empty
    flat = FlatMap(spec, open_chunk, origin)
    for chunk, descriptor in enumerate(descriptors):
        flat.place(chunk, descriptor)
    if origin is not None:
        flat.unchecked.difference_update(origin.checked)
    rows = np.asarray(flat)
    return rows.reshape(spec.planes, -1, spec.shape[2])[:, : spec.length] if len(spec.shape) == 3 else rows[: spec.length]


def touch(values: NDArray[Any], start: int, stop: int) -> bool:
    """Checks the chunks of rows start..stop-1 of a mapped array, before they are first read.

    Returns whether a chunk was checked just now. Raises Damaged for one that does not match its checksum.
    """
    flat = map_of(values)
    return flat is not None and bool(flat.unchecked) and flat.touch_chunks(flat.chunks_of(values[start:stop]))


def touch_entries(values: NDArray[Any], starts: NDArray[np.int64], stops: NDArray[np.int64]) -> bool:
    """Checks the chunks of scattered ranges of a mapped 1-D array; as `touch` does for one range."""
    flat = map_of(values)
    if flat is None or not flat.unchecked:
        return False
    some, before = starts < stops, values.__array_interface__["data"][0] - flat.address
    first = (before + starts[some] * values.itemsize) // flat.spec.chunk_bytes
    last = (before + stops[some] * values.itemsize - 1) // flat.spec.chunk_bytes
    # The number of ranges that begin, less those that have ended, is positive where a chunk is needed.
    change = np.zeros(flat.spec.chunks + 1, np.int64)
    np.add.at(change, first, 1)
    np.add.at(change, last + 1, -1)
    return flat.touch_chunks(np.flatnonzero(np.cumsum(change)[:-1] > 0).tolist())


def touch_all(values: NDArray[Any]) -> NDArray[Any]:
    """Checks all chunks of a mapped array, and returns it. Pages of the map are released again; they stay in the page cache."""
    flat = map_of(values)
    # Listed once: other threads may check them meanwhile.
    chunks = [] if flat is None else sorted(flat.unchecked)
    if flat is None or not chunks:
        return values

    def check(chunk: int) -> None:
        flat.touch_chunks([chunk])
        at = flat.address + chunk * flat.spec.chunk_bytes
        _libc.madvise(at, flat.spec.chunk_bytes, _MADV_DONTNEED)

    _in_threads(check, chunks)
    return values


def _in_threads(check: Callable[[int], None], chunks: Sequence[int]) -> None:
    """Checks chunks, several at a time: one thread alone would wait for the disk, then for the processor."""
    if len(chunks) <= 1:
        for chunk in chunks:
            check(chunk)
        return
    with ThreadPoolExecutor(min(_CHECKERS, len(chunks))) as pool:
        try:
            for done in [pool.submit(check, chunk) for chunk in chunks]:
                done.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


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


def _unmap(address: int, size: int) -> None:
    forget_map(address)
    _libc.munmap(address, size)


def _map(address: int | None, size: int, protection: int, flags: int, descriptor: int) -> int:
    mapped = _libc.mmap(address, size, protection, flags, descriptor, 0)
    if mapped == _FAILED:
        code = ctypes.get_errno()
        raise StoreError(f"cannot map {size:,} bytes: {os.strerror(code)}. See `ulimit -v` and vm.max_map_count.")
    return int(mapped)

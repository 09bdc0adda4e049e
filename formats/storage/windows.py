"""Windows on a mapped array, read by direct I/O: for arrays larger than memory that are read front to back, again and again.

Through the map, every page costs a fault, a lookup in the page cache and the eviction of another page. A window is read into a
buffer that is reused for the next one.
"""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import StoreError
from mmdiff.formats.storage.arrays import PAGE_BYTES, ArraySpec
from mmdiff.formats.storage.direct import enable_direct_io
from mmdiff.formats.storage.disk_errors import disk_error
from mmdiff.formats.storage.mapping import OpenChunk, map_of


def windows_on(values: NDArray[Any]) -> Windows | None:
    """Windows on a mapped 1-D array; None unless it is a whole map whose files can be opened."""
    flat = map_of(values)
    if flat is None or flat.open_chunk is None or values.__array_interface__["data"][0] != flat.address:
        return None
    return Windows(flat.spec, flat.open_chunk)


class Windows:
    """Reads ranges of one array. Each reading thread keeps one file open."""

    def __init__(self, spec: ArraySpec, open_chunk: OpenChunk) -> None:
        self._dtype, self._chunk_bytes, self._open_chunk = np.dtype(spec.dtype), spec.chunk_bytes, open_chunk
        self._files: dict[int, tuple[int, int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for _, descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def read(self, start: int, stop: int, buffer: NDArray[np.uint8]) -> NDArray[Any] | None:
        """Entries start..stop-1, read into a page-aligned buffer, as an array with the indices of the whole array.

        Only these entries of it may be accessed. None where direct I/O fails: the buffer is too small, the file system does not
        support it, or the file was removed. The map still has the entries then.
        """
        first, end = start * self._dtype.itemsize // PAGE_BYTES, -(-stop * self._dtype.itemsize // PAGE_BYTES)
        view = buffer[: (end - first) * PAGE_BYTES].data
        if view.nbytes < (end - first) * PAGE_BYTES or not self._fill(view, first * PAGE_BYTES):
            return None
        return np.asarray(_Window(buffer, self._dtype, first * PAGE_BYTES, stop))

    def _fill(self, view: memoryview, position: int) -> bool:
        while view:
            chunk, at = divmod(position, self._chunk_bytes)
            piece = view[: self._chunk_bytes - at]
            try:
                descriptor = self._descriptor(chunk)
                count = 0 if descriptor is None else os.preadv(descriptor, [piece], at)
            except StoreError:
                return False
            except OSError as error:
                # Some file systems accept the flag, and then need larger blocks.
                if error.errno != errno.EINVAL:
                    raise disk_error(error, self._file(chunk), "read the file") from error
                return False
            # After a partial page, direct I/O cannot continue.
            if count == 0 or count % PAGE_BYTES:
                return False
            view, position = view[count:], position + count
        return True

    def _descriptor(self, chunk: int) -> int | None:
        """A direct I/O descriptor of a chunk file, or None without direct I/O. Closes the previous file of this thread."""
        thread = threading.get_ident()
        opened, descriptor = self._files.get(thread, (-1, -1))
        if opened == chunk:
            return descriptor
        if opened >= 0:
            del self._files[thread]
            os.close(descriptor)
        descriptor = self._open_chunk(chunk)
        if not enable_direct_io(descriptor):
            os.close(descriptor)
            return None
        self._files[thread] = chunk, descriptor
        return descriptor

    def _file(self, chunk: int) -> Path:
        """The path of a chunk file, found through its descriptor."""
        opened, descriptor = self._files.get(threading.get_ident(), (-1, -1))
        return Path(f"/proc/self/fd/{descriptor}").readlink() if opened == chunk else Path(f"chunk {chunk}")


class _Window:
    """An array interface for a range of an array, at the indices of the whole array: the address lies before the buffer."""

    def __init__(self, buffer: NDArray[np.uint8], dtype: np.dtype[Any], skipped: int, stop: int) -> None:
        self._buffer = buffer
        self.__array_interface__ = {
            "version": 3,
            "shape": (stop,),
            "typestr": dtype.str,
            "data": (buffer.__array_interface__["data"][0] - skipped, True),
        }

"""Windows on a mapped array, read past the page cache: for what is larger than memory and read front to back, again and again.

Through the map, every page would be looked for in the cache, made room for by giving up another, and entered into tables; a
window is read by the disk into memory that is used again for the next one.
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

from mmdiff.formats.errors import Corrupt
from mmdiff.formats.storage.arrays import PAGE_BYTES, ArraySpec
from mmdiff.formats.storage.direct import go_past_the_cache
from mmdiff.formats.storage.mapping import OpenChunk, map_of


def windows_on(values: NDArray[Any]) -> Windows | None:
    """Windows on a mapped array of one dimension, where its files are known."""
    flat = map_of(values)
    if flat is None or flat.open_chunk is None or values.__array_interface__["data"][0] != flat.address:
        return None
    return Windows(flat.spec, flat.open_chunk)


class Windows:
    """Of one array. Threads that read have a file open each."""

    def __init__(self, spec: ArraySpec, open_chunk: OpenChunk) -> None:
        self._dtype, self._chunk_bytes, self._open_chunk = np.dtype(spec.dtype), spec.chunk_bytes, open_chunk
        self._files: dict[int, tuple[int, int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for _, descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def read(self, start: int, stop: int, room: NDArray[np.uint8]) -> NDArray[Any] | None:
        """Entries start..stop-1, in memory that begins with a page, under the indices that they have in the whole array.

        No other entry may be looked at. None where they cannot be had so: there is too little room, the file system does not do
        it, or the file has lost its name; the map has them all the same.
        """
        first, end = start * self._dtype.itemsize // PAGE_BYTES, -(-stop * self._dtype.itemsize // PAGE_BYTES)
        view = room[: (end - first) * PAGE_BYTES].data
        if view.nbytes < (end - first) * PAGE_BYTES or not self._fill(view, first * PAGE_BYTES):
            return None
        return np.asarray(_Window(room, self._dtype, first * PAGE_BYTES, stop))

    def _fill(self, view: memoryview, position: int) -> bool:
        while view:
            chunk, at = divmod(position, self._chunk_bytes)
            piece = view[: self._chunk_bytes - at]
            try:
                descriptor = self._descriptor(chunk)
                count = 0 if descriptor is None else os.preadv(descriptor, [piece], at)
            except Corrupt:
                return False
            except OSError as error:
                # Only on trying does it turn out that some file systems want larger blocks.
                if error.errno != errno.EINVAL:
                    raise Corrupt(f"{self._name(chunk)}: {error.strerror}. Copy the store to a disk that works.") from error
                return False
            # What is not whole pages cannot be continued this way.
            if count == 0 or count % PAGE_BYTES:
                return False
            view, position = view[count:], position + count
        return True

    def _descriptor(self, chunk: int) -> int | None:
        """Of the file of a chunk, past the cache, or None where that is not possible; this thread's last one is closed."""
        thread = threading.get_ident()
        opened, descriptor = self._files.get(thread, (-1, -1))
        if opened == chunk:
            return descriptor
        if opened >= 0:
            del self._files[thread]
            os.close(descriptor)
        descriptor = self._open_chunk(chunk)
        if not go_past_the_cache(descriptor):
            os.close(descriptor)
            return None
        self._files[thread] = chunk, descriptor
        return descriptor

    def _name(self, chunk: int) -> str:
        """Of the file of a chunk, whose descriptor is all that we were given."""
        opened, descriptor = self._files.get(threading.get_ident(), (-1, -1))
        return str(Path(f"/proc/self/fd/{descriptor}").readlink()) if opened == chunk else f"chunk {chunk}"


class _Window:
    """Memory that holds some entries of an array, seen as if all those before them were there too."""

    def __init__(self, room: NDArray[np.uint8], dtype: np.dtype[Any], skipped: int, stop: int) -> None:
        self._room = room
        self.__array_interface__ = {
            "version": 3,
            "shape": (stop,),
            "typestr": dtype.str,
            "data": (room.__array_interface__["data"][0] - skipped, True),
        }

"""CRC-32C, the checksum after every chunk (zarr's crc32c codec): four little-endian bytes, computed in hardware."""

from __future__ import annotations

import os
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.progress import Advance

TAIL_BYTES = 4

# Small enough to stay in the L2 cache between the read and the checksum.
_BLOCK_BYTES = 512 << 10


def crc32c(data: NDArray[Any] | bytes, crc: int = 0) -> int:
    """The checksum of bytes or of a contiguous array, continued from the checksum of the preceding bytes."""
    if isinstance(data, np.ndarray):
        data = data.reshape(-1).view(np.uint8)
    return int(google_crc32c.extend(crc, data))


def crc32c_of_file(descriptor: int, size: int, advance: Advance = lambda _: None) -> int | None:
    """The checksum of the next `size` bytes of an open file; None if the file ends before. `advance` reports the bytes read.

    The file is read and not mapped: a disk error is an OSError here, and a SIGBUS under a map.
    """
    buffer = np.empty(min(size, _BLOCK_BYTES), np.uint8)
    crc, left = 0, size
    while left:
        count = os.readv(descriptor, [buffer[:left].data])
        if count == 0:
            return None
        crc = crc32c(buffer[:count], crc)
        left -= count
        advance(count)
    return crc


def tail(crc: int) -> bytes:
    """The four bytes after a chunk."""
    return np.array(crc, "<u4").tobytes()


def in_hardware() -> bool:
    """Whether the compiled implementation is in use; pure Python is a thousand times slower."""
    return bool(google_crc32c.implementation == "c")

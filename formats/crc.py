"""CRC-32C, the checksum behind every chunk: computed in hardware, four little-endian bytes (zarr's crc32c codec)."""

from __future__ import annotations

from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

TAIL_BYTES = 4


def crc32c(data: NDArray[Any] | bytes, crc: int = 0) -> int:
    """The checksum of `data` (if an array, a contiguous one), continued from that of what came before."""
    if isinstance(data, np.ndarray):
        data = data.reshape(-1).view(np.uint8)
    return int(google_crc32c.extend(crc, data))


def tail(crc: int) -> bytes:
    """The four bytes behind a chunk."""
    return np.array(crc, "<u4").tobytes()


def in_hardware() -> bool:
    """Whether the compiled implementation is in use; the one in pure Python is a thousand times slower."""
    return bool(google_crc32c.implementation == "c")

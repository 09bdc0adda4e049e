"""The header of a safetensors file: which tensors it holds, read without the library and without trusting the file.

Eight bytes (little-endian) say how long the header is; it is JSON, and gives for each tensor its dtype, shape and place.
"""

from __future__ import annotations

import json
from typing import Any

from mmdiff.formats.errors import UnreadableSource

_BYTES = {"F32": 4, "I64": 8}


def tensor_shapes(data: bytes) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The dtype and shape of each tensor; every one must lie within the file and be as long as its shape says."""
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length])
        return {name: _checked(entry, len(data) - 8 - length) for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableSource("not a safetensors file. Make it again.") from error


def _checked(entry: dict[str, Any], room: int) -> tuple[str, tuple[int, ...]]:
    dtype, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    size = _BYTES[dtype]
    for n in shape:
        size *= n
    if not (0 <= start <= stop <= room and stop - start == size and all(n >= 0 for n in shape)):
        raise ValueError(f"a tensor of shape {shape} at {start} to {stop}")
    return dtype, shape

"""Tensors of a stored model: a safetensors file within an array, read without the library and compared with its header."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import UnreadableSource

# Bytes of a value, by the dtypes of safetensors that are accepted, and bounds of a shape.
_TENSOR_BYTES = {"F32": 4, "I64": 8}
_MOST_DIMENSIONS, _MOST_LENGTH = 8, 1 << 47


def tensor_shapes(data: bytes) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The dtype and shape of each tensor of a safetensors file, read from its header without the library.

    The file is eight bytes with the length of the header, the header (JSON), and the tensors. Each tensor must have the size of
    its shape, and together they must cover the rest of the file, each byte once.
    """
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length])
        header.pop("__metadata__", None)
        found = {name: _checked_tensor(entry) for name, entry in header.items()}
        end = 0
        for start, stop in sorted(entry["data_offsets"] for entry in header.values()):
            if start != end:
                raise ValueError(f"a tensor at {start} behind one that ends at {end}")
            end = stop
        if end != len(data) - 8 - length:
            raise ValueError(f"tensors that end at {end} of {len(data) - 8 - length}")
        return found
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnreadableSource("not a safetensors file. Make it again.") from error


def floats_of(data: bytes, name: str) -> NDArray[np.float32]:
    """A tensor of a safetensors file whose header was checked."""
    length = int.from_bytes(data[:8], "little")
    start, stop = json.loads(data[8 : 8 + length])[name]["data_offsets"]
    return np.frombuffer(data[8 + length + start : 8 + length + stop], "<f4")


def _checked_tensor(entry: dict[str, Any]) -> tuple[str, tuple[int, ...]]:
    dtype, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    # JSON has fractions, truth values and texts too; a text times a number would fill the memory.
    if not all(type(n) is int for n in (*shape, start, stop)):
        raise ValueError("a tensor whose shape or place is not of whole numbers")
    if len(shape) > _MOST_DIMENSIONS or not all(0 <= n <= _MOST_LENGTH for n in shape):
        raise ValueError("a tensor of an impossible shape")
    if not (0 <= start <= stop and stop - start == _TENSOR_BYTES[dtype] * math.prod(shape)):
        raise ValueError(f"a tensor of shape {shape} at {start} to {stop}")
    return dtype, shape

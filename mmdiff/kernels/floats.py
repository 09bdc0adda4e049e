"""16-bit floats in kernels: float16 descriptors and edge weights are read, bfloat16 scores are read and written.

Arrays of either reach kernels as uint16. A bfloat16 is the upper half of a float32. All arithmetic is float32 or wider.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from mmdiff.kernels.llvm import bfloat16_bits_to_float, float_to_bfloat16_bits, half_bits_to_float


def for_kernels(vectors: NDArray[Any]) -> NDArray[Any]:
    """Vectors as kernels take them: float32 unchanged, float16 as their bits."""
    return vectors.view(np.uint16) if vectors.dtype == np.float16 else vectors


def half_to_float(value: Any) -> Any:  # noqa: ARG001
    """A stored value as a float32, inside kernels: uint16 are the bits of a float16."""
    raise RuntimeError("half_to_float is for kernels")


@overload(half_to_float, inline="always")
def _half_to_float(value: Any) -> Any:
    def half(value: Any) -> Any:
        return half_bits_to_float(value)

    def single(value: Any) -> Any:
        return value

    return half if value == types.uint16 else single


def widen(value: Any) -> Any:  # noqa: ARG001
    """A stored score as a float32, inside kernels: uint16 are the bits of a bfloat16."""
    raise RuntimeError("widen is for kernels")


@overload(widen, inline="always")
def _widen(value: Any) -> Any:
    def short(value: Any) -> Any:
        return bfloat16_bits_to_float(value)

    def single(value: Any) -> Any:
        return value

    return short if value == types.uint16 else single


def keep(array: Any, place: Any, value: Any) -> None:  # noqa: ARG001
    """Stores a float32 in an array of scores, rounded to its type, inside kernels. A place in a matrix is a tuple."""
    raise RuntimeError("keep is for kernels")


@overload(keep, inline="always")
def _keep(array: Any, place: Any, value: Any) -> Any:  # noqa: ARG001
    def short(array: Any, place: Any, value: Any) -> None:
        array[place] = float_to_bfloat16_bits(np.float32(value))

    def single(array: Any, place: Any, value: Any) -> None:
        array[place] = value

    return short if array.dtype == types.uint16 else single


def bfloat16_encode(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """float32 as the bits of the nearest bfloat16."""
    bits = values.view(np.uint32)
    return ((bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))) >> np.uint32(16)).astype(np.uint16)


def bfloat16_decode(values: NDArray[Any]) -> NDArray[np.float32]:
    """Scores as float32: the values themselves, or those of bfloat16 bits."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values

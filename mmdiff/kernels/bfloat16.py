"""bfloat16 in kernels: a float32 without the lower half of its bits. Sums are float32, only what is kept is shorter."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload
from numpy.typing import NDArray


def widen(value: Any) -> Any:  # noqa: ARG001
    """A stored value as a float32, inside kernels."""
    raise RuntimeError("widen is for kernels")


def keep(array: Any, row: int, column: int, value: Any) -> None:  # noqa: ARG001
    """Stores a float32 in a matrix, rounded to what it holds, inside kernels."""
    raise RuntimeError("keep is for kernels")


@intrinsic
def _from_bits(context: Any, bits: Any) -> Any:  # noqa: ARG001
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        word = ir.IntType(32)
        return builder.bitcast(builder.shl(builder.zext(arguments[0], word), word(16)), ir.FloatType())

    return types.float32(types.uint16), generate


@intrinsic
def _to_bits(context: Any, value: Any) -> Any:  # noqa: ARG001
    """Rounds to the nearest, and to even between two."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        word = ir.IntType(32)
        bits = builder.bitcast(arguments[0], word)
        odd = builder.and_(builder.lshr(bits, word(16)), word(1))
        rounded = builder.lshr(builder.add(bits, builder.add(odd, word(0x7FFF))), word(16))
        return builder.trunc(rounded, ir.IntType(16))

    return types.uint16(types.float32), generate


@overload(widen, inline="always")
def _widen(value: Any) -> Any:
    def short(value: Any) -> Any:
        return _from_bits(value)  # type: ignore[call-arg]

    def single(value: Any) -> Any:
        return value

    return short if value == types.uint16 else single


@overload(keep, inline="always")
def _keep(array: Any, row: Any, column: Any, value: Any) -> Any:  # noqa: ARG001
    def short(array: Any, row: Any, column: Any, value: Any) -> None:
        array[row, column] = _to_bits(np.float32(value))  # type: ignore[call-arg]

    def single(array: Any, row: Any, column: Any, value: Any) -> None:
        array[row, column] = value

    return short if array.dtype == types.uint16 else single


def encode(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """float32 as the bits of the nearest bfloat16."""
    bits = values.view(np.uint32)
    return ((bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))) >> np.uint32(16)).astype(np.uint16)


def decode(values: NDArray[Any]) -> NDArray[np.float32]:
    """What is kept as float32: the values themselves, or those of bfloat16 bits."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values

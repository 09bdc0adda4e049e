"""Reading float16 in kernels: numba knows no half floats on CPUs, but LLVM does, and the processor converts eight at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload
from numpy.typing import NDArray


def for_kernels(vectors: NDArray[Any]) -> NDArray[Any]:
    """Vectors as kernels take them: float32 as they are, float16 as their bits."""
    return vectors.view(np.uint16) if vectors.dtype == np.float16 else vectors


def decode(value: Any) -> Any:  # noqa: ARG001
    """A stored value as a float32, inside kernels."""
    raise RuntimeError("decode is for kernels")


@intrinsic
def _from_half(context: Any, bits: Any) -> Any:  # noqa: ARG001
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


@overload(decode, inline="always")
def _decode(value: Any) -> Any:
    def half(value: Any) -> Any:
        return _from_half(value)  # type: ignore[call-arg]

    def single(value: Any) -> Any:
        return value

    return half if value == types.uint16 else single

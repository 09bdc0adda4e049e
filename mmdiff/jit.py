"""How kernels are compiled: once, cached on disk, without the GIL, and free to reorder sums but not to ignore NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def kernel(function: Function) -> Function:
    """Compiles a function with numba; to the type checker it stays what it was."""
    compiled = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})(function)
    return cast(Function, compiled)

"""Compilation of numba kernels: cached on disk, without the GIL, with IEEE semantics for NaN and Inf."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def kernel(function: Function) -> Function:
    """Compiles a function whose sums the compiler may reorder; the type checker still sees the plain function."""
    compiled = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})(function)
    return cast(Function, compiled)


def exact_kernel(function: Function) -> Function:
    """Compiles a function whose sums are rounded in the order they are written in, so that blocking changes no result."""
    return cast(Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))

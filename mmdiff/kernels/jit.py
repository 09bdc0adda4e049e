"""How kernels are compiled: once, cached on disk, without the GIL, and not free to ignore NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., object])


def kernel(function: Function) -> Function:
    """Compiles a function that may reorder sums; to the type checker it stays what it was."""
    compiled = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})(function)
    return cast(Function, compiled)


def exact_kernel(function: Function) -> Function:
    """Compiles a function whose sums are rounded in the order they are written in, however the work around it is cut."""
    return cast(Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


@intrinsic
def _prefetch(typing: Any, array: Any, index: Any) -> Any:  # noqa: ARG001
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type, index_type = signature.args
        values = context.make_array(array_type)(context, builder, arguments[0])
        at = [context.cast(builder, arguments[1], index_type, types.intp)]
        emit_prefetch(builder, cast(Any, cgutils).get_item_pointer(context, builder, array_type, values, at), to_write=True)
        return context.get_dummy_value()

    return types.void(array, index), emit


prefetch = cast(Callable[[Any, Any], None], _prefetch)
"""Asks for an entry of an array of one dimension that is written soon; where there is none, nothing happens."""


def emit_prefetch(builder: Any, entry: Any, to_write: bool) -> None:
    """Puts the instruction that asks for an address into a function that is being made."""
    byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    function = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
    keep, data = number(3), number(1)
    declared = builder.module.declare_intrinsic("llvm.prefetch", (byte,), function)
    builder.call(declared, [builder.bitcast(entry, byte), number(int(to_write)), keep, data])

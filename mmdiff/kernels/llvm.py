"""LLVM instructions for kernels, where numba has no function for them: prefetches, float formats, comparisons of vectors.

This module and `register_sums.py` are the only ones that import llvmlite.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

# Entries that `count_smaller` compares at once: four AVX2 vectors.
LANES = 32


def _prefetching(to_write: bool) -> Callable[[Any, Any], None]:
    def prefetching(typing: Any, array: Any, index: Any) -> Any:  # noqa: ARG001
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array_type, index_type = signature.args
            values = context.make_array(array_type)(context, builder, arguments[0])
            at = [context.cast(builder, arguments[1], index_type, types.intp)]
            emit_prefetch(builder, cast(Any, cgutils).get_item_pointer(context, builder, array_type, values, at), to_write)
            return context.get_dummy_value()

        return types.void(array, index), emit

    return cast(Callable[[Any, Any], None], intrinsic(prefetching))


prefetch = _prefetching(to_write=True)
"""Requests the cache line of array[index], which is written soon. An index outside the array does no harm."""

prefetch_to_read = _prefetching(to_write=False)
"""The same for a line that is read soon."""


def emit_prefetch(builder: Any, entry: Any, to_write: bool) -> None:
    """Emits a prefetch of an address into the function under construction."""
    byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    function = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
    keep, data = number(3), number(1)
    declared = builder.module.declare_intrinsic("llvm.prefetch", (byte,), function)
    builder.call(declared, [builder.bitcast(entry, byte), number(int(to_write)), keep, data])


@intrinsic
def _count_smaller(typing: Any, entries: Any, count: Any, at: Any, places: Any) -> Any:  # noqa: ARG001
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        build = cast(Any, cgutils)
        number = ir.IntType(32)
        vector = ir.VectorType(number, LANES)
        undefined, zeros = ir.Constant(vector, ir.Undefined), ir.Constant(vector, None)
        values = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        target = context.make_array(signature.args[3])(context, builder, arguments[3]).data
        chosen = builder.bitcast(builder.gep(values, [arguments[2]]), vector.as_pointer())
        out = builder.bitcast(builder.gep(target, [arguments[2]]), vector.as_pointer())
        own = builder.load(chosen, align=4)
        smaller = build.alloca_once_value(builder, zeros)
        with build.for_range(builder, arguments[1]) as loop:
            entry = builder.load(builder.gep(values, [loop.index]))
            entry = builder.shuffle_vector(builder.insert_element(undefined, entry, number(0)), undefined, zeros)
            # Node numbers are below 2^31, so a signed comparison is right; true is -1.
            found = builder.sext(builder.icmp_signed("<", entry, own), vector)
            builder.store(builder.sub(builder.load(smaller), found), smaller)
        builder.store(builder.load(smaller), out, align=4)
        return context.get_dummy_value()

    return types.void(entries, types.intp, types.intp, places), emit


count_smaller = cast(Callable[[NDArray[np.uint32], Any, int, NDArray[np.uint32]], None], _count_smaller)
"""places[at : at + LANES] = the number of the first `count` entries that are smaller than each of entries[at : at + LANES]."""


@intrinsic
def _half_bits_to_float(typing: Any, bits: Any) -> Any:  # noqa: ARG001
    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), emit


@intrinsic
def _bfloat16_bits_to_float(typing: Any, bits: Any) -> Any:  # noqa: ARG001
    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        word = ir.IntType(32)
        return builder.bitcast(builder.shl(builder.zext(arguments[0], word), word(16)), ir.FloatType())

    return types.float32(types.uint16), emit


@intrinsic
def _float_to_bfloat16_bits(typing: Any, value: Any) -> Any:  # noqa: ARG001
    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        word = ir.IntType(32)
        bits = builder.bitcast(arguments[0], word)
        odd = builder.and_(builder.lshr(bits, word(16)), word(1))
        rounded = builder.lshr(builder.add(bits, builder.add(odd, word(0x7FFF))), word(16))
        return builder.trunc(rounded, ir.IntType(16))

    return types.uint16(types.float32), emit


half_bits_to_float = cast(Callable[[Any], Any], _half_bits_to_float)
"""The bits of a float16 as a float32. Processors convert eight at a time, but numba has no float16 on CPUs."""

bfloat16_bits_to_float = cast(Callable[[Any], Any], _bfloat16_bits_to_float)
"""The bits of a bfloat16 as a float32."""

float_to_bfloat16_bits = cast(Callable[[Any], Any], _float_to_bfloat16_bits)
"""The bits of the nearest bfloat16; of two that are equally near, the even one."""

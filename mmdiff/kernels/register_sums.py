"""Register-blocked sums of rows: as many columns as fit in registers are summed over all edges before the next columns.

LLVM does not find this form by itself from loops over arrays, so it is emitted as LLVM IR. Each term is added by one fused
multiply-add; `fused` is the same operation on one number, so that other kernels round alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from mmdiff.kernels.llvm import emit_prefetch

_MOST_LANES = 8
_LINE_BYTES = 64
# Edges by which the prefetch of rows runs ahead.
_AHEAD = 16

_FLOAT, _WORD, _WIDE = ir.FloatType(), ir.IntType(32), ir.IntType(64)

SumOfRows = Callable[..., None]


def _summing(columns: int) -> SumOfRows:
    """The intrinsic that sums a number of columns: a power of two, or a multiple of the lanes of a register."""
    lanes = min(columns, _MOST_LANES)
    vector = ir.VectorType(_FLOAT, lanes)

    def add_rows(
        typing: Any, indices: Any, weights: Any, source: Any, width: Any, column: Any, edge: Any, end: Any, sums: Any
    ) -> Any:
        """Writes the weighted sums of the rows of edges edge..end-1, in the columns from `column` on."""
        del typing

        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            arrays = _Arrays(context, builder, signature, arguments)
            wide = [context.cast(builder, arguments[at], signature.args[at], types.intp) for at in (3, 4, 5, 6)]
            row_width, first, start, stop = wide
            last = builder.sub(arrays.length("indices"), _WIDE(1))
            vectors = [
                cast(Any, cgutils).alloca_once_value(builder, ir.Constant(vector, None)) for _ in range(columns // lanes)
            ]
            itemsize = 4 if source.dtype == types.float32 else 2
            paired = itemsize == 2 and columns % (2 * lanes) == 0

            def place(index: Any) -> Any:
                node = builder.zext(builder.and_(index, _WORD(0x7FFFFFFF)), _WIDE)
                return builder.add(builder.mul(node, row_width), first)

            with cgutils.for_range_slice(builder, start, stop, _WIDE(1), intp=_WIDE) as (at, _):
                later = builder.add(at, _WIDE(_AHEAD))
                later = builder.select(builder.icmp_signed("<", later, last), later, last)
                ahead = place(builder.load(arrays.entry("indices", later)))
                for line in range(0, columns * itemsize, _LINE_BYTES):
                    emit_prefetch(builder, arrays.entry("source", builder.add(ahead, _WIDE(line // itemsize))), to_write=False)
                index = builder.load(arrays.entry("indices", at))
                weight = _splat(builder, arrays.weight(index, at), vector)
                base = place(index)
                rows = arrays.pairs(base, columns, vector) if paired else arrays.rows(base, columns, vector)
                for row, held in zip(rows, vectors, strict=True):
                    builder.store(_add_product(builder, weight, row, builder.load(held)), held)
            sums_of = [builder.load(held) for held in vectors]
            for number, total in enumerate(_unpaired(builder, sums_of) if paired else sums_of):
                entry = arrays.entry("sums", builder.add(first, _WIDE(number * lanes)))
                builder.store(total, builder.bitcast(entry, vector.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(indices, weights, source, width, column, edge, end, sums), emit

    return cast(SumOfRows, intrinsic(cast(Any, add_rows)))


_ARRAYS = {"indices": 0, "weights": 1, "source": 2, "sums": 7}


class _Arrays:
    """The array arguments of an intrinsic as LLVM values."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        self.context, self.builder, self.types = context, builder, {n: signature.args[at] for n, at in _ARRAYS.items()}
        self.values = {
            name: context.make_array(kind)(context, builder, arguments[_ARRAYS[name]])
            for name, kind in self.types.items()
            if isinstance(kind, types.Array)
        }

    def length(self, name: str) -> Any:
        return self.builder.extract_value(self.values[name].shape, 0)

    def entry(self, name: str, at: Any) -> Any:
        """The address of an entry."""
        return self.builder.gep(self.values[name].data, [at])

    def weight(self, index: Any, at: Any) -> Any:
        """The weight of an edge: the stored one, or 2 if the top bit of its index marks it as reciprocal, else 1."""
        builder = self.builder
        if "weights" not in self.values:
            return builder.uitofp(builder.add(builder.lshr(index, _WORD(31)), _WORD(1)), _FLOAT)
        stored = builder.load(self.entry("weights", at))
        if self.types["weights"].dtype == types.uint16:
            return builder.fpext(builder.bitcast(stored, ir.HalfType()), _FLOAT)
        return stored

    def rows(self, base: Any, columns: int, vector: ir.VectorType) -> Iterator[Any]:
        """Columns of a source row as float32, one register at a time."""
        builder, single = self.builder, self.types["source"].dtype == types.float32
        short, words = ir.VectorType(ir.IntType(16), vector.count), ir.VectorType(_WORD, vector.count)
        for column in range(0, columns, vector.count):
            entry = self.entry("source", builder.add(base, _WIDE(column)))
            if single:
                yield builder.load(builder.bitcast(entry, vector.as_pointer()), align=4)
            else:
                bits = builder.zext(builder.load(builder.bitcast(entry, short.as_pointer()), align=2), words)
                yield builder.bitcast(builder.shl(bits, ir.Constant(words, [16] * vector.count)), vector)

    def pairs(self, base: Any, columns: int, vector: ir.VectorType) -> Iterator[Any]:
        """Columns of a bfloat16 row, alternately a register of even and one of odd columns: a word holds one of each.

        This takes fewer instructions than widening the columns in order.
        """
        builder, words = self.builder, ir.VectorType(_WORD, vector.count)
        for column in range(0, columns, 2 * vector.count):
            entry = self.entry("source", builder.add(base, _WIDE(column)))
            both = builder.load(builder.bitcast(entry, words.as_pointer()), align=2)
            yield builder.bitcast(builder.shl(both, ir.Constant(words, [16] * vector.count)), vector)
            yield builder.bitcast(builder.and_(both, ir.Constant(words, [0xFFFF0000] * vector.count)), vector)


def _unpaired(builder: Any, vectors: Sequence[Any]) -> Iterator[Any]:
    """Sums of even and odd columns, put back into the order of the columns."""
    lanes = vectors[0].type.count
    mixed = [place + lanes * odd for place in range(lanes) for odd in (0, 1)]
    for even, odd in zip(vectors[::2], vectors[1::2], strict=True):
        for half in (mixed[:lanes], mixed[lanes:]):
            yield builder.shuffle_vector(even, odd, ir.Constant(ir.VectorType(_WORD, lanes), half))


def _add_product(builder: Any, factor: Any, value: Any, total: Any) -> Any:
    vector = total.type
    name = f"llvm.fma.v{vector.count}f32"
    declared = cast(Any, cgutils).get_or_insert_function(builder.module, ir.FunctionType(vector, [vector] * 3), name)
    return builder.call(declared, [factor, value, total])


def _splat(builder: Any, value: Any, vector: ir.VectorType) -> Any:
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, value, _WORD(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_WORD, vector.count), None))


@intrinsic
def _fused(typing: Any, factor: Any, value: Any, total: Any) -> Any:  # noqa: ARG001
    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return types.float32(types.float32, types.float32, types.float32), emit


fused = cast(Callable[[Any, Any, Any], Any], _fused)
"""factor * value + total, rounded once, of float32."""

sum_of_96, sum_of_64, sum_of_32, sum_of_16 = _summing(96), _summing(64), _summing(32), _summing(16)
sum_of_8, sum_of_4, sum_of_2, sum_of_1 = _summing(8), _summing(4), _summing(2), _summing(1)

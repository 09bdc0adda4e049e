"""Register-blocked sums of rows: as many columns as fit in registers are summed over all edges before the next columns.

LLVM does not find this form by itself from loops over arrays, so it is emitted as LLVM IR, for the vectors of the processor
that numba compiles for. Each term is added by one fused multiply-add, in the order of the edges, whatever the number of
columns; `fused` is the same operation on one number, so that other kernels round alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numpy.typing import NDArray

from mmdiff.kernels.llvm import emit_prefetch

PAIRED_COLUMNS = 32
"""The most columns that are summed in two rows at a time. In one row, each addition would wait for the one before."""

GROUPED_COLUMNS = 8
"""The most columns that are summed in a group of rows of similar length at a time: there, ends of loops cost the most."""

GROUP = 4
"""Rows of a group."""

_LINE_BYTES = 64
_FLOAT, _WORD, _WIDE = ir.FloatType(), ir.IntType(32), ir.IntType(64)


class UnpackedRows(NamedTuple):
    """Some rows of W: the nodes and weights of all their edges, the first edge of each row, and the factors of the sums.

    One more row, which is empty, follows the last one: rows may be summed in pairs. `order` lists the rows so that those of a
    group have similar lengths, and after them the empty row until the last group is full. Only groups need it.
    """

    nodes: NDArray[np.uint32]
    weights: NDArray[np.float32]
    starts: NDArray[np.int64]
    factors: NDArray[np.float32]
    order: NDArray[np.uint32]


SumOfRows = Callable[[UnpackedRows, int, NDArray[Any], int, int, NDArray[np.float32]], None]


def _lanes() -> int:
    """Floats in a vector of the processor that numba compiles for: 16 with AVX-512, else 8, which LLVM splits where it must.

    The features are those in the keys of numba's cache, so that code for one number is never loaded where another one holds.
    """
    features = cpu_target.target_context.codegen().magic_tuple()[2]
    return 16 if "+avx512f" in features.split(",") else 8


LANES = _lanes()

AHEAD = 96
"""Edges by which the prefetch of pairs of rows runs ahead, and entries that unpacked rows have behind their last edge.

Groups are not prefetched: their loads do not depend on each other, so that the processor begins as many as it can.
"""

# The same for wide rows, which take longer.
_WIDE_AHEAD = 32


def summing(columns: int, fewer: int, lanes: int = LANES) -> SumOfRows:
    """The intrinsic that sums more than `fewer` and at most `columns` columns at once.

    Registers that would end behind the last column end with it instead, and sum some columns twice. Where `columns` is the only
    number that is left, it must be the width of S: whole rows need fewer registers, and finding them no multiplication.
    """
    whole = fewer == columns - 1
    lanes = max(1, min(lanes, columns if whole else columns // 2))

    def sum_rows(typing: Any, rows: Any, row: Any, source: Any, width: Any, column: Any, sums: Any) -> Any:
        """Writes the weighted sums of a row, of it and the next one, or of a group, in the columns from `column` on.

        `row` is the place in the order where a group begins.
        """
        del typing

        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            numbers = [context.cast(builder, arguments[at], signature.args[at], types.intp) for at in (1, 3, 4)]
            arrays = _arrays(context, builder, signature, arguments)
            place = (_WIDE(columns), _WIDE(0)) if whole else numbers[1:]
            registers = _Registers(builder, arrays, place, lanes, (fewer, columns), source.dtype == types.uint16)
            if columns <= GROUPED_COLUMNS:
                _sum_group(builder, registers, numbers[0])
            else:
                (_sum_two_rows if columns <= PAIRED_COLUMNS else _sum_row)(builder, registers, numbers[0])
            return context.get_dummy_value()

        return types.void(rows, row, source, width, column, sums), emit

    return cast(SumOfRows, intrinsic(cast(Any, sum_rows)))


def _arrays(context: Any, builder: Any, signature: Any, arguments: Any) -> dict[str, Any]:
    """The addresses of the arrays among the arguments of `sum_rows`."""
    found = {
        name: (signature.args[0].types[at], builder.extract_value(arguments[0], at))
        for at, name in enumerate(signature.args[0].fields)
    }
    found |= {name: (signature.args[at], arguments[at]) for name, at in (("source", 2), ("sums", 5))}
    return {name: context.make_array(kind)(context, builder, value).data for name, (kind, value) in found.items()}


def _sum_row(builder: Any, registers: _Registers, row: Any) -> None:
    start, stop = (registers.start(row, at) for at in (0, 1))
    sums = registers.zeros()
    with _loop(builder, start, stop) as edge:
        registers.prefetch(builder.add(edge, _WIDE(_WIDE_AHEAD)))
        registers.add(edge, sums)
    registers.write(row, sums)


def _sum_two_rows(builder: Any, registers: _Registers, row: Any) -> None:
    """Sums a row and the next one, edge by edge, and then what is left of the longer one."""
    start, middle, stop = (registers.start(row, at) for at in (0, 1, 2))
    swap = builder.icmp_signed(">", builder.sub(middle, start), builder.sub(stop, middle))
    first, end = builder.select(swap, middle, start), builder.select(swap, stop, middle)
    apart = builder.select(swap, builder.sub(start, middle), builder.sub(middle, start))
    shorter, longer = registers.zeros(), registers.zeros()
    with _loop(builder, first, end) as edge:
        other = builder.add(edge, apart)
        registers.prefetch(builder.add(edge, _WIDE(AHEAD)))
        registers.prefetch(builder.add(other, _WIDE(AHEAD)))
        registers.add(edge, shorter)
        registers.add(other, longer)
    with _loop(builder, builder.add(end, apart), builder.select(swap, middle, stop)) as edge:
        registers.add(edge, longer)
    second = builder.zext(swap, _WIDE)
    registers.write(builder.add(row, second), shorter)
    registers.write(builder.sub(builder.add(row, _WIDE(1)), second), longer)


def _sum_group(builder: Any, registers: _Registers, place: Any) -> None:
    """Sums the rows of a group, two edges of each at a time, and then what is left of each of them."""
    rows = [registers.ordered(place, at) for at in range(GROUP)]
    bounds = [(registers.start(row, 0), registers.start(row, 1)) for row in rows]
    lengths = [builder.sub(stop, start) for start, stop in bounds]
    common = lengths[0]
    for length in lengths[1:]:
        common = builder.select(builder.icmp_signed("<", length, common), length, common)
    common = builder.and_(common, _WIDE(-2))
    sums = [registers.zeros() for _ in rows]
    with _loop(builder, _WIDE(0), common, step=2) as at:
        for later in range(2):
            for (start, _), own in zip(bounds, sums, strict=True):
                registers.add(builder.add(builder.add(start, at), _WIDE(later)), own)
    for (start, stop), own in zip(bounds, sums, strict=True):
        with _loop(builder, builder.add(start, common), stop) as edge:
            registers.add(edge, own)
    for row, own in zip(rows, sums, strict=True):
        registers.write(row, own)


class _Registers:
    """Columns of a row in registers, from a first column on. `short` source rows are bfloat16."""

    def __init__(
        self, builder: Any, arrays: dict[str, Any], place: Sequence[Any], lanes: int, bounds: tuple[int, int], short: bool
    ) -> None:
        self.builder, self.arrays, self.short, self.columns = builder, arrays, short, bounds[1]
        self.width, self.first = place
        self.vector = ir.VectorType(_FLOAT, lanes)
        # A word holds two columns of bfloat16: fewer instructions sum even and odd columns than widen them in order.
        self.paired = short and self.columns > 2 * lanes
        self.step = 2 * lanes if self.paired else lanes
        left = builder.sub(self.width, self.first)
        self.places = [self._place(at, bounds[0], left) for at in range(0, self.columns, self.step)]

    def _place(self, at: int, fewer: int, left: Any) -> Any:
        """The column of a register, relative to the first one: `at`, or less where the columns would end before it does."""
        if at + self.step <= fewer + 1:
            return _WIDE(at)
        last = self.builder.sub(left, _WIDE(self.step))
        return self.builder.select(self.builder.icmp_signed("<", last, _WIDE(at)), last, _WIDE(at))

    def _entry(self, name: str, at: Any) -> Any:
        return self.builder.gep(self.arrays[name], [at])

    def _row(self, edge: Any) -> Any:
        """The address of the source row of an edge, at the first column."""
        node = self.builder.zext(self.builder.load(self._entry("nodes", edge)), _WIDE)
        return self._entry("source", self.builder.add(self.builder.mul(node, self.width), self.first))

    def start(self, row: Any, later: int) -> Any:
        """The first edge of a later row."""
        return self.builder.load(self._entry("starts", self.builder.add(row, _WIDE(later))))

    def ordered(self, place: Any, later: int) -> Any:
        """The row at a later place in the order."""
        return self.builder.zext(self.builder.load(self._entry("order", self.builder.add(place, _WIDE(later)))), _WIDE)

    def zeros(self) -> list[Any]:
        zero = ir.Constant(self.vector, None)
        count = self.columns // self.vector.count
        return [cast(Any, cgutils).alloca_once_value(self.builder, zero) for _ in range(count)]

    def prefetch(self, edge: Any) -> None:
        row, itemsize = self._row(edge), 2 if self.short else 4
        for line in range(0, self.columns * itemsize, _LINE_BYTES):
            emit_prefetch(self.builder, self.builder.gep(row, [_WIDE(line // itemsize)]), to_write=False)

    def add(self, edge: Any, sums: Sequence[Any]) -> None:
        """Adds the source row of an edge, times the weight of the edge."""
        weight = _splat(self.builder, self.builder.load(self._entry("weights", edge)), self.vector)
        for values, total in zip(self._values(self._row(edge)), sums, strict=True):
            self.builder.store(_add_product(self.builder, weight, values, self.builder.load(total)), total)

    def _values(self, row: Any) -> Iterator[Any]:
        """The columns of a source row as float32, one register at a time; paired columns as even ones, then odd ones."""
        builder, lanes = self.builder, self.vector.count
        words = ir.VectorType(_WORD, lanes)
        high, half = ir.Constant(words, [0xFFFF0000] * lanes), ir.Constant(words, [16] * lanes)
        stored = words if self.paired else ir.VectorType(ir.IntType(16), lanes) if self.short else self.vector
        for place in self.places:
            loaded = builder.load(builder.bitcast(builder.gep(row, [place]), stored.as_pointer()), align=2 if self.short else 4)
            if not self.short:
                yield loaded
                continue
            bits = loaded if self.paired else builder.zext(loaded, words)
            yield builder.bitcast(builder.shl(bits, half), self.vector)
            if self.paired:
                yield builder.bitcast(builder.and_(bits, high), self.vector)

    def write(self, row: Any, sums: Sequence[Any]) -> None:
        """Writes the sums of a row times its factor."""
        builder, lanes = self.builder, self.vector.count
        factor = _splat(builder, builder.load(self._entry("factors", row)), self.vector)
        found = [builder.fmul(builder.load(total), factor) for total in sums]
        start = builder.add(builder.mul(row, self.width), self.first)
        for number, total in enumerate(_unpaired(builder, found) if self.paired else found):
            place = builder.add(self.places[number * lanes // self.step], _WIDE(number * lanes % self.step))
            entry = self._entry("sums", builder.add(start, place))
            builder.store(total, builder.bitcast(entry, self.vector.as_pointer()), align=4)


@contextmanager
def _loop(builder: Any, start: Any, stop: Any, step: int = 1) -> Iterator[Any]:
    """A loop that LLVM does not unroll: rows are short, and the rest of an unrolled loop costs a mispredicted branch."""
    before, body, after = builder.block, builder.append_basic_block("body"), builder.append_basic_block("after")
    builder.cbranch(builder.icmp_signed("<", start, stop), body, after)
    builder.position_at_end(body)
    at = builder.phi(_WIDE)
    yield at
    following = builder.add(at, _WIDE(step))
    back = builder.cbranch(builder.icmp_signed("<", following, stop), body, after)
    at.add_incoming(start, before)
    at.add_incoming(following, builder.block)
    module = builder.module
    disable = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
    # The description of a loop refers to itself first, which tells it apart from those of other loops.
    loop = module.add_metadata([disable, _WIDE(len(module.metadata))])
    loop.operands = (loop, disable)
    back.set_metadata("llvm.loop", loop)
    builder.position_at_end(after)


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

MOST_COLUMNS = 128 if LANES == 16 else 96
"""The most columns whose sums fit in the registers."""

sum_up_to_most = summing(MOST_COLUMNS, 96 if MOST_COLUMNS > 96 else 64)
sum_up_to_96, sum_up_to_64, sum_up_to_32 = summing(96, 64), summing(64, 32), summing(32, 16)
sum_up_to_16, sum_up_to_8, sum_up_to_4 = summing(16, 8), summing(8, 4), summing(4, 0)

sum_of_16, sum_of_8, sum_of_4, sum_of_2, sum_of_1 = (summing(columns, columns - 1) for columns in (16, 8, 4, 2, 1))
"""The sums of whole rows of S."""

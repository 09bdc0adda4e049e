"""Kernel of the product W S: value-free CSR times a matrix of columns (paper, section 3.3 and "Memory usage").

Rows of W are first unpacked to nodes and weights, many edges at a time. Then the columns of a row are summed in registers,
while the rows of S that later edges need and the entries of W that are unpacked next are prefetched. Rows of few columns are
summed in groups of similar length. Sums are float32, rounded in the order of the edges of each row, so that no result depends
on how the work is split. `scale` is 1/degree, applied once per row: the graph stores no values. The update of the seeds' rows
(Zhou et al., Zhu et al.) is part of the same pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmdiff.kernels.constants import COLUMN, RECIPROCAL_SHIFT
from mmdiff.kernels.floats import half_to_float, keep
from mmdiff.kernels.jit import exact_kernel
from mmdiff.kernels.llvm import prefetch_to_read
from mmdiff.kernels.register_sums import (
    AHEAD,
    GROUP,
    GROUPED_COLUMNS,
    MOST_COLUMNS,
    PAIRED_COLUMNS,
    UnpackedRows,
    sum_of_1,
    sum_of_2,
    sum_of_4,
    sum_of_8,
    sum_of_16,
    sum_up_to_4,
    sum_up_to_8,
    sum_up_to_16,
    sum_up_to_32,
    sum_up_to_64,
    sum_up_to_96,
    sum_up_to_most,
)

# Edges and sums of the rows that are unpacked at a time: they stay in a core's cache.
_EDGES = 1 << 14
_SUMS = 1 << 13

# The bits of 1 as a float32, and the place of its exponent.
_ONE = np.uint32(0x3F800000)
_EXPONENT_SHIFT = np.uint32(23)

# Entries of W in a cache line, where they have 4 bytes.
_LINE = 16

LENGTHS = 64
"""Lengths of rows that are told apart when rows are put in order, from the least one on; longer rows count as equal."""


class GraphArrays(NamedTuple):
    """W as kernels read it. `weights` are float32, the bits of float16, or None where the top bit of an index is the weight."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.uint32]
    weights: NDArray[Any] | None
    scale: NDArray[np.float32]


class SeedUpdateArrays(NamedTuple):
    """The update of the seeds' rows: S <- alpha W S + share Y, where `reset` drops W S. Y is in rows, as in `Seeds`."""

    nodes: NDArray[np.int64]
    offsets: NDArray[np.int64]
    columns: NDArray[np.int32]
    values: NDArray[np.float32]
    alpha: np.float32
    share: np.float32
    reset: bool


@exact_kernel
def edge_weight(indices: NDArray[np.uint32], weights: NDArray[Any] | None, edge: int) -> Any:
    """The weight of an edge: the stored one, or 2 for a reciprocal edge and 1 for others. An argument of None costs nothing."""
    if weights is None:
        return np.float32(1 + (indices[edge] >> 31))
    return half_to_float(weights[edge])


@exact_kernel
def multiply_rows(
    graph: GraphArrays,
    source: NDArray[Any],
    width: int,
    rows: NDArray[np.int64],
    out: NDArray[Any],
    places: NDArray[np.int64],
    update: SeedUpdateArrays,
) -> int:
    """Writes row rows[i] of the product to out[places[i]]; returns the number of nonzero entries. `source` is flat.

    Returns -1 where a row has entries that do not exist or columns without a row of `source`: it is not followed.
    """
    most = max(1, _SUMS // width)
    longest = 0
    # The offsets are copied, so that those which were checked are those which are followed.
    starts, stops = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    for r in range(len(rows)):
        i = rows[r]
        if i < 0 or i >= len(graph.scale):
            return -1
        start, stop = graph.indptr[i], graph.indptr[i + 1]
        if start < 0 or start > stop or stop > len(graph.indices):
            return -1
        starts[r], stops[r] = start, stop
        longest = max(longest, stop - start)
    edges = max(_EDGES, longest) + AHEAD
    unpacked = UnpackedRows(
        np.empty(edges, np.uint32),
        np.empty(edges, np.float32),
        np.zeros(most + 2, np.int64),
        np.zeros(most + 1, np.float32),
        np.empty(most + GROUP - 1, np.uint32),
    )
    grouped = (width - 1) % MOST_COLUMNS < GROUPED_COLUMNS
    contiguous = len(rows) > 0 and rows[-1] - rows[0] == len(rows) - 1
    sums = np.empty((most + 1) * width, np.float32)
    nonzero, r = 0, 0
    while r < len(rows):
        own = slice(r, min(r + most, len(rows)))
        count = _unpack(graph, rows[own], starts[own], stops[own], len(source) // width, update.alpha, unpacked)
        if count < 0:
            return -1
        chosen = rows[r : r + count]
        if grouped:
            put_in_order(unpacked, len(chosen))
        following = stops[r + count - 1] if contiguous else -1
        _sum(unpacked, len(chosen), source, width, sums, graph.indices, graph.weights, following)
        if update.share > 0:
            _update_seeds(chosen, update, width, sums)
        nonzero += _keep_rows(sums, out, places[r : r + len(chosen)])
        r += len(chosen)
    return nonzero


@exact_kernel
def _unpack(
    graph: GraphArrays,
    rows: NDArray[np.int64],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    nodes: int,
    alpha: np.float32,
    unpacked: UnpackedRows,
) -> int:
    """Unpacks as many of these rows as have room, at least one; returns their number, or -1 where a column is no node."""
    count, edges = 0, 0
    for r in range(len(rows)):
        degree = stops[r] - starts[r]
        if count and edges + degree > len(unpacked.nodes) - AHEAD:
            break
        edges += degree
        unpacked.factors[count] = graph.scale[rows[r]] * alpha
        count += 1
        unpacked.starts[count] = edges
    unpacked.starts[count + 1] = edges
    good = True
    if stops[count - 1] - starts[0] == edges:
        good = _unpack_edges(graph.indices, graph.weights, starts[0], starts[0] + edges, nodes, unpacked, 0)
    else:
        for r in range(count):
            good &= _unpack_edges(graph.indices, graph.weights, starts[r], stops[r], nodes, unpacked, unpacked.starts[r])
    # The edges that follow are only prefetched.
    last = stops[count - 1]
    ahead = graph.indices[last : last + AHEAD]
    for e in range(AHEAD):
        unpacked.nodes[edges + e] = ahead[e] & COLUMN if e < len(ahead) else np.uint32(0)
    return count if good else -1


@exact_kernel
def _unpack_edges(
    indices: NDArray[np.uint32], weights: NDArray[Any] | None, edge: int, end: int, nodes: int, unpacked: UnpackedRows, at: int
) -> bool:
    """Unpacks edges edge..end-1, from place `at` on; returns whether all of their columns are less than `nodes`.

    The columns are compared here, while they are in registers: in a pass of its own this would cost as much as reading W.
    An argument of None costs nothing.
    """
    own, columns, factors = indices[edge:end], unpacked.nodes[at:], unpacked.weights[at:]
    bad, count = np.uint32(0), np.uint32(nodes)
    # The weights 1 and 2 as bits: the reciprocal bit of an index is added to the exponent. Stored weights replace them.
    bits = factors.view(np.uint32)
    for e in range(len(own)):
        column = own[e] & COLUMN
        columns[e] = column
        bad |= np.uint32(column >= count)
        bits[e] = _ONE + ((own[e] >> RECIPROCAL_SHIFT) << _EXPONENT_SHIFT)
    if weights is not None:
        stored = weights[edge:end]
        for e in range(len(stored)):
            factors[e] = half_to_float(stored[e])
    return bool(bad == 0)


@exact_kernel
def put_in_order(unpacked: UnpackedRows, rows: int) -> None:
    """Orders the rows by length, by counting: the ends of loops over rows of the same length are predicted."""
    starts, order = unpacked.starts, unpacked.order
    least = starts[1] - starts[0]
    for r in range(1, rows):
        least = min(least, starts[r + 1] - starts[r])
    # Unsigned numbers are indices that count from the front: signed ones are compared with zero first.
    lengths, places = np.empty(rows, np.uint8), np.zeros(LENGTHS + 1, np.uint32)
    for r in range(rows):
        lengths[r] = min(starts[r + 1] - starts[r] - least, LENGTHS - 1)
    for r in range(rows):
        places[lengths[r] + np.uint8(1)] += np.uint32(1)
    for length in range(LENGTHS):
        places[length + 1] += places[length]
    for r in range(rows):
        place = places[lengths[r]]
        order[place] = r
        places[lengths[r]] = place + np.uint32(1)
    order[rows : rows + GROUP - 1] = rows


@exact_kernel
def _update_seeds(rows: NDArray[np.int64], update: SeedUpdateArrays, width: int, sums: NDArray[np.float32]) -> None:
    """Applies the update to the sums of those rows that are seeds."""
    seed = np.searchsorted(update.nodes, rows[0])
    for r in range(len(rows)):
        while seed < len(update.nodes) and update.nodes[seed] < rows[r]:
            seed += 1
        if seed < len(update.nodes) and update.nodes[seed] == rows[r]:
            own = sums[r * width : (r + 1) * width]
            if update.reset:
                own[:] = 0
            for entry in range(update.offsets[seed], update.offsets[seed + 1]):
                own[update.columns[entry]] += update.share * update.values[seed]


@exact_kernel
def _keep_rows(sums: NDArray[np.float32], out: NDArray[Any], places: NDArray[np.int64]) -> int:
    """Writes sums to rows of `out`; returns the number of those that are not zero."""
    width = out.shape[1]
    # Counted in 32 bits, which the processor adds many at a time.
    nonzero = np.int32(0)
    for entry in sums[: len(places) * width]:
        nonzero += np.int32(entry != 0)
    if places[-1] - places[0] == len(places) - 1:
        flat = out.reshape(-1)[places[0] * width : (places[-1] + 1) * width]
        for at in range(len(flat)):
            keep(flat, at, sums[at])
    else:
        for r in range(len(places)):
            own, kept = sums[r * width : (r + 1) * width], out[places[r]]
            for c in range(width):
                keep(kept, c, own[c])
    return int(nonzero)


@exact_kernel
def _sum(
    unpacked: UnpackedRows,
    rows: int,
    source: NDArray[Any],
    width: int,
    sums: NDArray[np.float32],
    indices: NDArray[np.uint32],
    weights: NDArray[Any] | None,
    following: int,
) -> None:
    """Writes the sums of all rows, in groups of as many columns as fit in registers.

    Meanwhile, as many entries of W are prefetched from `following` on, unless it is negative: the processor computes here, and
    would wait for memory when it unpacks them.
    """
    for c in range(0, width, MOST_COLUMNS):
        left = width - c
        step = GROUP if left <= GROUPED_COLUMNS else 2 if left <= PAIRED_COLUMNS else 1
        # The same number for each step, and a little more than is needed, since lines are not divided.
        lines = unpacked.starts[rows] * step // (rows * _LINE) + 1 if c == 0 and following >= 0 else 0
        for r in range(0, rows, step):
            _request(indices, weights, following + r // step * lines * _LINE, lines)
            if width == 1:
                sum_of_1(unpacked, r, source, width, c, sums)
            elif width == 2:
                sum_of_2(unpacked, r, source, width, c, sums)
            elif width == 4:
                sum_of_4(unpacked, r, source, width, c, sums)
            elif width == 8:
                sum_of_8(unpacked, r, source, width, c, sums)
            elif width == 16:
                sum_of_16(unpacked, r, source, width, c, sums)
            elif left <= 4:
                sum_up_to_4(unpacked, r, source, width, c, sums)
            elif left <= 8:
                sum_up_to_8(unpacked, r, source, width, c, sums)
            elif left <= 16:
                sum_up_to_16(unpacked, r, source, width, c, sums)
            elif left <= 32:
                sum_up_to_32(unpacked, r, source, width, c, sums)
            elif left <= 64:
                sum_up_to_64(unpacked, r, source, width, c, sums)
            elif left <= 96:
                sum_up_to_96(unpacked, r, source, width, c, sums)
            else:
                sum_up_to_most(unpacked, r, source, width, c, sums)


@exact_kernel
def _request(indices: NDArray[np.uint32], weights: NDArray[Any] | None, first: int, lines: int) -> None:
    """Prefetches the entries of W from `first` on. An argument of None costs nothing."""
    for line in range(lines):
        prefetch_to_read(indices, first + line * _LINE)
    if weights is not None:
        for line in range(lines):
            prefetch_to_read(weights, first + line * _LINE)

"""Kernel of the product W S: value-free CSR times a matrix of columns (paper, section 3.3 and "Memory usage").

The columns of a row are summed in registers, and the rows of S that later edges need are prefetched. Sums are float32, rounded
in the order of the edges, so that no result depends on how the work is split. `scale` is 1/degree, applied once per row: the
graph stores no values. The update of the seeds' rows (Zhou et al., Zhu et al.) is part of the same pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmdiff.kernels.floats import half_to_float, keep
from mmdiff.kernels.jit import exact_kernel
from mmdiff.kernels.register_sums import sum_of_1, sum_of_2, sum_of_4, sum_of_8, sum_of_16, sum_of_32, sum_of_64, sum_of_96


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
    """Writes row rows[i] of the product to out[places[i]]; returns the number of nonzero entries. `source` is flat."""
    sums = np.empty(width, np.float32)
    nonzero = 0
    seed = np.searchsorted(update.nodes, rows[0]) if len(rows) else 0
    for r in range(len(rows)):
        i = rows[r]
        _sum(graph.indices, graph.weights, source, width, graph.indptr[i], graph.indptr[i + 1], sums)
        factor = graph.scale[i] * update.alpha
        for c in range(width):
            sums[c] *= factor
        if update.share > 0:
            while seed < len(update.nodes) and update.nodes[seed] < i:
                seed += 1
            if seed < len(update.nodes) and update.nodes[seed] == i:
                if update.reset:
                    sums[:] = 0
                for entry in range(update.offsets[seed], update.offsets[seed + 1]):
                    sums[update.columns[entry]] += update.share * update.values[seed]
        place = places[r]
        # Counted in 32 bits, which the processor adds eight at a time.
        count = np.int32(0)
        for c in range(width):
            count += np.int32(sums[c] != 0)
            keep(out, place, c, sums[c])
        nonzero += int(count)
    return nonzero


@exact_kernel
def _sum(
    indices: NDArray[np.uint32],
    weights: NDArray[Any] | None,
    source: NDArray[Any],
    width: int,
    edge: int,
    end: int,
    sums: NDArray[np.float32],
) -> None:
    """Sums the source rows of edges edge..end-1, times their weights, in groups of as many columns as fit in registers."""
    c = 0
    while c + 96 <= width:
        sum_of_96(indices, weights, source, width, c, edge, end, sums)
        c += 96
    if c + 64 <= width:
        sum_of_64(indices, weights, source, width, c, edge, end, sums)
        c += 64
    if c + 32 <= width:
        sum_of_32(indices, weights, source, width, c, edge, end, sums)
        c += 32
    if c + 16 <= width:
        sum_of_16(indices, weights, source, width, c, edge, end, sums)
        c += 16
    if c + 8 <= width:
        sum_of_8(indices, weights, source, width, c, edge, end, sums)
        c += 8
    if c + 4 <= width:
        sum_of_4(indices, weights, source, width, c, edge, end, sums)
        c += 4
    if c + 2 <= width:
        sum_of_2(indices, weights, source, width, c, edge, end, sums)
        c += 2
    if c < width:
        sum_of_1(indices, weights, source, width, c, edge, end, sums)

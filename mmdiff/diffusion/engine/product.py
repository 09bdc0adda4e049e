"""The product W S: value-free CSR times a resident batch of columns (paper, section 3.3 and "Memory usage").

The columns of a row are summed in registers, and the rows of S that later edges need are prefetched. Sums are float32, rounded
in the order of the edges, so that no result depends on how the work is cut. `scale` is 1/degree, applied once per row: the
graph stores no values. What Zhou et al. and Zhu et al. do to the seeds' rows is done in the same pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.io.graph_stream import Block, Stream, weights_of
from mmdiff.diffusion.seeds import Seeds
from mmdiff.formats.errors import CountMismatch
from mmdiff.graph.graph import CsrGraph
from mmdiff.kernels.floats import keep
from mmdiff.kernels.jit import exact_kernel
from mmdiff.kernels.register_sums import sum_of_1, sum_of_2, sum_of_4, sum_of_8, sum_of_16, sum_of_32, sum_of_64, sum_of_96


@dataclass(frozen=True)
class SeedUpdate:
    """What happens to the seeds' rows after each product: S <- alpha W S + (1 - alpha) Y, or they are set back to Y."""

    seeds: Seeds
    alpha: float = 1.0
    reset: bool = False

    def arguments(self) -> tuple[Any, ...]:
        seeds = self.seeds
        share = np.float32(1 if self.reset else 1 - self.alpha)
        return seeds.nodes, seeds.offsets, seeds.columns, seeds.values, np.float32(self.alpha), share, self.reset


def matmul(graph: CsrGraph, dense: NDArray[Any]) -> NDArray[np.float32]:
    """W times a matrix or a vector."""
    if dense.ndim not in (1, 2) or len(dense) != graph.nodes:
        raise CountMismatch(f"a matrix of shape {dense.shape} for {graph.nodes:,} nodes. Give one row for each node.")
    source = np.ascontiguousarray(dense, np.float32).reshape(graph.nodes, -1)
    out = np.empty_like(source)
    with Stream(graph) as stream:
        product(stream, source, out, SeedUpdate(Seeds.of(np.empty(0, np.int64), np.empty((0, 1), np.int32), source.shape[1])))
    return out.reshape(dense.shape)


def product(
    stream: Stream, source: NDArray[Any], out: NDArray[Any], seed_update: SeedUpdate, rows: NDArray[Any] | None = None
) -> int:
    """Writes rows of W S to the same rows of `out`; returns how many entries are not zero."""
    return sum(stream.each(lambda block: multiply(block.graph, source, block.rows, out, block.rows, seed_update), rows))


def product_of_rows(
    stream: Stream, source: NDArray[Any], out: NDArray[Any], seed_update: SeedUpdate, rows: NDArray[Any]
) -> int:
    """The same for some rows only, which are all that `out` has."""

    def work(block: Block) -> int:
        return multiply(block.graph, source, block.rows, out, block.places, seed_update)

    return sum(stream.each(work, rows))


def multiply(
    graph: CsrGraph,
    source: NDArray[Any],
    rows: NDArray[np.int64],
    out: NDArray[Any],
    places: NDArray[np.int64],
    seed_update: SeedUpdate,
) -> int:
    """Row rows[i] of the product goes to out[places[i]]."""
    arrays = (graph.indptr, graph.indices, weights_of(graph), graph.scale)
    return _multiply(*arrays, source.reshape(-1), source.shape[1], rows, out, places, *seed_update.arguments())


@exact_kernel
def _multiply(
    indptr: NDArray[np.int64],
    indices: NDArray[np.uint32],
    weights: NDArray[Any] | None,
    scale: NDArray[np.float32],
    source: NDArray[Any],
    width: int,
    rows: NDArray[np.int64],
    out: NDArray[Any],
    places: NDArray[np.int64],
    seeds: NDArray[np.int64],
    seed_offsets: NDArray[np.int64],
    seed_columns: NDArray[np.int32],
    seed_values: NDArray[np.float32],
    alpha: np.float32,
    share: np.float32,
    reset: bool,
) -> int:
    sums = np.empty(width, np.float32)
    nonzero = 0
    seed = np.searchsorted(seeds, rows[0]) if len(rows) else 0
    for r in range(len(rows)):
        i = rows[r]
        _sum(indices, weights, source, width, indptr[i], indptr[i + 1], sums)
        factor = scale[i] * alpha
        for c in range(width):
            sums[c] *= factor
        if share > 0:
            while seed < len(seeds) and seeds[seed] < i:
                seed += 1
            if seed < len(seeds) and seeds[seed] == i:
                if reset:
                    sums[:] = 0
                for entry in range(seed_offsets[seed], seed_offsets[seed + 1]):
                    sums[seed_columns[entry]] += share * seed_values[seed]
        place = places[r]
        # Counted in 32 bits, which the processor adds eight at a time.
        own = np.int32(0)
        for c in range(width):
            own += np.int32(sums[c] != 0)
            keep(out, place, c, sums[c])
        nonzero += int(own)
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
    """The sums of the rows that edges..end-1 point to, times their weights: as many columns at once as there are registers."""
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

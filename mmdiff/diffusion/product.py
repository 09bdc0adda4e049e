"""The product W S: value-free CSR times a resident batch of columns (paper, section 3.3 and "Memory usage").

Edges are taken four at a time, and the rows of S that later edges need are prefetched. Sums are float32, rounded in the order
of the edges, so that no result depends on how the work is cut. `scale` is 1/degree, applied once per row: the graph stores no
values. What Zhou et al. and Zhu et al. do to the seeds' rows is done in the same pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.bfloat16 import keep, widen
from mmdiff.diffusion.seeds import Seeds
from mmdiff.diffusion.streaming import Block, Stream, weights_of
from mmdiff.formats.errors import CountMismatch
from mmdiff.graph.graph import Graph
from mmdiff.jit import exact_kernel, prefetch_to_read
from mmdiff.knn.half import decode as from_half

_AHEAD = 16
_LINE = 64
# What lies beyond these lines of a row, the processor's own prefetcher brings.
_LINES = 8


@dataclass(frozen=True)
class Pull:
    """What happens to the seeds' rows after each product: S <- alpha W S + (1 - alpha) Y, or they are set back to Y."""

    seeds: Seeds
    alpha: float = 1.0
    reset: bool = False

    def arguments(self) -> tuple[Any, ...]:
        seeds = self.seeds
        share = np.float32(1 if self.reset else 1 - self.alpha)
        return seeds.nodes, seeds.offsets, seeds.columns, seeds.values, np.float32(self.alpha), share, self.reset


def matmul(graph: Graph, dense: NDArray[Any]) -> NDArray[np.float32]:
    """W times a matrix or a vector."""
    if dense.ndim not in (1, 2) or len(dense) != graph.nodes:
        raise CountMismatch(f"a matrix of shape {dense.shape} for {graph.nodes:,} nodes. Give one row for each node.")
    source = np.ascontiguousarray(dense, np.float32).reshape(graph.nodes, -1)
    out = np.empty_like(source)
    with Stream(graph) as stream:
        product(stream, source, out, Pull(Seeds.of(np.empty(0, np.int64), np.empty((0, 1), np.int32), source.shape[1])))
    return out.reshape(dense.shape)


def product(stream: Stream, source: NDArray[Any], out: NDArray[Any], pull: Pull, rows: NDArray[Any] | None = None) -> int:
    """Writes rows of W S to the same rows of `out`; returns how many entries are not zero."""
    return sum(stream.each(lambda block: multiply(stream.graph, source, block.rows, out, block.rows, pull), rows))


def product_of_rows(stream: Stream, source: NDArray[Any], out: NDArray[Any], pull: Pull, rows: NDArray[Any]) -> int:
    """The same for some rows only, which are all that `out` has."""

    def work(block: Block) -> int:
        return multiply(stream.graph, source, block.rows, out, block.places, pull)

    return sum(stream.each(work, rows))


def multiply(
    graph: Graph, source: NDArray[Any], rows: NDArray[np.int64], out: NDArray[Any], places: NDArray[np.int64], pull: Pull
) -> int:
    """Row rows[i] of the product goes to out[places[i]]."""
    line = _LINE // source.itemsize
    arrays = (graph.indptr, graph.indices, weights_of(graph), graph.scale)
    return _multiply(*arrays, source.reshape(-1), source.shape[1], line, rows, out, places, *pull.arguments())


@exact_kernel
def _multiply(
    indptr: NDArray[np.int64],
    indices: NDArray[np.uint32],
    weights: NDArray[Any] | None,
    scale: NDArray[np.float32],
    source: NDArray[Any],
    width: int,
    line: int,
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
    column = np.uint32(0x7FFFFFFF)
    nonzero, last = 0, len(indices)
    seed = np.searchsorted(seeds, rows[0]) if len(rows) else 0
    for r in range(len(rows)):
        i = rows[r]
        sums[:] = 0
        edge, end = indptr[i], indptr[i + 1]
        while edge + 4 <= end:
            for ahead in range(edge + _AHEAD, min(edge + _AHEAD + 4, last)):
                base = np.int64(indices[ahead] & column) * width
                for at in range(0, min(width, _LINES * line), line):
                    prefetch_to_read(source, base + at)
            if weights is None:
                w0 = np.float32(1 + (indices[edge] >> 31))
                w1 = np.float32(1 + (indices[edge + 1] >> 31))
                w2 = np.float32(1 + (indices[edge + 2] >> 31))
                w3 = np.float32(1 + (indices[edge + 3] >> 31))
            else:
                w0, w1 = from_half(weights[edge]), from_half(weights[edge + 1])
                w2, w3 = from_half(weights[edge + 2]), from_half(weights[edge + 3])
            b0 = np.int64(indices[edge] & column) * width
            b1 = np.int64(indices[edge + 1] & column) * width
            b2 = np.int64(indices[edge + 2] & column) * width
            b3 = np.int64(indices[edge + 3] & column) * width
            s0, s1 = source[b0 : b0 + width], source[b1 : b1 + width]
            s2, s3 = source[b2 : b2 + width], source[b3 : b3 + width]
            for c in range(width):
                two = (sums[c] + w0 * widen(s0[c])) + w1 * widen(s1[c])
                sums[c] = (two + w2 * widen(s2[c])) + w3 * widen(s3[c])
            edge += 4
        while edge < end:
            weight = np.float32(1 + (indices[edge] >> 31)) if weights is None else from_half(weights[edge])
            if edge + _AHEAD < last:
                base = np.int64(indices[edge + _AHEAD] & column) * width
                for at in range(0, min(width, _LINES * line), line):
                    prefetch_to_read(source, base + at)
            b0 = np.int64(indices[edge] & column) * width
            # A slice, whose places cannot be negative: only so is the loop done eight columns at a time.
            s0 = source[b0 : b0 + width]
            for c in range(width):
                sums[c] += weight * widen(s0[c])
            edge += 1
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

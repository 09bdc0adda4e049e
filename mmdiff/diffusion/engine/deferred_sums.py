"""Deferred normalisation: the column sums of S from a recursion of one vector instead of a pass over S (DESIGN section 5).

Where S_t = P_t(W) Y is linear in Y, its column sums are Y^T r with r = P_t(W)^T 1. With a seed update (alpha, reset), S_t is a
sum of such terms, and so are its column sums. Only the seeds' entries of r are needed, so each step of the recursion is
computed only in the rows that a later step reads.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.engine.needed_rows import closures
from mmdiff.diffusion.io.graph_stream import Block, Stream, arrays_of
from mmdiff.diffusion.seeds import Seeds
from mmdiff.diffusion.variant import Variant
from mmdiff.kernels.constants import COLUMN
from mmdiff.kernels.jit import kernel
from mmdiff.kernels.spmm import GraphArrays, edge_weight

_MEASURED_EDGES = 1 << 24


def column_sums(
    stream: Stream, seeds: Seeds, variant: Variant, sqrt_degrees: NDArray[np.float32] | None, iterations: int
) -> NDArray[np.float64]:
    """The sums of the columns of S after iterations 0..T, (T + 1, classes)."""
    graph = stream.graph
    alpha = 1.0 if variant.alpha is None else variant.alpha
    share = 1.0 if variant.reset_seeds else 1 - alpha
    nodes, columns, values = seeds.entries
    r = np.ones(graph.nodes, np.float32) if sqrt_degrees is None else sqrt_degrees.copy()
    terms = [np.bincount(columns, values * r[nodes].astype(np.float64), seeds.classes)]
    needed = closures(stream, seeds.nodes.astype(np.uint32), max(0, iterations - 1))
    for step in range(1, iterations + 1):
        if variant.reset_seeds:
            r[seeds.nodes] = 0
        r *= graph.scale
        after = np.zeros_like(r)
        _transpose(stream, r, after, np.float32(alpha), needed[iterations - step], shared=True)
        r = after
        terms.append(np.bincount(columns, values * r[nodes].astype(np.float64), seeds.classes))
    powers = np.stack(terms)
    earlier = np.cumsum(powers, axis=0) - powers
    return np.asarray(powers + share * earlier, np.float64)


def time_of_step(stream: Stream) -> float:
    """Seconds of the recursion for each edge, measured on the first blocks of the graph."""
    graph = stream.graph
    rows = np.arange(min(graph.nodes, max(1, _MEASURED_EDGES * graph.nodes // max(1, graph.edges))))
    vector = np.ones(graph.nodes, np.float32)
    out = np.empty_like(vector)
    times = []
    for _ in range(2):
        clock = time.perf_counter()
        _transpose(stream, vector, out, np.float32(1), rows)
        times.append(time.perf_counter() - clock)
    return min(times) / max(1, int(graph.indptr[len(rows)]))


def _transpose(
    stream: Stream,
    vector: NDArray[np.float32],
    out: NDArray[np.float32],
    alpha: np.float32,
    rows: NDArray[Any] | None,
    shared: bool = False,
) -> None:
    """W^T v, given D^-1 v: the matrix W0 + W0^T is its own transpose. `shared` rows will be requested again."""

    def work(block: Block) -> None:
        _dot(arrays_of(block.graph), vector, block.rows, out, alpha)

    for _ in stream.each(work, rows, shared=shared):
        pass


@kernel
def _dot(
    graph: GraphArrays, vector: NDArray[np.float32], rows: NDArray[np.int64], out: NDArray[np.float32], alpha: np.float32
) -> None:
    for row in rows:
        total = 0.0
        for edge in range(graph.indptr[row], graph.indptr[row + 1]):
            weight = np.float64(edge_weight(graph.indices, graph.weights, edge))
            total += weight * vector[graph.indices[edge] & COLUMN]
        out[row] = alpha * total

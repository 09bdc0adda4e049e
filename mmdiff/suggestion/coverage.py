"""Coverage under the diffusion kernel: row j covers row i by (W^2)[i, j], what i receives of a label at j in two iterations.

The coverage of a row is the largest entry that any chosen row gives it. A further row j adds

    gain(j) = sum over i of weight[i] max(0, (W^2)[i, j] - coverage[i]).

W0 + W0^T is symmetric, so that column j of W^2 is found by following the rows of j and of its neighbours; only the graph, which
stays mapped, and a few values for each node are needed. Before anything is covered, the gains of all rows are two products:
W^T (W^T weight). Sums are float64, in the order of the edges; gains are rounded to float32. Rounding is monotone, so that a
gain that is computed later is never larger than one from before, as in exact arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.io.graph_stream import Block, Stream, arrays_of
from mmdiff.formats.errors import Damaged
from mmdiff.graph.graph import CsrGraph
from mmdiff.kernels.constants import COLUMN
from mmdiff.kernels.jit import exact_kernel
from mmdiff.kernels.llvm import prefetch_to_read
from mmdiff.kernels.spmm import GraphArrays, edge_weight
from mmdiff.runtime.threads import in_order

# By how much a bound exceeds the product it is from: more than rounding can have made that too small.
_SLACK = np.float32(1 + 1e-5)

# Columns that a thread computes at least, some tens of microseconds each: fewer are sooner done than handed to another thread.
_LEAST = 24

# Entries of the next row that are read ahead, and entries of a cache line.
_FETCHED, _LINE = 64, 16

THREAD_BYTES_PER_NODE = 12
"""Bytes that a thread needs for each node at most: the sum of an entry, and its place in a list."""


class Added(NamedTuple):
    """The additions of chosen rows: coverage, and rows that had none before."""

    gain: float
    reached: int


@dataclass
class _Scratch:
    """Memory of a thread: the sums of a column, zero everywhere between columns, and the list of its entries."""

    sums: NDArray[np.float64]
    touched: NDArray[np.uint32]


class Columns:
    """Columns of W^2 of a graph, computed by several threads. All chunks of the graph have been touched before."""

    def __init__(self, graph: CsrGraph, pool: ThreadPoolExecutor, threads: int) -> None:
        self._graph, self._arrays, self._pool, self.threads = graph, arrays_of(graph), pool, threads
        self._scratch: SimpleQueue[_Scratch] = SimpleQueue()
        for _ in range(threads):
            self._scratch.put(_Scratch(np.zeros(graph.nodes), np.empty(0, np.uint32)))

    def gains(
        self, nodes: NDArray[np.uint32], coverage: NDArray[np.float32], weight: NDArray[np.float32] | None
    ) -> NDArray[np.float64]:
        """The gain of each of some nodes on its own."""
        gains = np.empty(len(nodes))
        step = max(_LEAST, -(-len(nodes) // self.threads))

        def work(start: int) -> None:
            part = slice(start, start + step)
            with self._scratch_for(nodes[part]) as own:
                if not _gains(self._arrays, nodes[part], coverage, weight, own.sums, own.touched, gains[part]):
                    raise self._damaged()

        starts = range(0, len(nodes), step)
        if len(starts) <= 1:
            for start in starts:
                work(start)
        else:
            for _ in in_order(self._pool, work, starts, self.threads):
                pass
        return gains

    def cover(self, nodes: NDArray[np.uint32], coverage: NDArray[np.float32], rows: int) -> Added:
        """Covers what some nodes cover, and counts the newly reached ones among the first `rows` nodes."""
        with self._scratch_for(nodes) as own:
            gain, reached = _cover(self._arrays, nodes, coverage, rows, own.sums, own.touched)
        if reached < 0:
            raise self._damaged()
        return Added(gain, reached)

    @contextmanager
    def _scratch_for(self, nodes: NDArray[np.uint32]) -> Iterator[_Scratch]:
        """The memory of a thread, with room for the columns of some nodes."""
        longest = _longest(self._arrays, nodes)
        if longest < 0:
            raise self._damaged()
        own = self._scratch.get()
        if len(own.touched) < longest:
            own.touched = np.empty(min(2 * longest, self._graph.nodes), np.uint32)
        try:
            yield own
        except BaseException:
            own.sums[:] = 0
            raise
        finally:
            self._scratch.put(own)

    def _damaged(self) -> Damaged:
        """The error for a graph that cannot be followed, although all of it was checked before."""
        try:
            self._graph.checked()
        except Damaged as error:
            return error
        return Damaged("the graph has changed while it was read. Check the disk, then run this again.")


def first_gains(stream: Stream, weight: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """Bounds of the gains of all nodes where nothing is covered: W^T (W^T weight), a little more than rounding takes away.

    Both products read the whole graph, and so touch all of its chunks.
    """
    scale = stream.graph.scale
    values = scale.copy() if weight is None else scale * weight
    values = _product(stream, values)
    values *= scale
    values = _product(stream, values)
    values *= _SLACK
    return values


def _product(stream: Stream, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """(W0 + W0^T) values."""
    out = np.empty(stream.graph.nodes, np.float32)

    def work(block: Block) -> int:
        _multiply(arrays_of(block.graph), block.rows, values, out)
        return len(block.rows)

    for _ in stream.each(work, columns=1):
        pass
    return out


@exact_kernel
def _multiply(graph: GraphArrays, rows: NDArray[np.int64], values: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    for row in rows:
        total = 0.0
        for edge in range(graph.indptr[row], graph.indptr[row + 1]):
            total += np.float64(edge_weight(graph.indices, graph.weights, edge)) * values[graph.indices[edge] & COLUMN]
        out[row] = total


@exact_kernel
def _longest(graph: GraphArrays, nodes: NDArray[np.uint32]) -> int:
    """The most entries that a column of these nodes can have; -1 where rows are not in the graph."""
    rows, edges, longest = len(graph.scale), len(graph.indices), 0
    for node in nodes:
        if node >= rows or graph.indptr[node] < 0 or graph.indptr[node + 1] > edges:
            return -1
        entries = 0
        for edge in range(graph.indptr[node], graph.indptr[node + 1]):
            near = graph.indices[edge] & COLUMN
            if near >= rows:
                return -1
            entries += max(0, graph.indptr[near + 1] - graph.indptr[near])
        longest = max(longest, entries)
    return min(longest, rows)


@exact_kernel
def _fetch_row(graph: GraphArrays, node: int) -> None:
    """Starts to read the entries of a row into the cache: rows lie anywhere, and waiting for them takes a third of the time."""
    if node < len(graph.scale):
        start = graph.indptr[node]
        for at in range(start, min(start + _FETCHED, len(graph.indices)), _LINE):
            prefetch_to_read(graph.indices, at)


@exact_kernel
def _column(graph: GraphArrays, node: int, sums: NDArray[np.float64], touched: NDArray[np.uint32]) -> int:
    """Adds up a column of W^2, without the scale of its rows, in sums that are zero; returns the number of touched entries.

    Returns -1 where a row has entries that do not exist, columns that are no nodes, or more entries than there is room for.
    """
    nodes, edges, count = len(graph.scale), len(graph.indices), 0
    for first in range(graph.indptr[node], graph.indptr[node + 1]):
        near = graph.indices[first] & COLUMN
        if near >= nodes or graph.indptr[near] < 0 or graph.indptr[near + 1] > edges:
            return -1
        if first + 1 < graph.indptr[node + 1]:
            _fetch_row(graph, graph.indices[first + 1] & COLUMN)
        weight = np.float64(edge_weight(graph.indices, graph.weights, first)) * graph.scale[near]
        for edge in range(graph.indptr[near], graph.indptr[near + 1]):
            row = graph.indices[edge] & COLUMN
            if row >= nodes or (count >= len(touched) and sums[row] == 0):
                return -1
            share = weight * edge_weight(graph.indices, graph.weights, edge)
            if sums[row] == 0 and share > 0:
                touched[count] = row
                count += 1
            sums[row] += share
    return count


@exact_kernel
def _gains(
    graph: GraphArrays,
    nodes: NDArray[np.uint32],
    coverage: NDArray[np.float32],
    weight: NDArray[np.float32] | None,
    sums: NDArray[np.float64],
    touched: NDArray[np.uint32],
    gains: NDArray[np.float64],
) -> bool:
    """The gain of each node; false where the graph cannot be followed."""
    for at in range(len(nodes)):
        count = _column(graph, nodes[at], sums, touched)
        if count < 0:
            return False
        total = 0.0
        for place in range(count):
            row = touched[place]
            more = np.float64(np.float32(sums[row] * graph.scale[row])) - coverage[row]
            sums[row] = 0
            if more > 0:
                total += more if weight is None else more * weight[row]
        gains[at] = total
    return True


@exact_kernel
def _cover(
    graph: GraphArrays,
    nodes: NDArray[np.uint32],
    coverage: NDArray[np.float32],
    rows: int,
    sums: NDArray[np.float64],
    touched: NDArray[np.uint32],
) -> tuple[float, int]:
    """Raises the coverage to that of some nodes; the gain, and how many of the first `rows` had none (-1: a damaged graph)."""
    gain, reached = 0.0, 0
    for node in nodes:
        count = _column(graph, node, sums, touched)
        if count < 0:
            return 0.0, -1
        for place in range(count):
            row = touched[place]
            entry = np.float32(sums[row] * graph.scale[row])
            sums[row] = 0
            if entry > coverage[row]:
                gain += np.float64(entry) - coverage[row]
                if row < rows and coverage[row] == 0:
                    reached += 1
                coverage[row] = entry
    return gain, reached

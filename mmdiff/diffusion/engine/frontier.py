"""Frontiers: in the first iterations labels have reached few rows, and only those are visited (exact; DESIGN section 5).

A frontier keeps the entries of S that are not zero. Sums run over the same edges in the same order as in the product of the
whole matrix, of which they leave out only zeros, so that the results are equal to the last bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.engine.needed_rows import Rows, reached
from mmdiff.diffusion.engine.product import SeedUpdate
from mmdiff.diffusion.engine.states import Frontier
from mmdiff.diffusion.io.graph_stream import Block, Stream, weights_of
from mmdiff.diffusion.seeds import Seeds
from mmdiff.graph.graph import CsrGraph
from mmdiff.kernels.constants import COLUMN
from mmdiff.kernels.floats import half_to_float, keep, widen
from mmdiff.kernels.jit import exact_kernel, kernel
from mmdiff.kernels.register_sums import fused

# What it costs to visit an entry of a frontier, and to look whether there is any, in columns of the product of a whole matrix.
ENTRY_COST, EDGE_COST = 70, 20

# A result is kept as a frontier while the visits that make it cost less than so many columns of each row: it is quick to make
# either way, but the product that follows is quicker from a frontier.
_KEPT_COST = 9

# What it costs to fill an entry of a matrix, in the same measure: the first time, memory has to be found for it.
_LAYING_OUT = 4

_ENTRY_BYTES = 8

# Entries of a matrix that a thread fills at a time.
_LAID_OUT = 1 << 22


def first_frontier(seeds: Seeds, nodes: int) -> Frontier:
    """Y."""
    counts = np.zeros(nodes + 1, np.int64)
    counts[seeds.nodes + 1] = np.diff(seeds.offsets)
    return Frontier(np.cumsum(counts), seeds.columns, seeds.entries[2], seeds.classes)


def visits(stream: Stream, frontier: Frontier) -> int:
    """How many entries the next product adds up."""
    rows = frontier.rows
    return int(stream.graph.degrees(rows) @ (frontier.offsets[rows + 1] - frontier.offsets[rows]))


def cost(stream: Stream, frontier: Frontier, needed: Rows | None) -> int:
    """What the next product costs from the frontier, in the rows that somebody needs, in columns of an edge.

    At worst, every edge of those rows leads to one that labels have reached.
    """
    edges = stream.graph.edges_of(needed)
    met = len(frontier.values) * edges // max(1, len(frontier.rows))
    return ENTRY_COST * min(met, visits(stream, frontier)) + EDGE_COST * edges


def worthwhile(stream: Stream, frontier: Frontier, needed: Rows | None) -> bool:
    """Whether the next product is quicker from the frontier than from the whole matrix, which would have to be made first."""
    graph = stream.graph
    return cost(stream, frontier, needed) < frontier.width * (graph.edges_of(needed) + _LAYING_OUT * graph.nodes)


def stays_small(stream: Stream, frontier: Frontier, itemsize: int) -> bool:
    """Whether the result is better kept as a frontier: at worst no two visits meet."""
    graph = stream.graph
    entries = visits(stream, frontier)
    whole = graph.nodes * frontier.width
    quicker = ENTRY_COST * entries < _KEPT_COST * whole
    return quicker and 2 * _ENTRY_BYTES * entries < itemsize * whole


def advance_frontier(stream: Stream, frontier: Frontier, seed_update: SeedUpdate, needed: Rows | None, short: bool) -> Frontier:
    """W S as a frontier, in the rows that labels reach and somebody needs."""
    graph = stream.graph
    rows = _wanted(stream, frontier, seed_update, needed)

    def work(block: Block) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
        arrays = (frontier.present, frontier.offsets, frontier.width)
        most = _bound(block.graph.indptr, block.graph.indices, block.rows, *arrays) + _extra(seed_update, block.rows)
        lengths = np.empty(len(block.rows), np.int64)
        columns, values = np.empty(most, np.int32), np.empty(most, np.float32)
        arguments = (*_arrays(block.graph, frontier), block.rows, lengths, columns, values, short, *seed_update.arguments())
        count = _advance(*arguments)
        return lengths, columns[:count].copy(), values[:count].copy()

    parts = list(stream.each(work, rows))
    counts = np.zeros(graph.nodes + 1, np.int64)
    lengths = np.concatenate([part[0] for part in parts]) if parts else np.empty(0, np.int64)
    if rows is None:
        counts[1:] = lengths
    else:
        counts[rows.astype(np.int64) + 1] = lengths
    columns = np.concatenate([part[1] for part in parts]) if parts else np.empty(0, np.int32)
    values = np.concatenate([part[2] for part in parts]) if parts else np.empty(0, np.float32)
    return Frontier(np.cumsum(counts), columns, values, frontier.width)


def spread_frontier(
    stream: Stream, frontier: Frontier, out: NDArray[Any], seed_update: SeedUpdate, rows: NDArray[Any] | None, compact: bool
) -> int:
    """Rows of W S as rows of a matrix, which are all that it has if it is compact; returns how many entries are not zero."""

    def work(block: Block) -> int:
        places = block.places if compact else block.rows
        arguments = (*_arrays(block.graph, frontier), frontier.width, block.rows, out, places, *seed_update.arguments())
        return _spread(*arguments)

    return sum(stream.each(work, rows))


def lay_out(stream: Stream, frontier: Frontier, out: NDArray[Any]) -> None:
    """A frontier as a matrix."""
    step = max(1, _LAID_OUT // frontier.width)
    starts = range(0, stream.graph.nodes, step)
    entries = (frontier.offsets, frontier.columns, frontier.values)
    for _ in stream.map(lambda start: _lay_out(*entries, start, min(start + step, stream.graph.nodes), out), starts):
        pass


def _wanted(stream: Stream, frontier: Frontier, seed_update: SeedUpdate, needed: Rows | None) -> NDArray[Any] | None:
    """The rows to compute. Where to find those that labels reach would take a pass over W, all that are needed are visited."""
    sources = frontier.rows
    if needed is not None and stream.reads_all(sources):
        return needed
    if seed_update.reset or seed_update.alpha < 1:
        sources = np.union1d(sources, seed_update.seeds.nodes)
    rows = reached(stream, sources)
    if rows is None or needed is None:
        return needed if rows is None else rows
    return np.intersect1d(rows, needed, assume_unique=True)


def _extra(seed_update: SeedUpdate, rows: NDArray[np.int64]) -> int:
    """Entries of Y in these rows, which are there whatever reaches them."""
    seeds = seed_update.seeds
    here = np.isin(seeds.nodes, rows, assume_unique=True)
    return int(np.diff(seeds.offsets)[here].sum())


def _arrays(graph: CsrGraph, frontier: Frontier) -> tuple[Any, ...]:
    rows = (graph.indptr, graph.indices, weights_of(graph), graph.scale)
    return (*rows, frontier.present, frontier.offsets, frontier.columns, frontier.values)


@kernel
def _lay_out(
    offsets: NDArray[np.int64],
    columns: NDArray[np.int32],
    values: NDArray[np.float32],
    start: int,
    stop: int,
    out: NDArray[Any],
) -> None:
    for i in range(start, stop):
        for c in range(out.shape[1]):
            out[i, c] = 0
        for entry in range(offsets[i], offsets[i + 1]):
            keep(out, i, columns[entry], values[entry])


@kernel
def _bound(
    indptr: NDArray[np.int64],
    indices: NDArray[np.uint32],
    rows: NDArray[np.int64],
    present: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    width: int,
) -> int:
    """The most entries that the product can have in these rows."""
    total = 0
    for row in rows:
        own = 0
        for edge in range(indptr[row], indptr[row + 1]):
            node = indices[edge] & COLUMN
            if present[node >> 3] >> (node & 7) & 1:
                own += offsets[node + 1] - offsets[node]
        total += min(own, width)
    return total


@exact_kernel
def _add_up(
    i: int,
    indptr: NDArray[np.int64],
    indices: NDArray[np.uint32],
    weights: NDArray[Any] | None,
    present: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    columns: NDArray[np.int32],
    values: NDArray[np.float32],
    sums: NDArray[np.float32],
    touched: NDArray[np.int32],
) -> int:
    """Adds the entries of the neighbours of row i to sums that are zero; returns how many columns were touched."""
    count = 0
    for edge in range(indptr[i], indptr[i + 1]):
        node = indices[edge] & COLUMN
        if not present[node >> 3] >> (node & 7) & 1:
            continue
        first, last = offsets[node], offsets[node + 1]
        weight = np.float32(1 + (indices[edge] >> 31)) if weights is None else half_to_float(weights[edge])
        for entry in range(first, last):
            c = columns[entry]
            total = fused(weight, values[entry], sums[c])
            if sums[c] == 0 and total != 0:
                touched[count] = c
                count += 1
            sums[c] = total
    return count


@exact_kernel
def _finish(
    i: int,
    seed: int,
    count: int,
    factor: np.float32,
    seeds: NDArray[np.int64],
    seed_offsets: NDArray[np.int64],
    seed_columns: NDArray[np.int32],
    seed_values: NDArray[np.float32],
    share: np.float32,
    reset: bool,
    sums: NDArray[np.float32],
    touched: NDArray[np.int32],
) -> int:
    """What the product does to a row when its sums are there; returns how many columns are touched now."""
    for t in range(count):
        sums[touched[t]] *= factor
    if share > 0 and seed < len(seeds) and seeds[seed] == i:
        if reset:
            for t in range(count):
                sums[touched[t]] = 0
            count = 0
        for entry in range(seed_offsets[seed], seed_offsets[seed + 1]):
            c = seed_columns[entry]
            if sums[c] == 0:
                touched[count] = c
                count += 1
            sums[c] += share * seed_values[seed]
    return count


@exact_kernel
def _advance(
    indptr: NDArray[np.int64],
    indices: NDArray[np.uint32],
    weights: NDArray[Any] | None,
    scale: NDArray[np.float32],
    present: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    columns: NDArray[np.int32],
    values: NDArray[np.float32],
    rows: NDArray[np.int64],
    lengths: NDArray[np.int64],
    out_columns: NDArray[np.int32],
    out_values: NDArray[np.float32],
    short: bool,
    seeds: NDArray[np.int64],
    seed_offsets: NDArray[np.int64],
    seed_columns: NDArray[np.int32],
    seed_values: NDArray[np.float32],
    alpha: np.float32,
    share: np.float32,
    reset: bool,
) -> int:
    width = 1 + max(columns.max() if len(columns) else 0, seed_columns.max() if len(seed_columns) else 0)
    # A sum that vanishes when it is scaled leaves its column in the list, where a seed may enter it again.
    sums, touched = np.zeros(width, np.float32), np.empty(2 * width, np.int32)
    rounded = np.empty((1, 1), np.uint16)
    written = 0
    for r in range(len(rows)):
        i = rows[r]
        count = _add_up(i, indptr, indices, weights, present, offsets, columns, values, sums, touched)
        seed = np.searchsorted(seeds, i) if share > 0 else 0
        count = _finish(
            i, seed, count, scale[i] * alpha, seeds, seed_offsets, seed_columns, seed_values, share, reset, sums, touched
        )
        before = written
        for t in range(count):
            value = sums[touched[t]]
            sums[touched[t]] = 0
            if short:
                keep(rounded, 0, 0, value)
                value = widen(rounded[0, 0])
            if value != 0:
                out_columns[written], out_values[written] = touched[t], value
                written += 1
        lengths[r] = written - before
    return written


@exact_kernel
def _spread(
    indptr: NDArray[np.int64],
    indices: NDArray[np.uint32],
    weights: NDArray[Any] | None,
    scale: NDArray[np.float32],
    present: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    columns: NDArray[np.int32],
    values: NDArray[np.float32],
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
    # A sum that vanishes when it is scaled leaves its column in the list, where a seed may enter it again.
    sums, touched = np.zeros(width, np.float32), np.empty(2 * width, np.int32)
    nonzero = 0
    for r in range(len(rows)):
        i, place = rows[r], places[r]
        count = _add_up(i, indptr, indices, weights, present, offsets, columns, values, sums, touched)
        seed = np.searchsorted(seeds, i) if share > 0 else 0
        count = _finish(
            i, seed, count, scale[i] * alpha, seeds, seed_offsets, seed_columns, seed_values, share, reset, sums, touched
        )
        out[place] = 0
        for t in range(count):
            nonzero += sums[touched[t]] != 0
            keep(out, place, touched[t], sums[touched[t]])
            sums[touched[t]] = 0
    return nonzero

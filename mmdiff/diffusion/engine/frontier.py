"""Products from a frontier: the first iterations visit only the rows that labels have reached (exact; DESIGN section 5).

A frontier stores the nonzero entries of S. Its products sum over the same edges in the same order as the product of the whole
matrix and leave out only zeros, so that the results are equal to the last bit.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.engine.needed_rows import Rows, reached
from mmdiff.diffusion.engine.product import SeedUpdate
from mmdiff.diffusion.engine.states import Frontier, FrontierArrays
from mmdiff.diffusion.io.graph_stream import Block, Stream, arrays_of
from mmdiff.diffusion.schedule import FrontierSize
from mmdiff.diffusion.seeds import Seeds
from mmdiff.graph.graph import CsrGraph
from mmdiff.kernels.constants import COLUMN
from mmdiff.kernels.floats import keep, widen
from mmdiff.kernels.jit import exact_kernel, kernel
from mmdiff.kernels.register_sums import fused
from mmdiff.kernels.spmm import GraphArrays, SeedUpdateArrays, edge_weight

# Entries of a matrix that a thread fills at a time.
_FILLED = 1 << 22


def first_frontier(seeds: Seeds, nodes: int) -> Frontier:
    """Y as a frontier."""
    counts = np.zeros(nodes + 1, np.int64)
    counts[seeds.nodes + 1] = np.diff(seeds.offsets)
    return Frontier(np.cumsum(counts), seeds.columns, seeds.entries[2], seeds.classes)


def frontier_size(graph: CsrGraph, frontier: Frontier) -> FrontierSize:
    """The size of a frontier, as the schedule takes it."""
    rows = frontier.rows
    visits = int(graph.degrees(rows) @ (frontier.offsets[rows + 1] - frontier.offsets[rows]))
    return FrontierSize(rows=len(rows), entries=len(frontier.values), visits=visits)


class Outgrown(Exception):
    """A frontier that takes more memory than it may: its columns are to be computed in narrower batches."""


def advance_frontier(
    stream: Stream,
    frontier: Frontier,
    seed_update: SeedUpdate,
    needed: Rows | None,
    short: bool,
    shared: bool = False,
    again: bool = False,
    most_entries: int | None = None,
) -> Frontier:
    """W S as a frontier, in the needed rows that labels reach. `short` rounds the values to bfloat16.

    Other batches will request `shared` needed rows too; with `again`, the same product will be computed again. Raises Outgrown
    where W S has more than `most_entries`.
    """
    rows = _rows_to_compute(stream, frontier, seed_update, needed)
    update = seed_update.arrays()

    def work(block: Block) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
        graph = arrays_of(block.graph)
        most = _most_entries(graph, frontier.arrays, block.rows, frontier.width) + _seed_entries(seed_update, block.rows)
        lengths = np.empty(len(block.rows), np.int64)
        columns, values = np.empty(most, np.int32), np.empty(most, np.float32)
        count = _advance(graph, frontier.arrays, block.rows, update, lengths, columns, values, short)
        return lengths, columns[:count].copy(), values[:count].copy()

    lengths, columns_of, values_of = [np.empty(0, np.int64)], [np.empty(0, np.int32)], [np.empty(0, np.float32)]
    entries = 0
    with closing(stream.each(work, rows, shared=again or (shared and rows is needed))) as blocks:
        for own_lengths, own_columns, own_values in blocks:
            lengths.append(own_lengths)
            columns_of.append(own_columns)
            values_of.append(own_values)
            entries += len(own_columns)
            if most_entries is not None and entries > most_entries:
                raise Outgrown
    counts = np.zeros(stream.graph.nodes + 1, np.int64)
    if rows is None:
        counts[1:] = np.concatenate(lengths)
    else:
        counts[rows.astype(np.int64) + 1] = np.concatenate(lengths)
    # One after the other, so that not all parts are in memory beside the whole.
    columns = np.concatenate(columns_of)
    columns_of.clear()
    values = np.concatenate(values_of)
    return Frontier(np.cumsum(counts, out=counts), columns, values, frontier.width)


def spread_frontier(
    stream: Stream,
    frontier: Frontier,
    out: NDArray[Any],
    seed_update: SeedUpdate,
    rows: NDArray[Any] | None,
    compact: bool,
    shared: bool = False,
) -> int:
    """Writes rows of W S to a matrix; returns the number of nonzero entries. A compact matrix has these rows and no others.

    Other batches will request `shared` rows too.
    """
    update = seed_update.arrays()

    def work(block: Block) -> int:
        places = block.places if compact else block.rows
        return _spread(arrays_of(block.graph), frontier.arrays, frontier.width, block.rows, out, places, update)

    return sum(stream.each(work, rows, shared=shared))


def fill_matrix(stream: Stream, frontier: Frontier, out: NDArray[Any]) -> None:
    """Writes a frontier out as a matrix."""
    step = max(1, _FILLED // frontier.width)
    starts = range(0, stream.graph.nodes, step)
    for _ in stream.map(lambda start: _fill(frontier.arrays, start, min(start + step, stream.graph.nodes), out), starts):
        pass


def _rows_to_compute(stream: Stream, frontier: Frontier, seed_update: SeedUpdate, needed: Rows | None) -> NDArray[Any] | None:
    """The needed rows that labels reach; all needed rows where finding these would take a pass over the whole graph."""
    sources = frontier.rows
    if needed is not None and stream.reads_all(sources):
        return needed
    if seed_update.reset or seed_update.alpha < 1:
        sources = np.union1d(sources, seed_update.seeds.nodes)
    rows = reached(stream, sources)
    if rows is None or needed is None:
        return needed if rows is None else rows
    return np.intersect1d(rows, needed, assume_unique=True)


def _seed_entries(seed_update: SeedUpdate, rows: NDArray[np.int64]) -> int:
    """Entries of Y in these rows, which the update may add."""
    seeds = seed_update.seeds
    here = np.isin(seeds.nodes, rows, assume_unique=True)
    return int(np.diff(seeds.offsets)[here].sum())


@kernel
def _fill(frontier: FrontierArrays, start: int, stop: int, out: NDArray[Any]) -> None:
    for i in range(start, stop):
        for c in range(out.shape[1]):
            out[i, c] = 0
        for entry in range(frontier.offsets[i], frontier.offsets[i + 1]):
            keep(out, (i, frontier.columns[entry]), frontier.values[entry])


@kernel
def _most_entries(graph: GraphArrays, frontier: FrontierArrays, rows: NDArray[np.int64], width: int) -> int:
    """The most entries that the product can have in these rows."""
    total = 0
    for row in rows:
        entries = 0
        for edge in range(graph.indptr[row], graph.indptr[row + 1]):
            node = graph.indices[edge] & COLUMN
            if frontier.present[node >> 3] >> (node & 7) & 1:
                entries += frontier.offsets[node + 1] - frontier.offsets[node]
        total += min(entries, width)
    return total


@exact_kernel
def _add_up(i: int, graph: GraphArrays, frontier: FrontierArrays, sums: NDArray[np.float32], touched: NDArray[np.int32]) -> int:
    """Adds the entries of the neighbours of row i to sums that are zero; returns the number of touched columns."""
    count = 0
    for edge in range(graph.indptr[i], graph.indptr[i + 1]):
        node = graph.indices[edge] & COLUMN
        if not frontier.present[node >> 3] >> (node & 7) & 1:
            continue
        first, last = frontier.offsets[node], frontier.offsets[node + 1]
        weight = edge_weight(graph.indices, graph.weights, edge)
        for entry in range(first, last):
            c = frontier.columns[entry]
            total = fused(weight, frontier.values[entry], sums[c])
            if sums[c] == 0 and total != 0:
                touched[count] = c
                count += 1
            sums[c] = total
    return count


@exact_kernel
def _finish(
    i: int, count: int, factor: np.float32, update: SeedUpdateArrays, sums: NDArray[np.float32], touched: NDArray[np.int32]
) -> int:
    """Scales the sums of row i and applies the seed update; returns the number of touched columns."""
    for t in range(count):
        sums[touched[t]] *= factor
    seed = np.searchsorted(update.nodes, i) if update.share > 0 else 0
    if update.share > 0 and seed < len(update.nodes) and update.nodes[seed] == i:
        if update.reset:
            for t in range(count):
                sums[touched[t]] = 0
            count = 0
        for entry in range(update.offsets[seed], update.offsets[seed + 1]):
            c = update.columns[entry]
            if sums[c] == 0:
                touched[count] = c
                count += 1
            sums[c] += update.share * update.values[seed]
    return count


@exact_kernel
def _advance(
    graph: GraphArrays,
    frontier: FrontierArrays,
    rows: NDArray[np.int64],
    update: SeedUpdateArrays,
    lengths: NDArray[np.int64],
    out_columns: NDArray[np.int32],
    out_values: NDArray[np.float32],
    short: bool,
) -> int:
    """Writes the entries of these rows of W S one after the other; returns their number."""
    most = frontier.columns.max() if len(frontier.columns) else 0
    width = 1 + max(most, update.columns.max() if len(update.columns) else 0)
    # A sum that vanishes when it is scaled stays in the list of touched columns, and a seed may add the column again.
    sums, touched = np.zeros(width, np.float32), np.empty(2 * width, np.int32)
    rounded = np.empty((1, 1), np.uint16)
    written = 0
    for r in range(len(rows)):
        i = rows[r]
        count = _add_up(i, graph, frontier, sums, touched)
        count = _finish(i, count, graph.scale[i] * update.alpha, update, sums, touched)
        before = written
        for t in range(count):
            value = sums[touched[t]]
            sums[touched[t]] = 0
            if short:
                keep(rounded, (0, 0), value)
                value = widen(rounded[0, 0])
            if value != 0:
                out_columns[written], out_values[written] = touched[t], value
                written += 1
        lengths[r] = written - before
    return written


@exact_kernel
def _spread(
    graph: GraphArrays,
    frontier: FrontierArrays,
    width: int,
    rows: NDArray[np.int64],
    out: NDArray[Any],
    places: NDArray[np.int64],
    update: SeedUpdateArrays,
) -> int:
    """Writes row rows[i] of W S to out[places[i]]; returns the number of nonzero entries."""
    # A sum that vanishes when it is scaled stays in the list of touched columns, and a seed may add the column again.
    sums, touched = np.zeros(width, np.float32), np.empty(2 * width, np.int32)
    nonzero = 0
    for r in range(len(rows)):
        i, place = rows[r], places[r]
        count = _add_up(i, graph, frontier, sums, touched)
        count = _finish(i, count, graph.scale[i] * update.alpha, update, sums, touched)
        out[place] = 0
        for t in range(count):
            nonzero += sums[touched[t]] != 0
            keep(out, (place, touched[t]), sums[touched[t]])
            sums[touched[t]] = 0
    return nonzero

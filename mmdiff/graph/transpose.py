"""Kernels of the external transpose W0^T (paper, section 3.2): counting edges, and gathering them by their targets.

Threads divide a pass over the lists by source and by target: each reads a slice of the lists and takes the edges that lead to
a lane of rows. Edges are counted for each slice, so every slice has places of its own in every row: no two threads write to the
same place, and the edges that lead to a row end up in the order of their sources.

In numba, int(x) of a uint32 is a uint64, and that with an int64 a float64; `0 + x` is an int64, as offsets have to be.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.kernels.constants import NONE
from mmdiff.kernels.jit import kernel
from mmdiff.kernels.llvm import prefetch

_ONE = np.uint32(1)
_TARGET = np.uint64(32)

# Edges that are picked before they are stored: their prefetched cache lines fit the cache.
_PICKED = 512


@kernel
def count(neighbors: NDArray[np.uint32], first: int, stop: int, degrees: NDArray[np.uint32]) -> int:
    """Counts the edges that lead to rows first..stop-1; returns the first list with a neighbour that is no node, or -1."""
    nodes, base, rows = np.uint32(len(degrees)), np.uint32(first), np.uint32(stop - first)
    bad = -1
    for i in range(len(neighbors)):
        for j in range(neighbors.shape[1]):
            target = neighbors[i, j]
            if np.uint32(target - base) < rows:
                degrees[target] += _ONE
            elif target >= nodes and target != NONE and bad < 0:
                bad = i
    return bad


@kernel
def end_of_range(degrees: NDArray[np.uint32], first: int, budget: int, edge_bytes: int, row_bytes: int, most: int) -> int:
    """The end of the longest range of rows whose incoming edges, of all slices, fit the budget; at least one row."""
    used, edges = 0, 0
    row = first
    while row < degrees.shape[1]:
        for part in range(len(degrees)):
            edges += 0 + degrees[part, row]
            used += edge_bytes * (0 + degrees[part, row])
        used += row_bytes
        if row > first and (used > budget or edges > most):
            break
        row += 1
    return row


@kernel
def starts_of(degrees: NDArray[np.uint32], first: int, stop: int) -> NDArray[np.uint32]:
    """The offsets of the incoming edges of rows first..stop-1, in one array: row by row, and slice by slice within a row."""
    starts = np.empty((len(degrees), stop - first), np.uint32)
    total = np.uint32(0)
    for row in range(stop - first):
        for part in range(len(degrees)):
            starts[part, row] = total
            total += degrees[part, first + row]
    return starts


@kernel
def gather(
    neighbors: NDArray[np.uint32],
    weights: NDArray[np.float32] | None,
    first_source: int,
    first: int,
    cursors: NDArray[np.uint32],
    incoming: NDArray[np.uint32],
    incoming_weights: NDArray[np.float32] | None,
) -> None:
    """Stores the sources of edges that lead to a lane, from row `first` on, at the lane's cursors, and advances these.

    Edges of the lane are picked without branches, some rows at a time; then each gets its place; then they are stored. Cursors
    and places are prefetched one step ahead, because cache misses of distant targets dominate the time.
    """
    k = neighbors.shape[1]
    base, rows, size = np.uint32(first), np.uint32(len(cursors)), np.uint32(len(incoming))
    # Target and source are packed into one number, so that a pick is one store.
    picks, places = np.empty(_PICKED + k, np.uint64), np.empty(_PICKED + k, np.uint32)
    values = None if weights is None else np.empty(_PICKED + k, np.float32)
    i = 0
    while i < len(neighbors):
        picked: Any = np.uint64(0)
        while i < len(neighbors) and picked < _PICKED:
            source = np.uint64(first_source + i)
            for j in range(k):
                row = np.uint32(neighbors[i, j] - base)
                prefetch(cursors, row)
                picks[picked] = np.uint64(row) << _TARGET | source
                if weights is not None and values is not None:
                    values[picked] = weights[i, j]
                picked += np.uint64(row < rows)
            i += 1
        for e in range(picked):
            target = picks[e] >> _TARGET
            at = cursors[target]
            prefetch(incoming, at)
            places[e] = at
            cursors[target] = at + _ONE
        for e in range(picked):
            # Only lists that changed since they were counted exceed the array; `is_filled` finds that.
            if places[e] < size:
                incoming[places[e]] = np.uint32(picks[e])
                if values is not None and incoming_weights is not None:
                    incoming_weights[places[e]] = values[e]


@kernel
def is_filled(degrees: NDArray[np.uint32], first: int, cursors: NDArray[np.uint32]) -> bool:
    """Whether every cursor has reached the end of the edges of its row and slice."""
    end = np.uint32(0)
    for row in range(cursors.shape[1]):
        for part in range(len(degrees)):
            end += degrees[part, first + row]
            if cursors[part, row] != end:
                return False
    return True

"""Kernels of the external transpose: counting, gathering and merging edges (paper, section 3.2: W0 + W0^T).

Threads share a pass over the lists by target: each goes through all lists and takes the edges that lead to its own rows (a
lane), so that no two write to the same place, and whatever leads to a row is found in the order of its sources.

In numba, int(x) of a uint32 is a uint64, and that with an int64 a float64; `0 + x` is an int64, as offsets have to be.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.graph.lists import NONE
from mmdiff.jit import kernel, prefetch

_NONE = np.uint32(NONE)
_ONE = np.uint32(1)
_NEXT = np.uint64(1)
RECIPROCAL_SHIFT = np.uint32(31)

# The inverse of a smaller sum would not be a float32.
LEAST_SUM = 1e-37

# Edges that are picked before they are put in place, and how many edges ahead of its turn a place is asked for.
_PICKED = 4096
_AHEAD = 32

# Longer lists are sorted in the usual way: comparing all pairs is quick, but their number grows with the square.
_MOST_PAIRED = 256


@kernel
def count(neighbors: NDArray[np.uint32], first: int, stop: int, degrees: NDArray[np.uint32]) -> int:
    """Adds edges that lead to rows first..stop-1 to their numbers; returns the first row that names no node, or -1."""
    nodes, base, rows = np.uint32(len(degrees)), np.uint32(first), np.uint32(stop - first)
    bad = -1
    for i in range(len(neighbors)):
        for j in range(neighbors.shape[1]):
            target = neighbors[i, j]
            if np.uint32(target - base) < rows:
                degrees[target] += _ONE
            elif target >= nodes and target != _NONE and bad < 0:
                bad = i
    return bad


@kernel
def end_of_range(degrees: NDArray[np.uint32], first: int, room: int, edge_bytes: int, row_bytes: int, most: int) -> int:
    """How far a range of rows may go whose incoming edges fit the room; at least one row."""
    used, edges = 0, 0
    row = first
    while row < len(degrees):
        edges += 0 + degrees[row]
        used += row_bytes + edge_bytes * (0 + degrees[row])
        if row > first and (used > room or edges > most):
            break
        row += 1
    return row


@kernel
def starts_of(degrees: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Where the incoming edges of each row of a range begin, when all are laid side by side."""
    starts = np.empty(len(degrees), np.uint32)
    total = np.uint32(0)
    for row in range(len(degrees)):
        starts[row] = total
        total += degrees[row]
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
    """Puts the sources of edges that lead to a lane, from row `first` on, where its cursors are, and moves those on.

    Edges of the lane are picked without branches first, some rows at a time, so that the places they go to can be asked for
    before they are needed: edges that lead far away are what takes time.
    """
    k = neighbors.shape[1]
    base, rows, room = np.uint32(first), np.uint32(len(cursors)), np.uint32(len(incoming))
    targets, sources = np.zeros(_PICKED + k + _AHEAD, np.uint32), np.empty(_PICKED + k, np.uint32)
    values = None if weights is None else np.empty(_PICKED + k, np.float32)
    i = 0
    while i < len(neighbors):
        picked: Any = np.uint64(0)
        while i < len(neighbors) and picked < _PICKED:
            for j in range(k):
                row = np.uint32(neighbors[i, j] - base)
                targets[picked] = row
                sources[picked] = np.uint32(first_source + i)
                if weights is not None and values is not None:
                    values[picked] = weights[i, j]
                picked += np.uint64(row < rows)
            i += 1
        # Any row will do to be asked for behind the last one.
        for ahead in range(_AHEAD):
            targets[picked + np.uint64(ahead)] = 0
        for e in range(np.int64(picked)):
            prefetch(cursors, targets[e + _AHEAD])
            prefetch(incoming, cursors[targets[e + _AHEAD // 2]])
            at = cursors[targets[e]]
            # Only lists that changed since they were counted lead further; `is_filled` finds out.
            if at < room:
                incoming[at] = sources[e]
                if values is not None and incoming_weights is not None:
                    incoming_weights[at] = values[e]
                cursors[targets[e]] = at + _ONE


@kernel
def is_filled(degrees: NDArray[np.uint32], cursors: NDArray[np.uint32]) -> bool:
    """Whether every cursor stands where its row ends, so that the cursor before it stands where the row begins."""
    end = np.uint32(0)
    for row in range(len(degrees)):
        end += degrees[row]
        if cursors[row] != end:
            return False
    return True


@kernel
def place_sorted(
    row: NDArray[np.uint32],
    weights: NDArray[np.float32] | None,
    found: NDArray[np.uint32],
    found_weights: NDArray[np.float32] | None,
) -> None:
    """Puts each entry of a long list where the first of its kind would be if the list were sorted."""
    order = np.argsort(row)
    place = 0
    for i in range(len(row)):
        j = order[i]
        if i > 0 and row[j] != row[order[i - 1]]:
            place = i
        found[place] = row[j]
        if weights is not None and found_weights is not None:
            found_weights[place] = max(found_weights[place], weights[j])


@kernel
def sort_distinct(
    row: NDArray[np.uint32],
    weights: NDArray[np.float32] | None,
    found: NDArray[np.uint32],
    found_weights: NDArray[np.float32] | None,
) -> int:
    """The different neighbours of a list, by number; one that occurs twice has the larger weight. Returns how many there are.

    An entry's place is the number of smaller entries: no branches to mispredict, and equal entries meet in the same place.
    """
    k = len(row)
    for j in range(k):
        found[j] = _NONE
    if found_weights is not None:
        for j in range(k):
            found_weights[j] = 0
    if k > _MOST_PAIRED:
        place_sorted(row, weights, found, found_weights)
    else:
        for i in range(k):
            place: Any = np.uint32(0)
            for j in range(k):
                place = np.uint32(place + (row[j] < row[i]))
            found[place] = row[i]
            if weights is not None and found_weights is not None:
                found_weights[place] = max(found_weights[place], weights[i])
    size = 0
    for j in range(k):
        node = found[j]
        found[size] = node
        if found_weights is not None:
            found_weights[size] = found_weights[j]
        size += node != _NONE
    return size


@kernel
def drop_repeated(incoming: NDArray[np.uint32], incoming_weights: NDArray[np.float32] | None, start: int, stop: int) -> int:
    """Keeps each source once, in place (sources are in order); returns where they end now."""
    end = start
    for at in range(start, stop):
        if end > start and incoming[end - 1] == incoming[at]:
            if incoming_weights is not None:
                incoming_weights[end - 1] = max(incoming_weights[end - 1], incoming_weights[at])
        else:
            incoming[end] = incoming[at]
            if incoming_weights is not None:
                incoming_weights[end] = incoming_weights[at]
            end += 1
    return end


@kernel
def merge(
    neighbors: NDArray[np.uint32],
    weights: NDArray[np.float32] | None,
    first_row: int,
    cursors: NDArray[np.uint32],
    incoming: NDArray[np.uint32],
    incoming_weights: NDArray[np.float32] | None,
    columns: NDArray[np.uint32],
    values: NDArray[np.float32] | None,
    ends: NDArray[np.int64],
    scale: NDArray[np.float32],
) -> int:
    """Writes rows of W0 + W0^T: their columns, values (where weighted), ends and 1/sums (where not); returns the reciprocals.

    `first_row` is the number of the first row within the range. Rows of the range are consumed: each is merged once.
    """
    k = neighbors.shape[1]
    own = np.empty(k, np.uint32)
    own_weights = None if weights is None else np.empty(k, np.float32)
    # Positions are unsigned: what could be negative would be checked for counting from the end.
    size: Any = np.uint64(0)
    reciprocals: Any = 0
    for i in range(len(neighbors)):
        row = first_row + i
        begin = 0 + cursors[row - 1] if row > 0 else 0
        count = sort_distinct(neighbors[i], None if weights is None else weights[i], own, own_weights)
        stop = drop_repeated(incoming, incoming_weights, begin, 0 + cursors[row])
        total, first = count + stop - begin, size
        p, own_end = np.uint64(0), np.uint64(count)
        q, end = np.uint64(begin), np.uint64(stop)
        while p < own_end and q < end:
            x, y = own[p], incoming[q]
            columns[size] = min(x, y) | np.uint32(np.uint32(x == y) << RECIPROCAL_SHIFT)
            if values is not None and own_weights is not None and incoming_weights is not None:
                value = np.float32(0)
                if x <= y:
                    value += own_weights[p]
                if y <= x:
                    value += incoming_weights[q]
                values[size] = value
            p += np.uint64(x <= y)
            q += np.uint64(y <= x)
            size += _NEXT
        while p < own_end:
            columns[size] = own[p]
            if values is not None and own_weights is not None:
                values[size] = own_weights[p]
            p += _NEXT
            size += _NEXT
        while q < end:
            columns[size] = incoming[q]
            if values is not None and incoming_weights is not None:
                values[size] = incoming_weights[q]
            q += _NEXT
            size += _NEXT
        reciprocals += total - np.int64(size - first)
        ends[i] = np.int64(size)
        scale[i] = np.float32(1.0 / total) if total > 0 else np.float32(0)
    return int(reciprocals)


@kernel
def scale_of(ends: NDArray[np.int64], values: NDArray[np.float32], scale: NDArray[np.float32]) -> None:
    """1/sum of each row of values, 0 where there is nothing to divide by."""
    start = 0
    for row in range(len(ends)):
        total = 0.0
        for at in range(start, ends[row]):
            total += values[at]
        scale[row] = np.float32(1.0 / total) if total > LEAST_SUM else np.float32(0)
        start = ends[row]

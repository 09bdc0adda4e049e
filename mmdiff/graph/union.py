"""Rows of W0 + W0^T (paper, section 3.2): the union of a node's own list and of what leads to it, by number.

Most lists name each neighbour once, and then an entry's place in the union is the number of smaller entries: counted with
vectors, for the entries of the own list, and what leads to the node takes the places that are left, in its order. There is
nothing to mispredict and nothing to wait for. Lists with repeated or missing neighbours are sorted and merged.

In numba, int(x) of a uint32 is a uint64, and that with an int64 a float64; `0 + x` is an int64, as offsets have to be.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.kernels.constants import NONE, RECIPROCAL_SHIFT
from mmdiff.kernels.jit import kernel
from mmdiff.kernels.llvm import LANES, count_smaller

_NEXT = np.uint64(1)

# The inverse of a smaller sum would not be a float32.
LEAST_SUM = 1e-37

# Longer lists are sorted in the usual way: comparing all pairs is quick, but their number grows with the square.
_MOST_PAIRED = 256


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
        found[j] = NONE
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
        size += node != NONE
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
def longest_of(cursors: NDArray[np.uint32], first_row: int, rows: int) -> int:
    """The most entries that lead to one of these rows."""
    most = 0
    for row in range(first_row, first_row + rows):
        most = max(most, (0 + cursors[row]) - (0 + cursors[row - 1] if row > 0 else 0))
    return most


@kernel
def lay_side_by_side(
    own: NDArray[Any], incoming: NDArray[Any], begin: np.uint64, stop: np.uint64, entries: NDArray[Any], nothing: Any
) -> None:
    """entries = own, incoming[begin:stop], and nothing behind them."""
    k, size = np.uint64(len(own)), np.uint64(stop - begin)
    for j in range(k):
        entries[j] = own[j]
    for j in range(size):
        entries[k + j] = incoming[begin + j]
    entries[k + size] = nothing


@kernel
def is_repeated(entries: NDArray[np.uint32], start: np.uint64, stop: np.uint64) -> bool:
    """Whether some of these entries, which are in order, are the same."""
    same = False
    for j in range(start + _NEXT, stop):
        same |= entries[j - _NEXT] == entries[j]
    return same


@kernel
def unite_by_place(
    k: int,
    entries: NDArray[np.uint32],
    entry_weights: NDArray[np.float32] | None,
    total: np.uint64,
    places: NDArray[np.uint32],
    placed: NDArray[np.uint32],
    placed_weights: NDArray[np.float32] | None,
    first: np.uint64,
    columns: NDArray[np.uint32],
    values: NDArray[np.float32] | None,
) -> Any:
    """Writes the union of entries[:k] and of entries[k:total], which is in order; returns where it ends.

    That is `first` itself if some entry is missing or repeated: nothing is said of what was written then.
    """
    if is_repeated(entries, np.uint64(k), total):
        return first
    for at in range(0, k, LANES):
        count_smaller(entries, np.int64(total), at, places)
    for j in range(total):
        placed[j] = NONE
    for j in range(k):
        placed[places[j]] = entries[j]
        if entry_weights is not None and placed_weights is not None:
            placed_weights[places[j]] = entry_weights[j]
    size: Any = first
    q: Any = np.uint64(k)
    both: Any = np.uint64(0)
    for s in range(total):
        x, y = placed[s], entries[q]
        # What is left of the incoming entries is not smaller than the entry of a place, and NONE is larger than all.
        columns[size] = min(x, y) | np.uint32(np.uint32(x == y) << RECIPROCAL_SHIFT)
        if values is not None and entry_weights is not None and placed_weights is not None:
            value = entry_weights[q] if x == NONE else placed_weights[s]
            values[size] = value + entry_weights[q] if x == y else value
        # Of an edge that goes both ways the place behind it is the other half.
        size += _NEXT - both
        both = np.uint64(x == y)
        q += np.uint64(x == NONE)
    return size if q == total else first


@kernel
def unite_by_order(
    own: NDArray[np.uint32],
    own_weights: NDArray[np.float32] | None,
    count: int,
    incoming: NDArray[np.uint32],
    incoming_weights: NDArray[np.float32] | None,
    begin: int,
    stop: int,
    first: np.uint64,
    columns: NDArray[np.uint32],
    values: NDArray[np.float32] | None,
) -> Any:
    """Writes the union of own[:count] and incoming[begin:stop], both in order and each without repetition; returns its end."""
    # Positions are unsigned: what could be negative would be checked for counting from the end.
    size: Any = first
    p, own_end = np.uint64(0), np.uint64(count)
    q, end = np.uint64(begin), np.uint64(stop)
    while p < own_end or q < end:
        x = own[p] if p < own_end else NONE
        y = incoming[q] if q < end else NONE
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
    return size


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
    room = 2 * k + longest_of(cursors, first_row, len(neighbors)) + LANES
    own, places = np.empty(k, np.uint32), np.empty(k + LANES, np.uint32)
    entries, placed = np.empty(room, np.uint32), np.empty(room, np.uint32)
    own_weights = None if weights is None else np.empty(k, np.float32)
    entry_weights = None if weights is None else np.empty(room, np.float32)
    placed_weights = None if weights is None else np.empty(room, np.float32)
    size: Any = np.uint64(0)
    reciprocals: Any = 0
    for i in range(len(neighbors)):
        row = first_row + i
        begin = 0 + cursors[row - 1] if row > 0 else 0
        stop = 0 + cursors[row]
        total = k + stop - begin
        first: Any = size
        if k <= _MOST_PAIRED:
            lay_side_by_side(neighbors[i], incoming, np.uint64(begin), np.uint64(stop), entries, NONE)
            if weights is not None and incoming_weights is not None and entry_weights is not None:
                lay_side_by_side(weights[i], incoming_weights, np.uint64(begin), np.uint64(stop), entry_weights, np.float32(0))
            size = unite_by_place(
                k, entries, entry_weights, np.uint64(total), places, placed, placed_weights, first, columns, values
            )
        if size == first:
            count = sort_distinct(neighbors[i], None if weights is None else weights[i], own, own_weights)
            stop = drop_repeated(incoming, incoming_weights, begin, stop)
            total = count + stop - begin
            size = unite_by_order(own, own_weights, count, incoming, incoming_weights, begin, stop, first, columns, values)
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

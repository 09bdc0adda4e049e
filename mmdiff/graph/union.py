"""Rows of W0 + W0^T (paper, section 3.2): the union of a node's list and of its incoming edges, by node number.

Most lists hold each neighbour once. An entry's place in the union is then the number of smaller entries, which is counted with
vector instructions for the entries of the list; incoming edges fill the remaining places in order. This has no branches to
mispredict. Lists with repeated or missing neighbours are sorted and merged instead.

In numba, int(x) of a uint32 is a uint64, and that with an int64 a float64; `0 + x` is an int64, as offsets have to be.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from mmdiff.kernels.constants import COLUMN, NONE, RECIPROCAL_SHIFT
from mmdiff.kernels.jit import kernel
from mmdiff.kernels.llvm import LANES, count_smaller

_NEXT = np.uint64(1)

# The inverse of a smaller sum overflows float32.
LEAST_SUM = 1e-37

# Longer lists are sorted by comparison sort: counting smaller entries takes time quadratic in k.
_MOST_PAIRED = 256


class Outgoing(NamedTuple):
    """The lists of some nodes, one row each, and the weights of their entries (None: constant weights)."""

    neighbors: NDArray[np.uint32]
    weights: NDArray[np.float32] | None


class Incoming(NamedTuple):
    """The edges that lead to a range of rows: sources in order, those of row i up to `cursors[i]`."""

    cursors: NDArray[np.uint32]
    sources: NDArray[np.uint32]
    weights: NDArray[np.float32] | None


class MergedRows(NamedTuple):
    """Rows of W0 + W0^T: row i ends at `ends[i]`; `scale` is 1/sum. Arrays of columns and weights may be longer than needed."""

    columns: NDArray[np.uint32]
    weights: NDArray[np.float32] | None
    ends: NDArray[np.int64]
    scale: NDArray[np.float32]

    @classmethod
    def empty(cls, rows: int, most_edges: int, weighted: bool) -> MergedRows:
        """Uninitialised arrays for a number of rows with at most `most_edges` edges together."""
        weights = np.empty(most_edges, np.float32) if weighted else None
        return cls(np.empty(most_edges, np.uint32), weights, np.empty(rows, np.int64), np.empty(rows, np.float32))


class Entries(NamedTuple):
    """Nodes, each with its weight where edges are weighted."""

    nodes: NDArray[np.uint32]
    weights: NDArray[np.float32] | None


def weight_at(weights: NDArray[np.float32] | None, at: Any) -> Any:  # noqa: ARG001
    """A weight, or 0 where edges have none, inside kernels."""
    raise RuntimeError("weight_at is for kernels")


def set_weight(weights: NDArray[np.float32] | None, at: Any, weight: Any) -> None:  # noqa: ARG001
    """Stores a weight where edges have some, inside kernels."""
    raise RuntimeError("set_weight is for kernels")


# Chosen by type: numba removes a branch on None only where the value is an argument of the kernel by itself.
@overload(weight_at, inline="always")
def _weight_at(weights: Any, at: Any) -> Any:  # noqa: ARG001
    def constant(weights: Any, at: Any) -> Any:  # noqa: ARG001
        return np.float32(0)

    def stored(weights: Any, at: Any) -> Any:
        return weights[at]

    return constant if weights == types.none else stored


@overload(set_weight, inline="always")
def _set_weight(weights: Any, at: Any, weight: Any) -> Any:  # noqa: ARG001
    def nothing(weights: Any, at: Any, weight: Any) -> None:
        pass

    def store(weights: Any, at: Any, weight: Any) -> None:
        weights[at] = weight

    return nothing if weights == types.none else store


@kernel
def weights_for(weights: NDArray[np.float32] | None, size: int) -> NDArray[np.float32] | None:
    """An uninitialised array of weights, or None where edges have none."""
    return None if weights is None else np.empty(size, np.float32)


@kernel
def row_of(weights: NDArray[np.float32] | None, row: int) -> NDArray[np.float32] | None:
    return None if weights is None else weights[row]


@kernel
def place_sorted(row: NDArray[np.uint32], weights: NDArray[np.float32] | None, found: Entries) -> None:
    """Puts each entry of a long list where the first of its equals would be if the list were sorted."""
    nodes, node_weights = found.nodes, found.weights
    order = np.argsort(row)
    place = 0
    for i in range(len(row)):
        j = order[i]
        if i > 0 and row[j] != row[order[i - 1]]:
            place = i
        nodes[place] = row[j]
        set_weight(node_weights, place, max(weight_at(node_weights, place), weight_at(weights, j)))


@kernel
def sort_distinct(row: NDArray[np.uint32], weights: NDArray[np.float32] | None, found: Entries) -> int:
    """Writes the distinct neighbours of a list by number, repeated ones with their largest weight; returns their count.

    An entry's place is the number of smaller entries: no branches to mispredict, and equal entries share a place.
    """
    nodes, node_weights = found.nodes, found.weights
    k = len(row)
    for j in range(k):
        nodes[j] = NONE
    for j in range(k):
        set_weight(node_weights, j, np.float32(0))
    if k > _MOST_PAIRED:
        place_sorted(row, weights, found)
    else:
        for i in range(k):
            place: Any = np.uint32(0)
            for j in range(k):
                place = np.uint32(place + (row[j] < row[i]))
            nodes[place] = row[i]
            set_weight(node_weights, place, max(weight_at(node_weights, place), weight_at(weights, i)))
    size = 0
    for j in range(k):
        node = nodes[j]
        nodes[size] = node
        set_weight(node_weights, size, weight_at(node_weights, j))
        size += node != NONE
    return size


@kernel
def drop_repeated(incoming: Incoming, start: int, stop: int) -> int:
    """Keeps each source once, in place (sources are in order); returns where they end now."""
    sources, weights = incoming.sources, incoming.weights
    end = start
    for at in range(start, stop):
        if end > start and sources[end - 1] == sources[at]:
            set_weight(weights, end - 1, max(weight_at(weights, end - 1), weight_at(weights, at)))
        else:
            sources[end] = sources[at]
            set_weight(weights, end, weight_at(weights, at))
            end += 1
    return end


@kernel
def longest_of(cursors: NDArray[np.uint32], first_row: int, rows: int) -> int:
    """The largest number of edges that lead to one of these rows."""
    most = 0
    for row in range(first_row, first_row + rows):
        most = max(most, (0 + cursors[row]) - (0 + cursors[row - 1] if row > 0 else 0))
    return most


@kernel
def concatenate(
    own: NDArray[Any], incoming: NDArray[Any], begin: np.uint64, stop: np.uint64, entries: NDArray[Any], fill: Any
) -> None:
    """entries = own, incoming[begin:stop], fill."""
    k, size = np.uint64(len(own)), np.uint64(stop - begin)
    for j in range(k):
        entries[j] = own[j]
    for j in range(size):
        entries[k + j] = incoming[begin + j]
    entries[k + size] = fill


@kernel
def concatenate_weights(
    own: NDArray[np.float32] | None,
    incoming: NDArray[np.float32] | None,
    begin: np.uint64,
    stop: np.uint64,
    entries: NDArray[np.float32] | None,
) -> None:
    if own is not None and incoming is not None and entries is not None:
        concatenate(own, incoming, begin, stop, entries, np.float32(0))


@kernel
def is_repeated(entries: NDArray[np.uint32], start: np.uint64, stop: np.uint64) -> bool:
    """Whether two of these entries, which are in order, are equal."""
    same = False
    for j in range(start + _NEXT, stop):
        same |= entries[j - _NEXT] == entries[j]
    return same


@kernel
def unite_by_place(
    k: int,
    entries: Entries,
    total: np.uint64,
    places: NDArray[np.uint32],
    placed: Entries,
    first: np.uint64,
    merged: MergedRows,
) -> Any:
    """Writes the union of entries[:k] and of entries[k:total], which is in order; returns its end.

    The end is `first` itself if an entry is missing or repeated; what was written is then undefined.
    """
    nodes, weights, placed_nodes, placed_weights = entries.nodes, entries.weights, placed.nodes, placed.weights
    columns, values = merged.columns, merged.weights
    if is_repeated(nodes, np.uint64(k), total):
        return first
    for at in range(0, k, LANES):
        count_smaller(nodes, np.int64(total), at, places)
    for j in range(total):
        placed_nodes[j] = NONE
    for j in range(k):
        placed_nodes[places[j]] = nodes[j]
        set_weight(placed_weights, places[j], weight_at(weights, j))
    size: Any = first
    q: Any = np.uint64(k)
    both: Any = np.uint64(0)
    for s in range(total):
        x, y = placed_nodes[s], nodes[q]
        # The remaining incoming entries are not smaller than the entry of a place, and NONE is larger than all.
        columns[size] = min(x, y) | np.uint32(np.uint32(x == y) << RECIPROCAL_SHIFT)
        # Both are read before one is chosen: a branch here takes half as long again.
        mine, other = weight_at(placed_weights, s), weight_at(weights, q)
        weight = other if x == NONE else mine
        set_weight(values, size, weight + other if x == y else weight)
        # A reciprocal edge has two places; the second is skipped.
        size += _NEXT - both
        both = np.uint64(x == y)
        q += np.uint64(x == NONE)
    return size if q == total else first


@kernel
def unite_by_order(
    own: Entries, count: int, incoming: Incoming, begin: int, stop: int, first: np.uint64, merged: MergedRows
) -> Any:
    """Writes the union of own[:count] and incoming[begin:stop], both in order and without repetition; returns its end."""
    # Positions are unsigned: numba checks signed indices for counting from the end.
    own_nodes, own_weights, sources, weights = own.nodes, own.weights, incoming.sources, incoming.weights
    columns, values = merged.columns, merged.weights
    size: Any = first
    p, own_end = np.uint64(0), np.uint64(count)
    q, end = np.uint64(begin), np.uint64(stop)
    while p < own_end or q < end:
        x = own_nodes[p] if p < own_end else NONE
        y = sources[q] if q < end else NONE
        columns[size] = min(x, y) | np.uint32(np.uint32(x == y) << RECIPROCAL_SHIFT)
        value = np.float32(0)
        if x <= y:
            value += weight_at(own_weights, p)
        if y <= x:
            value += weight_at(weights, q)
        set_weight(values, size, value)
        p += np.uint64(x <= y)
        q += np.uint64(y <= x)
        size += _NEXT
    return size


@kernel
def merge(outgoing: Outgoing, first_row: int, incoming: Incoming, merged: MergedRows) -> int:
    """Writes rows of W0 + W0^T; returns the number of reciprocal edges. Without weights `scale` is written too.

    `first_row` is the number of the first row within the range of `incoming`, whose rows are consumed: each is merged once.
    """
    neighbors, cursors, ends, scale = outgoing.neighbors, incoming.cursors, merged.ends, merged.scale
    k = neighbors.shape[1]
    capacity = 2 * k + longest_of(cursors, first_row, len(neighbors)) + LANES
    places = np.empty(k + LANES, np.uint32)
    own = Entries(np.empty(k, np.uint32), weights_for(outgoing.weights, k))
    entries = Entries(np.empty(capacity, np.uint32), weights_for(outgoing.weights, capacity))
    placed = Entries(np.empty(capacity, np.uint32), weights_for(outgoing.weights, capacity))
    size: Any = np.uint64(0)
    reciprocals: Any = 0
    for i in range(len(neighbors)):
        row = first_row + i
        begin = 0 + cursors[row - 1] if row > 0 else 0
        stop = 0 + cursors[row]
        total = k + stop - begin
        first: Any = size
        weights = row_of(outgoing.weights, i)
        if k <= _MOST_PAIRED:
            concatenate(neighbors[i], incoming.sources, np.uint64(begin), np.uint64(stop), entries.nodes, NONE)
            concatenate_weights(weights, incoming.weights, np.uint64(begin), np.uint64(stop), entries.weights)
            size = unite_by_place(k, entries, np.uint64(total), places, placed, first, merged)
        if size == first:
            count = sort_distinct(neighbors[i], weights, own)
            stop = drop_repeated(incoming, begin, stop)
            total = count + stop - begin
            size = unite_by_order(own, count, incoming, begin, stop, first, merged)
        reciprocals += total - np.int64(size - first)
        ends[i] = np.int64(size)
        scale[i] = np.float32(1.0 / total) if total > 0 else np.float32(0)
    return int(reciprocals)


@kernel
def scale_of(ends: NDArray[np.int64], values: NDArray[np.float32], scale: NDArray[np.float32]) -> None:
    """Writes 1/sum of each row of values, 0 where the sum is too small to divide by."""
    start = 0
    for row in range(len(ends)):
        total = 0.0
        for at in range(start, ends[row]):
            total += values[at]
        scale[row] = np.float32(1.0 / total) if total > LEAST_SUM else np.float32(0)
        start = ends[row]


@kernel
def spread(merged: MergedRows, first_node: int) -> tuple[bool, bool]:
    """Whether an entry of weighted rows leads to another node, and whether a label could spread along one of these.

    A label cannot spread along a weight of zero, nor in a row whose sum was too small to divide by. Row i is that of node
    `first_node` + i.
    """
    columns, weights, ends, scale = merged.columns, merged.weights, merged.ends, merged.scale
    leads, start = False, 0
    for row in range(len(ends)):
        for at in range(start, ends[row]):
            if 0 + (columns[at] & COLUMN) != first_node + row:
                leads = True
                if scale[row] > 0 and weight_at(weights, at) > 0:
                    return True, True
        start = ends[row]
    return leads, False

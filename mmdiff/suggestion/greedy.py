"""Greedy choice of rows, lazily: values only shrink as rows are chosen, so that those from before are bounds of those now.

A heap holds the candidates by their last known values. In each round the first few are evaluated again, together, on all
threads, until the best of them comes before everything that is left in the heap. Evaluating more candidates than necessary
only makes bounds tighter, so that the choice is that of a greedy algorithm which evaluates all candidates in each round,
whatever the number of threads. Of equal values the one whose row the user added first is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmdiff.kernels.constants import NONE
from mmdiff.kernels.jit import kernel

# Candidates that are evaluated together at first in a round, for each thread, and at most.
_FIRST, _MOST = 2, 1 << 9

Values = Callable[[NDArray[np.uint32]], NDArray[np.float32]]
"""The present values of some candidates."""


@dataclass(frozen=True)
class Choice:
    """A chosen node, and its value."""

    node: int
    value: float


def choose(
    candidates: NDArray[np.uint32],
    bounds: NDArray[np.float32],
    order: NDArray[np.uint32],
    values: Values,
    threads: int = 1,
    is_open: Callable[[NDArray[np.uint32]], NDArray[np.bool_]] | None = None,
) -> Iterator[Choice]:
    """Candidates, best first, as long as their value is positive; the caller takes what it has got into account in `values`.

    `bounds` are upper bounds of the values of all nodes, and become tighter; `candidates` become the heap. `order` leads from
    the first nodes to the user's rows; other nodes are rows. Candidates that are not open (any more) are dropped.
    """
    heap, count = candidates, len(candidates)
    _heapify(heap, bounds, order)
    while True:
        fresh: list[NDArray[np.uint32]] = []
        best, width = NONE, _FIRST * threads
        while True:
            popped, count = _pop_before(heap, count, best, min(width, _MOST), bounds, order)
            if not len(popped):
                break
            if is_open is not None:
                popped = popped[is_open(popped)]
            bounds[popped] = values(popped)
            # A kernel returns a plain number, which other kernels would be compiled for again.
            best = np.uint32(_best(popped, best, bounds, order))
            fresh.append(popped)
            width *= 2
        if best == NONE or bounds[best] <= 0:
            return
        for nodes in fresh:
            count = _push(heap, count, nodes[nodes != best], bounds, order)
        yield Choice(int(best), float(bounds[best]))


@kernel
def _comes_before(a: np.uint32, b: np.uint32, bounds: NDArray[np.float32], order: NDArray[np.uint32]) -> bool:
    """Whether node a has a larger value than b, or an equal one and comes first for the user."""
    if bounds[a] != bounds[b]:
        return bool(bounds[a] > bounds[b])
    first = order[a] if a < len(order) else a
    second = order[b] if b < len(order) else b
    return bool(first < second)


@kernel
def _sink(heap: NDArray[np.uint32], count: int, place: int, bounds: NDArray[np.float32], order: NDArray[np.uint32]) -> None:
    """Moves an entry of the heap down until none below it comes before it."""
    node = heap[place]
    while 2 * place + 1 < count:
        child = 2 * place + 1
        if child + 1 < count and _comes_before(heap[child + 1], heap[child], bounds, order):
            child += 1
        if not _comes_before(heap[child], node, bounds, order):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = node


@kernel
def _heapify(heap: NDArray[np.uint32], bounds: NDArray[np.float32], order: NDArray[np.uint32]) -> None:
    for place in range(len(heap) // 2 - 1, -1, -1):
        _sink(heap, len(heap), place, bounds, order)


@kernel
def _pop_before(
    heap: NDArray[np.uint32],
    count: int,
    best: np.uint32,
    most: int,
    bounds: NDArray[np.float32],
    order: NDArray[np.uint32],
) -> tuple[NDArray[np.uint32], int]:
    """Takes up to `most` nodes from the heap that come before `best`, and returns them with the size of the heap."""
    popped = np.empty(min(most, count), np.uint32)
    found = 0
    while found < len(popped) and (best == NONE or _comes_before(heap[0], best, bounds, order)):
        popped[found] = heap[0]
        found += 1
        count -= 1
        heap[0] = heap[count]
        _sink(heap, count, 0, bounds, order)
    return popped[:found], count


@kernel
def _push(
    heap: NDArray[np.uint32], count: int, nodes: NDArray[np.uint32], bounds: NDArray[np.float32], order: NDArray[np.uint32]
) -> int:
    """Puts nodes into the heap; returns its size."""
    for node in nodes:
        place = count
        count += 1
        while place > 0 and _comes_before(node, heap[(place - 1) >> 1], bounds, order):
            heap[place] = heap[(place - 1) >> 1]
            place = (place - 1) >> 1
        heap[place] = node
    return count


@kernel
def _best(nodes: NDArray[np.uint32], best: np.uint32, bounds: NDArray[np.float32], order: NDArray[np.uint32]) -> np.uint32:
    """The first of some nodes and of the best one so far."""
    for node in nodes:
        if best == NONE or _comes_before(node, best, bounds, order):
            best = node
    return best

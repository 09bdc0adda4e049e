"""Refinement by neighbours' neighbours, as in NN-descent: a neighbour of a neighbour is likely to be a neighbour.

A pass reads the lists of the pass before and writes new ones, so the result does not depend on the order of the work. Rows are
in cell order, so consecutive rows share candidates, which are then in cache. Candidates in cells that the query has visited
were compared before and are passed over: they are most of them. The others are scattered, so they are collected first, and
requested from memory some candidates ahead.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmdiff.kernels.constants import NONE
from mmdiff.kernels.floats import for_kernels
from mmdiff.kernels.jit import kernel
from mmdiff.kernels.llvm import prefetch_to_read
from mmdiff.knn.search.topk import ROOM, SPARE, Candidates, Lists, keep_best, quick_similarity, settle

# The hash table has at least twice as many places as there can be candidates, and at least this many.
_SMALLEST_TABLE = 1 << 12

# Candidates whose vectors are requested ahead of the one that is compared, and the bytes of a cache line.
_AHEAD = 4
_LINE_BYTES = 64


class Visited(NamedTuple):
    """The cells that each query has visited (NONE: no cell), the cell of each vector, and the number of cells."""

    visits: NDArray[np.uint32]
    cell_of: NDArray[np.uint32]
    cells: int


def refine(
    vectors: NDArray[Any], queries: NDArray[Any], own: Lists, lists: NDArray[np.uint32], visited: Visited | None = None
) -> Lists:
    """Refined lists of the queries: the best of their current neighbours (`own`) and of these nodes' neighbours (`lists`).

    Where `visited` is given, `own` has the best of all vectors in these cells already.
    """
    if visited is None:
        visited = Visited(np.empty((len(queries), 0), np.uint32), np.zeros(len(vectors), np.uint32), 1)
    neighbors, similarities = np.empty_like(own[0]), np.empty_like(own[1])
    table = np.full(table_size(own[0].shape[1], lists.shape[1]), NONE, np.uint32)
    # The query that has visited a cell last.
    visitor = np.full(visited.cells, NONE, np.uint32)
    _refine(for_kernels(vectors), for_kernels(queries), *own, lists, visited, visitor, table, neighbors, similarities)
    return neighbors, similarities


def table_size(own: int, of_each: int) -> int:
    """The size of the hash table of visited nodes, for `own` neighbours with `of_each` neighbours each."""
    return max(_SMALLEST_TABLE, 1 << int(2 * own * (of_each + 1) - 1).bit_length())


@kernel
def _is_new(table: NDArray[np.uint32], used: NDArray[np.int64], count: int, node: np.uint32) -> bool:
    """Inserts a node into the hash table of visited nodes; returns whether it is new."""
    mask = len(table) - 1
    place = (np.int64(node) * 2654435761 >> 7) & mask
    while table[place] != NONE:
        if table[place] == node:
            return False
        place = (place + 1) & mask
    table[place] = node
    used[count] = place
    return True


@kernel
def _refine(
    vectors: NDArray[Any],
    queries: NDArray[Any],
    own: NDArray[np.uint32],
    own_similarities: NDArray[np.float32],
    lists: NDArray[np.uint32],
    visited: Visited,
    visitor: NDArray[np.uint32],
    table: NDArray[np.uint32],
    neighbors: NDArray[np.uint32],
    similarities: NDArray[np.float32],
) -> None:
    k = own.shape[1]
    keep = k + SPARE
    used = np.empty(len(table), np.int64)
    fresh = np.empty(len(table), np.uint32)
    flat, width = vectors.reshape(-1), vectors.shape[1]
    line = _LINE_BYTES // vectors.itemsize
    scores = np.empty((1, ROOM * keep), np.float32)
    nodes = np.empty((1, ROOM * keep), np.uint32)
    counts = np.empty(1, np.int64)
    best = Candidates(scores, nodes, counts)
    for i in range(len(queries)):
        for cell in visited.visits[i]:
            if cell != NONE:
                visitor[cell] = i
        seen, count = 0, 0
        for q in range(k):
            if own[i, q] != NONE:
                _is_new(table, used, seen, own[i, q])
                seen += 1
                scores[0, count], nodes[0, count] = own_similarities[i, q], own[i, q]
                count += 1
        found = 0
        for q in range(k):
            if own[i, q] == NONE:
                break
            for candidate in lists[own[i, q]]:
                if candidate == NONE:
                    break
                if visitor[visited.cell_of[candidate]] == i or not _is_new(table, used, seen, candidate):
                    continue
                seen += 1
                fresh[found] = candidate
                found += 1
        floor = own_similarities[i, k - 1]
        for f in range(found):
            if f + _AHEAD < found:
                first = np.int64(fresh[f + _AHEAD]) * width
                for at in range(first, first + width, line):
                    prefetch_to_read(flat, at)
            score = quick_similarity(queries[i], vectors[fresh[f]])
            if score >= floor:
                scores[0, count], nodes[0, count] = score, fresh[f]
                count += 1
                if count == scores.shape[1]:
                    count = keep_best(scores[0], nodes[0], count, keep)
                    floor = scores[0, :count].min()
        for place in used[:seen]:
            table[place] = NONE
        counts[0] = count
        settle(queries[i : i + 1], vectors, best, similarities[i : i + 1], neighbors[i : i + 1])

"""Search within cells: each query visits some cells, and all queries of a cell are compared with its rows in one product.

The rows of a cell are consecutive, so that a product reads them as they lie; comparing the same pairs one query at a time costs
many times as much. Rows of the background, points outside it and, one level up, centroids are all searched in this way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.kernels.constants import NONE
from mmdiff.kernels.floats import for_kernels, half_to_float
from mmdiff.kernels.jit import kernel
from mmdiff.knn.search.flat import QUERY_TILE, VECTOR_TILE, matrix_of, offer_scores
from mmdiff.knn.search.topk import ROOM, SPARE, Candidates, Lists, keep_best, settle


def search_visited(
    queries: NDArray[Any], vectors: NDArray[Any], visits: NDArray[np.uint32], offsets: NDArray[np.int64], k: int
) -> Lists:
    """The k nearest vectors in the visited cells: query i visits the distinct cells `visits[i]`, where NONE is no cell.

    Cell c holds the vectors `offsets[c]` to `offsets[c + 1] - 1`. The first cell is visited first: if it is the nearest, most
    pairs of the others are passed over quickly.
    """
    neighbors = np.empty((len(queries), k), np.uint32)
    similarities = np.empty((len(queries), k), np.float32)
    _search(for_kernels(queries), for_kernels(vectors), visits, offsets, neighbors, similarities)
    return neighbors, similarities


def nearest_in_groups(
    queries: NDArray[np.float32],
    vectors: NDArray[np.float32],
    visits: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    count: int,
) -> NDArray[np.uint32]:
    """The `count` nearest vectors in the visited groups by float32 scores, the nearest first and the others in no order.

    Arguments are as in `search_visited`. NONE fills up where there are fewer vectors.
    """
    nearest = np.full((len(queries), count), NONE, np.uint32)
    _nearest(queries, vectors, visits, offsets, nearest)
    return nearest


def rank_cells(
    queries: NDArray[Any],
    group: NDArray[np.int64],
    around: NDArray[np.uint32],
    centroids: NDArray[np.float32],
    count: int,
) -> NDArray[np.uint32]:
    """The `count` cells nearest to each query among the candidates `around[group[i]]`, the first candidate first.

    Queries of a group are consecutive, so that their candidates are gathered once. NONE fills up where there are fewer.
    """
    nearest = np.full((len(queries), count), NONE, np.uint32)
    _rank(for_kernels(queries), group, around, centroids, nearest)
    return nearest


@kernel
def _rank(
    queries: NDArray[Any],
    group: NDArray[np.int64],
    around: NDArray[np.uint32],
    centroids: NDArray[np.float32],
    nearest: NDArray[np.uint32],
) -> None:
    keep = nearest.shape[1]
    left = np.empty((QUERY_TILE, centroids.shape[1]), np.float32)
    right = np.empty((around.shape[1], centroids.shape[1]), np.float32)
    scores = np.empty((QUERY_TILE, ROOM * keep), np.float32)
    nodes = np.empty((QUERY_TILE, ROOM * keep), np.uint32)
    rows = np.arange(QUERY_TILE)
    start = 0
    while start < len(queries):
        stop = start + 1
        while stop < len(queries) and stop - start < QUERY_TILE and group[stop] == group[start]:
            stop += 1
        cells = around[group[start]]
        cells = cells[cells != NONE]
        gather(centroids, cells, right)
        tile = np.dot(matrix_of(queries, start, stop, left), right[: len(cells)].T)
        tile[:, 0] = np.inf
        candidates = Candidates(scores, nodes, np.zeros(stop - start, np.int64))
        offer_scores(tile, cells, rows, candidates, np.full(stop - start, -np.inf, np.float32), keep)
        for i in range(stop - start):
            count = keep_best(scores[i], nodes[i], candidates.counts[i], keep)
            nearest[start + i, :count] = nodes[i, :count]
            for q in range(count):
                if nodes[i, q] == cells[0]:
                    nearest[start + i, 0], nearest[start + i, q] = nodes[i, q], nodes[i, 0]
        start = stop


@kernel
def _search(
    queries: NDArray[Any],
    vectors: NDArray[Any],
    visits: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    neighbors: NDArray[np.uint32],
    similarities: NDArray[np.float32],
) -> None:
    settle(queries, vectors, _collect(queries, vectors, visits, offsets, neighbors.shape[1] + SPARE), similarities, neighbors)


@kernel
def _nearest(
    queries: NDArray[Any],
    vectors: NDArray[Any],
    visits: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    nearest: NDArray[np.uint32],
) -> None:
    scores, nodes, counts = _collect(queries, vectors, visits, offsets, nearest.shape[1])
    for i in range(len(queries)):
        count = keep_best(scores[i], nodes[i], counts[i], nearest.shape[1])
        best = 0
        for q in range(count):
            nearest[i, q] = nodes[i, q]
            if scores[i, q] > scores[i, best]:
                best = q
        nearest[i, 0], nearest[i, best] = nearest[i, best], nearest[i, 0]


@kernel
def _collect(
    queries: NDArray[Any], vectors: NDArray[Any], visits: NDArray[np.uint32], offsets: NDArray[np.int64], keep: int
) -> Candidates:
    """The best `keep` and some more vectors of each query, by float32 scores."""
    rows = len(queries)
    scores = np.empty((rows, ROOM * keep), np.float32)
    nodes = np.empty((rows, ROOM * keep), np.uint32)
    candidates = Candidates(scores, nodes, np.zeros(rows, np.int64))
    floor = np.full(rows, -np.inf, np.float32)
    _visit(queries, vectors, visits[:, :1], offsets, candidates, floor, keep)
    # What has been found in the first cell is the least that other cells have to offer.
    for i in range(rows):
        if candidates.counts[i] >= keep:
            candidates.counts[i] = keep_best(scores[i], nodes[i], candidates.counts[i], keep)
            floor[i] = scores[i, :keep].min()
    _visit(queries, vectors, visits[:, 1:], offsets, candidates, floor, keep)
    return candidates


@kernel
def _visit(
    queries: NDArray[Any],
    vectors: NDArray[Any],
    visits: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    candidates: Candidates,
    floor: NDArray[np.float32],
    keep: int,
) -> None:
    left = np.empty((QUERY_TILE, vectors.shape[1]), np.float32)
    right = np.empty((VECTOR_TILE, vectors.shape[1]), np.float32)
    order, first, starts = _visitors(visits)
    for number in range(len(starts) - 1):
        cell = first + number
        if starts[number] == starts[number + 1]:
            continue
        for begin in range(offsets[cell], offsets[cell + 1], VECTOR_TILE):
            end = min(begin + VECTOR_TILE, offsets[cell + 1])
            some_vectors = matrix_of(vectors, begin, end, right)
            ids = np.arange(begin, end).astype(np.uint32)
            for start in range(starts[number], starts[number + 1], QUERY_TILE):
                some = order[start : min(start + QUERY_TILE, starts[number + 1])]
                gather(queries, some, left)
                tile = np.dot(left[: len(some)], some_vectors.T)
                offer_scores(tile, ids, some, candidates, floor, keep)


@kernel
def _visitors(visits: NDArray[np.uint32]) -> tuple[NDArray[np.int64], int, NDArray[np.int64]]:
    """The queries by the cell that they visit: cell `first` + i has the visitors starts[i] to starts[i + 1] - 1."""
    first, last = np.uint32(NONE), np.uint32(0)
    for i in range(visits.shape[0]):
        for cell in visits[i]:
            if cell != NONE:
                first, last = min(first, cell), max(last, cell)
    if first == NONE:
        return np.empty(0, np.int64), 0, np.zeros(1, np.int64)
    starts = np.zeros(int(last) - int(first) + 2, np.int64)
    for i in range(visits.shape[0]):
        for cell in visits[i]:
            if cell != NONE:
                starts[cell - first + 1] += 1
    starts[:] = np.cumsum(starts)
    order, place = np.empty(starts[-1], np.int64), starts.copy()
    for i in range(visits.shape[0]):
        for cell in visits[i]:
            if cell != NONE:
                order[place[cell - first]] = i
                place[cell - first] += 1
    return order, int(first), starts


@kernel
def gather(vectors: NDArray[Any], rows: NDArray[Any], out: NDArray[np.float32]) -> None:
    """Writes scattered rows as a matrix of float32."""
    for i in range(len(rows)):
        for j in range(vectors.shape[1]):
            out[i, j] = half_to_float(vectors[rows[i], j])

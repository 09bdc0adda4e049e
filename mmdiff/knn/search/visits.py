"""Search within cells: each query visits some cells, and all queries of a cell are compared with its members in one product.

A matrix product costs a fraction of comparing the same pairs one query at a time. Used for the background (`cells/forest.py`)
and for points outside it (`outside.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.kernels.floats import for_kernels, half_to_float
from mmdiff.kernels.jit import kernel
from mmdiff.knn.search.flat import QUERY_TILE, VECTOR_TILE, offer_scores
from mmdiff.knn.search.topk import ROOM, SPARE, Candidates, Lists, settle


def search_visited(
    queries: NDArray[Any],
    rows: NDArray[np.int64],
    vectors: NDArray[Any],
    visits: NDArray[np.uint32],
    members: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    k: int,
) -> Lists:
    """The k nearest vectors in the visited cells, for the given rows of `queries`: row `rows[i]` visits cells `visits[i]`.

    Cell c holds `members[offsets[c] : offsets[c + 1]]`. The cells that a query visits must be disjoint.
    """
    neighbors = np.empty((len(rows), k), np.uint32)
    similarities = np.empty((len(rows), k), np.float32)
    _search(for_kernels(queries), rows, for_kernels(vectors), visits, members, offsets, neighbors, similarities)
    return neighbors, similarities


@kernel
def gather(vectors: NDArray[Any], rows: NDArray[Any], out: NDArray[np.float32]) -> None:
    """Writes scattered rows as a matrix of float32."""
    for i in range(len(rows)):
        for j in range(vectors.shape[1]):
            out[i, j] = half_to_float(vectors[rows[i], j])


@kernel
def _search(
    queries: NDArray[Any],
    rows: NDArray[np.int64],
    vectors: NDArray[Any],
    visits: NDArray[np.uint32],
    members: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    neighbors: NDArray[np.uint32],
    similarities: NDArray[np.float32],
) -> None:
    d, keep, each = vectors.shape[1], neighbors.shape[1] + SPARE, visits.shape[1]
    scores = np.empty((len(rows), ROOM * keep), np.float32)
    nodes = np.empty((len(rows), ROOM * keep), np.uint32)
    counts = np.zeros(len(rows), np.int64)
    candidates = Candidates(scores, nodes, counts)
    floor = np.full(len(rows), -np.inf, np.float32)
    left = np.empty((QUERY_TILE, d), np.float32)
    right = np.empty((VECTOR_TILE, d), np.float32)
    cells = visits.copy().reshape(-1)
    order = np.argsort(cells, kind="mergesort")
    start = 0
    while start < len(order):
        cell = cells[order[start]]
        stop = start
        while stop < len(order) and cells[order[stop]] == cell and stop - start < QUERY_TILE:
            stop += 1
        some = order[start:stop] // each
        gather(queries, rows[some], left)
        for first in range(offsets[cell], offsets[cell + 1], VECTOR_TILE):
            ids = members[first : min(first + VECTOR_TILE, offsets[cell + 1])]
            gather(vectors, ids, right)
            tile = np.dot(left[: len(some)], right[: len(ids)].T)
            offer_scores(tile, ids, some, candidates, floor, keep)
        start = stop
    for i in range(len(rows)):
        best = Candidates(scores[i : i + 1], nodes[i : i + 1], counts[i : i + 1])
        settle(queries[rows[i] : rows[i] + 1], vectors, best, similarities[i : i + 1], neighbors[i : i + 1])

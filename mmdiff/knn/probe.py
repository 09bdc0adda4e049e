"""Search for points that are not in the background (seeds, test points): `W_LB` in the paper.

The nearest cells of each point are searched in full, as products of matrices; then the lists of the background that are there
already (`knn/BB`) lead further, from neighbours to their neighbours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.manifest import Json
from mmdiff.jit import kernel
from mmdiff.knn.cells import Cells
from mmdiff.knn.flat import QUERY_TILE, VECTOR_TILE, as_matrix, offer_scores, search_flat
from mmdiff.knn.forest import gather
from mmdiff.knn.half import for_kernels
from mmdiff.knn.lists import ROOM, SPARE, settle
from mmdiff.knn.recall import exact
from mmdiff.knn.refine import refine

# Multiply-adds that are cheaper than being clever: some ten seconds.
EXHAUSTIVE = 10**12

_PASSES = 2
_FEWEST_PROBES = 8
_SAMPLE = 1024

Lists = tuple[NDArray[np.uint32], NDArray[np.float32]]


class Probe:
    """Finds the background nodes nearest to points outside it, with the recall that is asked for."""

    def __init__(self, cells: Cells, lists: NDArray[np.uint32], points: NDArray[Any], recall: float, seed: int) -> None:
        """Decides on a sample of the points how many cells to probe; few points are compared with everything."""
        self.cells, self.lists = cells, lists
        self.probes = 0
        self.facts: Json = {"exhaustive": True, "recall": 1.0}
        if points.size * len(cells.vectors) > EXHAUSTIVE:
            self._tune(points, recall, seed)

    def find(self, queries: NDArray[Any]) -> Lists:
        k = self.lists.shape[1]
        if self.probes == 0:
            return search_flat(queries, self.cells.vectors, k)
        return search_cells(queries, self.cells, self.lists, self.probes, k)

    def _tune(self, points: NDArray[Any], recall: float, seed: int) -> None:
        rows = np.sort(np.random.default_rng(seed).choice(len(points), min(_SAMPLE, len(points)), replace=False))
        sample = exact(points[rows], self.cells.vectors, self.lists.shape[1], rows)
        self.probes = _FEWEST_PROBES
        reached = sample.recall(self.find(points[rows])[1])
        while reached.value < recall and self.probes < len(self.cells.centroids):
            self.probes *= 2
            reached = sample.recall(self.find(points[rows])[1])
        self.facts = {"exhaustive": False, "probes": self.probes, **reached.to_json()}


def search_cells(queries: NDArray[Any], cells: Cells, lists: NDArray[np.uint32], probes: int, k: int) -> Lists:
    """The k nearest background nodes of each query: in its nearest `probes` cells, and around what is found there."""
    nearest = nearest_cells(queries, cells, probes)
    neighbors = np.empty((len(queries), k), np.uint32)
    similarities = np.empty((len(queries), k), np.float32)
    _search(for_kernels(queries), for_kernels(cells.vectors), nearest, cells.forest.offsets, neighbors, similarities)
    for _ in range(_PASSES):
        neighbors, similarities = refine(cells.vectors, queries, neighbors, similarities, lists)
    return neighbors, similarities


def nearest_cells(points: NDArray[Any], cells: Cells, probes: int) -> NDArray[np.int64]:
    """The cells whose centroids are nearest to each point, in no order."""
    scores = np.asarray(points, np.float32) @ cells.centroids.T
    return np.argpartition(-scores, min(probes, scores.shape[1]) - 1, axis=1)[:, :probes].astype(np.int64)


@kernel
def _search(
    queries: NDArray[Any],
    vectors: NDArray[Any],
    nearest: NDArray[np.int64],
    offsets: NDArray[np.int64],
    neighbors: NDArray[np.uint32],
    similarities: NDArray[np.float32],
) -> None:
    d, keep, probes = vectors.shape[1], neighbors.shape[1] + SPARE, nearest.shape[1]
    scores = np.empty((len(queries), ROOM * keep), np.float32)
    nodes = np.empty((len(queries), ROOM * keep), np.uint32)
    counts = np.zeros(len(queries), np.int64)
    floor = np.full(len(queries), -np.inf, np.float32)
    left = np.empty((QUERY_TILE, d), np.float32)
    right = np.empty((VECTOR_TILE, d), np.float32)
    visits = nearest.copy().reshape(-1)
    order = np.argsort(visits, kind="mergesort")
    start = 0
    while start < len(order):
        cell = visits[order[start]]
        stop = start
        while stop < len(order) and visits[order[stop]] == cell and stop - start < QUERY_TILE:
            stop += 1
        some = order[start:stop] // probes
        gather(queries, some, left)
        for first in range(offsets[cell], offsets[cell + 1], VECTOR_TILE):
            last = min(first + VECTOR_TILE, offsets[cell + 1])
            as_matrix(vectors, first, last, right)
            tile = np.dot(left[: len(some)], right[: last - first].T)
            offer_scores(tile, np.arange(first, last).astype(np.uint32), some, scores, nodes, counts, floor, keep)
        start = stop
    settle(queries, vectors, scores, nodes, counts, similarities, neighbors)

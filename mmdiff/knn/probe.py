"""Search for points that are not in the background (seeds, test points): `W_LB` in the paper.

The nearest cells of each point are searched in full, as products of matrices; then the lists of the background that are there
already (`knn/BB`) lead further, from neighbours to their neighbours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.manifest import Json
from mmdiff.knn.cells import Cells
from mmdiff.knn.flat import search_flat
from mmdiff.knn.lists import Lists
from mmdiff.knn.recall import exact
from mmdiff.knn.refine import refine
from mmdiff.knn.visits import search_visited

# Multiply-adds that are cheaper than being clever: some ten seconds.
EXHAUSTIVE = 10**12

_PASSES = 2
_FEWEST_PROBES = 8
_SAMPLE = 1024
# Scores of points with centroids that are in work at once: a few dozen MB, however many cells there are.
SCORES_AT_ONCE = 1 << 21


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
    nearest, tree = nearest_cells(queries, cells, probes), cells.forest.trees[0]
    every = np.arange(len(queries))
    neighbors, similarities = search_visited(queries, every, cells.vectors, nearest, tree.members, tree.offsets, k)
    for _ in range(_PASSES):
        neighbors, similarities = refine(cells.vectors, queries, neighbors, similarities, lists)
    return neighbors, similarities


def nearest_cells(points: NDArray[Any], cells: Cells, probes: int) -> NDArray[np.uint32]:
    """The cells whose centroids are nearest to each point, in no order."""
    count = len(cells.centroids)
    nearest = np.empty((len(points), min(probes, count)), np.uint32)
    block = max(1, SCORES_AT_ONCE // count)
    for start in range(0, len(points), block):
        scores = np.asarray(points[start : start + block], np.float32) @ cells.centroids.T
        np.negative(scores, out=scores)
        nearest[start : start + block] = np.argpartition(scores, nearest.shape[1] - 1, axis=1)[:, : nearest.shape[1]]
    return nearest

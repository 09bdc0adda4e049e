"""Points outside the background (seeds, test points): the blocks `W_LB` and `W_BL` of W0 (paper, section 3.5).

`Probe` finds the background nodes nearest to a point: its nearest cells are searched in full, then the lists of the background
(`knn/BB`) lead on to neighbours' neighbours. `Entrance` finds the points that enter the lists of the background: a point enters
a list if it is nearer than the k-th neighbour. Rows are compared with all points where that is cheap, as in the paper, else
with the points that probe the row's cell.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.store.manifest import Json
from mmdiff.kernels.constants import NONE
from mmdiff.kernels.floats import for_kernels
from mmdiff.kernels.jit import kernel
from mmdiff.knn.cells.order import Cells
from mmdiff.knn.search.flat import QUERY_TILE, VECTOR_TILE, as_matrix, exact, search_flat
from mmdiff.knn.search.refine import refine
from mmdiff.knn.search.topk import Lists, keep_best, similarity, sort_best
from mmdiff.knn.search.visits import gather, search_visited
from mmdiff.knn.targets import with_reached

# Up to this many multiply-adds the search is exhaustive: it takes some ten seconds.
EXHAUSTIVE = 10**12

_PASSES = 2
_FEWEST_PROBES = 8
_SAMPLE = 1024
# Scores of points with centroids that are computed at once: a few dozen MB.
SCORES_AT_ONCE = 1 << 21


class Probe:
    """Finds the background nodes nearest to points outside it, with a given recall."""

    def __init__(self, cells: Cells, lists: NDArray[np.uint32], points: NDArray[Any], recall: float, seed: int) -> None:
        """Tunes the number of probed cells on a sample of the points; few points are compared with all nodes instead."""
        self.cells, self.lists = cells, lists
        self.probes = 0
        self.facts: Json = {"exhaustive": True, "recall": 1.0, "reached": True}
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
        self.facts = with_reached({"exhaustive": False, "probes": self.probes, **reached.to_json()}, recall)


def search_cells(queries: NDArray[Any], cells: Cells, lists: NDArray[np.uint32], probes: int, k: int) -> Lists:
    """The k nearest background nodes of each query: in its nearest `probes` cells, then by neighbours' neighbours."""
    nearest, tree = nearest_cells(queries, cells, probes), cells.forest.trees[0]
    every = np.arange(len(queries))
    neighbors, similarities = search_visited(queries, every, cells.vectors, nearest, tree.members, tree.offsets, k)
    for _ in range(_PASSES):
        neighbors, similarities = refine(cells.vectors, queries, neighbors, similarities, lists)
    return neighbors, similarities


def nearest_cells(points: NDArray[Any], cells: Cells, probes: int) -> NDArray[np.uint32]:
    """The `probes` cells whose centroids are nearest to each point, in no order."""
    count = len(cells.centroids)
    nearest = np.empty((len(points), min(probes, count)), np.uint32)
    block = max(1, SCORES_AT_ONCE // count)
    for start in range(0, len(points), block):
        scores = np.asarray(points[start : start + block], np.float32) @ cells.centroids.T
        np.negative(scores, out=scores)
        nearest[start : start + block] = np.argpartition(scores, nearest.shape[1] - 1, axis=1)[:, : nearest.shape[1]]
    return nearest


# The error of float32 products is smaller; pairs within it are compared exactly.
_SLACK = np.float32(1e-5)


class Entrance:
    """Finds the points (seeds, and test points when transductive) that enter the lists of the background."""

    def __init__(self, cells: Cells, BB: Lists, points: NDArray[Any], recall: float, seed: int) -> None:
        self.cells, self.points = cells, points
        self.BB = BB
        self.facts: Json = {"exhaustive": True, "recall": 1.0, "reached": True}
        self._points_of: list[NDArray[np.int64]] | None = None
        # With so few cells every point would probe all of them.
        if points.size * len(cells.vectors) > EXHAUSTIVE and len(cells.centroids) > _FEWEST_PROBES:
            self._tune(recall, seed)

    def of(self, start: int, stop: int) -> Lists:
        """The points that enter the lists of background rows start..stop-1."""
        if self._points_of is None:
            return self._compare(start, stop, np.arange(len(self.points)))
        offsets = self.cells.forest.trees[0].offsets
        first = int(np.searchsorted(offsets, start, side="right")) - 1
        parts = []
        while offsets[first] < stop:
            low, high = max(start, int(offsets[first])), min(stop, int(offsets[first + 1]))
            parts.append(self._compare(low, high, self._points_of[first]))
            first += 1
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    def _compare(self, start: int, stop: int, chosen: NDArray[np.int64]) -> Lists:
        last = self.BB[1][start:stop, -1]
        return entering(self.cells.vectors[start:stop], last, self.points, chosen, len(self.cells.vectors), self.BB[0].shape[1])

    def _tune(self, recall: float, seed: int) -> None:
        """Doubles the number of cells per point until the recall is reached on a sample of rows."""
        rows = np.sort(np.random.default_rng(seed).choice(len(self.cells.vectors), _SAMPLE, replace=False))
        everything = np.arange(len(self.points))
        truth = [set(self._compare(row, row + 1, everything)[0][0].tolist()) - {int(NONE)} for row in rows.tolist()]
        probes, reached = _FEWEST_PROBES, 0.0
        while reached < recall and probes < len(self.cells.centroids):
            probes *= 2
            self._points_of = self._points_by_cell(probes)
            found = [set(self.of(row, row + 1)[0][0].tolist()) for row in rows.tolist()]
            total = sum(map(len, truth))
            reached = sum(len(a & b) for a, b in zip(truth, found, strict=True)) / total if total else 1.0
        facts = {"exhaustive": False, "probes": probes, "recall": round(reached, 5), "queries": len(rows)}
        self.facts = with_reached(facts, recall)

    def _points_by_cell(self, probes: int) -> list[NDArray[np.int64]]:
        """The points that probe each cell."""
        cells = nearest_cells(self.points, self.cells, probes)
        points = np.repeat(np.arange(len(cells)), cells.shape[1])[np.argsort(cells.reshape(-1), kind="stable")]
        sizes = np.bincount(cells.reshape(-1), minlength=len(self.cells.centroids))
        return np.split(points, np.cumsum(sizes)[:-1])


def entering(
    rows: NDArray[Any], last: NDArray[np.float32], points: NDArray[Any], chosen: NDArray[np.int64], first_id: int, k: int
) -> Lists:
    """The chosen points that are nearer to each row than its k-th neighbour (of similarity `last`); ids begin at `first_id`."""
    neighbors = np.full((len(rows), k), NONE, np.uint32)
    similarities = np.full((len(rows), k), -np.inf, np.float32)
    _entering(for_kernels(rows), last, for_kernels(points), chosen, first_id, neighbors, similarities)
    return neighbors, similarities


@kernel
def _entering(
    rows: NDArray[Any],
    last: NDArray[np.float32],
    points: NDArray[Any],
    chosen: NDArray[np.int64],
    first_id: int,
    neighbors: NDArray[np.uint32],
    similarities: NDArray[np.float32],
) -> None:
    d, k = rows.shape[1], neighbors.shape[1]
    left = np.empty((QUERY_TILE, d), np.float32)
    right = np.empty((VECTOR_TILE, d), np.float32)
    scores = np.empty((QUERY_TILE, 2 * k), np.float32)
    nodes = np.empty((QUERY_TILE, 2 * k), np.uint32)
    for start in range(0, len(rows), QUERY_TILE):
        stop = min(start + QUERY_TILE, len(rows))
        counts = np.zeros(stop - start, np.int64)
        as_matrix(rows, start, stop, left)
        for first in range(0, len(chosen), VECTOR_TILE):
            some = chosen[first : first + VECTOR_TILE]
            gather(points, some, right)
            tile = np.dot(left[: stop - start], right[: len(some)].T)
            for i in range(stop - start):
                for j in range(len(some)):
                    if tile[i, j] > last[start + i] - _SLACK:
                        score = similarity(rows[start + i], points[some[j]])
                        if score > last[start + i]:
                            scores[i, counts[i]], nodes[i, counts[i]] = score, first_id + some[j]
                            counts[i] += 1
                            if counts[i] == 2 * k:
                                counts[i] = keep_best(scores[i], nodes[i], counts[i], k)
        for i in range(stop - start):
            count = keep_best(scores[i], nodes[i], counts[i], k)
            sort_best(scores[i], nodes[i], count)
            for q in range(count):
                neighbors[start + i, q], similarities[start + i, q] = nodes[i, q], scores[i, q]

"""Points outside the background (seeds, test points): the blocks `W_LB` and `W_BL` of W0 (paper, section 3.5).

`Probe` finds the background nodes nearest to a point: it visits its nearest cells, then the lists of the background (`knn/BB`)
lead on to neighbours' neighbours. `Entrance` finds the points that enter the lists of the background: a point enters a list if
it is nearer than the k-th neighbour. Rows are compared with all points where that is cheap, as in the paper, else with the
points that visit the row's cell.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.store.manifest import Json
from mmdiff.kernels.constants import NONE
from mmdiff.kernels.floats import for_kernels
from mmdiff.kernels.jit import kernel
from mmdiff.knn.cells.order import Cells
from mmdiff.knn.search.flat import QUERY_TILE, VECTOR_TILE, as_matrix, exact
from mmdiff.knn.search.topk import Lists, keep_best, similarity, sort_best
from mmdiff.knn.search.visits import gather
from mmdiff.knn.targets import with_reached

# Up to this many multiply-adds the search is exhaustive: it takes some ten seconds.
EXHAUSTIVE = 10**12

_PASSES = 1
_FEWEST_VISITS = 32
_SAMPLE = 1024


class Probe:
    """Finds the background nodes nearest to points outside it, with a given recall."""

    def __init__(self, cells: Cells, lists: NDArray[np.uint32], points: NDArray[Any], recall: float, seed: int) -> None:
        """Tunes the number of visited cells on a sample of the points; few points are compared with all nodes instead."""
        self.cells, self.lists = cells, lists
        self.visits = 0
        self.facts: Json = {"exhaustive": True, "recall": 1.0, "reached": True}
        if points.size * len(cells.vectors) > EXHAUSTIVE * cells.device.times_faster:
            self._tune(points, recall, seed)

    def find(self, queries: NDArray[Any]) -> Lists:
        k = self.lists.shape[1]
        if self.visits == 0:
            return self.cells.device.nearest(queries, self.cells.vectors, k)
        return search_cells(queries, self.cells, self.lists, self.visits, k)

    def _tune(self, points: NDArray[Any], recall: float, seed: int) -> None:
        rows = np.sort(np.random.default_rng(seed).choice(len(points), min(_SAMPLE, len(points)), replace=False))
        sample = exact(points[rows], self.cells.vectors, self.lists.shape[1], rows, self.cells.device.nearest)
        self.visits = _FEWEST_VISITS
        reached = sample.recall(self.find(points[rows])[1])
        while reached.value < recall and self.visits < self.cells.count:
            self.visits *= 2
            reached = sample.recall(self.find(points[rows])[1])
        self.facts = with_reached({"exhaustive": False, "visits": self.visits, **reached.to_json()}, recall)


def search_cells(queries: NDArray[Any], cells: Cells, lists: NDArray[np.uint32], visits: int, k: int) -> Lists:
    """The k nearest background nodes of each query: in its nearest `visits` cells, then by neighbours' neighbours."""
    visited = cells.visits(queries, visits)
    found = cells.search(queries, visited, k)
    for _ in range(_PASSES):
        found = cells.refine(queries, found, lists, visited)
    return found


# The error of float32 products is smaller; pairs within it are compared exactly.
_SLACK = np.float32(1e-5)


class Entrance:
    """Finds the points (seeds, and test points when transductive) that enter the lists of the background."""

    def __init__(self, cells: Cells, BB: Lists, points: NDArray[Any], recall: float, seed: int) -> None:
        self.cells, self.points = cells, points
        self.BB = BB
        self.facts: Json = {"exhaustive": True, "recall": 1.0, "reached": True}
        self._visitors: Visitors | None = None
        if points.size * len(cells.vectors) > EXHAUSTIVE * cells.device.times_faster:
            self._tune(recall, seed)

    def of(self, start: int, stop: int) -> Lists:
        """The points that enter the lists of background rows start..stop-1."""
        return self._entering(start, stop, self._visitors)

    def _entering(self, start: int, stop: int, visitors: Visitors | None) -> Lists:
        rows, last = self.cells.vectors[start:stop], self.BB[1][start:stop, -1]
        border, k = len(self.cells.vectors), self.BB[0].shape[1]
        if visitors is None and self.cells.device.on_gpus:
            return _nearer(self.cells.device.nearest(rows, self.points, k), last, border)
        return entering(rows, last, self.points, border, k, self.cells.cell_of[start:stop], visitors)

    def _tune(self, recall: float, seed: int) -> None:
        """Doubles the number of cells per point until the recall is reached on a sample of rows."""
        count = min(_SAMPLE, len(self.cells.vectors))
        rows = np.sort(np.random.default_rng(seed).choice(len(self.cells.vectors), count, replace=False)).tolist()
        truth = [_given(self._entering(row, row + 1, None)) for row in rows]
        total = sum(map(len, truth))
        visits, reached = _FEWEST_VISITS // 2, 0.0
        while reached < recall and visits < self.cells.count:
            visits *= 2
            self._visitors = Visitors.of(self.cells.visits(self.points, visits), self.cells.count)
            found = (_given(self._entering(row, row + 1, self._visitors)) for row in rows)
            reached = sum(len(a & b) for a, b in zip(truth, found, strict=True)) / total if total else 1.0
        facts = {"exhaustive": False, "visits": visits, "recall": round(reached, 5), "queries": len(rows)}
        self.facts = with_reached(facts, recall)


def _nearer(lists: Lists, last: NDArray[np.float32], first_id: int) -> Lists:
    """The points of lists that are nearer than the k-th neighbour of their row; their ids begin at `first_id`."""
    neighbors, similarities = lists
    nearer = similarities > last[:, None]
    return np.where(nearer, neighbors + np.uint32(first_id), NONE), np.where(nearer, similarities, np.float32(-np.inf))


def _given(lists: Lists) -> set[int]:
    return set(lists[0][0].tolist()) - {int(NONE)}


class Visitors(NamedTuple):
    """The points that visit each cell: cell c is visited by `points[starts[c] : starts[c + 1]]`."""

    points: NDArray[np.int64]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, visits: NDArray[np.uint32], cells: int) -> Visitors:
        point, cell = np.repeat(np.arange(len(visits)), visits.shape[1]), visits.reshape(-1)
        point, cell = point[cell != NONE], cell[cell != NONE]
        order = np.argsort(cell, kind="stable")
        return cls(point[order], np.searchsorted(cell[order], np.arange(cells + 1)))


def entering(
    rows: NDArray[Any],
    last: NDArray[np.float32],
    points: NDArray[Any],
    first_id: int,
    k: int,
    cell_of: NDArray[np.uint32] | None = None,
    visitors: Visitors | None = None,
) -> Lists:
    """The points that are nearer to each row than its k-th neighbour (of similarity `last`); their ids begin at `first_id`.

    With `cell_of` and `visitors`, a row is compared only with the visitors of its cell; rows of a cell are consecutive.
    """
    if cell_of is None or visitors is None:
        cell_of, visitors = np.zeros(len(rows), np.uint32), Visitors(np.arange(len(points)), np.array([0, len(points)]))
    neighbors = np.full((len(rows), k), NONE, np.uint32)
    similarities = np.full((len(rows), k), -np.inf, np.float32)
    _entering(for_kernels(rows), last, for_kernels(points), first_id, cell_of, visitors, neighbors, similarities)
    return neighbors, similarities


@kernel
def _entering(
    rows: NDArray[Any],
    last: NDArray[np.float32],
    points: NDArray[Any],
    first_id: int,
    cell_of: NDArray[np.uint32],
    visitors: Visitors,
    neighbors: NDArray[np.uint32],
    similarities: NDArray[np.float32],
) -> None:
    d, k = rows.shape[1], neighbors.shape[1]
    left = np.empty((QUERY_TILE, d), np.float32)
    right = np.empty((VECTOR_TILE, d), np.float32)
    scores = np.empty((QUERY_TILE, 2 * k), np.float32)
    nodes = np.empty((QUERY_TILE, 2 * k), np.uint32)
    start = 0
    while start < len(rows):
        cell, stop = cell_of[start], start + 1
        while stop < len(rows) and stop - start < QUERY_TILE and cell_of[stop] == cell:
            stop += 1
        chosen = visitors.points[visitors.starts[cell] : visitors.starts[cell + 1]]
        counts = np.zeros(stop - start, np.int64)
        if len(chosen):
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
        start = stop

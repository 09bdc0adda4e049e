"""Points outside the background (seeds, test points): the blocks `W_LB` and `W_BL` of W0 (paper, section 3.5).

`Probe` finds the background nodes nearest to a point: it visits its nearest cells, then the lists of the background (`knn/BB`)
lead on to neighbours' neighbours. `Entrance` finds the points that enter the lists of the background: a point enters a list if
it is nearer than the k-th neighbour. Rows are compared with all points where that is cheap, as in the paper, else with the
points that visit the row's cell. Rows far from all others are compared with all points then, too: their k-th neighbour is so
far away that points from everywhere are nearer.

The number of visited cells is tuned on some of the points, which are compared with all rows. That is the largest part of the
work where the background is large, so there are only as many of them as decide whether the recall is reached.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.store.manifest import Json
from mmdiff.kernels.constants import NONE
from mmdiff.kernels.floats import for_kernels
from mmdiff.kernels.jit import kernel
from mmdiff.knn.cells import partition
from mmdiff.knn.cells.order import Cells
from mmdiff.knn.choice import VISITED
from mmdiff.knn.search.devices import PIECE_ROWS
from mmdiff.knn.search.flat import QUERY_TILE, VECTOR_TILE, Recall, Sample, as_matrix, exact
from mmdiff.knn.search.topk import Lists, keep_best, similarity, sort_best
from mmdiff.knn.search.visits import gather
from mmdiff.knn.targets import with_reached
from mmdiff.runtime.threads import cores, in_threads

# Up to this many multiply-adds the search is exhaustive: it takes some ten seconds.
EXHAUSTIVE = 10**12

_PASSES = 1
_FEWEST_VISITS = 32

# Points that recall is measured on: the most, and how many are added at a time.
_SAMPLE = 1024
_BATCH = 128

# Standard deviations of a two-sided 95 % confidence interval.
_DEVIATIONS = 1.96

# Isolated rows: those of the lowest similarity to their k-th neighbour. For each row that a point is compared with in the cells
# that it visits, it is compared with so many isolated ones. On 1M rows, visits alone miss one in ten of the lists that points
# enter, nearly all of them of the most isolated hundredth of the rows.
_ISOLATED = 4

# Rows, spread evenly, whose similarities say which ones are isolated.
_ISOLATION_SAMPLE = 1 << 17

# Points whose cells are looked for at a time.
_VISITING_POINTS = 1 << 11

Measure = Callable[[int, int], Recall]
"""The recall of visiting so many cells, on the first so many points of a sample."""


def tune(measure: Measure, points: int, cells: Cells, recall: float) -> tuple[int, Recall]:
    """The number of cells that points visit, doubled until they reach the recall, with the recall as measured.

    A measurement whose confidence interval contains the target decides nothing. Then points visit more cells, or more points
    are measured, whichever compares fewer pairs.
    """
    visits, most = _FEWEST_VISITS, min(_SAMPLE, points)
    count = min(_BATCH, most)
    while True:
        found = measure(visits, count)
        if found.value - found.margin >= recall or visits >= cells.count:
            return visits, found
        if found.value + found.margin >= recall:
            of_visits = points * visits * partition.CELL_ROWS * VISITED
            if count < most and _BATCH * len(cells.vectors) <= of_visits * cells.device.times_faster:
                count = min(count + _BATCH, most)
                continue
            if count == most and found.value >= recall:
                return visits, found
        visits *= 2


def sampled(points: NDArray[Any], seed: int) -> NDArray[Any]:
    """Points to measure on, drawn at random; their order is random too, so that the first ones are a sample as well."""
    some = points[np.random.default_rng(seed).choice(len(points), min(_SAMPLE, len(points)), replace=False)]
    # As mapped points are, so that the same compiled kernels serve both.
    some.flags.writeable = False
    return some


class Probe:
    """Finds the background nodes nearest to points outside it, with a given recall."""

    def __init__(self, cells: Cells, lists: NDArray[np.uint32], points: NDArray[Any], recall: float, seed: int) -> None:
        """Tunes the number of visited cells on a sample of the points; few points are compared with all nodes instead."""
        self.cells, self.lists = cells, lists
        self.visits = 0
        self.facts: Json = {"exhaustive": True, "recall": 1.0, "reached": True}
        if points.size * len(cells.vectors) > EXHAUSTIVE * cells.device.times_faster:
            self.visits, reached = tune(self._measure(sampled(points, seed)), len(points), cells, recall)
            self.facts = with_reached({"exhaustive": False, "visits": self.visits, **reached.to_json()}, recall)

    def find(self, queries: NDArray[Any]) -> Lists:
        k = self.lists.shape[1]
        if self.visits == 0:
            return self.cells.device.nearest(queries, self.cells.vectors, k)
        return search_cells(queries, self.cells, self.lists, self.visits, k)

    def _measure(self, sample: NDArray[Any]) -> Measure:
        k, truth = self.lists.shape[1], [np.empty(0, np.float32)]

        def measure(visits: int, count: int) -> Recall:
            known = sum(map(len, truth))
            if known < count:
                more = np.arange(known, count)
                truth.append(exact(sample[known:count], self.cells.vectors, k, more, self.cells.device.nearest).last)
            pieces = np.array_split(np.arange(count), cores())
            found = in_threads(
                lambda piece: search_cells(sample[piece[0] : piece[-1] + 1], self.cells, self.lists, visits, k)[1],
                [piece for piece in pieces if len(piece)],
            )
            rows = np.arange(count)
            return Sample(rows, np.empty((count, 0), np.uint32), np.concatenate(truth)).recall(np.concatenate([*found]))

        return measure


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
        """Tunes the number of visited cells on a sample of the points; few points are compared with all rows instead."""
        self.cells, self.points = cells, points
        self.BB = BB
        self.facts: Json = {"exhaustive": True, "recall": 1.0, "reached": True}
        self._visitors: Visitors | None = None
        self._isolated = -np.inf
        if points.size * len(cells.vectors) > EXHAUSTIVE * cells.device.times_faster:
            visits, reached = tune(self._measure(sampled(points, seed)), len(points), cells, recall)
            self._isolated = self._isolation(visits)
            # Where all rows count as isolated, no similarity tells them apart.
            below = {"isolated_below": self._isolated} if np.isfinite(self._isolated) else {}
            self.facts = with_reached({"exhaustive": False, "visits": visits, **below, **reached.to_json()}, recall)
            self._visitors = Visitors.of(_visited(points, cells, visits), cells.count)

    def of(self, start: int, stop: int) -> Lists:
        """The points that enter the lists of background rows start..stop-1."""
        neighbors, similarities = self._entering(start, stop, self.points, self._visitors)
        isolated = np.flatnonzero(self.BB[1][start:stop, -1] < self._isolated)
        if len(isolated):
            rows, last = self.cells.vectors[start + isolated], self.BB[1][start + isolated, -1]
            nearest = self.cells.device.nearest(rows, self.points, self.BB[0].shape[1])
            neighbors[isolated], similarities[isolated] = _nearer(nearest, last, len(self.cells.vectors))
        return neighbors, similarities

    def _isolation(self, visits: int) -> float:
        """The similarity to the k-th neighbour below which a row counts as isolated, where points visit so many cells."""
        rows = len(self.cells.vectors)
        share = _ISOLATED * visits * partition.CELL_ROWS / rows
        last = self.BB[1][:: max(1, rows // _ISOLATION_SAMPLE), -1]
        return np.inf if share >= 1 else float(np.quantile(last, share, method="lower"))

    def _entering(self, start: int, stop: int, points: NDArray[Any], visitors: Visitors | None) -> Lists:
        rows, last = self.cells.vectors[start:stop], self.BB[1][start:stop, -1]
        border, k = len(self.cells.vectors), self.BB[0].shape[1]
        if visitors is None and self.cells.device.on_gpus:
            return _nearer(self.cells.device.nearest(rows, points, k), last, border)
        return entering(rows, last, points, border, k, self.cells.cell_of[start:stop], visitors)

    def _measure(self, sample: NDArray[Any]) -> Measure:
        truth = [np.empty((0, 2), np.int64)]
        measured = [0]

        def measure(visits: int, count: int) -> Recall:
            if measured[0] < count:
                truth.append(self._entered(sample[measured[0] : count]) + np.array([measured[0], 0]))
                measured[0] = count
            point, row = np.concatenate(truth).T
            isolated = self.BB[1][row, -1] < self._isolation(visits)
            found = isolated | in_visited(point, self.cells.cell_of[row], _visited(sample[:count], self.cells, visits))
            return recall_of_entries(point, found, count)

        return measure

    def _entered(self, points: NDArray[Any]) -> NDArray[np.int64]:
        """All lists that points enter: the point and the row, for each."""
        border = len(self.cells.vectors)

        def in_piece(start: int) -> NDArray[np.int64]:
            nodes = self._entering(start, min(start + PIECE_ROWS, border), points, None)[0]
            row, place = np.nonzero(nodes != NONE)
            return np.stack([nodes[row, place].astype(np.int64) - border, start + row], axis=1)

        return np.concatenate([*in_threads(in_piece, range(0, border, PIECE_ROWS))])


def in_visited(point: NDArray[np.int64], cell: NDArray[np.uint32], visited: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Whether each point visits the cell beside it; `visited` are the cells that the points visit, where NONE is no cell."""
    # A point and a cell as one number: cells have 32 bits.
    visits = (np.arange(len(visited), dtype=np.int64)[:, None] << 32) | visited
    return np.isin((point << 32) | cell, visits[visited != NONE])


def recall_of_entries(point: NDArray[np.int64], found: NDArray[np.bool_], points: int) -> Recall:
    """The share of the lists that points enter which are found; its deviation is that of a ratio over the points."""
    if not len(point):
        return Recall(1.0, 0.0, points)
    there, hits = np.bincount(point, minlength=points), np.bincount(point, found, points)
    recall = hits.sum() / there.sum()
    deviation = np.sqrt(((hits - recall * there) ** 2).sum()) / there.sum()
    return Recall(float(recall), float(_DEVIATIONS * deviation), points)


def _visited(points: NDArray[Any], cells: Cells, visits: int) -> NDArray[np.uint32]:
    """The cells that points visit, on all cores."""
    starts = range(0, len(points), _VISITING_POINTS)
    return np.concatenate([*in_threads(lambda start: cells.visits(points[start : start + _VISITING_POINTS], visits), starts)])


def _nearer(lists: Lists, last: NDArray[np.float32], first_id: int) -> Lists:
    """The points of lists that are nearer than the k-th neighbour of their row; their ids begin at `first_id`."""
    neighbors, similarities = lists
    nearer = similarities > last[:, None]
    return np.where(nearer, neighbors + np.uint32(first_id), NONE), np.where(nearer, similarities, np.float32(-np.inf))


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
    # A column of a matrix is not contiguous unless it has one row; kernels are compiled for contiguous ones only.
    last = np.ascontiguousarray(last)
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

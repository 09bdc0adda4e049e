"""The choice of a search (index `auto`): how many cells rows visit, how many passes follow, or exact search, by counted costs.

A stopwatch would let the choice, and with it the lists, depend on what else the machine does. So costs are counts of compared
pairs per row, in units of a pair that exact search compares. The factors of other pairs were measured once, on one core, with
64 and 256 dimensions; the same data and seed always give the same choice.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.store.manifest import Json
from mmdiff.kernels.constants import NONE
from mmdiff.knn.cells import partition
from mmdiff.knn.cells.order import Cells
from mmdiff.knn.search.devices import CORES, PIECE_ROWS, rows_of_cells
from mmdiff.knn.search.flat import Sample, draw
from mmdiff.knn.search.topk import Lists, settle_candidates
from mmdiff.runtime.threads import in_threads

# A row of a visited cell is compared in a small product, a centroid in one of another size with a selection behind it. Of the
# k * k entries of the lists of neighbours, each is looked up; one that is new and in no visited cell is a scattered row.
VISITED, RANKED, _LOOKED_UP, _GATHERED = 2.0, 2.5, 0.8, 10.0

# Neighbours' neighbours that a pass compares, for each of k * k: they are distinct and in no visited cell.
COMPARED = 0.1

# Numbers of visited cells that are tried, in ascending order.
_VISITS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
MOST_VISITS = _VISITS[-1]

# A first pass leaves this share of the misses or more (measured: 0.07 to 0.55); it only decides where a pass is tried. A second
# one leaves about this share (measured: 0.5 to 0.76). Where it leaves more, another pass follows.
_LEFT_BY_PASS, _LEFT_BY_SECOND = 0.25, 0.7

# Tuning aims higher than the recall by this share of 1 - recall, since it measures on few rows.
_HIGHER = 0.1

# Where cells miss the recall, exact search may cost this many times as much as they do.
_WORTH = 4.0

_QUERIES = 256
# Blocks of rows on which the cost of visits on GPUs is counted.
_BLOCKS = 4
_TRIED_ROWS = 1024


@dataclass(frozen=True)
class Choice:
    """A way to search: visited cells and passes, or `exact`; with its recall on a sample, and its pairs per row."""

    visits: int
    passes: int
    recall: float
    pairs: float
    exact: bool = False

    def to_json(self) -> Json:
        return {**asdict(self), "recall": round(self.recall, 4), "pairs": round(self.pairs)}


def choose(cells: Cells, k: int, target: float, seed: int, *, always_cells: bool = False) -> Choice:
    """The cheapest search that reaches the target on a sample of rows.

    Where no search by cells does, exact search, unless it costs many times as much or `always_cells` forbids it.
    """
    rows = len(cells.vectors)
    trial = Trial(cells, draw(cells.vectors, k, _QUERIES, seed, cells.device.nearest), k)
    aim, exact = target + _HIGHER * (1 - target), Choice(0, 0, 1.0, float(rows), exact=True)
    best: Choice | None = None
    furthest = exact
    for visits in _numbers_of_visits(cells.count):
        furthest = trial.visiting(visits)
        # Visiting more cells costs more.
        if furthest.pairs >= min(_WORTH * exact.pairs, np.inf if best is None else best.pairs):
            break
        enough = [tried for tried in (furthest, *_with_passes(trial, furthest, aim, best)) if tried.recall >= aim]
        best = min([*enough, *([] if best is None else [best])], key=lambda tried: tried.pairs, default=None)
        if furthest.recall >= aim:
            break
    if always_cells:
        return best or furthest
    if best is None:
        return exact if exact.pairs <= _WORTH * furthest.pairs else furthest
    return exact if exact.pairs <= best.pairs else best


def possible_searches(rows: int) -> tuple[str, ...]:
    """The searches that `choose` may choose among so many rows, before any recall is known."""
    cheapest, dearest = (VISITED * partition.CELL_ROWS * visits for visits in (_VISITS[0], _VISITS[-1]))
    if rows <= cheapest:
        return ("flat",)
    return ("cells", "flat") if rows <= _WORTH * dearest else ("cells",)


def _numbers_of_visits(cells: int) -> list[int]:
    """The numbers of visited cells that are tried, in ascending order."""
    return [*(visits for visits in _VISITS if visits < cells), *([cells] if cells <= _VISITS[-1] else [])]


def _with_passes(trial: Trial, visited: Choice, aim: float, best: Choice | None) -> list[Choice]:
    """The same visits with one and two passes, where they may reach the aim and cost less than the best way so far."""
    hopeless = 1 - _LEFT_BY_PASS * _LEFT_BY_SECOND * (1 - visited.recall) < aim
    dear = best is not None and trial.least_with_pass(visited) >= best.pairs
    # A GPU compares many rows in the time that the cores take to refine one: there, more cells are visited instead.
    if visited.recall >= aim or hopeless or dear or trial.cells.device.on_gpus:
        return []
    refined = trial.with_pass(visited)
    again = 1 - _LEFT_BY_SECOND * (1 - refined.recall)
    return [refined, Choice(visited.visits, 2, again, 2 * refined.pairs - visited.pairs)]


class Trial:
    """Searches a sample of rows as all rows would be searched."""

    def __init__(self, cells: Cells, sample: Sample, k: int) -> None:
        self.cells, self.sample, self.k = cells, sample, k
        self._found: tuple[NDArray[np.uint32], Lists] | None = None
        self.sizes = np.diff(cells.offsets)

    def visiting(self, visits: int) -> Choice:
        """The recall and cost of visiting so many cells. On GPUs, blocks of rows reach this recall or more."""
        cells, found = self._visited(visits)
        if self.cells.device.on_gpus:
            pairs = self._pairs_of_blocks(visits)
        else:
            visited = float(np.append(self.sizes, 0)[np.minimum(cells, len(self.sizes))].sum(axis=1).mean())
            pairs = VISITED * visited + RANKED * self.cells.compared(visits)
        return Choice(visits, 0, self.sample.recall(found[1]).value, pairs)

    def _visited(self, visits: int) -> tuple[NDArray[np.uint32], Lists]:
        """The cells that the rows of the sample visit, and what they find there."""
        if self._found is None or self._found[0].shape[1] != visits:
            cells = self.cells.visits_of(self.sample.rows, visits)
            rows = self.cells.vectors[self.sample.rows]
            self._found = cells, CORES.visited(rows, self.cells.vectors, cells, self.cells.offsets, self.k)
        return self._found

    def _pairs_of_blocks(self, visits: int) -> float:
        """The rows that each row of a block is compared with: all that the rows of the block visit, in a dense product."""
        rows = len(self.cells.vectors)
        starts = np.linspace(0, max(0, rows - PIECE_ROWS), _BLOCKS).astype(np.int64)
        blocks = (np.arange(start, min(start + PIECE_ROWS, rows)) for start in np.unique(starts))
        compared = [len(rows_of_cells(self.cells.visits_of(block, visits), self.cells.offsets)) for block in blocks]
        return float(np.mean(compared))

    def with_pass(self, before: Choice) -> Choice:
        """The recall and cost of the same with a pass over neighbours' neighbours."""
        visited, (own, _) = self._visited(before.visits)
        near = np.unique(own[own != NONE]).astype(np.int64)
        lists = np.full((len(near) + 1, self.k), NONE, np.uint32)
        lists[:-1] = self._search(near, before.visits)[0]
        # A missing neighbour has the empty list at the end.
        theirs = lists[np.where(own == NONE, len(near), np.searchsorted(near, own))].reshape(len(own), -1)
        candidates = np.concatenate([own, theirs], axis=1).astype(np.int64)
        candidates[candidates == NONE] = -1
        found = settle_candidates(self.cells.vectors[self.sample.rows], self.cells.vectors, candidates, self.k)
        compared = np.mean([self._new(*row) for row in zip(candidates, visited, strict=True)])
        pairs = self.least_with_pass(before) + _GATHERED * float(compared)
        return Choice(before.visits, 1, self.sample.recall(found[1]).value, pairs)

    def least_with_pass(self, before: Choice) -> float:
        """The cost of the same with a pass that finds nothing new."""
        return before.pairs + _LOOKED_UP * self.k**2 + RANKED * self.cells.compared(before.visits)

    def _new(self, candidates: NDArray[np.int64], visited: NDArray[np.uint32]) -> int:
        """The number of distinct candidates in no visited cell: those that a pass compares."""
        distinct = np.unique(candidates[candidates >= 0])
        return int(np.count_nonzero(~np.isin(self.cells.cell_of[distinct], visited)))

    def _search(self, rows: NDArray[np.int64], visits: int) -> Lists:
        def search(piece: NDArray[np.int64]) -> Lists:
            return self.cells.search(self.cells.vectors[piece], self.cells.visits_of(piece, visits), self.k)

        found = list(in_threads(search, np.array_split(rows, max(1, len(rows) // _TRIED_ROWS))))
        return np.concatenate([lists[0] for lists in found]), np.concatenate([lists[1] for lists in found])

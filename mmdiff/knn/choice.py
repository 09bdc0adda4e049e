"""The choice of a search (index `auto`): how many cells rows visit, how many passes follow, or exact search, by counted costs.

A stopwatch would let the choice, and with it the lists, depend on what else the machine does. So costs are counts of compared
pairs per row, in units of a pair that exact search compares. The factors of other pairs were measured once, on one core, with
64 and 256 dimensions; the same data and seed always give the same choice.
"""

from __future__ import annotations

from collections.abc import Iterator
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

# A pair in a visited cell is gathered and compared in a small product; a neighbour's neighbour is one scattered row.
VISITED, _GATHERED = 2.0, 25.0

# Neighbours' neighbours that a pass compares, for each of k * k: they are distinct and in no visited cell.
COMPARED = 0.15

# Numbers of visited cells that are tried, in ascending order.
_VISITS = (8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 256)
MOST_VISITS = _VISITS[-1]

# A pass leaves this share of the misses or more (measured: 0.07 to 0.45). It only decides where a pass is tried.
_LEFT_BY_PASS = 0.25

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
    for tried in _candidates(trial, aim):
        furthest = tried
        if tried.recall >= aim and (best is None or tried.pairs < best.pairs):
            best = tried
        # Further candidates visit more cells: they cost more.
        if tried.passes == 0 and tried.pairs >= min(_WORTH * exact.pairs, np.inf if best is None else best.pairs):
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


def _candidates(trial: Trial, aim: float) -> Iterator[Choice]:
    """Searches by ascending numbers of visited cells: without a pass, and with one where it may be cheaper than more visits."""
    most = trial.cells.count
    for visits in [*(visits for visits in _VISITS if visits < most), *([most] if most <= _VISITS[-1] else [])]:
        found = trial.visiting(visits)
        yield found
        if found.recall >= aim:
            return
        if found.pairs > trial.pairs_of_pass and 1 - _LEFT_BY_PASS * (1 - found.recall) >= aim:
            yield trial.with_pass(found)


class Trial:
    """Searches a sample of rows as all rows would be searched."""

    def __init__(self, cells: Cells, sample: Sample, k: int) -> None:
        self.cells, self.sample, self.k = cells, sample, k
        self.sizes = np.diff(cells.offsets)
        # A GPU compares many rows in the time that the cores take to refine one: there, more cells are visited instead.
        self.pairs_of_pass = np.inf if cells.device.on_gpus else _GATHERED * COMPARED * k**2

    def visiting(self, visits: int) -> Choice:
        """The recall and cost of visiting so many cells. On GPUs, blocks of rows reach this recall or more."""
        cells = self.cells.visits_of(self.sample.rows, visits)
        found = CORES.visited(self.cells.vectors[self.sample.rows], self.cells.vectors, cells, self.cells.offsets, self.k)
        if self.cells.device.on_gpus:
            pairs = self._pairs_of_blocks(visits)
        else:
            pairs = VISITED * float(np.append(self.sizes, 0)[np.minimum(cells, len(self.sizes))].sum(axis=1).mean())
        return Choice(visits, 0, self.sample.recall(found[1]).value, pairs)

    def _pairs_of_blocks(self, visits: int) -> float:
        """The rows that each row of a block is compared with: all that the rows of the block visit, in a dense product."""
        rows = len(self.cells.vectors)
        starts = np.linspace(0, max(0, rows - PIECE_ROWS), _BLOCKS).astype(np.int64)
        blocks = (np.arange(start, min(start + PIECE_ROWS, rows)) for start in np.unique(starts))
        compared = [len(rows_of_cells(self.cells.visits_of(block, visits), self.cells.offsets)) for block in blocks]
        return float(np.mean(compared))

    def with_pass(self, before: Choice) -> Choice:
        """The recall and cost of the same with a pass over neighbours' neighbours."""
        own = self._search(self.sample.rows, before.visits)[0]
        near = np.unique(own[own != NONE]).astype(np.int64)
        lists = np.full((len(near) + 1, self.k), NONE, np.uint32)
        lists[:-1] = self._search(near, before.visits)[0]
        # A missing neighbour has the empty list at the end.
        theirs = lists[np.where(own == NONE, len(near), np.searchsorted(near, own))]
        candidates = np.concatenate([own, theirs.reshape(len(own), -1)], axis=1).astype(np.int64)
        candidates[candidates == NONE] = -1
        found = settle_candidates(self.cells.vectors[self.sample.rows], self.cells.vectors, candidates, self.k)
        return Choice(before.visits, 1, self.sample.recall(found[1]).value, before.pairs + self.pairs_of_pass)

    def _search(self, rows: NDArray[np.int64], visits: int) -> Lists:
        def search(piece: NDArray[np.int64]) -> Lists:
            return self.cells.search(self.cells.vectors[piece], self.cells.visits_of(piece, visits), self.k)

        found = list(in_threads(search, np.array_split(rows, max(1, len(rows) // _TRIED_ROWS))))
        return np.concatenate([lists[0] for lists in found]), np.concatenate([lists[1] for lists in found])

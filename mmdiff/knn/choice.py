"""The choice between exact search and cells (index `auto`), by counted comparisons.

A stopwatch would let the choice, and with it the lists, depend on what else the machine does. So costs are counts of compared
pairs per row, in units of a pair that exact search compares: a product over contiguous rows. The factors of other pairs were
measured once, on one core, with 64 and 256 dimensions; the same data and seed always give the same choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mmdiff.knn.cells import partition

# Comparing a pair within a cell gathers rows first; comparing a neighbour's neighbour is one scattered row at a time. Measured:
# 2 to 4, and 7 to 40.
_WITHIN_CELL, _GATHERED = 3.0, 20.0

# Training the centroids of one partition, spread over all rows. Measured: 300 to 1,000.
_TRAINING = 500.0

# Distinct candidates of a pass for each of k * k neighbours' neighbours. Measured: 0.35 to 0.65.
_DISTINCT = 0.4

# Rows whose recall is measured after a search by cells, compared with all rows.
_MEASURED = 1024

# Where cells are predicted to miss the recall, exact search may cost this many times as much as they do.
_WORTH = 4.0

# Recalls after so many numbers of partitions show how fast the misses decrease.
_FEWEST_RECALLS = 3


@dataclass(frozen=True)
class Prediction:
    """The predicted cost of a search by cells, in pairs per row, and whether it is expected to reach the recall."""

    pairs: float
    reaches: bool


@dataclass(frozen=True)
class Costs:
    """The costs of searching `rows` rows for k neighbours; cells that rows visit have `cell_rows` rows on average."""

    rows: int
    k: int
    cell_rows: float

    def by_cells(self, partitions: int, passes: int) -> float:
        """Pairs per row of making and searching partitions, refining, and measuring the recall."""
        assigning = 2 * partition.first_level(self.rows)
        visiting = partitions * (_TRAINING + assigning + _WITHIN_CELL * self.cell_rows)
        return visiting + passes * _GATHERED * _DISTINCT * self.k**2 + min(_MEASURED, self.rows)

    def prefers_exact(self, cells: Prediction) -> bool:
        """Whether exact search is cheaper, or worth its cost because cells would miss the recall."""
        return self.rows <= cells.pairs * (1.0 if cells.reaches else _WORTH)


def possible_searches(rows: int, k: int, fewest: int, most: int, passes: int) -> tuple[str, ...]:
    """The searches that a run may choose, before it knows any recall: no prediction lies outside the two that are compared."""
    costs = Costs(rows, k, partition.CELL_ROWS)
    if costs.prefers_exact(Prediction(costs.by_cells(fewest, 1), True)):
        return ("flat",)
    return ("cells", "flat") if costs.prefers_exact(Prediction(costs.by_cells(most, passes), False)) else ("cells",)


def predict(costs: Costs, recalls: Sequence[float], first: int, target: float, most: int, passes: int) -> Prediction | None:
    """The cost of a search by cells, estimated from the recalls with `first`, `first` + 1, ... partitions, after one pass.

    None where more recalls are needed to say. Misses decrease by about the same factor with each partition. Where `most`
    partitions are not expected to be enough, all of them and all passes are counted.
    """
    have = first + len(recalls) - 1
    if recalls[-1] >= target:
        return Prediction(costs.by_cells(have, 1), True)
    one_more = Prediction(costs.by_cells(have + 1, 1), True)
    if have < most and costs.prefers_exact(one_more):
        return one_more
    if have < most and len(recalls) < _FEWEST_RECALLS:
        return None
    needed = _partitions_needed(recalls, have, target)
    if needed <= most:
        return Prediction(costs.by_cells(math.ceil(needed), 1), True)
    return Prediction(costs.by_cells(most, passes), False)


def _partitions_needed(recalls: Sequence[float], have: int, target: float) -> float:
    """The number of partitions at which the misses are expected to be few enough; infinite if they do not decrease."""
    before, now, allowed = 1 - recalls[0], 1 - recalls[-1], 1 - target
    if len(recalls) < 2 or allowed <= 0 or now <= 0 or now >= before:
        return math.inf
    factor = (now / before) ** (1 / (len(recalls) - 1))
    return have + math.log(allowed / now) / math.log(factor)

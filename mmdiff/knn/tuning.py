"""The cheapest search parameters that reach a recall, by what a search reads and not by a clock: the same rows give
the same parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Trial:
    """A measured pair: how much is probed, and how many times k candidates are compared again."""

    probes: int
    factor: int
    recall: float
    cost: float


def doubling(first: int, last: int) -> list[int]:
    """first, twice it, ... and last."""
    values = [first]
    while values[-1] < last:
        values.append(min(2 * values[-1], last))
    return values


def recall_of(found: NDArray[np.int64], truth: NDArray[np.int64]) -> float:
    """The share of the true neighbours that were found; -1 is no neighbour, in either."""
    if not (truth >= 0).any():
        return 1.0
    rows = np.arange(len(truth))[:, None] * (max(int(found.max(initial=0)), int(truth.max())) + 1)
    return float(np.isin((truth + rows)[truth >= 0], (found + rows)[found >= 0]).mean())


def staircase(
    measure: Callable[[int, int], float],
    cost: Callable[[int, int], float],
    probes: Sequence[int],
    factors: Sequence[int],
    recall: float,
) -> tuple[Trial, list[Trial]]:
    """The cheapest trial that reaches the recall, or the one of best recall when none does; and all trials made.

    From the fewest probes with the most thorough refinement: refine less as long as the recall is reached, probe more when it
    is not. More of either finds more, so what is left out is no better.
    """
    trials: list[Trial] = []
    reaching: Trial | None = None
    step, refined = 0, len(factors) - 1
    while step < len(probes) and refined >= 0:
        pair = probes[step], factors[refined]
        if reaching is not None and cost(*pair) >= reaching.cost:
            refined -= 1
            continue
        trials.append(Trial(*pair, measure(*pair), cost(*pair)))
        if trials[-1].recall >= recall:
            reaching = trials[-1]
            refined -= 1
        else:
            step += 1
    return reaching or max(trials, key=lambda trial: (trial.recall, -trial.cost)), trials

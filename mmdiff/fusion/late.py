"""Late fusion: the weighted mean of the log-probabilities of two classifiers (paper, section 3.3 and "Late fusion weights").

The scores of a diffusion become probabilities by dividing each row by its sum. A class that no label has reached has score 0
and would have no logarithm; it counts as half the smallest score of its row that is not 0. So the order within a row stays
as it is, and a weight of 0 is the diffusion itself. A row that is all 0 says nothing: every class is as likely as any other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.evaluation.metrics import ranks_of

# The weights of the curve: from pure diffusion (0) to pure logistic regression (1).
WEIGHTS = tuple(round(step / 20, 2) for step in range(21))

_BLOCK_VALUES = 1 << 21


def log_of_scores(scores: NDArray[Any]) -> NDArray[np.float64]:
    """The log-probabilities of rows of a diffusion, which must not be negative."""
    wide = scores.astype(np.float64)
    if not (wide >= 0).all() or np.isinf(wide).any():
        raise ValueError("scores that are negative or not finite are no scores of a diffusion")
    least = np.where(wide > 0, wide, np.inf).min(axis=1, initial=np.inf, keepdims=True)
    # Of a row that is all 0 there is no least score; 2 makes its floor 1, and any other number would do.
    floor = np.where(np.isinf(least), 2.0, least) / 2
    floored = np.where(wide > 0, wide, floor)
    return np.asarray(np.log(floored) - np.log(floored.sum(axis=1, keepdims=True)))


def fuse(log_p: NDArray[Any], log_q: NDArray[Any], weight: float) -> NDArray[np.float32]:
    """`weight` log p + (1 - `weight`) log q, for each row and class."""
    return np.asarray(weight * log_p.astype(np.float64) + (1 - weight) * log_q, np.float32)


def hits_by_weight(
    log_p: NDArray[Any], log_q: NDArray[Any], labels: NDArray[np.integer], tops: tuple[int, ...] = (1, 5)
) -> NDArray[np.int64]:
    """How many rows have their label among the first k, (weights, tops), for each of WEIGHTS."""
    hits = np.zeros((len(WEIGHTS), len(tops)), np.int64)
    for i, weight in enumerate(WEIGHTS):
        ranks = ranks_of(fuse(log_p, log_q, weight), labels)
        hits[i] = [(ranks <= k).sum() for k in tops]
    return hits


def rows_at_a_time(classes: int) -> int:
    """Rows that are fused at a time: a few arrays of them are in memory."""
    return max(1, _BLOCK_VALUES // max(1, classes))

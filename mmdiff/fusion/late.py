"""Late fusion: the weighted mean of the log-probabilities of two classifiers (paper, section 3.3 and "Late fusion weights").

The scores of a diffusion become probabilities by dividing each row by its sum. A class that no label has reached has score 0,
which has no logarithm; it counts as half the smallest positive score of its row. So the order within a row is preserved, and
weight 0 is the diffusion itself. A row of zeros becomes the uniform distribution.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.evaluation.metrics import ranks_of

# Weights of the curve, from pure diffusion (0) to pure logistic regression (1).
WEIGHTS = tuple(round(step / 20, 2) for step in range(21))

_BLOCK_VALUES = 1 << 21


def log_of_scores(scores: NDArray[Any]) -> NDArray[np.float64]:
    """Log-probabilities from the scores of a diffusion, which are not negative."""
    wide = scores.astype(np.float64)
    if not (wide >= 0).all() or np.isinf(wide).any():
        raise ValueError("negative or infinite scores cannot come from a diffusion")
    least = np.where(wide > 0, wide, np.inf).min(axis=1, initial=np.inf, keepdims=True)
    # A row of zeros has no smallest positive score; any number makes it uniform.
    floor = np.where(np.isinf(least), 2.0, least) / 2
    floored = np.where(wide > 0, wide, floor)
    return np.asarray(np.log(floored) - np.log(floored.sum(axis=1, keepdims=True)))


def fuse(log_p: NDArray[Any], log_q: NDArray[Any], weight: float) -> NDArray[np.float32]:
    """`weight` log p + (1 - `weight`) log q, for each row and class."""
    return np.asarray(weight * log_p.astype(np.float64) + (1 - weight) * log_q, np.float32)


def probabilities(logarithms: NDArray[np.float32]) -> NDArray[np.float32]:
    """The probabilities of rows of log-probabilities, which need not be normalised."""
    wide = np.exp(logarithms.astype(np.float64) - logarithms.max(axis=1, keepdims=True, initial=-np.inf))
    return np.asarray(wide / wide.sum(axis=1, keepdims=True), np.float32)


def hits_by_weight(
    log_p: NDArray[Any], log_q: NDArray[Any], labels: NDArray[np.integer], tops: tuple[int, ...] = (1, 5)
) -> NDArray[np.int64]:
    """The number of rows with their label among the best k, (weights, tops), for each of WEIGHTS."""
    hits = np.zeros((len(WEIGHTS), len(tops)), np.int64)
    for i, weight in enumerate(WEIGHTS):
        ranks = ranks_of(fuse(log_p, log_q, weight), labels)
        hits[i] = [(ranks <= k).sum() for k in tops]
    return hits


def rows_at_a_time(classes: int) -> int:
    """Rows fused at a time, of which a few arrays are in memory."""
    return max(1, _BLOCK_VALUES // max(1, classes))

"""Where the true class stands among the scores of a test point. Ties never count in a method's favour.

The rank of a class is the number of classes whose scores are not below its own, so that the best has rank 1 only if it is best
alone, and of a row that is all zero every class comes last. NaN, which no score should be, is never below anything.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.classes import UNLABELLED

# The rank of a point that has no class, or none that the seeds have: not within any top k.
NO_RANK = np.iinfo(np.int32).max

_BLOCK_VALUES = 1 << 22


def ranks_of(scores: NDArray[Any], labels: NDArray[np.integer]) -> NDArray[np.int32]:
    """For each row the rank of its best label; `labels` are columns, (rows, labels a row), UNLABELLED where there is none."""
    if labels.shape[1] == 0 or not len(scores):
        return np.full(len(scores), NO_RANK, np.int32)
    return np.asarray(ranks_by_label(scores, labels).min(axis=1))


def ranks_by_label(scores: NDArray[Any], labels: NDArray[np.integer]) -> NDArray[np.int32]:
    """The rank of each label of each row."""
    ranks = np.full(labels.shape, NO_RANK, np.int32)
    step = max(1, _BLOCK_VALUES // max(1, scores.shape[1]))
    for start in range(0, len(scores), step):
        block, own = scores[start : start + step], labels[start : start + step]
        for j in range(labels.shape[1]):
            rows = np.flatnonzero(own[:, j] != UNLABELLED)
            theirs = block[rows] if len(rows) < len(block) else block
            not_below = ~(theirs < theirs[np.arange(len(rows)), own[rows, j]][:, None])
            ranks[start + rows, j] = not_below.sum(axis=1)
    return ranks


def top_k_accuracy(ranks: NDArray[np.int32], k: int) -> float:
    """The share of ranks within the first k; there must be some."""
    return float((ranks <= k).mean())


def predictions(scores: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The best class of each row, UNLABELLED where it is not best alone, and its margin over the second."""
    rows, classes = scores.shape
    best = np.empty(rows, np.int64)
    margins = np.empty(rows, np.float32)
    step = max(1, _BLOCK_VALUES // max(1, classes))
    for start in range(0, rows, step):
        block = scores[start : start + step]
        best[start : start + step] = block.argmax(axis=1)
        if classes > 1:
            two = np.partition(block, classes - 2, axis=1)[:, -2:]
            margins[start : start + step] = two[:, 1] - two[:, 0]
        else:
            margins[start : start + step] = np.inf
    return np.where(margins > 0, best, UNLABELLED), margins

"""Labels that the graph contradicts: each judged by held-out scores, which come from the labels of other rows.

The *doubt* of a label is log q - log p: p is the share of its class among the scores of the row, q the largest share of a class
that the row is not labelled with. It is positive where another class has the larger share, and ranks all labels, also those
that the prediction agrees with. Shares of 0 count as half the smallest positive one of the row.

Logarithms matter: the shares of a diffusion fall by orders of magnitude with the distance of a class, so that a difference of
shares mostly says how sure the best class is. docs/results.md compares measures.

Confidences are those of `mmdiff predict`: the probability that the predicted class is the given one, as held-out labels tell.
Where the prediction contradicts the label, the label has its part of the rest.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmdiff.fusion.late import log_of_scores, rows_at_a_time
from mmdiff.labels.classes import UNLABELLED
from mmdiff.prediction.held_out import predicted


class Doubts(NamedTuple):
    """Judged labels, by decreasing doubt. `places` are their places among the held-out rows, `labels` and `predicted` classes.

    A row with several labels is judged by the one with the least share.
    """

    places: NDArray[np.int64]
    labels: NDArray[np.int32]
    predicted: NDArray[np.int32]
    confidence: NDArray[np.float32]
    predicted_confidence: NDArray[np.float32]
    doubt: NDArray[np.float32]

    @property
    def contradicted(self) -> int:
        """The number of labels whose share is below that of a class that the row is not labelled with."""
        return int((self.doubt > 0).sum())


def log_shares(scores: NDArray[Any], of_diffusion: bool) -> NDArray[np.float64]:
    """The logarithm of the share of each class; scores of other methods than diffusions are logarithms, up to a summand."""
    if of_diffusion:
        return log_of_scores(scores)
    wide = scores.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True, initial=-np.inf)
    return np.asarray(wide - np.log(np.exp(wide).sum(axis=1, keepdims=True)))


def doubts(scores: NDArray[Any], labels: NDArray[np.int32], method: str, rows: NDArray[np.int64]) -> Doubts:
    """The doubts in the labels of held-out rows, (rows, labels per row), by their scores, (rows, classes).

    Rows that no label of other rows reaches, or that have every class, are left out. `rows` decide between equal doubts.
    """
    known = predicted(scores, method, labels, np.zeros(scores.shape[1], np.int64))
    of_diffusion = method == "diffusion"
    parts = []
    step = rows_at_a_time(scores.shape[1])
    for start in range(0, len(scores), step):
        block = scores[start : start + step]
        reached = (block > 0).any(axis=1) if of_diffusion else np.ones(len(block), bool)
        judged = _judged(log_shares(block, of_diffusion), labels[start : start + step])
        parts.append((start + np.flatnonzero(reached), *(values[reached] for values in judged)))
    places, label, best, doubt, rest = (np.concatenate(values) for values in zip(*parts, strict=True))
    # Each row's confidence is calibrated on others, so that its own label has no say in it.
    sure = known.unweighted().confidences(scores.shape[1])
    given = np.where(label == best, sure, np.minimum((1 - sure) * rest, sure)).astype(np.float32)
    order = np.lexsort((rows[places], -doubt))
    order = order[np.isfinite(doubt[order])]
    return Doubts(*(values[order] for values in (places, label, best, given, sure, doubt)))


def _judged(logs: NDArray[np.float64], labels: NDArray[np.int32]) -> tuple[NDArray[Any], ...]:
    """For each row its least supported label, the best class, the doubt, and the label's part of all but the best class."""
    rows = np.arange(len(logs))
    own = np.where(labels == UNLABELLED, np.inf, np.take_along_axis(logs, np.maximum(labels, 0), axis=1))
    label = labels[rows, own.argmin(axis=1)]
    others = logs.copy()
    others[np.repeat(rows, labels.shape[1]), np.where(labels == UNLABELLED, label[:, None], labels).reshape(-1)] = -np.inf
    best = logs.argmax(axis=1).astype(np.int32)
    p = np.exp(logs[rows, label])
    rest = p / np.maximum(1 - np.exp(logs[rows, best]), p)
    # A row that has every class as its label has no other one.
    doubt = (others.max(axis=1) - logs[rows, label]).astype(np.float32)
    return label, best, doubt, rest

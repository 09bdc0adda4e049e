"""Held-out rows that stand for the rows to predict: weights where some classes are labelled far more often than others.

A calibration holds for rows that are like the held-out ones. Labels are often not a random sample: some classes have hundreds,
others three, and the rows to predict may be of the latter. So classes are put into groups by their number of labels (1 to 3, 4
to 15, 16 to 63, ...), the share of each group among the rows to predict is estimated, and held-out rows are weighted so that
their groups have these shares.

The shares are those of a mixture: the held-out rows of a true group tell which groups its rows are predicted as, and the
predictions of all rows are explained by the shares of the true groups. `ROUNDS` rounds of expectation maximisation (Saerens,
Latinne and Decaestecker, 2002), from the shares that the labels have, find them; they are few, so that a few held-out rows do
not decide much.

A row is held out of a class with two labels by predicting it from the other one, so classes with two or three labels stand for
those with one. A group of which nothing can be held out, classes with one label beside classes with hundreds, supports no
confidence: its share counts as wrong predictions, at the margins that predictions of its classes have.

With one group, as where labels are drawn at random from classes of similar size, all weights are 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmdiff.prediction.calibration import Calibration, calibrate

BASE = 4
"""Classes of a group have between BASE^g and BASE^(g+1) - 1 labels."""

ROUNDS = 20

BINS = 64
"""Intervals of the margin in which predictions of each class are counted."""

_JUDGED = 5


@dataclass(frozen=True)
class HeldOutPredictions:
    """Predictions of rows whose own label was not used: margin and class of each, its label, and whether it is right.

    `labels_per_class` counts all labels, held out or not.
    """

    margins: NDArray[np.float32]
    predicted: NDArray[np.int32]
    labels: NDArray[np.int32]
    right: NDArray[np.bool_]
    labels_per_class: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.margins)

    @property
    def groups(self) -> NDArray[np.int64]:
        """The group of each class."""
        return np.searchsorted(BASE ** np.arange(1, 31), self.labels_per_class, side="right")

    @property
    def alike(self) -> bool:
        """Whether all labelled classes are in one group, so that rows need no weights."""
        return len(np.unique(self.groups[self.labels_per_class > 0])) <= 1

    @property
    def unknown(self) -> int:
        """The number of labelled classes in groups of which no row is held out."""
        groups = self.groups
        return int(((self.labels_per_class > 0) & ~np.isin(groups, groups[self.labels])).sum())

    def unweighted(self) -> Evidence:
        return Evidence(self.margins, self.right, np.ones(len(self)), len(self))

    def weighted(self, predictions: PredictionCounts) -> Evidence:
        """The held-out rows, weighted to stand for rows with these predictions."""
        groups, found = self.groups, predictions.by_class
        count = int(groups.max()) + 1
        own, seen = groups[self.labels], np.bincount(groups[self.labels], minlength=count)
        confusion = np.zeros((count, count))
        np.add.at(confusion, (groups[self.predicted], own), 1)
        start = np.bincount(groups, self.labels_per_class, count).astype(np.float64)
        shares = group_shares(confusion, np.bincount(groups, found, count), start)
        # Weights are 1 on average, over held-out rows and those that count as wrong.
        total = shares * len(self)
        weights = np.divide(total, seen, out=np.zeros(count), where=seen > 0)[own]
        unknown = predictions.counts[seen[groups] == 0].sum(axis=0)
        wrong = total[seen == 0].sum() * unknown / max(1, unknown.sum())
        at = np.flatnonzero(wrong)
        return Evidence(
            np.concatenate([self.margins, (at + 0.5) / BINS]),
            np.concatenate([self.right, np.zeros(len(at), bool)]),
            np.concatenate([weights, wrong[at]]),
            len(self),
        )


class PredictionCounts:
    """Counts of the predictions of each class by margin, (classes, BINS), added block by block."""

    def __init__(self, classes: int) -> None:
        self.counts = np.zeros((classes, BINS), np.int64)

    def add(self, predicted: NDArray[np.int32], margins: NDArray[np.float32]) -> None:
        place = np.minimum((margins * BINS).astype(np.int64), BINS - 1)
        self.counts += np.bincount(predicted.astype(np.int64) * BINS + place, minlength=self.counts.size).reshape(-1, BINS)

    @property
    def by_class(self) -> NDArray[np.int64]:
        return np.asarray(self.counts.sum(axis=1))


def group_shares(
    confusion: NDArray[np.float64], predicted: NDArray[np.int64], start: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The share of each true group among rows, of which `predicted` are predicted as each group.

    `confusion`, (predicted group, true group), counts held-out rows. A group without any is taken to be predicted as itself.
    """
    rows = predicted / max(1, predicted.sum())
    seen = confusion.sum(axis=0)
    # One row more, spread like the predictions, so that no prediction is impossible.
    columns = np.where(seen > 0, (confusion + rows[:, None]) / (seen + 1), np.eye(len(seen)))
    shares = start / start.sum()
    for _ in range(ROUNDS):
        mixture = columns @ shares
        shares = shares * (columns.T @ np.divide(rows, mixture, out=np.zeros(len(rows)), where=mixture > 0))
        shares /= shares.sum()
    return np.asarray(shares)


@dataclass(frozen=True)
class Evidence:
    """Right and wrong predictions by margin, with weights. The first `rows` are held-out rows."""

    margins: NDArray[np.floating]
    right: NDArray[np.bool_]
    weights: NDArray[np.float64]
    rows: int

    def calibration(self, classes: int) -> Calibration:
        return self._calibration(self.weights > 0, classes)

    def confidences(self, classes: int) -> NDArray[np.float32]:
        """The confidence of each held-out row, calibrated on others: rows are dealt into groups, each judged by the rest."""
        found = np.empty(self.rows, np.float32)
        dealt = np.where(np.arange(len(self.weights)) < self.rows, np.arange(len(self.weights)) % _JUDGED, _JUDGED)
        for number in range(_JUDGED):
            own = dealt == number
            found[own[: self.rows]] = self._calibration(~own & (self.weights > 0), classes).confidence(self.margins[own])
        return found

    def _calibration(self, chosen: NDArray[np.bool_], classes: int) -> Calibration:
        one = max(1.0, float(self.weights[: self.rows].max(initial=0)))
        return calibrate(self.margins[chosen], self.right[chosen], classes, self.weights[chosen], one)

"""Accuracies with their intervals: of all test points, of those of novel classes, and class by class (paper, section 4.1).

Intervals are those of the bootstrap over test points. A hit is 0 or 1, so the number of hits among n points that are drawn
with replacement from n of which h are hits is binomial with n and h/n: it is drawn as that, to the same effect in no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmdiff.classes import UNLABELLED
from mmdiff.evaluation.ranks import NO_RANK, top_k_accuracy
from mmdiff.formats.manifest import Json

RESAMPLES = 10_000
_LEVEL = (0.025, 0.975)


@dataclass(frozen=True)
class Figure:
    """An accuracy, and between what it would be for 95 of 100 such sets of test points."""

    accuracy: float
    low: float
    high: float

    def to_json(self) -> Json:
        return {name: round(value, 6) for name, value in vars(self).items()}


def bootstrap_interval(hits: int, count: int, seed: int, resamples: int = RESAMPLES) -> tuple[float, float]:
    """The interval that holds 95 % of the accuracies of resampled test points."""
    drawn = np.random.default_rng(seed).binomial(count, hits / count, resamples) / count
    low, high = np.quantile(drawn, _LEVEL)
    return float(low), float(high)


def accuracies(ranks: NDArray[np.int32], tops: Sequence[int], seed: int) -> dict[str, Figure] | None:
    """By `top1`, `top5`, ...; None where there are no points."""
    if not len(ranks):
        return None
    found = {}
    for k in tops:
        hits = int((ranks <= k).sum())
        found[f"top{k}"] = Figure(top_k_accuracy(ranks, k), *bootstrap_interval(hits, len(ranks), seed))
    return found


def novel_ranks(ranks: NDArray[np.int32], novel: NDArray[np.bool_]) -> NDArray[np.int32]:
    """The ranks of points of novel classes, from those of each label and whether it is novel; the best novel one counts."""
    points = novel.any(axis=1)
    return np.asarray(np.where(novel, ranks, NO_RANK)[points].min(axis=1, initial=NO_RANK), np.int32)


def by_class(
    ranks: NDArray[np.int32], labels: NDArray[np.integer], classes: int, tops: Sequence[int]
) -> tuple[NDArray[np.int64], dict[str, NDArray[np.float64]]]:
    """How many labels each class has among the test points, and its accuracies; 0 for a class that has none."""
    given = labels != UNLABELLED
    counts = np.bincount(labels[given], minlength=classes)
    shares = {}
    for k in tops:
        hits = np.bincount(labels[given], weights=ranks[given] <= k, minlength=classes)
        shares[f"top{k}"] = hits / np.maximum(counts, 1)
    return counts, shares

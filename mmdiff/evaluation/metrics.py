"""Where the true class stands among the scores of a test point. Ties never count in a method's favour.

The rank of a class is the number of classes whose scores are not below its own, so that the best has rank 1 only if it is best
alone, and of a row that is all zero every class comes last. NaN, which no score should be, is never below anything.

Accuracies with their intervals: of all test points, of those of novel classes, and class by class (paper, section 4.1).

Intervals are those of the bootstrap over test points. A hit is 0 or 1, so the number of hits among n points that are drawn
with replacement from n of which h are hits is binomial with n and h/n: it is drawn as that, to the same effect in no time.

What goes wrong and how sure a method is of it: the classes that are found least, and what their points are taken for.

Margins (best score less the second) need no calibration to be compared with each other: they are of use if those of right
predictions are larger than those of wrong ones, and `separation` is the share of such pairs in which they are (0.5: of none).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from mmdiff.formats.store.manifest import Json
from mmdiff.labels.classes import UNLABELLED

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


_MISTAKES = 3


def worst_classes(predicted: NDArray[np.int64], labels: NDArray[np.integer], classes: int, count: int) -> list[Json]:
    """The classes that have test points and the lowest top-1 accuracy, and the classes that their points are taken for.

    Classes are given by their columns; `None` stands for points of which no class was best alone.
    """
    points, places = np.nonzero(labels != UNLABELLED)
    truth, said = labels[points, places], predicted[points]
    # A point with two labels that is taken for one of them is no mistake for the other.
    right = (labels[points] == said[:, None]).any(axis=1) & (said != UNLABELLED)
    totals = np.bincount(truth, minlength=classes)
    hits = np.bincount(truth, weights=said == truth, minlength=classes)
    present = np.flatnonzero(totals)
    shares = hits[present] / totals[present]
    order = present[np.lexsort((present, -totals[present], shares))]
    found = []
    for label in order[:count]:
        wrong = said[(truth == label) & ~right]
        taken, times = np.unique(wrong, return_counts=True)
        most = np.argsort(-times, kind="stable")[:_MISTAKES]
        found.append(
            {
                "class": int(label),
                "points": int(totals[label]),
                "top1": round(float(hits[label] / totals[label]), 6),
                "taken_for": [
                    {"class": None if taken[i] == UNLABELLED else int(taken[i]), "points": int(times[i])} for i in most
                ],
            }
        )
    return found


def margins(margin: NDArray[np.floating[Any]], right: NDArray[np.bool_]) -> Json:
    """How the margins of right and wrong predictions compare."""
    found: Json = {
        "right": _median(margin[right]),
        "wrong": _median(margin[~right]),
        "separation": None,
        "top1_of_surer_half": None,
    }
    if len(margin):
        surer = np.argsort(-margin, kind="stable")[: -(-len(margin) // 2)]
        found["top1_of_surer_half"] = round(float(right[surer].mean()), 6)
    rights, wrongs = int(right.sum()), int((~right).sum())
    if rights and wrongs:
        ranks = rankdata(margin)
        pairs = float(ranks[right].sum()) - rights * (rights + 1) / 2
        found["separation"] = round(pairs / (rights * wrongs), 6)
    return found


def _median(values: NDArray[np.floating[Any]]) -> float | None:
    return float(f"{np.median(values):.6g}") if len(values) else None

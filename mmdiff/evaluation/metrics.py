"""Accuracies with bootstrap intervals, ranks, worst classes and margins of scores (paper, section 4.1).

The rank of a class is the number of classes whose scores are not below its own. So ties never count in a method's favour: a
class has rank 1 only if it alone is best, and in a row of zeros every class comes last. NaN is never below anything.

Intervals are those of the bootstrap over test points. A hit is 0 or 1, so the hits among n points drawn with replacement from
n points of which h are hits are binomial with n and h/n. They are drawn as such, which takes no time.

Margins (best score less the second) need no calibration to be compared with each other. They are useful if those of right
predictions exceed those of wrong ones: `separation` is the share of such pairs in which they do (0.5 for chance).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadLabels, BadOption, CountMismatch, Parameter
from mmdiff.formats.store.manifest import Json
from mmdiff.labels.classes import UNLABELLED
from mmdiff.runtime.parameters import MOST, whole

# The rank of a point without a class, or of a class without seeds: not within any top k.
NO_RANK = np.iinfo(np.int32).max

# A label whose class has no column of scores: always an error.
NO_COLUMN = -2

_BLOCK_VALUES = 1 << 22


def ranks_of(scores: NDArray[Any], labels: NDArray[np.integer]) -> NDArray[np.int32]:
    """The rank of the best label of each row. `labels` are columns, (rows, labels per row), UNLABELLED for none."""
    if labels.shape[1] == 0 or not len(scores):
        return np.full(len(scores), NO_RANK, np.int32)
    return np.asarray(ranks_by_label(scores, labels).min(axis=1))


def ranks_by_label(scores: NDArray[Any], labels: NDArray[np.integer]) -> NDArray[np.int32]:
    """The rank of each label of each row."""
    ranks = np.full(labels.shape, NO_RANK, np.int32)
    step = max(1, _BLOCK_VALUES // max(1, scores.shape[1]))
    for start in range(0, len(scores), step):
        block, columns = scores[start : start + step], labels[start : start + step]
        for j in range(labels.shape[1]):
            rows = np.flatnonzero(columns[:, j] != UNLABELLED)
            labelled = block[rows] if len(rows) < len(block) else block
            not_below = ~(labelled < labelled[np.arange(len(rows)), columns[rows, j]][:, None])
            ranks[start + rows, j] = not_below.sum(axis=1)
    return ranks


def top_k_accuracy(ranks: NDArray[np.int32], k: int) -> float:
    """The share of ranks that are at most k; there must be ranks."""
    return float((ranks <= k).mean())


def predictions(scores: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The best class of each row, UNLABELLED where several are best, and its margin over the second."""
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
SEED = 0
_LEVEL = (0.025, 0.975)


@dataclass(frozen=True)
class Accuracy:
    """The share of test points whose class is among the best k, with its 95 % interval."""

    accuracy: float
    low: float
    high: float

    def to_json(self) -> Json:
        return {name: round(value, 6) for name, value in vars(self).items()}


def evaluate_scores(scores: NDArray[Any], labels: NDArray[np.integer], top: Iterable[int] = (1, 5)) -> dict[str, Accuracy]:
    """The accuracies `top1`, `top5`, ... of scores (rows, classes), as `mmdiff evaluate` gives them.

    `labels` are columns of the scores, (rows) or (rows, labels per row), -1 for none and NO_COLUMN for a class that the scores
    do not have. The best label of a row counts; rows without labels are left out.
    """
    tops = checked_top(top)
    columns = labels.reshape(len(labels), -1)
    if scores.ndim != 2 or len(columns) != len(scores):
        raise CountMismatch(f"labels of {len(columns):,} rows for scores of shape {scores.shape}. Give labels for each row.")
    known = np.where(columns < scores.shape[1], np.maximum(columns, UNLABELLED), UNLABELLED)
    found = accuracies(ranks_of(scores, known)[(columns != UNLABELLED).any(axis=1)], tops)
    if found is None:
        raise BadLabels("no row has a label to compare with. Give at least one.")
    return found


def checked_top(top: Iterable[int]) -> list[int]:
    """The numbers of best classes to look among, sorted, each once. `top` is read once: it may be a generator."""
    listed = isinstance(top, Iterable) and not isinstance(top, str)
    tops = sorted({whole("top", k, 1, MOST, "The paper reports top 5.") for k in top}) if listed else []
    if not tops:
        raise BadOption(Parameter("top", top), ": expected a list of whole numbers, such as (1, 5).")
    return tops


def bootstrap_interval(hits: int, count: int, seed: int, resamples: int = RESAMPLES) -> tuple[float, float]:
    """The interval that holds 95 % of the accuracies of resampled test points."""
    drawn = np.random.default_rng(seed).binomial(count, hits / count, resamples) / count
    low, high = np.quantile(drawn, _LEVEL)
    return float(low), float(high)


def accuracies(ranks: NDArray[np.int32], tops: Sequence[int], seed: int = SEED) -> dict[str, Accuracy] | None:
    """Accuracies by `top1`, `top5`, ... from the ranks of labelled points; None without points."""
    if not len(ranks):
        return None
    found = {}
    for k in tops:
        hits = int((ranks <= k).sum())
        found[f"top{k}"] = Accuracy(top_k_accuracy(ranks, k), *bootstrap_interval(hits, len(ranks), seed))
    return found


def novel_ranks(ranks: NDArray[np.int32], novel: NDArray[np.bool_]) -> NDArray[np.int32]:
    """The ranks of points of novel classes, from the rank of each label and whether it is novel. The best novel one counts."""
    points = novel.any(axis=1)
    return np.asarray(np.where(novel, ranks, NO_RANK)[points].min(axis=1, initial=NO_RANK), np.int32)


def by_class(
    ranks: NDArray[np.int32], labels: NDArray[np.integer], classes: int, tops: Sequence[int]
) -> tuple[NDArray[np.int64], dict[str, NDArray[np.float64]]]:
    """The number of labels of each class among the test points, and its accuracies; 0 for a class without any."""
    given = labels != UNLABELLED
    counts = np.bincount(labels[given], minlength=classes)
    shares = {}
    for k in tops:
        hits = np.bincount(labels[given], weights=ranks[given] <= k, minlength=classes)
        shares[f"top{k}"] = hits / np.maximum(counts, 1)
    return counts, shares


_MISTAKES = 3


def worst_classes(predicted: NDArray[np.int64], labels: NDArray[np.integer], classes: int, count: int) -> list[Json]:
    """The classes of the lowest top-1 accuracy among those with test points, and the classes predicted for their points.

    Classes are columns; `None` stands for points where several classes are best.
    """
    points, places = np.nonzero(labels != UNLABELLED)
    truth, guess = labels[points, places], predicted[points]
    # For a point with two labels, predicting one of them is no mistake for the other.
    right = (labels[points] == guess[:, None]).any(axis=1) & (guess != UNLABELLED)
    totals = np.bincount(truth, minlength=classes)
    hits = np.bincount(truth, weights=guess == truth, minlength=classes)
    present = np.flatnonzero(totals)
    shares = hits[present] / totals[present]
    order = present[np.lexsort((present, -totals[present], shares))]
    found = []
    for label in order[:count]:
        wrong = guess[(truth == label) & ~right]
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
    """Medians of the margins of right and wrong predictions, their separation, and the accuracy of the surer half."""
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
        # Imported here, since scipy.stats takes most of a second, which other commands need not spend.
        from scipy.stats import rankdata

        ranks = rankdata(margin)
        pairs = float(ranks[right].sum()) - rights * (rights + 1) / 2
        found["separation"] = round(pairs / (rights * wrongs), 6)
    return found


def _median(values: NDArray[np.floating[Any]]) -> float | None:
    return float(f"{np.median(values):.6g}") if len(values) else None

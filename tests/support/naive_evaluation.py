"""Naive twins of logistic regression, fusion and evaluation, in float64."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray


def naive_rank(row: NDArray[Any], label: Any) -> int:
    """The number of classes that score at least as much as the true one, itself included."""
    return sum(1 for score in row if not score < row[label])


def naive_ranks(scores: NDArray[Any], labels: NDArray[Any], miss: int) -> list[int]:
    """The best rank among the labels of each row, `miss` without labels."""
    own = [[naive_rank(row, label) for label in some if label >= 0] for row, some in zip(scores, labels, strict=True)]
    return [min(ranks, default=miss) for ranks in own]


def naive_log_of_scores(scores: NDArray[Any]) -> NDArray[np.float64]:
    found = []
    for row in scores.astype(np.float64):
        positive = [score for score in row if score > 0]
        floored = [score if score > 0 else min(positive) / 2 if positive else 1.0 for score in row]
        found.append(np.log(floored) - np.log(sum(floored)))
    return np.array(found).reshape(scores.shape)


def naive_interval(hits: int, count: int, resamples: int = 4000) -> tuple[float, float]:
    """The bootstrap as in textbooks: points are drawn with replacement."""
    points = np.arange(count) < hits
    draw = np.random.default_rng(1)
    means = [points[draw.integers(0, count, count)].mean() for _ in range(resamples)]
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def naive_separation(margin: NDArray[Any], right: NDArray[np.bool_]) -> float:
    """The share of pairs of a right and a wrong prediction in which the right one has the larger margin; ties are half."""
    pairs = list(itertools.product(margin[right], margin[~right]))
    return float(np.mean([(a > b) + (a == b) / 2 for a, b in pairs]))


def naive_logreg(
    x: NDArray[Any],
    batches: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]],
    rows: NDArray[np.int64],
    classes: int,
    lr: float,
    decay: float,
    momentum: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """SGD with momentum, L2 on the weights and a learning rate that falls to 0, on centred rows of mean square length 1."""
    mean = x[rows].mean(axis=0)
    length = np.sqrt(((x[rows] - mean) ** 2).sum(axis=1).mean())
    z = (x - mean) / length
    weight, bias = np.zeros((classes, x.shape[1])), np.zeros(classes)
    speed, bias_speed = np.zeros_like(weight), np.zeros_like(bias)
    drawn = list(batches)
    for step, (batch, labels) in enumerate(drawn):
        logits = z[batch] @ weight.T + bias
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        error = (p - np.eye(classes)[labels]) / len(batch)
        speed = momentum * speed + error.T @ z[batch] + decay * weight
        bias_speed = momentum * bias_speed + error.sum(axis=0)
        rate = lr * (1 - step / len(drawn))
        weight, bias = weight - rate * speed, bias - rate * bias_speed
    return weight / length, bias - weight @ mean / length

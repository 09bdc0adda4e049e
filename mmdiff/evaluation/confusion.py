"""What goes wrong and how sure a method is of it: the classes that are found least, and what their points are taken for.

Margins (best score less the second) need no calibration to be compared with each other: they are of use if those of right
predictions are larger than those of wrong ones, and `separation` is the share of such pairs in which they are (0.5: of none).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from mmdiff.classes import UNLABELLED
from mmdiff.formats.manifest import Json

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

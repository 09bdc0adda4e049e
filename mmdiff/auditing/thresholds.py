"""Thresholds that follow from the lists: from which similarity on rows are near-duplicates, below which one they are far.

Both compare a row with the others by robust statistics on a sample of the lists: by the median, and by a deviation from it that
is scaled to the standard deviation of a normal distribution.

*Near-duplicates*: x is the logarithm of the Euclidean distance of a row to its nearest neighbour, sqrt(2 - 2 s), so that pairs
that are a tenth as far apart as usual are as unusual as pairs ten times as far. Rows are near-duplicates from the distance on
that is NEAR deviations below the median. The deviation is that of the *upper* quartile: duplicates lie in the lower tail, and
must not widen the scale that they are judged by. NEAR is large, since the rows of a dense class lie in that tail too, and are
no duplicates: on Tiny ImageNet 3.5 deviations would join 83 images of one class by chains, 6 find four groups of eight images.
The threshold lies within LEAST_ABOVE and MOST_ABOVE. Where more than half of all rows have near-duplicates, the median is one
of theirs, and a threshold has to be given.

*Far*: x is the mean similarity of a row's list. Rows are far where it is FAR median deviations below the median (the rule of
3.5 of Iglewicz and Hoaglin).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from mmdiff.auditing.lists import Lists
from mmdiff.auditing.scanning import ALONE
from mmdiff.kernels.constants import NONE

NEAR, FAR = 6.0, 3.5
LEAST_ABOVE, MOST_ABOVE = 0.9, 0.9999

# The quartiles of a normal distribution are so many standard deviations from its median.
_QUARTILE = 0.6745

# Rows, spread evenly, that the statistics are taken from.
_SAMPLE_ROWS = 1 << 16

# Nearer rows count as so near: the logarithm of a distance of 0 says nothing.
_LEAST_DISTANCE = 1e-3


def sampled(lists: Lists) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """The similarity of the nearest neighbour of evenly spread nodes, and the mean similarity of their lists.

    Lists that hold no node but their own are left out.
    """
    nodes = np.arange(0, lists.lists.nodes, max(1, -(-lists.lists.nodes // _SAMPLE_ROWS)))
    neighbors, similarities = lists.lists.take(nodes)
    others = (neighbors != NONE) & (neighbors != nodes[:, None])
    known = others.any(axis=1)
    neighbors, similarities, others = neighbors[known], similarities[known], others[known]
    nearest = np.where(others, similarities, ALONE).max(axis=1, initial=ALONE)
    means = np.where(others, similarities, 0).sum(axis=1, dtype=np.float64) / others.sum(axis=1)
    return nearest, means


def duplicates_above(nearest: NDArray[np.floating]) -> float:
    """The similarity from which on rows are near-duplicates, rounded down to four digits."""
    if not len(nearest):
        return MOST_ABOVE
    distance = np.sqrt(np.maximum(2 - 2 * nearest.astype(np.float64), _LEAST_DISTANCE**2))
    middle, upper = np.quantile(np.log(distance), (0.5, 0.75))
    near = math.exp(middle - NEAR / _QUARTILE * (upper - middle))
    return math.floor(min(max(1 - near**2 / 2, LEAST_ABOVE), MOST_ABOVE) * 1e4 + 1e-6) / 1e4


def far_below(means: NDArray[np.floating]) -> float:
    """The mean similarity below which rows are far from their neighbours, rounded to four digits."""
    if not len(means):
        return float(ALONE)
    middle = float(np.median(means))
    deviation = float(np.median(np.abs(means - middle)))
    return round(max(middle - FAR / _QUARTILE * deviation, float(ALONE)), 4)

"""Distributions in a few numbers: quantiles, and a histogram between the smallest value and the largest."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.store.manifest import Json

_BINS = 24
_NAMES = ("min", "quarter", "median", "three_quarters", "max")


def distribution(values: NDArray[Any]) -> Json:
    """The distribution of values."""
    quantiles = [float(quantile) for quantile in np.quantile(values, (0, 0.25, 0.5, 0.75, 1))]
    low, high = quantiles[0], quantiles[-1]
    bins = 1 if high - low <= 1e-6 * abs(high) else _BINS
    histogram = np.histogram(values, bins, (low, high) if bins > 1 else (low - 1, high + 1))[0]
    return {**dict(zip(_NAMES, quantiles, strict=True)), "histogram": histogram.tolist()}


def distribution_of_counts(counts: NDArray[np.int64]) -> Json:
    """The distribution of integers of which `counts[n]` equal n. Bins grow geometrically, for a long tail."""
    up_to = np.cumsum(counts)
    ranks = [round(share * (int(up_to[-1]) - 1)) for share in (0, 0.25, 0.5, 0.75, 1)]
    quantiles = [int(np.searchsorted(up_to, rank, "right")) for rank in ranks]
    low, high = quantiles[0], quantiles[-1]
    bins = min(_BINS, high - low + 1)
    edges = np.geomspace(low + 1, high + 2, bins + 1) - 1.5
    histogram = np.histogram(np.arange(len(counts)), edges, weights=counts)[0].astype(np.int64)
    return {**dict(zip(_NAMES, quantiles, strict=True)), "histogram": histogram.tolist()}

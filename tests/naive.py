"""Naive twins: what each kernel computes, said in the fewest words, in float64 and without regard to speed or memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.importing.rows import ALL_ZERO, GOOD, NOT_FINITE


def naive_examine(rows: NDArray[Any]) -> list[int]:
    return [NOT_FINITE if not np.isfinite(row).all() else GOOD if row.any() else ALL_ZERO for row in rows]


def naive_unit_rows(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Rows of unit length; the largest entry is taken out first, so that nothing overflows."""
    wide = rows.astype(np.float64)
    wide = wide / np.abs(wide).max(axis=1, keepdims=True)
    unit: NDArray[np.float64] = wide / np.sqrt((wide**2).sum(axis=1, keepdims=True))
    return unit


def naive_pca(rows: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """The mean, all principal directions (the largest entry of each positive), and the share of each in the variance."""
    wide = rows.astype(np.float64)
    mean = wide.mean(axis=0)
    _, singular, directions = np.linalg.svd(wide - mean, full_matrices=False)
    largest = np.abs(directions).argmax(axis=1)
    signs = np.sign(directions[np.arange(len(directions)), largest])
    return mean, directions * signs[:, None], singular**2 / (singular**2).sum()

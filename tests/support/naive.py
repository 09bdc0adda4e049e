"""Naive twins: what each kernel computes, said in the fewest words, in float64 and without regard to speed or memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from mmdiff.importing.rows import ALL_ZERO, GOOD, NOT_FINITE
from mmdiff.kernels.constants import COLUMN, NONE


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


def naive_symmetrise(neighbors: NDArray[Any], weights: NDArray[Any] | None = None) -> tuple[Any, NDArray[np.float64]]:
    """W0 + W0^T and the sums of its rows. A neighbour that a list names twice counts once, with its larger weight."""
    nodes = len(neighbors)
    own = np.full((nodes, nodes), -1.0)
    for row, neighbor_list in enumerate(neighbors):
        for j, node in enumerate(neighbor_list):
            if node != NONE:
                own[row, node] = max(own[row, node], 1.0 if weights is None else float(weights[row, j]))
    structure = scipy.sparse.csr_array((own >= 0) | (own.T >= 0), dtype=np.float64)
    structure.sort_indices()
    rows = np.repeat(np.arange(nodes), np.diff(structure.indptr))
    dense = np.maximum(own, 0) + np.maximum(own, 0).T
    structure.data = dense[rows, structure.indices]
    return structure, dense.sum(axis=1)


def naive_spread(
    indptr: NDArray[Any], indices: NDArray[Any], values: NDArray[Any], scale: NDArray[Any], first: int
) -> tuple[bool, bool]:
    """Whether an entry of rows first, first + 1, ... leads to another node, and whether the W of one of these is above zero."""
    rows = np.repeat(np.arange(len(scale)), np.diff(indptr))
    others = (indices & COLUMN) != rows + first
    return bool(others.any()), bool((values[others].astype(np.float64) * scale[rows[others]] > 0).any())


def naive_weights(neighbors: NDArray[Any], similarities: NDArray[Any], formula: str, parameter: float) -> NDArray[np.float64]:
    """Supplement, "Details of the parametric evaluation", list by list."""
    k = neighbors.shape[1]
    weights = np.zeros(neighbors.shape)
    for row in range(len(neighbors)):
        given = neighbors[row] != NONE
        squares = np.maximum(2 - 2 * similarities[row, given].astype(np.float64), 0)
        if formula == "gaussian":
            weights[row, given] = np.exp(-squares / parameter**2)
        elif given.any():
            x = np.sqrt(squares)
            s = (x.max() - x) / (x.max() - x.min()) if x.max() > x.min() else np.ones(len(x))
            weights[row, given] = s * (1 - np.exp(-parameter * s)) ** k
    return weights

"""The naive twin of the diffusion: the definition of `docs/diffusion.md` line by line, in float64, on whole matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.variant import Variant
from mmdiff.graph.graph import CsrGraph
from mmdiff.kernels.constants import NONE

Matrix = NDArray[np.float64]


def naive_W(graph: CsrGraph, normalization: str) -> Any:
    A = graph.to_scipy(normalized=False).astype(np.float64)
    degrees = np.asarray(A.sum(axis=1)).reshape(-1)
    with np.errstate(divide="ignore"):
        row = np.where(degrees > 0, 1 / degrees, 0)
    if normalization == "row":
        return A.toarray() * row[:, None]
    return A.toarray() * np.sqrt(row)[:, None] * np.sqrt(row)[None, :]


def naive_Y(nodes: int, labels: NDArray[Any], classes: int) -> Matrix:
    Y = np.zeros((nodes, classes))
    for node, own in enumerate(labels.reshape(nodes, -1)):
        for label in own[own >= 0]:
            Y[node, label] = 1
    return Y


def _to(S: Matrix, axis: int, sums: Any) -> Matrix:
    found = S.sum(axis=axis, keepdims=True)
    return np.where(found > 0, S / np.where(found > 0, found, 1) * sums, S)


def naive_eta(S: Matrix, eta: str, prior: Matrix) -> Matrix:
    if eta == "column":
        return _to(S, 0, 1)
    if eta == "prior":
        return np.where(S.sum(axis=0) > 0, _to(S, 0, 1) * prior, S)
    if eta == "row":
        return _to(S, 1, 1)
    if eta == "sinkhorn":
        for _ in range(5):
            S = _to(_to(S, 0, prior), 1, 1)
    return S


def naive_diffusion(
    graph: CsrGraph, labels: NDArray[Any], classes: int, variant: Variant, prior: Matrix, T: int
) -> list[Matrix]:
    """L after iterations 0..T. `row` and `sinkhorn` are applied to the state, which then is L; before them L_0 = eta(Y)."""
    W, Y = naive_W(graph, variant.normalize_graph), naive_Y(graph.nodes, labels, classes)
    S, L = Y, [naive_eta(Y, variant.eta, prior)]
    for _ in range(T):
        S = W @ S
        if variant.alpha is not None:
            S = variant.alpha * S + (1 - variant.alpha) * Y
        if variant.coupled or variant.gamma is not None:
            S = naive_eta(S, variant.eta, prior)
        if variant.gamma is not None:
            S = _to(S**variant.gamma, 0, 1)
        if variant.reset_seeds:
            S = np.where(Y.any(axis=1, keepdims=True), Y, S)
        L.append(S if variant.coupled else naive_eta(S, variant.eta, prior))
    return L


def naive_scores(L: Matrix, neighbors: NDArray[Any]) -> Matrix:
    V = np.zeros((len(neighbors), len(L)))
    for row, own in enumerate(neighbors):
        for node in own:
            if node != NONE:
                V[row, node] += 1
    return V @ L

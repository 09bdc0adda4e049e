"""The naive twin of back-tracking: S in float64 on dense matrices, and all terms of each entry of a path."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.variant import Variant
from mmdiff.explain.paths import Path
from mmdiff.graph.graph import CsrGraph
from tests.support.naive_diffusion import Matrix, naive_eta, naive_scores, naive_W, naive_Y

CLOSE = 1e-4


def naive_states(graph: CsrGraph, Y: Matrix, variant: Variant, prior: Matrix, T: int) -> list[Matrix]:
    """S after iterations 0..T."""
    W, states = naive_W(graph, variant.normalize_graph), [Y]
    for _ in range(T):
        S = W @ states[-1]
        if variant.alpha is not None:
            S = variant.alpha * S + (1 - variant.alpha) * Y
        if variant.coupled or variant.gamma is not None:
            S = naive_eta(S, variant.eta, prior)
        if variant.gamma is not None:
            sums = (S**variant.gamma).sum(axis=0)
            S = S**variant.gamma / np.where(sums > 0, sums, 1)
        if variant.reset_seeds:
            S = np.where(Y.any(axis=1, keepdims=True), Y, S)
        states.append(S)
    return states


def check_path(
    path: Path | None,
    graph: CsrGraph,
    labels: NDArray[Any],
    classes: int,
    variant: Variant,
    prior: Matrix,
    T: int,
    neighbors: NDArray[np.uint32],
    column: int,
) -> None:
    """Checks that a path follows a largest term at each step (there may be several), from a seed of the class."""
    Y = naive_Y(graph.nodes, labels, classes)
    W, states = naive_W(graph, variant.normalize_graph), naive_states(graph, Y, variant, prior, T)
    L = states[-1] if variant.coupled and T else naive_eta(states[-1], variant.eta, prior)
    score = naive_scores(L, neighbors[None])[0, column]
    if path is None:
        assert score < 1e-30
        return
    assert score > 0
    steps = path.steps
    times = np.bincount(neighbors[neighbors != 0xFFFFFFFF], minlength=graph.nodes)
    _check(times * L[:, column], 0.0, steps[-1].node, steps[-1].share)
    assert [step.iteration for step in steps] == list(range(T - len(steps) + 1, T + 1))
    alpha = 1.0 if variant.alpha is None else variant.alpha
    for before, step in pairwise(steps):
        assert not (variant.reset_seeds and Y[step.node].any())
        terms = alpha * W[step.node] * states[step.iteration - 1][:, column]
        _check(terms, (1 - alpha) * Y[step.node, column], before.node, before.share)
    first = steps[0]
    assert Y[first.node, column] == 1
    if first.iteration == 0 or variant.reset_seeds:
        assert path.own == 1
        return
    own = 1 - alpha
    terms = alpha * W[first.node] * states[first.iteration - 1][:, column]
    assert own >= terms.max() * (1 - CLOSE)
    np.testing.assert_allclose(path.own, own / (own + terms.sum()), rtol=CLOSE)


def _check(terms: Matrix, own: float, chosen: int, share: float) -> None:
    assert terms[chosen] > 0
    assert terms[chosen] >= max(terms.max(), own) * (1 - CLOSE)
    np.testing.assert_allclose(share, terms[chosen] / (terms.sum() + own), rtol=CLOSE)

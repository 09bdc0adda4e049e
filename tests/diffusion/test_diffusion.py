"""The diffusion equals its definition in every variant, for any graph, labels and batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mmdiff.diffusion import schedule
from mmdiff.diffusion.api import diffuse
from mmdiff.diffusion.engine import coupled
from mmdiff.diffusion.io import graph_stream as streaming
from mmdiff.diffusion.options import ETAS
from mmdiff.diffusion.variant import Variant
from mmdiff.graph.graph import CsrGraph
from tests.support.graphs import some_graph
from tests.support.naive_diffusion import naive_diffusion, naive_eta, naive_scores, naive_W, naive_Y

variants = st.builds(
    Variant,
    eta=st.sampled_from(ETAS),
    gamma=st.sampled_from([None, 0.5, 1.3]),
    alpha=st.sampled_from([None, 0.8, 1]),
    reset_seeds=st.booleans(),
    normalize_graph=st.sampled_from(["row", "symmetric"]),
)
graphs = st.builds(
    some_graph,
    nodes=st.sampled_from([1, 2, 7, 40, 150]),
    k=st.integers(1, 8),
    seed=st.integers(0, 1000),
    weighted=st.booleans(),
    self_loops=st.booleans(),
)


def some_labels(nodes: int, classes: int, per_row: int, seed: int) -> NDArray[np.int32]:
    """A few labels; at least one node has one."""
    draw = np.random.default_rng(seed)
    labels = np.where(draw.random((nodes, per_row)) < 0.08, draw.integers(0, classes, (nodes, per_row)), -1)
    labels[draw.integers(nodes), 0] = draw.integers(classes)
    return labels.astype(np.int32)


def some_neighbors(nodes: int, seed: int) -> NDArray[np.uint32]:
    draw = np.random.default_rng(seed)
    neighbors = draw.integers(0, nodes, (6, 3)).astype(np.uint32)
    neighbors[draw.random((6, 3)) < 0.2] = 0xFFFFFFFF
    return neighbors


def assert_close(found: NDArray[Any], expected: NDArray[Any], tolerance: float = 1e-5) -> None:
    """Close relative to each entry; zeros of the twin are exact zeros."""
    assert found.shape == expected.shape
    assert np.all((found == 0) == (expected == 0))
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=1e-30)


@contextmanager
def small_pieces(block_edges: int, entry_cost: int) -> Iterator[None]:
    """Small blocks, so that small graphs have several, and another cost of frontiers, so that they last longer or shorter."""
    before: Any = (streaming.BLOCK_EDGES, schedule.ENTRY_COST, coupled.BLOCK_ROWS)
    streaming.BLOCK_EDGES, schedule.ENTRY_COST, coupled.BLOCK_ROWS = block_edges, entry_cost, 7
    try:
        yield
    finally:
        streaming.BLOCK_EDGES, schedule.ENTRY_COST, coupled.BLOCK_ROWS = before


@settings(max_examples=120, deadline=None)
@given(
    graph=graphs,
    variant=variants,
    classes=st.integers(1, 9),
    per_row=st.integers(1, 2),
    iterations=st.integers(0, 4),
    width=st.integers(1, 10),
    seed=st.integers(0, 1000),
    plain=st.booleans(),
    with_prior=st.booleans(),
    pieces=st.tuples(st.sampled_from([5, 60, 1 << 18]), st.sampled_from([0, 8, 1 << 40])),
)
def test_diffusion_equals_its_naive_twin(
    graph: CsrGraph,
    variant: Variant,
    classes: int,
    per_row: int,
    iterations: int,
    width: int,
    seed: int,
    plain: bool,
    with_prior: bool,
    pieces: tuple[int, int],
) -> None:
    labels, neighbors = some_labels(graph.nodes, classes, per_row, seed), some_neighbors(graph.nodes, seed)
    prior = np.random.default_rng(seed).random(classes) + 0.1 if with_prior and variant.takes_prior else None
    p = np.full(classes, 1 / classes) if prior is None else prior / prior.sum()
    options: dict[str, Any] = {
        **variant.parameters(),
        "iterations": iterations,
        "prior": prior,
        "classes": classes,
        "cols_per_batch": width,
        "plain": plain,
    }
    expected = naive_diffusion(graph, labels, classes, variant, p, iterations)
    with small_pieces(*pieces):
        assert_close(diffuse(graph, labels, **options), expected[-1])
        scores = diffuse(graph, labels, neighbors=neighbors, **options)
    assert_close(scores, np.stack([naive_scores(L, neighbors) for L in expected]))


@pytest.mark.parametrize("eta", ["row", "sinkhorn"])
@pytest.mark.parametrize("gamma", [None, 1.3])
def test_coupled_operators_are_applied_once_an_iteration(eta: Any, gamma: float | None) -> None:
    """L_{t+1} = Gamma(eta(W L_t)) of the paper: each reported L leads to the next one."""
    graph, classes = some_graph(60, 5, seed=3), 4
    labels = some_labels(60, classes, 1, 2)
    prior, variant = np.full(classes, 1 / classes), Variant(eta, gamma)
    before, after = (
        diffuse(graph, labels, iterations=iterations, eta=eta, gamma=gamma, classes=classes) for iterations in (2, 3)
    )
    expected = naive_eta(naive_W(graph, "row") @ before.astype(np.float64), eta, prior)
    if variant.gamma is not None:
        sums = (expected**variant.gamma).sum(axis=0)
        expected = expected**variant.gamma / np.where(sums > 0, sums, 1)
    assert_close(after, expected)


@pytest.mark.parametrize("eta", ["row", "sinkhorn"])
def test_before_the_first_iteration_L_is_eta_of_Y(eta: Any) -> None:
    graph, classes = some_graph(40, 5, seed=3), 4
    labels = some_labels(40, classes, 2, 2)
    found = diffuse(graph, labels, iterations=0, eta=eta, classes=classes)
    assert_close(found, naive_eta(naive_Y(40, labels, classes), eta, np.full(classes, 1 / classes)))

"""The rows that are chosen are those of a greedy algorithm which evaluates every candidate in every round."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mmdiff.diffusion.io.graph_stream import Stream
from mmdiff.formats.errors import Damaged
from mmdiff.graph.graph import CsrGraph
from mmdiff.suggestion.coverage import Columns, first_gains
from mmdiff.suggestion.greedy import choose
from tests.support.graphs import some_graph
from tests.support.naive_suggestion import coverage_of, gains, two_steps

graphs = st.builds(
    some_graph,
    nodes=st.integers(1, 60),
    k=st.integers(1, 9),
    seed=st.integers(0, 1 << 16),
    weighted=st.booleans(),
    self_loops=st.booleans(),
)


def greedy(
    graph: CsrGraph,
    covered: list[int],
    weight: NDArray[np.float32] | None = None,
    threads: int = 1,
    candidates: list[int] | None = None,
    order: NDArray[np.uint32] | None = None,
) -> list[tuple[int, float, float, int]]:
    """The chosen nodes, each with its value, and the gain and the number of newly reached nodes when it was covered."""
    with Stream(graph) as stream:
        bounds = first_gains(stream, weight)
    coverage = np.zeros(graph.nodes, np.float32)
    free = np.setdiff1d(np.arange(graph.nodes) if candidates is None else candidates, covered).astype(np.uint32)
    found = []
    with ThreadPoolExecutor(threads) as pool:
        columns = Columns(graph, pool, threads)
        columns.cover(np.array(covered, np.uint32), coverage, graph.nodes)

        def values(nodes: NDArray[np.uint32]) -> NDArray[np.float32]:
            return columns.gains(nodes, coverage, weight).astype(np.float32)

        for choice in choose(free, bounds, np.empty(0, np.uint32) if order is None else order, values, threads):
            added = columns.cover(np.array([choice.node], np.uint32), coverage, graph.nodes)
            found.append((choice.node, choice.value, added.gain, added.reached))
    return found


@given(graphs, st.data())
def test_every_choice_is_the_best_of_a_dense_computation(graph: CsrGraph, data: st.DataObject) -> None:
    nodes = range(graph.nodes)
    covered = data.draw(st.lists(st.sampled_from(nodes), max_size=5, unique=True))
    weight = np.random.default_rng(graph.edges).random(graph.nodes).astype(np.float32) if data.draw(st.booleans()) else None
    kernel, chosen = two_steps(graph), list(covered)
    counts = np.ones(graph.nodes) if weight is None else weight.astype(np.float64)
    for node, value, gain, reached in greedy(graph, covered, weight):
        coverage = coverage_of(kernel, chosen)
        possible = gains(kernel, coverage, counts)
        assert value == pytest.approx(possible[node], rel=1e-5, abs=1e-6)
        assert gain == pytest.approx(gains(kernel, coverage, np.ones(graph.nodes))[node], rel=1e-5, abs=1e-6)
        assert value >= np.delete(possible, chosen).max() - 1e-6
        assert reached == ((coverage == 0) & (kernel[:, node] > 0)).sum()
        chosen.append(node)
    left = np.setdiff1d(nodes, chosen)
    assert gains(kernel, coverage_of(kernel, chosen), counts)[left].max(initial=0) <= 1e-6


@given(graphs, st.integers(2, 5))
@settings(max_examples=15)
def test_threads_change_nothing(graph: CsrGraph, threads: int) -> None:
    assert greedy(graph, [0], threads=threads) == greedy(graph, [0])


@given(graphs, st.data())
@settings(max_examples=15)
def test_only_candidates_are_chosen(graph: CsrGraph, data: st.DataObject) -> None:
    candidates = data.draw(st.lists(st.sampled_from(range(graph.nodes)), unique=True))
    assert {choice[0] for choice in greedy(graph, [], candidates=candidates)} <= set(candidates)


def test_of_equal_rows_the_one_that_comes_first_for_the_user_is_chosen() -> None:
    """Ten triangles are all alike; the order of the nodes is not that of the user."""
    triangles = scipy.sparse.csr_array(np.kron(np.eye(10), np.ones((3, 3))))
    graph = CsrGraph.from_scipy(triangles)
    order = np.random.default_rng(0).permutation(30).astype(np.uint32)
    chosen = order[[choice[0] for choice in greedy(graph, [], order=order)]]
    first_of_each = np.array([order[3 * t : 3 * t + 3].min() for t in range(10)])
    assert chosen.tolist() == sorted(first_of_each.tolist())


def test_a_column_of_a_hub_reaches_every_row() -> None:
    """A star, whose columns are as long as the graph."""
    nodes = 500
    star = np.zeros((nodes, nodes))
    star[0] = star[:, 0] = 1
    (node, _, _, reached), *_ = greedy(CsrGraph.from_scipy(scipy.sparse.csr_array(star)), [])
    assert (node, reached) == (0, nodes)


@pytest.mark.parametrize("column", [7, 1 << 20])
def test_a_graph_with_columns_that_are_no_nodes_is_not_followed(column: int) -> None:
    graph = some_graph(7, 3)
    indices = graph.indices.copy()
    indices[len(indices) // 2] = column
    broken = CsrGraph(graph.indptr, indices, graph.scale)
    with ThreadPoolExecutor(1) as pool, pytest.raises(Damaged, match="beyond the 7 nodes"):
        Columns(broken, pool, 1).gains(np.arange(7, dtype=np.uint32), np.zeros(7, np.float32), None)

"""Components, degrees and locality of graphs agree between scipy, union-find and plain counting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from mmdiff.graph import statistics as module
from mmdiff.graph.graph import CsrGraph
from mmdiff.graph.statistics import by_scipy, by_union, components, degree_counts, graph_statistics, isolated
from mmdiff.inspection.distribution import distribution, distribution_of_counts
from tests.support.graphs import make_graph, some_lists
from tests.support.stores import publish, recipe


def random_graph(nodes: int, edges: int, seed: int) -> CsrGraph:
    draw = np.random.default_rng(seed)
    ends = draw.integers(0, nodes, (2, edges))
    return CsrGraph.from_scipy(scipy.sparse.csr_array((np.ones(edges), ends), (nodes, nodes)))


graphs = st.builds(random_graph, st.integers(1, 200), st.integers(0, 250), st.integers(0, 1 << 16))


@given(graphs)
def test_union_find_and_scipy_find_the_same_components(graph: CsrGraph) -> None:
    assert by_union(graph) == by_scipy(graph)


def test_edges_of_no_weight_connect_too() -> None:
    graph = CsrGraph(np.array([0, 1, 2]), np.array([1, 0], np.uint32), np.zeros(2, np.float32), np.zeros(2, np.float32))
    assert by_scipy(graph) == by_union(graph) == module.Components(1, 2)


def test_large_graphs_are_left_to_union_find(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(300, 200, 0)
    small = components(graph)
    monkeypatch.setattr(module, "MOST_EDGES_FOR_SCIPY", 10)
    assert components(graph) == small


@given(graphs)
def test_degrees_and_isolated_nodes_are_counted(graph: CsrGraph) -> None:
    degrees = np.diff(graph.indptr)
    counts = degree_counts(graph.indptr)
    np.testing.assert_array_equal(counts, np.bincount(degrees))
    matrix = graph.to_scipy().tolil()
    matrix.setdiag(0)
    assert isolated(graph.indptr, graph.indices) == int((np.diff(matrix.tocsr().indptr) == 0).sum())
    found = distribution_of_counts(counts)
    ordered = np.sort(degrees)
    assert (found["min"], found["max"]) == (degrees.min(), degrees.max())
    assert found["median"] in (ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2])
    assert sum(found["histogram"]) == graph.nodes


def test_distribution_of_equal_values_is_one_bar() -> None:
    assert distribution(np.full(5, 2.5))["histogram"] == [5]
    assert distribution_of_counts(np.array([0, 0, 7]))["histogram"] == [7]


def test_locality_is_told_in_the_graphs_order_and_in_that_of_the_user(quick_folder: Path) -> None:
    nodes = 4000
    chain = np.minimum(np.arange(nodes) + 1, nodes - 1)
    graph = CsrGraph.from_scipy(scipy.sparse.csr_array((np.ones(nodes), (np.arange(nodes), chain)), (nodes, nodes)))
    order = np.random.default_rng(0).permutation(nodes - 100).astype(np.uint32)
    values: dict[str, Any] = {"indptr": graph.indptr, "indices": graph.indices, "scale": graph.scale, "order": order}
    artifact = publish(quick_folder / "store", "graph/W", values, recipe("graph"), {"reciprocal": 0.5})
    found = graph_statistics(artifact)
    assert (found["median_rows_apart"], found["edges_within_1000_rows"]) == (1, 1.0)
    assert found["median_rows_apart_before_cell_order"] > 500
    assert 0.2 < found["edges_within_1000_rows_before_cell_order"] < 0.7
    assert (found["components"], found["nodes_of_the_largest"], found["isolated_nodes"]) == (1, nodes, 0)


def test_graph_of_lists_without_neighbours_is_all_isolated(quick_folder: Path) -> None:
    found = graph_statistics(make_graph(quick_folder / "store", some_lists(20, 3, none=1).lists))
    assert (found["isolated_nodes"], found["components"], found["degree"]["max"]) == (20, 20, 0)
    assert "median_rows_apart" not in found

"""Edge weights are those of the paper's supplement; contradictory parameters are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mmdiff
from mmdiff.formats.errors import BadOption
from mmdiff.graph import union
from mmdiff.graph.graph import CsrGraph
from mmdiff.graph.in_memory import graph_of
from mmdiff.graph.lists import ArrayLists
from mmdiff.graph.union import MergedRows
from mmdiff.graph.weights import Weighting, choose, parameters
from mmdiff.kernels.constants import NONE
from tests.support.graphs import SomeLists, lists_of_all_kinds, make_graph
from tests.support.naive import naive_spread, naive_weights


@given(
    made=lists_of_all_kinds,
    formula=st.sampled_from(["gaussian", "meaningful"]),
    parameter=st.sampled_from([0.3, 1.0, 5.0, 40.0]),
)
def test_weights_are_those_of_the_paper(made: SomeLists, formula: Any, parameter: float) -> None:
    weights = Weighting(formula, parameter).of(made.neighbors, made.similarities)
    given_ = made.neighbors != NONE
    expected = naive_weights(made.neighbors, made.similarities, formula, parameter)
    assert weights.dtype == np.float32
    np.testing.assert_allclose(weights[given_], expected[given_], atol=1e-6)


def test_first_neighbour_of_a_list_is_meaningful_and_the_last_is_not() -> None:
    neighbors = np.array([[3, 1, 2, NONE]], np.uint32)
    similarities = np.array([[1, 0.8, 0.5, -np.inf]], np.float32)
    weights = Weighting("meaningful", 50.0).of(neighbors, similarities)[0]
    assert weights[0] == pytest.approx(1)
    assert 0 < weights[1] < 1
    assert weights[2] == 0


def test_neighbours_that_are_all_as_near_all_count() -> None:
    neighbors, similarities = np.arange(6, dtype=np.uint32).reshape(2, 3), np.full((2, 3), 0.5, np.float32)
    assert len(np.unique(Weighting("meaningful", 2.0).of(neighbors, similarities))) == 1


def test_wide_gaussian_is_the_constant_weighting() -> None:
    neighbors, similarities = np.arange(4, dtype=np.uint32)[None], np.array([[1, 0.5, 0, -1]], np.float32)
    np.testing.assert_allclose(Weighting("gaussian", 1e6).of(neighbors, similarities), 1)


def test_options_name_a_weighting() -> None:
    assert choose("constant", None, None) is None
    assert choose("gaussian", 0.5, None) == Weighting("gaussian", 0.5)
    assert choose("meaningful", None, 4.0) == Weighting("meaningful", 4.0)
    assert parameters(None) == {"edge_weights": "constant"}
    assert parameters(Weighting("meaningful", 4.0)) == {
        "edge_weights": "meaningful",
        "lambda": 4.0,
        "weights_dtype": "float32",
    }


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("gaussian", None, None), "needs sigma"),
        (("meaningful", None, None), "needs lambda_"),
        (("constant", 0.5, None), "sigma does not go with"),
        (("gaussian", 0.5, 1.0), "lambda_ does not go with"),
        (("gausian", 0.5, None), "edge_weights='gausian': not one of the choices. Did you mean gaussian"),
        (("gaussian", 0.0, None), "sigma=0.0: expected a number from 1e-09 to 1e[+]09"),
        (("gaussian", float("nan"), None), "sigma=nan: expected a number"),
        (("gaussian", 1e-300, None), "sigma=1e-300: expected a number"),
        (("gaussian", 1e300, None), r"sigma=1e\+300: expected a number"),
        (("gaussian", 10**400, None), r"sigma=\(a number of about 401 digits\): expected a number"),
        (("gaussian", "0.5", None), "sigma='0.5': expected a number"),
        (("meaningful", None, -1.0), "lambda_=-1.0: expected a number"),
        (("meaningful", None, 1e300), r"lambda_=1e\+300: expected a number"),
        (("meaningful", None, float("inf")), "lambda_=inf: expected a number"),
    ],
)
def test_options_that_name_none_are_refused(options: Any, told: str) -> None:
    with pytest.raises(BadOption, match=told):
        choose(*options)


def test_lambda_with_which_all_weights_would_vanish_is_refused_with_one_that_is_enough() -> None:
    with pytest.raises(BadOption, match=r"k = 30. Use ([\d.]+) or more") as refused:
        Weighting("meaningful", 0.01).check(30)
    least = float(str(refused.value).split("Use ")[1].split(" ")[0])
    Weighting("meaningful", least).check(30)


@pytest.mark.parametrize("formula", ["gaussian", "meaningful"])
@pytest.mark.parametrize("parameter", [1e-9, 1e9])
def test_weights_are_finite_at_the_bounds_of_their_parameter(formula: Any, parameter: float) -> None:
    neighbors = np.arange(5, dtype=np.uint32)[None]
    weights = Weighting(formula, parameter).of(neighbors, np.array([[1, 0.999, 0.5, 0, -1]], np.float32))
    assert np.isfinite(weights).all()


def test_weights_that_are_not_finite_name_the_parameter() -> None:
    neighbors, similarities = np.arange(3, dtype=np.uint32)[None], np.array([[0.5, 0, -np.inf]], np.float32)
    with pytest.raises(BadOption, match=r"lambda_=5.0: some weights are not finite"):
        Weighting("meaningful", 5.0).of(neighbors, similarities)


def test_missing_neighbours_are_no_weights_that_are_not_finite() -> None:
    neighbors, similarities = np.array([[3, NONE]], np.uint32), np.array([[1, -np.inf]], np.float32)
    assert np.isfinite(Weighting("meaningful", 5.0).of(neighbors, similarities)).all()


def test_bandwidth_that_separates_all_nodes_is_refused(tmp_path: Path) -> None:
    store = mmdiff.open(tmp_path / "store", create=True)
    store.add(np.random.default_rng(0).normal(size=(40, 4)))
    with pytest.raises(BadOption, match=r"sigma=0.001: all weights between different nodes vanish, so no label could spread"):
        store.build_graph(k=5, edge_weights="gaussian", sigma=1e-3)
    assert "graph/W" not in store
    store.build_graph(k=5, edge_weights="gaussian", sigma=1.0)


def test_bandwidth_with_which_no_row_can_be_normalised_is_refused(tmp_path: Path) -> None:
    """Weights of about 1e-42, on the diagonal too, are above zero, but their inverse is not finite in float32."""
    X = np.random.default_rng(0).normal(size=(60, 8))
    store = mmdiff.open(tmp_path / "store", create=True)
    store.add(X / np.linalg.norm(X, axis=1, keepdims=True) / 2, normalize=False)
    with pytest.raises(BadOption, match=r"sigma=0.125: all weights between different nodes vanish"):
        store.build_graph(k=3, edge_weights="gaussian", sigma=0.125)
    assert "graph/W" not in store


def test_graph_in_which_only_one_pair_of_nodes_is_near_is_built(quick_folder: Path) -> None:
    neighbors = np.array([[0, 1], [1, 2], [2, 3], [3, 2]], np.uint32)
    similarities = np.array([[1, -1], [1, -1], [1, 0.9], [1, 0.9]], np.float32)
    graph = CsrGraph.from_artifact(
        make_graph(quick_folder / "store", ArrayLists(neighbors, similarities), Weighting("gaussian", 0.1))
    )
    assert graph.to_scipy(normalized=False).toarray()[2, 3] > 0


def test_graph_without_edges_to_other_nodes_is_built_with_any_bandwidth(quick_folder: Path) -> None:
    lists = ArrayLists(np.array([[0], [1]], np.uint32), np.ones((2, 1), np.float32))
    make_graph(quick_folder / "store", lists, Weighting("gaussian", 1e-3))


@given(made=lists_of_all_kinds, data=st.data())
def test_rows_spread_as_the_naive_check_finds(made: SomeLists, data: st.DataObject) -> None:
    graph = graph_of(made.neighbors, made.similarities, Weighting("gaussian", 1e9))
    zero, tiny = (
        np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), bool)
        for count in (graph.edges, graph.nodes)
    )
    values, scale = np.where(zero, np.float32(0), np.float32(1)), np.where(tiny, np.float32(0), graph.scale)
    first = data.draw(st.integers(0, 2))
    found = union.spread(MergedRows(graph.indices, values, graph.indptr[1:], scale), first)
    assert found == naive_spread(graph.indptr, graph.indices, values, scale, first)


def test_arrays_are_refused_the_same_parameters() -> None:
    X = np.random.default_rng(0).normal(size=(40, 4))
    with pytest.raises(BadOption, match=r"sigma=1e-300: expected a number"):
        mmdiff.knn_graph(X, k=5, edge_weights="gaussian", sigma=1e-300)

"""`CsrGraph` from a store, from scipy and back; damage that verify finds; exports."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import mmdiff
from mmdiff.export import reading, stage
from mmdiff.formats.errors import Corrupt, InputError
from mmdiff.formats.store.store import Store
from mmdiff.graph.graph import CsrGraph
from mmdiff.graph.weights import Weighting
from mmdiff.kernels.constants import COLUMN
from mmdiff.kinds import KINDS
from tests.support.graphs import make_graph, some_lists
from tests.support.naive import naive_symmetrise
from tests.support.stores import SMALL_CHUNKS, chunks_of, problems, publish, recipe


def random_matrix(nodes: int, share: float, seed: int, values: str) -> Any:
    draw = np.random.default_rng(seed)
    dense = {
        "ones": np.ones((nodes, nodes)),
        "ones and twos": draw.integers(1, 3, (nodes, nodes)),
        "any": draw.random((nodes, nodes)) + 0.01,
    }[values] * (draw.random((nodes, nodes)) < share)
    return scipy.sparse.csr_array(dense)


export = partial(stage.export, kinds=KINDS)

matrices = st.builds(
    random_matrix,
    st.integers(1, 40),
    st.sampled_from([0.0, 0.1, 0.6, 1.0]),
    st.integers(0, 1 << 16),
    st.sampled_from(["ones", "ones and twos", "any"]),
)


@given(matrices)
def test_matrix_that_is_not_symmetric_is_added_to_its_transpose(matrix: Any) -> None:
    graph = CsrGraph.from_scipy(matrix)
    symmetric = (matrix != matrix.T).nnz == 0
    both = (matrix if symmetric else matrix + matrix.T).toarray().astype(np.float64)
    np.testing.assert_allclose(graph.to_scipy(normalized=False).toarray(), both, rtol=1e-6)
    sums = both.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(graph.to_scipy().toarray(), np.divide(both, sums, out=both * 0, where=sums > 0), rtol=1e-6)
    if not symmetric:
        reciprocal = (matrix.toarray() > 0) & (matrix.toarray().T > 0)
        np.testing.assert_array_equal((graph.indices > COLUMN), reciprocal[both > 0])


@given(matrices)
def test_graph_comes_back_from_scipy_as_it_was(matrix: Any) -> None:
    graph = CsrGraph.from_scipy(matrix)
    again = CsrGraph.from_scipy(graph.to_scipy(normalized=False))
    np.testing.assert_array_equal(again.indptr, graph.indptr)
    np.testing.assert_array_equal(again.indices & COLUMN, graph.indices & COLUMN)
    np.testing.assert_array_equal(again.scale, graph.scale)
    if graph.weights is None:
        np.testing.assert_array_equal(again.indices, graph.indices)
        assert again.weights is None
    elif again.weights is not None:
        np.testing.assert_array_equal(again.weights, graph.weights)


def test_ones_and_twos_need_no_weights() -> None:
    assert CsrGraph.from_scipy(scipy.sparse.csr_array([[2, 1], [1, 0]])).weights is None
    assert CsrGraph.from_scipy(scipy.sparse.csr_array([[0, 1], [0, 0]])).weights is None
    assert CsrGraph.from_scipy(scipy.sparse.csr_array([[0, 2], [0, 0]])).weights is not None
    assert CsrGraph.from_scipy(scipy.sparse.coo_matrix([[0, 0.5], [0.5, 0]])).weights is not None


@pytest.mark.parametrize(
    ("matrix", "told"),
    [
        (np.eye(3), "not a sparse matrix"),
        (scipy.sparse.csr_array(np.ones((2, 3))), "2 x 3, not square"),
        (scipy.sparse.csr_array((0, 0)), "0 nodes"),
        (scipy.sparse.csr_array([[0, 1j], [1, 0]]), "complex"),
        (scipy.sparse.csr_array([[0, 1], [-1, 0]]), "row 1: -1 in column 0"),
        (scipy.sparse.csr_array([[0, np.nan], [1, 0]]), "row 0: nan in column 1"),
        (scipy.sparse.csr_array([[0, 1], [np.inf, 0]]), "row 1: inf"),
        (scipy.sparse.csr_array([[0, 1e-60], [1e-60, 0]]), "row 0: weights that sum to 1e-60, too small"),
        (scipy.sparse.csr_array([[0, 1e60], [1e60, 0]]), "too large"),
    ],
)
def test_matrix_that_is_no_graph_is_refused(matrix: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        CsrGraph.from_scipy(matrix)


def test_graph_of_a_store_is_mapped_and_tells_what_it_is(quick_folder: Path) -> None:
    made = some_lists(100, 5)
    make_graph(quick_folder / "store", made.lists)
    graph = CsrGraph.open(quick_folder / "store")
    assert not graph.indices.flags.writeable
    assert (len(graph), graph.nodes, graph.edges) == (100, 100, naive_symmetrise(made.neighbors)[0].nnz)
    assert repr(graph) == f"CsrGraph(100 nodes, {graph.edges} edges, value-free)"
    make_graph(quick_folder / "other", made.lists, Weighting("gaussian", 1.0, "float16"))
    assert "float16 weights" in repr(CsrGraph.open(str(quick_folder / "other")))


def test_importing_mmdiff_is_light_and_knows_its_names() -> None:
    script = "import sys, mmdiff; assert 'numpy' not in sys.modules; print(mmdiff.Graph.__name__)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "Graph\n"
    with pytest.raises(AttributeError, match="Grpah"):
        _ = mmdiff.Grpah


Arrays = dict[str, NDArray[Any]]


def graph_arrays() -> Arrays:
    graph = CsrGraph.from_scipy(scipy.sparse.csr_array([[2, 1, 0], [1, 0, 1], [0, 1, 2]]))
    order = np.array([1, 2, 0], np.uint32)
    return {"indptr": graph.indptr, "indices": graph.indices, "scale": graph.scale, "order": order}


def knn_arrays() -> Arrays:
    return {
        "neighbors": np.array([[0, 1], [1, 0xFFFFFFFF]], np.uint32),
        "similarities": np.array([[1, 0.5], [1, -np.inf]], np.float32),
    }


GRAPH_FACTS = {"nodes": 3, "edges": 6, "background": 3, "seeds": 0, "test": 0, "reciprocal": 1.0}


def with_value(array: str, at: Any, value: Any) -> Callable[[Arrays], Arrays]:
    def change(arrays: Arrays) -> Arrays:
        changed = arrays[array].copy()
        changed[at] = value
        return arrays | {array: changed}

    return change


@pytest.mark.parametrize(
    ("kind", "change", "array", "told"),
    [
        ("graph", with_value("indices", 1, 7), "indices", "row 0: column 7 of 3 nodes"),
        ("graph", with_value("indices", 1, 0), "indices", "row 0: columns that do not increase"),
        ("graph", with_value("indptr", 1, 5), "indptr", "go backwards"),
        ("graph", with_value("indptr", 3, 5), "indptr", "do not run from 0"),
        ("graph", with_value("scale", 1, np.nan), "scale", "value 1 is negative or not finite"),
        ("graph", with_value("order", 1, 1), "order", "not a permutation"),
        ("graph", with_value("order", 1, 9), "order", "not a permutation"),
        ("graph", lambda arrays: arrays | {"indptr": arrays["indptr"][:-1]}, "indptr", "3 offsets for 3 nodes"),
        ("graph", lambda arrays: arrays | {"weights": -np.ones(6, np.float32)}, "weights", "is negative"),
        ("graph", lambda arrays: arrays | {"weights": np.ones(5, np.float32)}, "weights", "5 rows for 6 edges"),
        ("graph", lambda arrays: {"indptr": arrays["indptr"]}, "indices", "missing"),
        ("graph", lambda arrays: arrays | {"order": arrays["order"][:2]}, "order", "2 entries for 3 rows of the background"),
        ("knn", with_value("similarities", (1, 0), np.nan), "similarities", "row 1: similarities that are not finite"),
        ("knn", with_value("similarities", (1, 0), np.inf), "similarities", "row 1: similarities that are not finite"),
        ("knn", with_value("neighbors", (1, 0), 12), "neighbors", "row 1: neighbours beyond the 10 nodes"),
        ("knn", lambda arrays: arrays | {"similarities": np.ones((2, 3), np.float32)}, "similarities", "of shape"),
    ],
)
def test_verify_finds_what_cannot_be(
    quick_folder: Path, kind: str, change: Callable[[Arrays], Arrays], array: str, told: str
) -> None:
    arrays, facts = (graph_arrays(), GRAPH_FACTS) if kind == "graph" else (knn_arrays(), {"nodes": 10})
    name = "graph/W" if kind == "graph" else "knn/BL"
    publish(quick_folder / "good", name, arrays, recipe(kind), facts)
    assert problems(Store.open(quick_folder / "good")) == []
    publish(quick_folder / "bad", name, change(arrays), recipe(kind), facts)
    found = problems(Store.open(quick_folder / "bad"))
    assert any(problem.array == array and told in problem.what for problem in found), found


def test_lists_whose_manifest_does_not_tell_the_nodes_are_found(quick_folder: Path) -> None:
    publish(quick_folder / "store", "knn/BL", knn_arrays(), recipe("knn"))
    assert "lacks the fact 'nodes'" in problems(Store.open(quick_folder / "store"))[-1].what


def test_graph_whose_arrays_do_not_fit_is_not_opened(quick_folder: Path) -> None:
    arrays = graph_arrays() | {"scale": np.ones(5, np.float32)}
    publish(quick_folder / "store", "graph/W", arrays, recipe("graph"), GRAPH_FACTS | {"nodes": 5, "test": 2})
    with pytest.raises(Corrupt, match=r"graph/W, array indptr: 4 offsets for 5 nodes\. Run again: a test"):
        CsrGraph.open(quick_folder / "store")


@pytest.mark.parametrize("weighting", [None, Weighting("gaussian", 0.7), Weighting("meaningful", 4.0, "float16")])
def test_exported_graph_is_W_for_scipy(
    quick_folder: Path, weighting: Weighting | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BLOCK_BYTES", 1000)
    with chunks_of(SMALL_CHUNKS):
        make_graph(quick_folder / "store", some_lists(700, 6).lists, weighting)
    store = Store.open(quick_folder / "store")
    outcome = export(store, "graph/W", quick_folder / "W.npz")
    assert outcome.rows == 700
    expected = CsrGraph.open(quick_folder / "store").to_scipy()
    exported = scipy.sparse.load_npz(quick_folder / "W.npz")
    for part in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(exported, part), getattr(expected, part))
    export(store, "graph/W", quick_folder / "scale.npz", "scale")
    assert list(np.load(quick_folder / "scale.npz")) == ["scale"]


def test_exported_graph_has_the_users_order_or_the_internal_one(quick_folder: Path) -> None:
    publish(
        quick_folder / "store", "graph/W", graph_arrays(), recipe("graph"), GRAPH_FACTS, {"command": "a test", "witness": {}}
    )
    store, order = Store.open(quick_folder / "store"), graph_arrays()["order"]
    export(store, "graph/W", quick_folder / "user.npz")
    export(store, "graph/W", quick_folder / "internal.npz", order="internal")
    user, internal = (scipy.sparse.load_npz(quick_folder / f"{name}.npz").toarray() for name in ("user", "internal"))
    assert "order" not in np.load(quick_folder / "user.npz")
    np.testing.assert_allclose(internal.sum(axis=1), 1)
    row_of_node = np.append(order, np.arange(len(order), len(user)))
    np.testing.assert_array_equal(user[np.ix_(row_of_node, row_of_node)], internal)

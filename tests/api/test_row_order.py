"""The user's row order at every public edge: permuting the rows of the input permutes every public result."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import mmdiff
from mmdiff.knn.cells import partition
from tests.support.stores import MEMORY


@pytest.fixture(scope="module", autouse=True)
def _small_cells() -> Iterator[None]:
    """Several cells, so that the internal order of few rows differs from the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition, "CELL_ROWS", 40)
        yield


def rows_of(seed: int, count: int = 240, width: int = 12) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Rows of four classes in a random order, with their classes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, count)
    return (rng.normal(size=(4, width))[y] + rng.normal(scale=0.7, size=(count, width))).astype(np.float32), y


def naive_W(X: NDArray[np.float32], k: int) -> NDArray[np.float64]:
    """W = D^-1 (W0 + W0^T) of the rows as they are given, densely."""
    unit = X.astype(np.float64) / np.linalg.norm(X.astype(np.float64), axis=1, keepdims=True)
    nearest = np.argsort(-(unit @ unit.T), axis=1, kind="stable")[:, :k]
    W0 = np.zeros((len(X), len(X)))
    np.put_along_axis(W0, nearest, 1, axis=1)
    both = W0 + W0.T
    return np.asarray(both / both.sum(axis=1, keepdims=True))


@settings(max_examples=8)
@given(seed=st.integers(0, 1000))
def test_graphs_in_memory_and_in_stores_are_those_of_the_users_rows(seed: int) -> None:
    X, _ = rows_of(seed)
    expected = naive_W(X, 7)
    graph = mmdiff.knn_graph(X, k=7, index="flat")
    np.testing.assert_allclose(graph.to_scipy().toarray(), expected, rtol=1e-5)
    assert graph.internal.order is not None
    assert (np.diff(graph.internal.order.astype(np.int64)) < 0).any(), "the internal order should differ from the user's"
    S = np.random.default_rng(seed).random((len(X), 5), np.float32)
    np.testing.assert_allclose(graph @ S, expected @ S, rtol=1e-4)


@settings(max_examples=8)
@given(seed=st.integers(0, 1000), stored=st.booleans())
def test_permuting_rows_permutes_every_result(seed: int, stored: bool) -> None:
    X, truth = rows_of(seed)
    order = np.random.default_rng(seed + 1).permutation(len(X))
    y = np.where(np.random.default_rng(seed + 2).random(len(X)) < 0.1, truth, -1)
    with TemporaryDirectory(dir=MEMORY) as folder:
        plain = results(X, y, Path(folder) / "plain" if stored else None)
        permuted = results(X[order], y[order], Path(folder) / "permuted" if stored else None)
    assert (plain["W"][order][:, order] != permuted["W"]).nnz == 0
    for key in ("product", "scores"):
        np.testing.assert_allclose(plain[key][order], permuted[key], rtol=1e-4, atol=1e-9)
    np.testing.assert_array_equal(plain["predicted"][order], permuted["predicted"])


def results(X: NDArray[np.float32], y: NDArray[np.int64], folder: Path | None) -> dict[str, Any]:
    """Every public result over the rows of X, in memory or by way of a store."""
    vector = X.sum(axis=1)
    if folder is None:
        graph = mmdiff.knn_graph(X, k=7, index="flat")
        predicted = mmdiff.diffuse(graph, y, iterations=3).predict()
    else:
        store = mmdiff.open(folder, create=True)
        store.add(X, labels=y)
        store.build_graph(k=7, index="flat")
        predicted = store.diffuse(iterations=3, predict_nodes=True).predict_background()
        graph = mmdiff.open(folder).graph
        graph = mmdiff.Graph(graph.internal.in_memory())
    scores = mmdiff.diffuse(graph, y, iterations=3).scores
    return {"W": graph.to_scipy(), "product": graph @ vector, "scores": scores, "predicted": predicted}


@settings(max_examples=20)
@given(seed=st.integers(0, 1000))
def test_graphs_of_scipy_matrices_keep_their_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    A = scipy.sparse.csr_array(np.where(rng.random((40, 40)) < 0.1, rng.random((40, 40)), 0).astype(np.float32))
    order = rng.permutation(40)
    y = np.where(rng.random(40) < 0.3, rng.integers(0, 3, 40), -1)
    y[:3] = [0, 1, 2]
    one = mmdiff.diffuse(mmdiff.Graph.from_scipy(A), y, iterations=2)
    other = mmdiff.diffuse(mmdiff.Graph.from_scipy(A.tocsr()[order][:, order]), y[order], iterations=2)
    np.testing.assert_allclose(one.scores[order], other.scores, rtol=1e-4, atol=1e-9)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> mmdiff.Store:
    """A store of background, seeds and test points whose cell order is not the user's."""
    folder = tmp_path_factory.mktemp("rows")
    X, truth = rows_of(5, 900, 16)
    store = mmdiff.open(folder / "store", create=True)
    store.add(X[:700])
    store.add(X[700:760], role="seeds", labels=truth[700:760])
    store.add(X[760:], role="test", labels=truth[760:])
    store.build_graph(k=8, index="flat")
    store.diffuse(iterations=3, predict_nodes=True)
    return store


def test_the_exported_matrix_is_the_naive_one_in_the_users_order(stored: mmdiff.Store, tmp_path: Path) -> None:
    X, _ = rows_of(5, 900, 16)
    stored.export("graph/W", tmp_path / "W.npz")
    W = scipy.sparse.load_npz(tmp_path / "W.npz")
    np.testing.assert_allclose(W.toarray(), naive_W(X[:760], 8), rtol=1e-5)
    assert (stored.graph.to_scipy() != W).nnz == 0
    assert "order" not in np.load(tmp_path / "W.npz")
    stored.export("graph/W", tmp_path / "internal.npz", order="internal")
    internal = scipy.sparse.load_npz(tmp_path / "internal.npz")
    assert (internal != stored.graph.internal.to_scipy()).nnz == 0


def test_an_exported_graph_comes_back_with_the_same_predictions(stored: mmdiff.Store, tmp_path: Path) -> None:
    X, truth = rows_of(5, 900, 16)
    before = stored.diffuse(iterations=3, predict_nodes=True)
    stored.export("graph/W", tmp_path / "W.npz")
    other = mmdiff.open(tmp_path / "other", create=True)
    other.add(X[:700])
    other.add(X[700:760], role="seeds", labels=truth[700:760])
    other.import_graph(tmp_path / "W.npz")
    after = other.diffuse(iterations=3, predict_nodes=True)
    np.testing.assert_array_equal(after.predict_background(), before.predict_background())


def test_lists_of_neighbours_are_exported_as_the_user_counts(stored: mmdiff.Store, tmp_path: Path) -> None:
    X, _ = rows_of(5, 900, 16)
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    stored.export("knn/W0", tmp_path / "W0.npy", array="neighbors")
    expected = np.argsort(-(unit[:760] @ unit[:760].T), axis=1)[:, :8]
    np.testing.assert_array_equal(np.sort(np.load(tmp_path / "W0.npy"), axis=1), np.sort(expected, axis=1))
    stored.export("knn/test", tmp_path / "test.npy", array="neighbors")
    expected = np.argsort(-(unit[760:] @ unit[:760].T), axis=1)[:, :8]
    np.testing.assert_array_equal(np.sort(np.load(tmp_path / "test.npy"), axis=1), np.sort(expected, axis=1))


def test_explanations_name_the_users_rows(stored: mmdiff.Store) -> None:
    """Each step of a path is an edge of W between the rows that are named."""
    W = stored.graph.to_scipy().tocsr()
    found = stored.explain(3)
    steps = found["paths"][0]["steps"]
    rows = [step["id"] + (700 if step["role"] == "seed" else 0) for step in steps]
    assert all(W[after, before] > 0 for before, after in pairwise(rows))

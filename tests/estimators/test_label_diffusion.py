"""`LabelDiffusion`: the numbers of the library, the conventions of scikit-learn."""

from __future__ import annotations

import copy
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import KNeighborsTransformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import mmdiff
from mmdiff.diffusion.options import declared_options
from mmdiff.errors import InputError
from mmdiff.estimators.precomputed import nearest_of

ROWS = 300


def digits(known: int = 5, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Some digits, their labels, and the same with so many of each class known."""
    X, y = load_digits(return_X_y=True)
    X, y = X[:ROWS].astype(np.float32), y[:ROWS].astype(np.int64)
    order = np.random.default_rng(seed).permutation(ROWS)
    rows = np.concatenate([order[y[order] == label][:known] for label in range(10)])
    some = np.full(ROWS, -1)
    some[rows] = y[rows]
    return X, y, some


@pytest.mark.parametrize(
    ("graph", "options"),
    [
        ({"k": 8}, {}),
        ({"k": 12, "edge_weights": "gaussian", "sigma": 0.5, "dims": 20, "seed": 3}, {"iterations": 3, "alpha": 0.8}),
        ({"k": 5, "edge_weights": "meaningful", "lambda_": 30.0}, {"eta": "sinkhorn", "prior": "seeds", "cols_per_batch": 3}),
    ],
)
def test_scores_are_those_of_the_library_to_the_last_bit(graph: dict[str, Any], options: dict[str, Any]) -> None:
    X, _, y = digits()
    model = mmdiff.LabelDiffusion(**graph, **options).fit(X, y)
    expected = mmdiff.diffuse(mmdiff.knn_graph(X, **graph), y, **options)
    assert model.scores_.tobytes() == np.asarray(expected.scores).tobytes()
    np.testing.assert_array_equal(model.transduction_, expected.predict())
    np.testing.assert_array_equal(model.classes_, expected.classes)


def test_new_rows_are_classified_as_the_test_points_of_a_store(tmp_path: Path) -> None:
    X, _, y = digits()
    model = mmdiff.LabelDiffusion(k=8, iterations=3).fit(X[:200], y[:200])
    store = mmdiff.open(tmp_path / "store", create=True)
    store.add(X[:200], labels=y[:200])
    store.add(X[200:], role="test")
    store.build_graph(k=8)
    expected = store.diffuse(iterations=3)
    np.testing.assert_array_equal(model.predict(X[200:]), expected.predict())
    sums = expected.scores / expected.scores.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(X[200:]), sums, rtol=1e-5, atol=1e-7)


def test_it_has_the_options_of_the_diffusion_with_their_defaults() -> None:
    parameters = inspect.signature(mmdiff.LabelDiffusion).parameters
    for name, option in declared_options().items():
        # These change nothing that an estimator shows.
        if name not in ("plain", "keep_scores"):
            assert parameters[name].default == option.default
    of_graph = inspect.signature(mmdiff.knn_graph).parameters
    for name in ("k", "recall", "index", "device", "edge_weights", "sigma", "lambda_", "dims", "seed", "memory", "progress"):
        assert parameters[name].default == of_graph[name].default


@pytest.mark.parametrize(
    "y",
    [
        [7, -1, -1, 9],
        [7.0, np.nan, -1.0, 9.0],
        np.array([7, None, None, 9], object),
        np.array(["cat", "", "", "dog"]),
        ["cat", None, np.nan, "dog"],
        ["cat", -1, -1, "dog"],
        [False, None, None, True],
    ],
    ids=str,
)
def test_labels_may_be_unknown_in_many_ways(y: Any) -> None:
    X = np.array([[1, 0], [1, 0.1], [0.1, 1], [0, 1]])
    model = mmdiff.LabelDiffusion(k=2).fit(X, y)
    first, last = y[0], y[3]
    assert model.classes_.tolist() == [first, last]
    assert model.transduction_.tolist() == [first, first, last, last]
    assert model.predict(X[::-1]).tolist() == [last, last, first, first]
    assert model.score(X, y) == 1


def test_rows_that_no_label_reaches_are_told_and_get_the_shares_of_the_labels() -> None:
    X = np.array([[1, 0, 0], [1, 0.1, 0], [0, 0.1, 1], [0, 0, 1], [0, 1, 0]])
    model = mmdiff.LabelDiffusion(k=1, metric="cosine").fit(X, [5, 5, 6, -1, -1])
    assert model.transduction_.tolist() == [5, 5, 6, -1, -1]
    assert model.label_distributions_[4].tolist() == [0, 0]
    np.testing.assert_allclose(model.predict_proba(X[4:]), [[2 / 3, 1 / 3]])
    assert model.predict(X[4:]).tolist() == [5]
    names = mmdiff.LabelDiffusion(k=1).fit(X, ["b", "b", "a", "", ""])
    assert names.transduction_.tolist() == ["b", "b", "a", None, None]


def test_each_of_several_labels_is_spread_against_the_rows_without_it() -> None:
    X, truth, known = digits()
    even, large = truth % 2 == 0, truth >= 5
    y = np.column_stack([even, large]).astype(int)
    y[known < 0] = -1
    y[np.flatnonzero(known >= 0)[:3], 1] = -1
    model = mmdiff.LabelDiffusion(k=8, iterations=3).fit(X, y)
    for label in (0, 1):
        alone = mmdiff.LabelDiffusion(k=8, iterations=3).fit(X, y[:, label])
        np.testing.assert_allclose(model.scores_[:, [2 * label + 1, 2 * label]], alone.scores_, rtol=1e-6)
        np.testing.assert_allclose(model.predict_proba(X)[:, label], alone.predict_proba(X)[:, 1], rtol=1e-5)
        np.testing.assert_array_equal(model.transduction_[:, label], alone.transduction_)
    assert (model.transduction_ == np.column_stack([even, large])).mean() > 0.85
    assert model.predict(X).shape == y.shape
    np.testing.assert_array_equal(
        mmdiff.LabelDiffusion(k=8, iterations=3).fit(X, scipy.sparse.csr_array(y)).scores_, model.scores_
    )
    assert 0.6 < model.score(X, y) <= 1


def test_distances_of_other_libraries_give_the_same_graph() -> None:
    X, _, y = digits()
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    expected = mmdiff.LabelDiffusion(k=9, edge_weights="gaussian", sigma=0.5).fit(X, y)
    theirs = KNeighborsTransformer(n_neighbors=8).fit(unit)
    distances = theirs.transform(unit)
    model = mmdiff.LabelDiffusion(k=9, metric="precomputed", edge_weights="gaussian", sigma=0.5).fit(distances, y)
    np.testing.assert_allclose(model.scores_, expected.scores_, rtol=1e-3, atol=1e-7)
    # Of a longer list the nearest k count, and a dense matrix has all distances.
    dense = np.linalg.norm(unit[:, None].astype(np.float64) - unit[None], axis=2)
    for given in (dense, KNeighborsTransformer(n_neighbors=20).fit_transform(unit)):
        other = mmdiff.LabelDiffusion(k=9, metric="precomputed").fit(given, y)
        same = mmdiff.LabelDiffusion(k=9).fit(X, y)
        np.testing.assert_allclose(other.scores_, same.scores_, rtol=1e-5, atol=1e-9)
        np.testing.assert_array_equal(other.predict(given[:50]), same.predict(X[:50]))


@pytest.mark.parametrize("itself", [True, False])
def test_the_nearest_entries_are_those_of_a_sorted_row(itself: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    distances = draw.integers(0, 4, size=(9, 9)).astype(np.float64)
    rows, columns = np.nonzero(draw.random((9, 9)) < 0.4)
    # Entries in any order, zeros among them, and one that is stored twice.
    order = np.append(draw.permutation(len(rows)), 0)
    rows, columns = rows[order], columns[order]
    starts = np.searchsorted(np.sort(rows), np.arange(10))
    by_row = np.argsort(rows, kind="stable")
    sparse = scipy.sparse.csr_array((distances[rows, columns][by_row], columns[by_row], starts), (9, 9))
    monkeypatch.setattr("mmdiff.estimators.precomputed._BLOCK_ROWS", 2)
    monkeypatch.setattr("mmdiff.estimators.precomputed._BLOCK_VALUES", 20)
    stored = np.zeros((9, 9), bool)
    stored[rows, columns] = True
    for matrix, there in ((distances, np.ones((9, 9), bool)), (sparse, stored)):
        numbers, found = nearest_of(matrix, 4, itself)
        for row in range(9):
            entries = [(distances[row, column], column) for column in range(9) if there[row, column]]
            if itself:
                entries = [(-1, row), *(entry for entry in entries if entry[1] != row)]
            nearest = sorted(entries)[:4]
            padding = 4 - len(nearest)
            assert numbers[row].tolist() == [column for _, column in nearest] + [-1] * padding
            assert found[row].tolist() == [max(0, distance) for distance, _ in nearest] + [np.inf] * padding


def test_affinities_and_graphs_are_used_as_they_are() -> None:
    X, _, y = digits()
    graph = mmdiff.knn_graph(X, k=8)
    expected = mmdiff.diffuse(graph, y)
    affinities = graph.to_scipy(normalized=False)
    for given in (graph, affinities, affinities.toarray()):
        model = mmdiff.LabelDiffusion(metric="precomputed_affinity").fit(given, y)
        np.testing.assert_allclose(model.scores_, expected.scores, rtol=1e-5, atol=1e-9)
    weights = affinities[:20]
    found = weights @ model.scores_
    np.testing.assert_allclose(model.predict_proba(weights), found / found.sum(axis=1, keepdims=True), rtol=1e-5)


def test_pipelines_and_searches_run_and_leave_unknown_labels_out() -> None:
    X, truth, _ = digits()
    y = np.where(np.arange(ROWS) % 3 == 0, -1, truth)
    search = GridSearchCV(make_pipeline(StandardScaler(), mmdiff.LabelDiffusion()), {"labeldiffusion__k": [1, 8]}, cv=3)
    search.fit(X + 1e-3, y)
    # With one neighbour, each row is its own, and no label moves.
    assert search.best_params_ == {"labeldiffusion__k": 8}
    assert search.best_score_ > 0.8
    distances = mmdiff.KNNTransformer(n_neighbors=20).fit_transform(X)
    assert cross_val_score(mmdiff.LabelDiffusion(k=8, metric="precomputed"), distances, y, cv=3).min() > 0.8
    names = np.array([f"digit {label}" for label in truth], object)
    assert cross_val_score(mmdiff.LabelDiffusion(k=8), X, names, cv=3, scoring="f1_macro").min() > 0.8


def test_a_search_in_a_store_finds_the_graphs_it_has_made(tmp_path: Path) -> None:
    X, truth, y = digits()
    model = mmdiff.LabelDiffusion(k=8, store=tmp_path / "store")
    GridSearchCV(model, {"iterations": [1, 3]}, cv=2).fit(X, truth)
    # Two folds and all rows: three graphs, of which one has a name.
    unnamed = mmdiff.open(tmp_path / "store").inspect()["unnamed"]
    again = clone(model).fit(X, truth)
    assert mmdiff.open(tmp_path / "store").inspect()["unnamed"] == unnamed
    in_memory = clone(model).set_params(store=None).fit(X, y)
    assert again.set_params(iterations=5).fit(X, y).scores_.tobytes() == in_memory.scores_.tobytes()
    np.testing.assert_array_equal(again.predict_proba(X), in_memory.predict_proba(X))


def test_large_rows_stay_in_a_temporary_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    X, _, y = digits()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    expected = mmdiff.LabelDiffusion(k=8).fit(X, y)
    monkeypatch.setattr("mmdiff.sklearn_fitting.HELD_SHARE", 0)
    model = mmdiff.LabelDiffusion(k=8).fit(X, y)
    assert list(tmp_path.glob("mmdiff-*/store"))
    assert model.scores_.tobytes() == expected.scores_.tobytes()
    copied = copy.deepcopy(model)
    np.testing.assert_array_equal(model.predict_proba(X), expected.predict_proba(X))
    del model
    assert not list(tmp_path.glob("mmdiff-*"))
    np.testing.assert_array_equal(copied.predict_proba(X), expected.predict_proba(X))


def test_wide_rows_are_reduced_even_where_they_are_few() -> None:
    X = np.random.default_rng(0).normal(size=(40, 300)) + 10 * np.eye(300)[np.arange(40) % 2]
    model = mmdiff.LabelDiffusion(k=5).fit(X, np.where(np.arange(40) < 10, np.arange(40) % 2, -1))
    assert (model.predict(X) == np.arange(40) % 2).mean() > 0.9


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.uint8, np.int64])
def test_types_of_rows_change_nothing_that_they_can_hold(dtype: Any) -> None:
    X, _, y = digits()
    expected = mmdiff.LabelDiffusion(k=5).fit(X, y)
    model = mmdiff.LabelDiffusion(k=5).fit(X.astype(dtype), y)
    np.testing.assert_array_equal(model.scores_, expected.scores_)
    np.testing.assert_array_equal(model.predict(X.astype(dtype)), expected.predict(X))


def test_what_cannot_be_fitted_is_refused(tmp_path: Path) -> None:
    X, truth, y = digits()
    distances = scipy.sparse.csr_array(np.ones((3, 3)))
    mmdiff.open(tmp_path / "store", create=True).add(X, role="seeds", labels=truth, no_background=True)
    mmdiff.open(tmp_path / "rows", create=True).add(X)
    for parameters, rows, labels, message in (
        ({}, X, np.full(ROWS, -1), "no row has a label"),
        ({}, X, y[:-1], "299 labels for 300 rows"),
        ({}, X, ["cat", 3, *[None] * (ROWS - 2)], "found 3 among class names"),
        ({}, X, np.full((ROWS, 2), 3), "row 0, column 0"),
        ({}, X, np.full((ROWS, 2), -1), "no row has a label"),
        ({}, X, np.zeros((ROWS, 2, 2)), "shape (300, 2, 2)"),
        ({}, np.eye(3)[[0, 1, 2, 2]] * [[1], [1], [1], [0]], [0, 1, 1, 1], "X, row 3: all 3 values are zero"),
        ({"k": 0}, X, y, "k=0"),
        ({"metric": "cosin"}, X, y, "Did you mean cosine?"),
        ({"eta": "colum"}, X, y, "eta='colum'"),
        ({"store": tmp_path / "store"}, X, y, "descriptors/seeds in this store is no estimator's"),
        ({"store": tmp_path / "rows"}, X, y, "descriptors/background in this store is no estimator's"),
        ({"metric": "precomputed"}, distances[:2], [0, 1], "2 x 3, not square"),
        ({"metric": "precomputed", "store": "folder"}, distances, [0, 1, 1], "store does not go with"),
        ({"metric": "precomputed"}, -distances, [0, 1, 1], "a distance of -1"),
        ({"metric": "precomputed_affinity"}, -distances, [0, 1, 1], "an affinity of -1"),
        ({"metric": "precomputed_affinity", "edge_weights": "gaussian", "sigma": 1}, distances, [0, 1, 1], "needs distances"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            mmdiff.LabelDiffusion(**parameters).fit(rows, labels)
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        mmdiff.LabelDiffusion().fit(scipy.sparse.csr_array(X), y)
    with pytest.raises(InputError, match="no row has a label"):
        mmdiff.LabelDiffusion(k=5).fit(X, y).score(X[:2], [-1, -1])


def test_without_scikit_learn_the_error_says_how_to_install_it() -> None:
    script = """
import sys
sys.modules["sklearn"] = None
import mmdiff
try:
    mmdiff.LabelDiffusion
except ImportError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    expected = "mmdiff.sklearn needs scikit-learn, which is not installed. Run: pip install 'mmdiff[sklearn]'\n"
    assert found == expected

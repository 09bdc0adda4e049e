"""`KNNTransformer`: the sparse graph that scikit-learn's estimators take."""

from __future__ import annotations

import pickle  # noqa: TID251
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.cluster import DBSCAN, HDBSCAN, SpectralClustering
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier, KNeighborsTransformer, sort_graph_by_row_values
from sklearn.pipeline import Pipeline, make_pipeline

import mmdiff
from mmdiff.errors import InputError


def digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    X, y = load_digits(return_X_y=True)
    return X[:300] / np.linalg.norm(X[:300], axis=1, keepdims=True), y[:300]


def test_the_graph_is_that_of_scikit_learn() -> None:
    X, _ = digits()
    own, theirs = mmdiff.KNNTransformer(n_neighbors=7).fit(X[:200]), KNeighborsTransformer(n_neighbors=7).fit(X[:200])
    for ours, expected in (
        (mmdiff.KNNTransformer(n_neighbors=7).fit_transform(X[:200]), theirs.transform(X[:200])),
        (own.transform(X[200:]), theirs.transform(X[200:])),
    ):
        assert type(ours) is type(expected)
        np.testing.assert_array_equal(ours.indptr, expected.indptr)
        np.testing.assert_array_equal(ours.indices, expected.indices)
        np.testing.assert_allclose(ours.data, expected.data, atol=1e-6)
        # It is sorted as it comes: scikit-learn would warn otherwise.
        assert sort_graph_by_row_values(ours, warn_when_not_sorted=True) is ours
    assert own.get_feature_names_out()[[0, -1]].tolist() == ["knntransformer0", "knntransformer199"]


def test_equal_rows_are_at_distance_zero_and_each_row_comes_first() -> None:
    X = np.repeat(np.random.default_rng(0).normal(size=(5, 3)), 4, axis=0)
    graph = mmdiff.KNNTransformer(n_neighbors=2).fit_transform(X)
    np.testing.assert_array_equal(graph.indices[graph.indptr[:-1]], np.arange(20))
    assert (graph.data == 0).all()
    assert graph.nnz == 60
    assert mmdiff.KNNTransformer(n_neighbors=50).fit_transform(X).nnz == 400


def test_estimators_with_precomputed_distances_follow_it_in_a_pipeline(tmp_path: Path) -> None:
    X, y = digits()
    nearest = make_pipeline(mmdiff.KNNTransformer(n_neighbors=10), KNeighborsClassifier(n_neighbors=5, metric="precomputed"))
    expected = KNeighborsClassifier(n_neighbors=5).fit(X[:200], y[:200]).predict(X[200:])
    np.testing.assert_array_equal(nearest.fit(X[:200], y[:200]).predict(X[200:]), expected)
    clusters = make_pipeline(mmdiff.KNNTransformer(n_neighbors=20), DBSCAN(eps=0.3, metric="precomputed")).fit_predict(X)
    assert len(np.unique(clusters)) > 5
    # It warns where entries are not sorted by distance any more.
    spectral = SpectralClustering(10, affinity="precomputed_nearest_neighbors", n_neighbors=20, random_state=0)
    assert len(np.unique(make_pipeline(mmdiff.KNNTransformer(n_neighbors=20), spectral).fit_predict(X))) == 10
    graph = mmdiff.KNNTransformer(n_neighbors=30).fit_transform(X)
    dense = HDBSCAN(metric="precomputed", min_samples=5, copy=True).fit(graph.maximum(graph.T))
    assert len(np.unique(dense.labels_)) > 5
    steps = [("graph", mmdiff.KNNTransformer(n_neighbors=20)), ("diffusion", mmdiff.LabelDiffusion(metric="precomputed"))]
    search = GridSearchCV(
        Pipeline(steps, memory=str(tmp_path)), {"diffusion__k": [5, 10], "diffusion__iterations": [3, 5]}, cv=2
    )
    assert search.fit(X, y).best_score_ > 0.9
    alone = mmdiff.LabelDiffusion(k=10, iterations=3).fit(X[:200], y[:200]).predict(X[200:])
    pipeline = Pipeline(steps).set_params(diffusion__k=10, diffusion__iterations=3).fit(X[:200], y[:200])
    np.testing.assert_array_equal(pipeline.predict(X[200:]), alone)


def test_a_copy_in_another_process_needs_no_store(tmp_path: Path) -> None:
    X, _ = digits()
    fitted = mmdiff.KNNTransformer(n_neighbors=5, store=tmp_path / "store").fit(X)
    expected = fitted.transform(X[:10]).toarray()
    copied = pickle.dumps(fitted)
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    np.testing.assert_array_equal(pickle.loads(copied).transform(X[:10]).toarray(), expected)  # noqa: S301


def test_what_cannot_be_searched_is_refused() -> None:
    with pytest.raises(InputError, match="n_neighbors=0"):
        mmdiff.KNNTransformer(n_neighbors=0).fit(np.eye(3))
    fitted = mmdiff.KNNTransformer(n_neighbors=1).fit(np.eye(3))
    with pytest.raises(InputError, match="X, row 1: all 3 values are zero"):
        fitted.transform(np.array([[1, 0, 0], [0, 0, 0]]))

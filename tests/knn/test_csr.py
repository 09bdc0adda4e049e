"""Lists of neighbours become the matrix that scikit-learn makes of the same rows."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from mmdiff.kernels.constants import NONE
from mmdiff.knn.csr import csr_of_lists, distances_of, entries_of_lists

Rows = NDArray[np.float32]


def unit_rows(rows: int, seed: int = 0) -> Rows:
    drawn = np.random.default_rng(seed).normal(size=(rows, 6))
    unit: Rows = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
    return unit


def lists_of(X: Rows, k: int) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    """The nearest rows by inner product, each row itself among them, and their distances."""
    similarities = X @ X.T
    neighbors = np.argsort(-similarities, axis=1, kind="stable")[:, :k].astype(np.uint32)
    return neighbors, distances_of(np.take_along_axis(similarities, neighbors, axis=1))


@pytest.mark.parametrize("itself", [True, None])
def test_the_matrix_is_that_of_the_transformer_of_scikit_learn(itself: bool | None) -> None:
    sklearn = pytest.importorskip("sklearn.neighbors", reason="scikit-learn is not installed")
    X = unit_rows(50)
    expected = sklearn.KNeighborsTransformer(mode="distance", n_neighbors=6, algorithm="brute").fit_transform(X)
    matrix = csr_of_lists(*lists_of(X, 7), itself=itself)
    assert matrix.shape == expected.shape
    np.testing.assert_array_equal(matrix.indptr, expected.indptr)
    np.testing.assert_array_equal(matrix.indices, expected.indices)
    np.testing.assert_allclose(matrix.data, expected.data, atol=1e-3)
    if itself:
        assert (matrix.data[::7] == 0).all()


def test_a_row_among_equal_ones_is_in_its_own_list_or_in_none() -> None:
    X = np.repeat(unit_rows(2), 5, axis=0)
    neighbors = np.array([[0, 1, 2]] * 5 + [[5, 6, 7]] * 5, np.uint32)
    distances = np.linalg.norm(X[neighbors] - X[:, None], axis=2)
    with_it, without = (csr_of_lists(neighbors, distances, itself=itself) for itself in (True, False))
    assert (with_it.indices.reshape(10, 3)[:, 0] == np.arange(10)).all()
    assert with_it.indices.reshape(10, 3)[4].tolist() == [4, 0, 1]
    assert (np.diff(without.indptr) == 2).all()
    assert not (without.indices.reshape(10, 2) == np.arange(10)[:, None]).any()


def test_rows_are_sorted_and_missing_neighbours_are_left_out() -> None:
    neighbors = np.array([[3, NONE, 1], [NONE, NONE, NONE], [2, 0, 4]], np.uint32)
    distances = np.array([[0.5, 0, 0.25], [0, 0, 0], [0.125, 1, 0.5]], np.float32)
    matrix = csr_of_lists(neighbors, distances, columns=5)
    assert (matrix.indptr.tolist(), matrix.shape) == ([0, 2, 2, 5], (3, 5))
    assert matrix.indices.tolist() == [1, 3, 2, 4, 0]
    assert matrix.data.tolist() == [0.25, 0.5, 0.125, 0.5, 1]
    assert (matrix.data.dtype, matrix.indices.dtype) == (np.float32, np.int32)
    signed = np.where(neighbors == NONE, -1, neighbors.astype(np.int64))
    assert (csr_of_lists(signed, distances, columns=5) != matrix).nnz == 0


@pytest.mark.parametrize("itself", [None, True, False])
def test_blocks_of_rows_give_the_entries_of_the_whole(itself: bool | None) -> None:
    neighbors, distances = lists_of(unit_rows(20), 4)
    whole = entries_of_lists(neighbors, distances, itself)
    parts = [entries_of_lists(neighbors[i : i + 7], distances[i : i + 7], itself, i) for i in range(0, 20, 7)]
    for values, pieces in zip(whole, zip(*parts, strict=True), strict=True):
        np.testing.assert_array_equal(values, np.concatenate(pieces))


def test_no_rows_and_no_neighbours_give_an_empty_matrix() -> None:
    for shape in ((0, 3), (4, 0)):
        matrix = csr_of_lists(np.empty(shape, np.uint32), np.empty(shape, np.float32), itself=True)
        assert (matrix.shape, matrix.nnz) == ((shape[0], shape[0]), 0)

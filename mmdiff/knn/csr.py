"""Neighbour lists as the sparse matrix of distances that scikit-learn's `KNeighborsTransformer` makes.

Rows are points, columns are what they were searched among, and entries are Euclidean distances, not squared, increasing within
a row. Other libraries take the same matrix: UMAP, HDBSCAN and cleanlab, and every estimator with a precomputed metric.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmdiff.kernels.constants import NONE

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


class Entries(NamedTuple):
    """Rows of a sparse matrix: how many entries each has, and their columns and values, row after row."""

    counts: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: NDArray[Any]


def csr_of_lists(
    neighbors: NDArray[Any], distances: NDArray[Any], columns: int | None = None, itself: bool | None = None
) -> csr_matrix:
    """The lists of neighbours as a `scipy.sparse.csr_matrix`, each row by increasing distance.

    `neighbors` are (rows, k) numbers, -1 or 4294967295 where there are fewer, and `distances` are theirs. `columns` is the
    width of the matrix, by default the number of rows. With `itself` True, each row begins with the row itself at distance 0,
    as in `KNeighborsTransformer(mode="distance").fit_transform`; False leaves it out; None takes the lists as they are.
    """
    from scipy.sparse import csr_matrix

    entries = entries_of_lists(neighbors, distances, itself)
    shape = (len(neighbors), len(neighbors) if columns is None else columns)
    indptr = np.zeros(len(neighbors) + 1, np.int64)
    np.cumsum(entries.counts, out=indptr[1:])
    index = index_type(len(entries.columns), max(shape))
    return csr_matrix((entries.values, entries.columns.astype(index), indptr.astype(index)), shape=shape)


def entries_of_lists(neighbors: NDArray[Any], distances: NDArray[Any], itself: bool | None = None, first: int = 0) -> Entries:
    """The entries of some rows, of which the first has the number `first`."""
    numbers, values = sorted_lists(neighbors, distances, itself, first)
    given = numbers >= 0
    return Entries(given.sum(axis=1), numbers[given], values[given])


def sorted_lists(
    neighbors: NDArray[Any], distances: NDArray[Any], itself: bool | None = None, first: int = 0
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Lists by increasing distance, and the distances; -1 behind them where there are fewer.

    `first` is the number of the first row. Where `itself` is given, every list has the same length if the lists given have: a
    row that is not in its own list, because others are equal to it, takes the place of the last, or the last is left out.
    """
    numbers, values = neighbors.astype(np.int64), np.array(distances)
    numbers[(neighbors == NONE) | (numbers < 0)] = -1
    if itself is not None and numbers.shape[1]:
        own = (first + np.arange(len(numbers)))[:, None]
        place = np.where((found := numbers == own).any(axis=1), found.argmax(axis=1), numbers.shape[1] - 1)[:, None]
        np.put_along_axis(numbers, place, own if itself else -1, axis=1)
        np.put_along_axis(values, place, 0, axis=1)
    keys = np.where(numbers < 0, np.inf, values)
    if itself:
        keys[numbers == (first + np.arange(len(numbers)))[:, None]] = -1
    # Lists that are found by search are in order already.
    if (keys[:, 1:] >= keys[:, :-1]).all():
        return numbers, values
    order = np.argsort(keys, axis=1, kind="stable")
    return np.take_along_axis(numbers, order, axis=1), np.take_along_axis(values, order, axis=1)


def distances_of(similarities: NDArray[Any]) -> NDArray[np.float32]:
    """Euclidean distances of rows of unit length, of their inner products: sqrt(2 - 2 s), as float32."""
    return np.sqrt(np.maximum(2 - 2 * similarities.astype(np.float64), 0)).astype(np.float32)


def index_type(entries: int, width: int) -> type[np.int32 | np.int64]:
    """The type that scipy gives the indices of a matrix: int32 where it can hold them."""
    return np.int32 if max(entries, width) <= np.iinfo(np.int32).max else np.int64

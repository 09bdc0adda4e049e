"""Graphs that are given to an estimator instead of rows: distances of neighbours, or affinities.

Distances are what scikit-learn's neighbours with `metric="precomputed"` take: a sparse matrix whose stored entries, zeros too,
are the distances of neighbours, or a dense matrix of all distances.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import InputError
from mmdiff.graph.graph import CsrGraph
from mmdiff.graph.in_memory import graph_of
from mmdiff.graph.lists import MOST_NODES
from mmdiff.graph.weights import Weighting
from mmdiff.kernels.constants import NONE

Nearest = tuple[NDArray[np.int64], NDArray[Any]]
"""The columns of the nearest entries of each row, -1 where there are fewer, and their distances."""

# Entries of a dense matrix, and rows of a sparse one, that are sorted at a time.
_BLOCK_VALUES, _BLOCK_ROWS = 1 << 24, 1 << 16


def nearest_of(matrix: Any, k: int, itself: bool) -> Nearest:
    """The k nearest entries of each row of a matrix of distances, by distance, then by column.

    With `itself`, the row itself is the first of them, at distance 0, whether it is stored or not.
    """
    numbers, distances = np.full((matrix.shape[0], k), -1, np.int64), np.full((matrix.shape[0], k), np.inf)
    stored = hasattr(matrix, "tocsr")
    find, step = (_nearest_stored, _BLOCK_ROWS) if stored else (_nearest, max(1, _BLOCK_VALUES // matrix.shape[1]))
    for start in range(0, len(numbers), step):
        rows = slice(start, min(start + step, len(numbers)))
        find(matrix[rows], start, itself, numbers[rows], distances[rows])
    return numbers, distances


def _nearest(block: NDArray[Any], first: int, itself: bool, numbers: NDArray[np.int64], distances: NDArray[np.float64]) -> None:
    """Writes the nearest entries of some rows of a dense matrix, of which the first has the number `first`."""
    rows, values = np.arange(len(block)), np.array(block, np.float64)
    bad = ~np.isfinite(values) | (values < 0)
    if bad.any():
        row, column = np.argwhere(bad)[0].tolist()
        _refuse(first + row, column, values[row, column])
    if itself:
        values[rows, first + rows] = -1
    order = np.argsort(values, axis=1, kind="stable")[:, : numbers.shape[1]]
    numbers[:, : order.shape[1]] = order
    distances[:, : order.shape[1]] = np.maximum(np.take_along_axis(values, order, axis=1), 0)


def _nearest_stored(block: Any, first: int, itself: bool, numbers: NDArray[np.int64], distances: NDArray[np.float64]) -> None:
    """The same of a sparse matrix, of which the stored entries count."""
    own = block.tocsr()
    row = np.repeat(np.arange(own.shape[0]), np.diff(own.indptr))
    column, distance = own.indices.astype(np.int64), own.data.astype(np.float64)
    bad = ~np.isfinite(distance) | (distance < 0)
    if bad.any():
        at = int(bad.argmax())
        _refuse(first + int(row[at]), int(column[at]), float(distance[at]))
    if itself:
        rows, others = np.arange(own.shape[0]), column != first + row
        row, column = np.append(rows, row[others]), np.append(first + rows, column[others])
        # Before entries of distance 0.
        distance = np.append(np.full(len(rows), -1.0), distance[others])
    order = np.lexsort((column, distance, row))
    # Of an entry that is stored several times, the nearest counts.
    order = order[np.sort(np.unique(row[order] * own.shape[1] + column[order], return_index=True)[1])]
    row, column, distance = row[order], column[order], np.maximum(distance[order], 0)
    place = np.arange(len(row)) - np.searchsorted(row, row)
    kept = place < numbers.shape[1]
    numbers[row[kept], place[kept]], distances[row[kept], place[kept]] = column[kept], distance[kept]


def _refuse(row: int, column: int, distance: float) -> None:
    why = "Negative values in data are no distances" if distance < 0 else "Distances are finite"
    raise InputError(f"X, row {row}, column {column}: a distance of {distance:g}. {why}: correct the entry.")


def graph_of_distances(matrix: Any, k: int, weighting: Weighting | None) -> CsrGraph:
    """The graph of the k nearest entries of each row, the row itself among them."""
    refuse_shape(matrix)
    numbers, distances = nearest_of(matrix, k, itself=True)
    # The similarity of rows of unit length at this distance.
    similarities = (1 - np.minimum(distances, np.finfo(np.float32).max) ** 2 / 2).astype(np.float32)
    return graph_of(np.where(numbers < 0, np.int64(NONE), numbers).astype(np.uint32), similarities, weighting)


def refuse_shape(matrix: Any) -> None:
    """Refuses a graph that is not square."""
    if matrix.shape[0] != matrix.shape[1]:
        shape = " x ".join(map(str, matrix.shape))
        raise InputError(f"X: a graph of {shape}, not square. Give a row and a column for each row of the data.")
    if matrix.shape[0] > MOST_NODES:
        raise InputError(f"X: a graph of {matrix.shape[0]:,} rows. A graph has at most {MOST_NODES:,}.")


def affinities_of(matrix: Any) -> Any:
    """A matrix of affinities in CSR form, dense or sparse as it is given; refused where one is negative or not finite."""
    from scipy.sparse import csr_array

    own = csr_array(matrix).astype(np.float64)
    bad = ~np.isfinite(own.data) | (own.data < 0)
    if bad.any():
        row = int(np.searchsorted(own.indptr, int(bad.argmax()), "right")) - 1
        value = own.data[bad.argmax()]
        raise InputError(f"X, row {row}: an affinity of {value:g}. Affinities are finite and not negative: correct the entry.")
    return own

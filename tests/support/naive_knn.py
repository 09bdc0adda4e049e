"""Naive twins of the searches: all pairs, in float64, without regard to speed or memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from mmdiff.kernels.constants import NONE


def naive_similarities(queries: NDArray[Any], vectors: NDArray[Any]) -> NDArray[np.float32]:
    return (queries.astype(np.float64) @ vectors.astype(np.float64).T).astype(np.float32)


def naive_neighbors(queries: NDArray[Any], vectors: NDArray[Any], k: int) -> NDArray[np.uint32]:
    """The k nearest vectors of each query by decreasing similarity, then by id; NONE where there are fewer than k."""
    scores = naive_similarities(queries, vectors)
    ids = np.broadcast_to(np.arange(len(vectors)), scores.shape)
    order = np.lexsort((ids, -scores), axis=1)[:, :k].astype(np.uint32)
    return np.pad(order, ((0, 0), (0, max(0, k - len(vectors)))), constant_values=NONE)


def naive_refine(queries: NDArray[Any], vectors: NDArray[Any], own: NDArray[Any], lists: NDArray[Any]) -> NDArray[np.uint32]:
    """The best of each query's neighbours and of their neighbours."""
    k = own.shape[1]
    rows = []
    for query, mine in zip(queries, own, strict=True):
        near = mine[mine != NONE]
        candidates = np.setdiff1d(np.union1d(near, lists[near]), [NONE]).astype(np.int64)
        best = naive_neighbors(query[None], vectors[candidates], k)[0]
        rows.append([candidates[place] if place != NONE else NONE for place in best])
    return np.array(rows, np.uint32).reshape(len(queries), k)


def naive_pieces(cells: NDArray[Any], rows: int, largest: int) -> NDArray[np.int64]:
    """Cells of more than `largest` rows cut into pieces of `rows`, with consecutive numbers."""
    seen = [int(np.sum(cells[:row] == cell)) for row, cell in enumerate(cells)]
    sizes = np.bincount(cells)
    keys = [(cell, before // rows if sizes[cell] > largest else 0) for cell, before in zip(cells, seen, strict=True)]
    numbers = {key: number for number, key in enumerate(sorted(set(keys)))}
    return np.array([numbers[key] for key in keys])


def naive_W(vectors: NDArray[Any], k: int) -> scipy.sparse.csr_array:
    """D^-1 (W0 + W0^T) of all nodes at once."""
    neighbors = naive_neighbors(vectors, vectors, k)
    rows, columns = np.repeat(np.arange(len(vectors)), k), neighbors.reshape(-1)
    given = columns != NONE
    W0 = scipy.sparse.csr_array((np.ones(given.sum()), (rows[given], columns[given])), shape=(len(vectors),) * 2)
    both = W0 + W0.T
    W = (scipy.sparse.diags_array(1 / both.sum(axis=1)) @ both).tocsr()
    W.sort_indices()
    return W

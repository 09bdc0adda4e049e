"""Graphs in memory, from a sparse matrix of the user or from lists of neighbours (paper, section 3.2).

A matrix is checked, symmetrised, and stored without values where they are all 1 or 2. Lists are symmetrised by the kernels of
the external transpose, for experiments that make many small graphs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import InputError
from mmdiff.graph import transpose, union
from mmdiff.graph.graph import CsrGraph
from mmdiff.graph.lists import MOST_NODES
from mmdiff.graph.union import LEAST_SUM, Incoming, MergedRows, Outgoing
from mmdiff.graph.weights import Weighting
from mmdiff.kernels.constants import RECIPROCAL_SHIFT

_MOST_WEIGHT = float(np.finfo(np.float32).max)


def symmetric_graph(matrix: Any, name: str) -> tuple[CsrGraph, bool]:
    """The graph of a sparse matrix, and whether it was symmetrised as A + A^T. `name` is the matrix's name in messages."""
    import scipy.sparse

    if not scipy.sparse.issparse(matrix):
        raise InputError(f"{name}: a {type(matrix).__name__}, not a sparse matrix. Make it one with scipy.sparse.csr_array.")
    if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(
            f"{name}: {' x '.join(map(str, matrix.shape))}, not square. Give one row and one column for each node."
        )
    if not 1 <= matrix.shape[0] <= MOST_NODES:
        raise InputError(f"{name}: {matrix.shape[0]:,} nodes. A graph has 1 to {MOST_NODES:,}.")
    if matrix.dtype.kind not in "biuf":
        raise InputError(f"{name}: values of type {matrix.dtype}. Convert them to float32.")
    own = scipy.sparse.csr_array(matrix).astype(np.float64)
    _refuse_bad_values(own, name)
    own.sum_duplicates()
    own.eliminate_zeros()
    other = own.T.tocsr()
    symmetric = _alike(own, other)
    if symmetric:
        both, value_free = own, bool(np.isin(own.data, (1, 2)).all())
        reciprocal = own.data == 2 if value_free else np.zeros(own.nnz, bool)
    else:
        both, value_free = own + other, bool((own.data == 1).all())
        reciprocal = (_pattern(own) + _pattern(other)).data == 2
    return _graph(both, reciprocal, value_free, name), not symmetric


def _graph(both: Any, reciprocal: NDArray[np.bool_], value_free: bool, name: str) -> CsrGraph:
    indptr = both.indptr.astype(np.int64)
    filled = np.diff(indptr) > 0
    sums = _sums(both)
    for bad, problem in ((filled & (sums < LEAST_SUM), "too small"), (sums > _MOST_WEIGHT, "too large")):
        if bad.any():
            row = int(bad.argmax())
            raise InputError(
                f"{name}, row {row}: weights that sum to {sums[row]:g}, {problem} for float32. Rescale all weights."
            )
    weights = both.data.astype(np.float32)
    # Rows are normalised by the sum of what is stored.
    both.data = weights.astype(np.float64)
    scale = np.divide(1, _sums(both), out=np.zeros(len(sums)), where=filled).astype(np.float32)
    indices = both.indices.astype(np.uint32) | reciprocal.astype(np.uint32) << RECIPROCAL_SHIFT
    return CsrGraph(indptr, indices, scale, None if value_free else weights)


def _sums(matrix: Any) -> NDArray[np.float64]:
    return np.asarray(matrix.sum(axis=1), np.float64).reshape(-1)


def _refuse_bad_values(matrix: Any, name: str) -> None:
    for bad, problem in (
        (~np.isfinite(matrix.data), "Edges have finite weights"),
        (matrix.data < 0, "Weights are not negative"),
    ):
        if bad.any():
            at = int(bad.argmax())
            row = int(np.searchsorted(matrix.indptr, at, "right")) - 1
            column, value = matrix.indices[at], matrix.data[at]
            raise InputError(f"{name}, row {row}: {value:g} in column {column}. {problem}: correct or remove the entry.")


def _alike(one: Any, other: Any) -> bool:
    other.sort_indices()
    return (
        np.array_equal(one.indptr, other.indptr)
        and np.array_equal(one.indices, other.indices)
        and np.array_equal(one.data, other.data)
    )


def _pattern(matrix: Any) -> Any:
    """The matrix with ones for its entries."""
    ones = matrix.copy()
    ones.data = np.ones(len(ones.data), np.int8)
    return ones


def graph_of(neighbors: NDArray[np.uint32], similarities: NDArray[np.float32], weighting: Weighting | None = None) -> CsrGraph:
    """The graph of lists of neighbours, equal to what `symmetrise` writes into a store; it refuses the same weights."""
    nodes = len(neighbors)
    if weighting is not None:
        weighting.check(neighbors.shape[1])
    weights = None if weighting is None else weighting.of(neighbors, similarities)
    degrees = np.zeros((1, nodes), np.uint32)
    transpose.count(neighbors, 0, nodes, degrees[0])
    edges = int(degrees.sum(dtype=np.int64))
    sources = np.empty(edges, np.uint32)
    source_weights = None if weights is None else np.empty(edges, np.float32)
    cursors = transpose.starts_of(degrees, 0, nodes)
    transpose.gather(neighbors, weights, 0, 0, cursors[0], sources, source_weights)
    merged = MergedRows.empty(nodes, edges + neighbors.size, weights is not None)
    union.merge(Outgoing(neighbors, weights), 0, Incoming(cursors[0], sources, source_weights), merged)
    size = int(merged.ends[-1]) if nodes else 0
    values = None
    if merged.weights is not None and weighting is not None:
        values = merged.weights[:size].copy()
        union.scale_of(merged.ends, values, merged.scale)
        leads, spreads = union.spread(merged._replace(weights=values), 0)
        if leads and not spreads:
            weighting.refuse_isolation()
    return CsrGraph(np.append(np.int64(0), merged.ends), merged.columns[:size].copy(), merged.scale, values)

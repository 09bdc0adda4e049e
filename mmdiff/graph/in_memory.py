"""W = D^-1 (W0 + W0^T) of lists that are in memory, by the kernels of the external transpose: for graphs made by the dozen."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mmdiff.graph import transpose, union
from mmdiff.graph.graph import Graph
from mmdiff.graph.weights import Weighting


def graph_of(neighbors: NDArray[np.uint32], similarities: NDArray[np.float32], weighting: Weighting | None = None) -> Graph:
    """The graph of lists of neighbours, the same as `symmetrise` writes into a store."""
    nodes = len(neighbors)
    weights = None if weighting is None else weighting.of(neighbors, similarities)
    degrees = np.zeros((1, nodes), np.uint32)
    transpose.count(neighbors, 0, nodes, degrees[0])
    edges = int(degrees.sum(dtype=np.int64))
    sources = np.empty(edges, np.uint32)
    source_weights = None if weights is None else np.empty(edges, np.float32)
    cursors = transpose.starts_of(degrees, 0, nodes)
    transpose.gather(neighbors, weights, 0, 0, cursors[0], sources, source_weights)
    columns = np.empty(edges + neighbors.size, np.uint32)
    values = None if weights is None else np.empty(len(columns), np.float32)
    ends, scale = np.empty(nodes, np.int64), np.empty(nodes, np.float32)
    union.merge(neighbors, weights, 0, cursors[0], sources, source_weights, columns, values, ends, scale)
    size = int(ends[-1]) if nodes else 0
    if values is not None:
        values = values[:size].copy()
        union.scale_of(ends, values, scale)
    return Graph(np.append(np.int64(0), ends), columns[:size].copy(), scale, values)

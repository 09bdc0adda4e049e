"""Connected components: labels cannot spread from one to another (paper, section 3.3: diffusion follows edges)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmdiff.graph.graph import COLUMN, Graph
from mmdiff.jit import kernel

# scipy takes a copy of the columns, and values beside them: up to here that is half a gigabyte.
MOST_EDGES_FOR_SCIPY = 1 << 25


@dataclass(frozen=True)
class Components:
    """How many components there are, and how many nodes the largest has."""

    count: int
    largest: int


def components(graph: Graph) -> Components:
    """By scipy where the graph fits in memory, else in one pass over the map."""
    return by_scipy(graph) if graph.edges <= MOST_EDGES_FOR_SCIPY else by_union(graph)


def by_scipy(graph: Graph) -> Components:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    # Of explicit zeros scipy would make no edges, and weights may be zero.
    ones = np.ones(graph.edges, np.float32)
    columns = (graph.indices & COLUMN).astype(np.int32)
    matrix = csr_array((ones, columns, graph.indptr.astype(np.int32)), (graph.nodes, graph.nodes))
    count, labels = connected_components(matrix, directed=False)
    return Components(int(count), int(np.bincount(labels).max()))


def by_union(graph: Graph) -> Components:
    """Union-find with 8 bytes a node, edges read in order."""
    parents = np.arange(graph.nodes, dtype=np.uint32)
    unite(graph.indptr, graph.indices, parents)
    return Components(*sizes(parents))


@kernel
def unite(indptr: NDArray[np.int64], indices: NDArray[np.uint32], parents: NDArray[np.uint32]) -> None:
    """Makes the smallest node of each component its root: parents are never larger than their children."""
    for row in range(len(indptr) - 1):
        a = np.uint32(row)
        for at in range(indptr[row], indptr[row + 1]):
            b = indices[at] & COLUMN
            # The matrix is symmetric: each edge is seen from its larger node.
            if b >= row:
                break
            while parents[a] != a:
                parents[a] = parents[parents[a]]
                a = parents[a]
            while parents[b] != b:
                parents[b] = parents[parents[b]]
                b = parents[b]
            if a < b:
                parents[b] = a
            else:
                parents[a] = b


@kernel
def sizes(parents: NDArray[np.uint32]) -> tuple[int, int]:
    """The number of roots, and the size of the largest component. Roots come before their nodes, so one step is enough."""
    members = np.zeros(len(parents), np.uint32)
    count, largest = 0, 0
    for node in range(len(parents)):
        parents[node] = parents[parents[node]]
        root = parents[node]
        count += root == node
        members[root] += np.uint32(1)
        largest = max(largest, int(members[root]))
    return count, largest

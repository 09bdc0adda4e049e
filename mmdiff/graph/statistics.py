"""Connected components: labels cannot spread from one to another (paper, section 3.3: diffusion follows edges).

What `mmdiff inspect` tells of lists and graphs: degrees, components, and how near neighbours are to each other on disk.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact
from mmdiff.graph.graph import CsrGraph
from mmdiff.inspection.distribution import distribution, distribution_of_counts
from mmdiff.kernels.constants import COLUMN
from mmdiff.kernels.jit import kernel

# scipy takes a copy of the columns, and values beside them: up to here that is half a gigabyte.
MOST_EDGES_FOR_SCIPY = 1 << 25


@dataclass(frozen=True)
class Components:
    """How many components there are, and how many nodes the largest has."""

    count: int
    largest: int


def components(graph: CsrGraph) -> Components:
    """By scipy where the graph fits in memory, else in one pass over the map."""
    return by_scipy(graph) if graph.edges <= MOST_EDGES_FOR_SCIPY else by_union(graph)


def by_scipy(graph: CsrGraph) -> Components:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    # Of explicit zeros scipy would make no edges, and weights may be zero.
    ones = np.ones(graph.edges, np.float32)
    columns = (graph.indices & COLUMN).astype(np.int32)
    matrix = csr_array((ones, columns, graph.indptr.astype(np.int32)), (graph.nodes, graph.nodes))
    count, labels = connected_components(matrix, directed=False)
    return Components(int(count), int(np.bincount(labels).max()))


def by_union(graph: CsrGraph) -> Components:
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


# Statistics of values are taken on this many rows, spread evenly: enough for every digit that is shown.
_SAMPLE_ROWS = 1 << 16
_NEAR_ROWS = 1000


def what_graph(artifact: Artifact) -> str:
    facts = artifact.manifest.facts
    weights = f", {artifact.spec('weights').dtype} weights" if "weights" in artifact else ""
    return f"{facts['nodes']:,} nodes, {facts['edges']:,} edges{weights}"


def graph_statistics(artifact: Artifact) -> Json:
    """All there is to say of a graph without printing its edges."""
    graph = CsrGraph.from_artifact(artifact)
    if graph.nodes == 0:
        return {}
    found = components(graph)
    statistics: Json = {
        "degree": distribution_of_counts(degree_counts(graph.indptr)),
        "reciprocal": artifact.manifest.facts["reciprocal"],
        "isolated_nodes": isolated(graph.indptr, graph.indices),
        "components": found.count,
        "nodes_of_the_largest": found.largest,
    }
    rows, columns = _sampled_edges(graph)
    if len(rows):
        statistics |= _locality(rows, columns)
        if graph.order is not None and len(graph.order):
            before = _locality(graph.rows_of(rows), graph.rows_of(columns))
            statistics |= {f"{key}_before_cell_order": value for key, value in before.items()}
    return statistics


def what_knn(artifact: Artifact) -> str:
    rows, k = artifact.spec("neighbors").shape
    return f"{k} neighbours of {rows:,} nodes"


def knn_statistics(artifact: Artifact) -> Json:
    """How similar the nearest neighbour is, the next, the middle one and the last."""
    similarities = artifact.array("similarities")
    rows, k = similarities.shape
    sample = similarities[:: max(1, -(-rows // _SAMPLE_ROWS))]
    found = {}
    for rank in sorted({1, min(2, k), max(1, k // 2), k}):
        values = sample[:, rank - 1]
        values = values[np.isfinite(values)]
        if len(values):
            found[f"similarity_of_neighbour_{rank}"] = distribution(values)
    return found


def _sampled_edges(graph: CsrGraph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows and columns of edges of rows that are spread evenly, without the diagonal."""
    sample = np.arange(0, graph.nodes, max(1, -(-graph.nodes // _SAMPLE_ROWS)))
    degrees = graph.degrees(sample)
    rows = np.repeat(sample, degrees)
    starts = np.repeat(graph.indptr[sample] - (np.cumsum(degrees) - degrees), degrees)
    columns = (graph.indices[starts + np.arange(len(rows))] & COLUMN).astype(np.int64)
    return rows[rows != columns], columns[rows != columns]


def _locality(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Json:
    """How far apart the ends of edges are."""
    apart = np.abs(rows - columns)
    return {
        "median_rows_apart": int(np.median(apart)),
        "edges_within_1000_rows": round(float((apart <= _NEAR_ROWS).mean()), 6),
    }


@kernel
def degree_counts(indptr: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many nodes have each degree."""
    most = 0
    for row in range(len(indptr) - 1):
        most = max(most, indptr[row + 1] - indptr[row])
    counts = np.zeros(most + 1, np.int64)
    for row in range(len(indptr) - 1):
        counts[indptr[row + 1] - indptr[row]] += 1
    return counts


@kernel
def isolated(indptr: NDArray[np.int64], indices: NDArray[np.uint32]) -> int:
    """Nodes with no edge but that to themselves."""
    count = 0
    for row in range(len(indptr) - 1):
        degree = indptr[row + 1] - indptr[row]
        count += degree == 0 or (degree == 1 and indices[indptr[row]] & COLUMN == row)
    return count

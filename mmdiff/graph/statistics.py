"""Statistics of graphs and lists for `mmdiff inspect`: degrees, connected components, locality, similarities.

Labels do not spread from one connected component to another (paper, section 3.3).
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
from mmdiff.knn.targets import missed_targets

# scipy copies the columns and needs values: half a gigabyte for this many edges.
MOST_EDGES_FOR_SCIPY = 1 << 25

# Rows, spread evenly, that statistics of values are taken from: enough for every digit that is shown.
_SAMPLE_ROWS = 1 << 16
_NEAR_ROWS = 1000


@dataclass(frozen=True)
class Components:
    """The number of components, and the number of nodes of the largest."""

    count: int
    largest: int


def components(graph: CsrGraph) -> Components:
    """The components of a graph, by scipy where the graph fits in memory, else in one pass over the map."""
    return by_scipy(graph) if graph.edges <= MOST_EDGES_FOR_SCIPY else by_union(graph)


def by_scipy(graph: CsrGraph) -> Components:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    # Weights may be zero, and scipy takes explicit zeros for missing edges.
    ones = np.ones(graph.edges, np.float32)
    columns = (graph.indices & COLUMN).astype(np.int32)
    matrix = csr_array((ones, columns, graph.indptr.astype(np.int32)), (graph.nodes, graph.nodes))
    count, labels = connected_components(matrix, directed=False)
    return Components(int(count), int(np.bincount(labels).max()))


def by_union(graph: CsrGraph) -> Components:
    """The same by union-find: 8 bytes per node, edges read in order."""
    parents = np.arange(graph.nodes, dtype=np.uint32)
    unite(graph.indptr, graph.indices, parents)
    return Components(*sizes(parents))


@kernel
def unite(indptr: NDArray[np.int64], indices: NDArray[np.uint32], parents: NDArray[np.uint32]) -> None:
    """Joins the ends of all edges; the root of a component is its smallest node, so parents come before their children."""
    for row in range(len(indptr) - 1):
        a = np.uint32(row)
        for at in range(indptr[row], indptr[row + 1]):
            b = indices[at] & COLUMN
            # The matrix is symmetric: each edge is processed in the row of its larger node.
            if b >= row:
                break
            a = join(parents, a, b)


@kernel
def join(parents: NDArray[np.uint32], a: np.uint32, b: np.uint32) -> np.uint32:
    """Joins the components of two nodes, and returns the root of both: the smaller one of their roots."""
    while parents[a] != a:
        parents[a] = parents[parents[a]]
        a = parents[a]
    while parents[b] != b:
        parents[b] = parents[parents[b]]
        b = parents[b]
    if a < b:
        parents[b] = a
        return a
    parents[a] = b
    return b


@kernel
def sizes(parents: NDArray[np.uint32]) -> tuple[int, int]:
    """The number of roots, and the size of the largest component. Parents come before their children: one step is enough."""
    members = np.zeros(len(parents), np.uint32)
    count, largest = 0, 0
    for node in range(len(parents)):
        parents[node] = parents[parents[node]]
        root = parents[node]
        count += root == node
        members[root] += np.uint32(1)
        largest = max(largest, int(members[root]))
    return count, largest


def what_graph(artifact: Artifact) -> str:
    facts = artifact.manifest.facts
    weights = f", {artifact.spec('weights').dtype} weights" if "weights" in artifact else ""
    return f"{facts['nodes']:,} nodes, {facts['edges']:,} edges{weights}"


def graph_statistics(artifact: Artifact) -> Json:
    """Degrees, components and locality of a graph."""
    graph = CsrGraph.from_artifact(artifact).checked()
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
    missed = ", recall below the target" if missed_targets(artifact) else ""
    if "rows" not in artifact:
        return f"{k} neighbours of {rows:,} nodes{missed}"
    joined = artifact.facts["nodes"] - artifact.facts["background"]
    return f"{k} neighbours of {joined:,} new nodes, {rows - joined:,} lists of the background changed by them{missed}"


def knn_statistics(artifact: Artifact) -> Json:
    """Distributions of the similarity of the first, second, middle and last neighbour."""
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
    """The rows and columns of the edges of evenly spread rows, without the diagonal."""
    sample = np.arange(0, graph.nodes, max(1, -(-graph.nodes // _SAMPLE_ROWS)))
    degrees = graph.degrees(sample)
    rows = np.repeat(sample, degrees)
    starts = np.repeat(graph.indptr[sample] - (np.cumsum(degrees) - degrees), degrees)
    columns = (graph.indices[starts + np.arange(len(rows))] & COLUMN).astype(np.int64)
    return rows[rows != columns], columns[rows != columns]


def _locality(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Json:
    """The distance between the two ends of edges, in rows."""
    distances = np.abs(rows - columns)
    return {
        "median_rows_apart": int(np.median(distances)),
        "edges_within_1000_rows": round(float((distances <= _NEAR_ROWS).mean()), 6),
    }


@kernel
def degree_counts(indptr: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of nodes of each degree."""
    most = 0
    for row in range(len(indptr) - 1):
        most = max(most, indptr[row + 1] - indptr[row])
    counts = np.zeros(most + 1, np.int64)
    for row in range(len(indptr) - 1):
        counts[indptr[row + 1] - indptr[row]] += 1
    return counts


@kernel
def isolated(indptr: NDArray[np.int64], indices: NDArray[np.uint32]) -> int:
    """The number of nodes without an edge to another node."""
    count = 0
    for row in range(len(indptr) - 1):
        degree = indptr[row + 1] - indptr[row]
        count += degree == 0 or (degree == 1 and indices[indptr[row]] & COLUMN == row)
    return count

"""What `mmdiff inspect` tells of lists and graphs: degrees, components, and how near neighbours are to each other on disk."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mmdiff.distribution import distribution, distribution_of_counts
from mmdiff.formats.manifest import Json
from mmdiff.formats.store import Artifact
from mmdiff.graph.components import components
from mmdiff.graph.graph import COLUMN, Graph
from mmdiff.jit import kernel

# Statistics of values are taken on this many rows, spread evenly: enough for every digit that is shown.
_SAMPLE_ROWS = 1 << 16
_NEAR_ROWS = 1000


def what_graph(artifact: Artifact) -> str:
    facts = artifact.manifest.facts
    weights = f", {artifact.spec('weights').dtype} weights" if "weights" in artifact else ""
    return f"{facts['nodes']:,} nodes, {facts['edges']:,} edges{weights}"


def graph_statistics(artifact: Artifact) -> Json:
    """All there is to say of a graph without printing its edges."""
    graph = Graph.from_artifact(artifact)
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
            before = _locality(_rows_of(graph.order, rows), _rows_of(graph.order, columns))
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


def _sampled_edges(graph: Graph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows and columns of edges of rows that are spread evenly, without the diagonal."""
    sample = np.arange(0, graph.nodes, max(1, -(-graph.nodes // _SAMPLE_ROWS)))
    degrees = graph.degrees(sample)
    rows = np.repeat(sample, degrees)
    starts = np.repeat(graph.indptr[sample] - (np.cumsum(degrees) - degrees), degrees)
    columns = (graph.indices[starts + np.arange(len(rows))] & COLUMN).astype(np.int64)
    return rows[rows != columns], columns[rows != columns]


def _rows_of(order: NDArray[np.uint32], nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which rows of the user's nodes are: background by the order, others as they come."""
    return np.where(nodes < len(order), order[np.minimum(nodes, len(order) - 1)], nodes).astype(np.int64)


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

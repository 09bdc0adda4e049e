"""Arrays of an artifact as exports read them: block by block, every chunk checked, rows in the user's order.

An exported file has no checksums, so a damaged chunk must be found before its values are written.

Graphs and lists of neighbours are stored in cell order (`models/cells`), `knn/W0` as a patch over `knn/BB`. Exports write the
lists of all nodes, the background rows as they were imported, then seeds, then test points; neither graph nor lists are copied
to that end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mmdiff.export.neighbours import UserLists
from mmdiff.formats.store.store import Artifact
from mmdiff.graph.graph import CsrGraph
from mmdiff.kernels.constants import COLUMN

BLOCK_BYTES = 32 << 20

Order = Literal["user", "internal"]
ORDERS: tuple[Order, ...] = ("user", "internal")


def blocks_of_array(artifact: Artifact, name: str) -> Iterator[NDArray[Any]]:
    """All rows of an array in blocks of about BLOCK_BYTES at most; the iterations of scores follow each other."""
    values, spec = artifact[name], artifact.spec(name)
    size = rows_per_block(spec.row_bytes)
    for plane in range(spec.planes):
        for start in range(0, spec.length, size):
            rows = slice(start, start + size)
            yield values[plane, rows] if len(spec.shape) == 3 else values[rows]


def rows_per_block(row_bytes: int) -> int:
    return max(1, BLOCK_BYTES // row_bytes)


@dataclass(frozen=True)
class Selection:
    """The arrays of an artifact that an export writes, and the order of their rows and node numbers."""

    artifact: Artifact
    arrays: Sequence[str]
    order: Order = "user"

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of an exported array."""
        shape = self.artifact.spec(name).shape
        return (self.artifact.facts["nodes"], *shape[1:]) if _is_completed(self.artifact, self.order) else shape


def arrays_of(artifact: Artifact, order: Order) -> list[str]:
    """The arrays that can be exported: lists that are completed need not say of which nodes they are."""
    return [name for name in artifact.manifest.arrays if name != "rows" or not _is_completed(artifact, order)]


def _is_completed(artifact: Artifact, order: Order) -> bool:
    """Whether an artifact is a patch that is exported together with the lists under it."""
    return order == "user" and artifact.manifest.kind == "knn" and "rows" in artifact


def blocks_of(selection: Selection, name: str) -> Iterator[NDArray[Any]]:
    """The values of an array, block by block."""
    artifact, kind = selection.artifact, selection.artifact.manifest.kind
    if selection.order == "user" and kind == "graph" and name != "order":
        return _graph_blocks(checked_graph(selection), name, artifact.spec(name).dtype)
    if selection.order == "user" and kind == "knn":
        lists, rows = UserLists.of(artifact, name == "similarities"), rows_per_block(artifact.spec(name).row_bytes)
        return (block.neighbors if name == "neighbors" else block.similarities for block in lists.blocks(rows))
    return blocks_of_array(artifact, name)


def checked_graph(selection: Selection) -> CsrGraph:
    """The graph of an artifact, every chunk of it checked. Without `order`, its user rows are the internal ones."""
    graph = CsrGraph.from_artifact(selection.artifact).checked()
    return graph if selection.order == "user" else replace(graph, order=None)


def scale_blocks(graph: CsrGraph) -> Iterator[NDArray[np.float32]]:
    """`scale` of the graph in the user's order."""
    for start in range(0, graph.nodes, rows_per_block(4)):
        yield graph.scale[graph.node_of_row[start : start + rows_per_block(4)]]


def offset_blocks(graph: CsrGraph) -> Iterator[NDArray[np.int64]]:
    """`indptr` of the graph in the user's order."""
    before = np.zeros(1, np.int64)
    yield before
    size = rows_per_block(8)
    for start in range(0, graph.nodes, size):
        offsets = before[-1] + np.cumsum(graph.degrees(graph.node_of_row[start : start + size]))
        yield offsets
        before = offsets


def most_edges() -> int:
    """Edges of a block, for which a column, a value and a place in the order of columns are in memory."""
    return max(1, BLOCK_BYTES // 32)


def _graph_blocks(graph: CsrGraph, name: str, dtype: str) -> Iterator[NDArray[Any]]:
    """An array of the graph as it would be stored, were nodes in the user's order."""
    if name == "indptr":
        yield from offset_blocks(graph)
    elif name == "scale":
        yield from scale_blocks(graph)
    elif name == "weights":
        for rows in graph.user_rows(normalized=False, most_edges=most_edges()):
            yield rows.values.astype(dtype)
    else:
        # Without weights, the values say which edges are reciprocal.
        for rows in replace(graph, weights=None).user_rows(normalized=False, most_edges=most_edges()):
            yield np.where(rows.values > 1, rows.columns | ~COLUMN, rows.columns).astype(dtype)

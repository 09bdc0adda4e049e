"""Arrays of an artifact as exports read them: block by block, every chunk checked, rows in the user's order.

An exported file has no checksums, so a damaged chunk must be found before its values are written. Opening an artifact checks
the content of small arrays only; `CheckedArray` checks the rest.

Graphs and lists of neighbours are stored in cell order (`models/cells`). Exports write the background rows as they were
imported, then seeds, then test points; neither graph nor lists are copied to that end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import Corrupt, Parameter, Stale, call
from mmdiff.formats.storage.crc import crc32c
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.store import Artifact
from mmdiff.graph.graph import CsrGraph
from mmdiff.kernels.constants import COLUMN

BLOCK_BYTES = 32 << 20

Order = Literal["user", "internal"]
ORDERS: tuple[Order, ...] = ("user", "internal")


class CheckedArray:
    """A mapped array whose chunks are checked before their rows are returned."""

    def __init__(self, artifact: Artifact, name: str) -> None:
        self.spec = artifact.spec(name)
        self._artifact = artifact
        self._name = name
        self._values = artifact.array(name)
        self._chunks_checked = 0

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start..stop-1 as a view of the map, after those before them."""
        while self._chunks_checked * self.spec.rows_per_chunk < min(stop, self.spec.shape[0]):
            self._check(self._chunks_checked)
            self._chunks_checked += 1
        return self._values[start:stop]

    def all(self) -> NDArray[Any]:
        """The whole array as a view of the map, to be read in any order."""
        for chunk in range(self.spec.chunks):
            self._check(chunk)
        return self._values

    def blocks(self) -> Iterator[NDArray[Any]]:
        """All rows in blocks of about BLOCK_BYTES at most; the iterations of scores follow each other."""
        size = rows_per_block(self.spec.row_bytes)
        for chunk in range(self.spec.chunks):
            rows = self._check(chunk)
            for start in range(0, len(rows), size):
                yield rows[start : start + size]

    def _check(self, chunk: int) -> NDArray[Any]:
        """Raises Corrupt unless a chunk matches its checksum; returns its rows."""
        start, stop = self.spec.rows(chunk)
        plane, first = divmod(start, self.spec.length)
        values = self._values if len(self.spec.shape) < 3 else self._values[plane]
        rows: NDArray[Any] = values[first : first + stop - start]
        padding = bytes(self.spec.chunk_bytes - rows.nbytes)
        if crc32c(padding, crc32c(rows)) != self._artifact.manifest.arrays[self._name].crcs[chunk]:
            raise Corrupt(
                f"{self._artifact.name}, array {self._name}: chunk {self.spec.chunk_file(chunk)} does not match its checksum. "
                f"{self._artifact.remedy}"
            )
        return rows


class CheckedStrings:
    """A column of strings, read front to back."""

    def __init__(self, artifact: Artifact, column: str) -> None:
        self._offsets = CheckedArray(artifact, f"{column}_offsets")
        self._utf8 = CheckedArray(artifact, f"{column}_utf8")

    def rows(self, start: int, stop: int) -> Strings:
        offsets = self._offsets.rows(start, stop + 1)
        first, last = int(offsets[0]), int(offsets[-1])
        return Strings(offsets - first, self._utf8.rows(first, last))


def rows_per_block(row_bytes: int) -> int:
    return max(1, BLOCK_BYTES // row_bytes)


@dataclass(frozen=True)
class Selection:
    """The arrays of an artifact that an export writes, and the order of their rows and node numbers."""

    artifact: Artifact
    arrays: Sequence[str]
    order: Order = "user"


def blocks_of(selection: Selection, name: str) -> Iterator[NDArray[Any]]:
    """The values of an array, block by block."""
    artifact, kind = selection.artifact, selection.artifact.manifest.kind
    if selection.order == "user" and kind == "graph" and name != "order":
        return _graph_blocks(checked_graph(selection), name, artifact.spec(name).dtype)
    if selection.order == "user" and kind == "knn":
        return _list_blocks(artifact, name)
    return CheckedArray(artifact, name).blocks()


def checked_graph(selection: Selection) -> CsrGraph:
    """The graph of an artifact, every chunk of it checked. Without `order`, its user rows are the internal ones."""
    for name in selection.artifact.manifest.arrays:
        CheckedArray(selection.artifact, name).all()
    graph = CsrGraph.from_artifact(selection.artifact)
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


def _list_blocks(artifact: Artifact, name: str) -> Iterator[NDArray[Any]]:
    """Neighbours or similarities, with rows and neighbours as the user counts them."""
    order = _cell_order(artifact)
    array = CheckedArray(artifact, name)
    if order is None:
        yield from array.blocks()
        return
    values = array.all()
    # The rows of test points are in the user's order already.
    rows_are_nodes = artifact.manifest.parameters.get("lists") != "knn/test"
    node_of_row = np.arange(len(values))
    if rows_are_nodes:
        node_of_row[: len(order)] = np.argsort(order)
    size = rows_per_block(array.spec.row_bytes)
    for start in range(0, len(values), size):
        block = values[node_of_row[start : start + size]]
        # NONE is above every node, and stays.
        yield np.where(block < len(order), order[np.minimum(block, len(order) - 1)], block) if name == "neighbors" else block


def _cell_order(artifact: Artifact) -> NDArray[np.uint32] | None:
    """The background row of each node of some lists; None where the store's graph has no background."""
    cells = artifact.manifest.inputs.get("cells")
    if cells is None:
        return None
    store, name, identity = artifact.store, cells["artifact"], cells["object"]
    if store.id(name) == identity:
        found = store.open_artifact(name)
    elif (store.objects / identity).is_dir():
        found = store.open_object(name, identity)
    else:
        raise Stale(
            f"{artifact.name}: its nodes are in the order of a {name} that is no longer in the store. Run first: ",
            call("build_graph"),
            ". Or export it as it is stored, with ",
            Parameter("order", "internal"),
            ".",
        )
    order: NDArray[np.uint32] = CheckedArray(found, "order").all()
    return order if len(order) else None

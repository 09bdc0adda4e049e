"""The graph W = D^-1 (W0 + W0^T) in CSR, without values where weights are constant (paper, section 3.2).

Nodes are in cell order, which is internal. The user's rows are the background in its imported order, then the rows appended to
it, then the seeds, then the test points where these are nodes. `node_of_row`, `rows_of` and `user_rows` convert between them;
`mmdiff.Graph` does so.

The entries of a stored graph, `indices` and `weights`, are mapped and not read when it is opened: `touch_rows` checks them
against their checksums before they are first read, and `bad_row` finds rows that a kernel must not follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import Corrupt, Damaged
from mmdiff.formats.storage.mapping import map_of, touch, touch_all, touch_entries
from mmdiff.formats.store.checks import is_permutation
from mmdiff.formats.store.store import Artifact, Checks, Store
from mmdiff.kernels.constants import COLUMN
from mmdiff.kernels.jit import kernel

NAME = "graph/W"
KIND = "graph"
SCHEMA = 1

# Rows that are checked at a time, by numpy where the graph is opened: the first kernel of a process takes 26 MB.
_CHECKED_ROWS = 1 << 16


class UserRows(NamedTuple):
    """Consecutive rows of W in the user's order: their degrees, and their sorted columns and entries, row after row."""

    degrees: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: NDArray[np.float32]


@dataclass(frozen=True, eq=False, repr=False)
class CsrGraph:
    """W in rows of sorted columns, in the internal order of nodes.

    An entry of W0 + W0^T is `weights[e]`; without weights it is 2 where the top bit of `indices[e]` marks a reciprocal edge,
    else 1. The entry of W is the same times `scale[row]`. With an `order` (cell order), node i of the background is the user's
    row `order[i]`; appended rows, seeds and test points follow the background in either case.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.uint32]
    scale: NDArray[np.float32]
    weights: NDArray[Any] | None = None
    order: NDArray[np.uint32] | None = None

    @classmethod
    def open(cls, store: str | Path, checks: Checks = "touched") -> CsrGraph:
        """The graph of a store, mapped."""
        return cls.from_artifact(Store.open(Path(store)).open_artifact(NAME).checked(checks))

    @classmethod
    def from_artifact(cls, artifact: Artifact) -> CsrGraph:
        """The graph of an artifact, mapped. Offsets, scale and order are checked now, entries when they are touched."""
        indptr, scale = artifact.array("indptr"), artifact.array("scale")
        indices = artifact.mapped("indices")
        weights = artifact.mapped("weights") if "weights" in artifact else None
        fits = len(indptr) == len(scale) + 1 and (weights is None or len(weights) == len(indices))
        if not fits or indptr[0] != 0 or indptr[-1] != len(indices) or _decreases(indptr):
            raise Corrupt(f"{artifact.name}: its arrays do not fit each other. {artifact.remedy}")
        if not _is_finite(scale):
            raise Corrupt(f"{artifact.name}, array scale: values that are negative or not finite. {artifact.remedy}")
        return cls(indptr, indices, scale, weights, order_of(artifact))

    @classmethod
    def from_scipy(cls, matrix: Any) -> CsrGraph:
        """The graph of a square scipy.sparse matrix without negative entries; explicit zeros are no edges.

        A symmetric matrix is taken as W0 + W0^T; any other matrix A is symmetrised as A + A^T (paper, section 3.2). A matrix
        whose values are all 1 (or, if symmetric, 1 and 2) gives a graph without weights.
        """
        from mmdiff.graph.in_memory import symmetric_graph

        return symmetric_graph(matrix, "the matrix")[0]

    @property
    def entries(self) -> list[NDArray[Any]]:
        """The arrays that have a value for each edge."""
        return [self.indices] if self.weights is None else [self.indices, self.weights]

    def touch_rows(self, rows: NDArray[Any] | None = None) -> bool:
        """Checks the chunks of the entries of these rows (all by default) that were not read before.

        Returns whether there were any. Raises Damaged where a chunk does not match its checksum.
        """
        fresh = [values for values in self.entries if (flat := map_of(values)) is not None and flat.unchecked]
        if rows is None or not fresh:
            return sum(touch(values, 0, len(values)) for values in fresh) > 0
        first = rows.astype(np.int64)
        return sum(touch_entries(values, self.indptr[first], self.indptr[first + 1]) for values in fresh) > 0

    def checked(self) -> CsrGraph:
        """The graph itself, with every chunk and every column checked."""
        for values in self.entries:
            touch_all(values)
        for start in range(0, self.nodes, _CHECKED_ROWS):
            self.refuse_bad_rows(np.arange(start, min(start + _CHECKED_ROWS, self.nodes)))
        return self

    def refuse_bad_rows(self, rows: NDArray[np.int64], window: NDArray[np.uint32] | None = None) -> None:
        """Raises Damaged unless kernels can follow these rows: their entries exist, and their columns are nodes.

        A `window` has the entries of these rows as they were read past the page cache.
        """
        indices = self.indices if window is None else window
        row = bad_row(self.indptr, indices, rows, len(indices), self.nodes)
        if row >= 0:
            problem = f"row {row} has entries or columns beyond the {self.nodes:,} nodes and {self.edges:,} edges."
            flat = map_of(self.indices)
            raise Damaged(f"the graph: {problem}") if flat is None else flat.damaged(problem)

    def in_memory(self) -> CsrGraph:
        """A copy that needs no file."""
        self.checked()
        weights, order = (None if values is None else np.array(values) for values in (self.weights, self.order))
        return CsrGraph(np.array(self.indptr), np.array(self.indices), np.array(self.scale), weights, order)

    def to_scipy(self, normalized: bool = True) -> Any:
        """W as a scipy.sparse.csr_array of float32; with `normalized=False`, W0 + W0^T."""
        from scipy.sparse import csr_array

        self.checked()
        index = np.int32 if self.edges <= np.iinfo(np.int32).max else np.int64
        columns = (self.indices & COLUMN).astype(index)
        shape = (self.nodes, self.nodes)
        return csr_array((self.values(0, self.nodes, normalized), columns, self.indptr.astype(index)), shape)

    def values(self, start: int, stop: int, normalized: bool) -> NDArray[np.float32]:
        """The entries of rows start..stop-1."""
        first, last = int(self.indptr[start]), int(self.indptr[stop])
        for values in self.entries:
            touch(values, first, last)
        if self.weights is None:
            values = ((self.indices[first:last] > COLUMN) + np.uint8(1)).astype(np.float32)
        else:
            values = self.weights[first:last].astype(np.float32)
        if normalized:
            values *= np.repeat(self.scale[start:stop], np.diff(self.indptr[start : stop + 1]))
        return values

    @cached_property
    def node_of_row(self) -> NDArray[np.int64]:
        """The node of each of the user's rows."""
        nodes = np.arange(self.nodes)
        if self.order is not None:
            nodes[: len(self.order)] = np.argsort(self.order)
        return nodes

    def rows_of(self, nodes: NDArray[Any]) -> NDArray[np.int64]:
        """The user's rows of some nodes."""
        if self.order is None or not len(self.order):
            return nodes.astype(np.int64)
        return np.where(nodes < len(self.order), self.order[np.minimum(nodes, len(self.order) - 1)], nodes).astype(np.int64)

    def user_rows(self, normalized: bool = True, most_edges: int = 1 << 22) -> Iterator[UserRows]:
        """All rows of W (or of W0 + W0^T) in the user's order, in blocks of about `most_edges` edges, so memory is bounded."""
        degrees = self.degrees(self.node_of_row)
        ends = np.cumsum(degrees)
        start = 0
        while start < self.nodes:
            before = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + most_edges, "right")))
            yield self._user_rows(self.node_of_row[start:stop], degrees[start:stop], normalized)
            start = stop

    def _user_rows(self, nodes: NDArray[np.int64], degrees: NDArray[np.int64], normalized: bool) -> UserRows:
        self.touch_rows(nodes)
        self.refuse_bad_rows(nodes)
        row = np.repeat(np.arange(len(nodes)), degrees)
        entry = np.repeat(self.indptr[nodes] - (np.cumsum(degrees) - degrees), degrees) + np.arange(len(row))
        stored = self.indices[entry]
        columns = self.rows_of(stored & COLUMN)
        if self.weights is None:
            values = ((stored > COLUMN) + np.uint8(1)).astype(np.float32)
        else:
            values = self.weights[entry].astype(np.float32)
        if normalized:
            values *= np.repeat(self.scale[nodes], degrees)
        sorting = np.argsort(row * np.int64(self.nodes) + columns)
        return UserRows(degrees, columns[sorting], values[sorting])

    @property
    def nodes(self) -> int:
        return len(self.scale)

    @property
    def edges(self) -> int:
        """The number of entries of W; an edge between two nodes counts twice."""
        return len(self.indices)

    def degrees(self, rows: NDArray[Any]) -> NDArray[np.int64]:
        """The number of edges of each of these rows."""
        first = rows.astype(np.int64)
        return self.indptr[first + 1] - self.indptr[first]

    def edges_of(self, rows: NDArray[Any] | None) -> int:
        """The number of edges of these rows together; None stands for all rows."""
        return self.edges if rows is None else int(self.degrees(rows).sum())

    def __len__(self) -> int:
        return self.nodes

    def __repr__(self) -> str:
        kind = "value-free" if self.weights is None else f"{self.weights.dtype} weights"
        return f"CsrGraph({self.nodes:,} nodes, {self.edges:,} edges, {kind})"


@kernel
def bad_row(indptr: NDArray[np.int64], indices: NDArray[np.uint32], rows: NDArray[np.int64], edges: int, nodes: int) -> int:
    """The first of these rows whose entries do not exist or whose columns are no nodes; -1 if all can be followed.

    Every kernel indexes with what it finds here, without a check of its own.
    """
    if len(rows) == 0:
        return -1
    consecutive = True
    for i in range(len(rows)):
        row = rows[i]
        if row < 0 or row >= nodes or indptr[row] < 0 or indptr[row] > indptr[row + 1] or indptr[row + 1] > edges:
            return int(row)
        consecutive &= row == rows[0] + i
    # Consecutive rows, by far the most frequent case, in one go: the processor compares many columns at a time.
    if consecutive and _are_nodes(indices[indptr[rows[0]] : indptr[rows[-1] + 1]], nodes):
        return -1
    for row in rows:
        if not _are_nodes(indices[indptr[row] : indptr[row + 1]], nodes):
            return int(row)
    return -1


@kernel
def _are_nodes(entries: NDArray[np.uint32], nodes: int) -> bool:
    """Whether all columns of these entries are less than `nodes`, in 32 bits: the processor compares sixteen at a time."""
    bad, end = np.uint32(0), np.uint32(nodes)
    for at in range(len(entries)):
        bad |= np.uint32(np.uint32(entries[at] & COLUMN) >= end)
    return bool(bad == 0)


def order_of(artifact: Artifact) -> NDArray[np.uint32] | None:
    """The background row of each background node of a graph or of cells, checked; None where nodes are rows."""
    if "order" not in artifact:
        return None
    order: NDArray[np.uint32] = artifact.array("order")
    if not is_permutation(order):
        raise Corrupt(f"{artifact.name}, array order: not a permutation of the background. {artifact.remedy}")
    return order


def _decreases(offsets: NDArray[np.int64]) -> bool:
    starts = range(0, len(offsets) - 1, _CHECKED_ROWS)
    return any(np.any(np.diff(offsets[start : start + _CHECKED_ROWS + 1]) < 0) for start in starts)


def _is_finite(scale: NDArray[np.float32]) -> bool:
    blocks = (scale[start : start + _CHECKED_ROWS] for start in range(0, len(scale), _CHECKED_ROWS))
    return all(np.all((block >= 0) & (block < np.inf)) for block in blocks)

"""The graph W = D^-1 (W0 + W0^T) as the diffusion reads it: CSR without values where weights are constant (paper, section 3.2).

`mmdiff.Graph` is what Python users have of it: from a store, from a scipy matrix, and back.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import Corrupt
from mmdiff.formats.store.store import Artifact, Store

NAME = "graph/W"
KIND = "graph"
SCHEMA = 1

COLUMN = np.uint32(0x7FFFFFFF)
"""The bits of an index that are the column; the one above them says "reciprocal"."""


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """W in rows of sorted columns.

    The entry of W0 + W0^T is `weights[e]`, or without weights 2 where the top bit of `indices[e]` is set (the edge is
    reciprocal) and 1 where it is not; that of W is the same times `scale[row]`. Nodes are in cell order where the graph comes
    from `mmdiff build-graph`: the background in the order of `order`, then seeds, then test points if they are nodes.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.uint32]
    scale: NDArray[np.float32]
    weights: NDArray[Any] | None = None
    order: NDArray[np.uint32] | None = None

    @classmethod
    def open(cls, store: str | Path) -> Graph:
        """The graph of a store, mapped."""
        return cls.from_artifact(Store.open(Path(store)).open_artifact(NAME))

    @classmethod
    def from_artifact(cls, artifact: Artifact) -> Graph:
        """The graph of an artifact, mapped. What lies between the first offset and the last is for `mmdiff verify` to check."""
        indptr, indices, scale = (artifact.array(name) for name in ("indptr", "indices", "scale"))
        weights = artifact.array("weights") if "weights" in artifact else None
        order = artifact.array("order") if "order" in artifact else None
        fits = len(indptr) == len(scale) + 1 and (weights is None or len(weights) == len(indices))
        if not fits or indptr[0] != 0 or indptr[-1] != len(indices):
            raise Corrupt(f"{artifact.name}: its arrays do not fit each other. {artifact.remedy}")
        return cls(indptr, indices, scale, weights, order)

    @classmethod
    def from_scipy(cls, matrix: Any) -> Graph:
        """A graph of your own: a square scipy.sparse matrix without negative entries, whose explicit zeros are no edges.

        A symmetric matrix is taken for W0 + W0^T, as it is; of any other A it is A + A^T (paper, section 3.2). Without values
        other than 1 (and, if symmetric, 2), the graph needs no weights.
        """
        from mmdiff.graph.in_memory import symmetric_graph

        return symmetric_graph(matrix, "the matrix")[0]

    def to_scipy(self, normalized: bool = True) -> Any:
        """W as a scipy.sparse.csr_array of float32, or with `normalized=False` W0 + W0^T."""
        from scipy.sparse import csr_array

        index = np.int32 if self.edges <= np.iinfo(np.int32).max else np.int64
        columns = (self.indices & COLUMN).astype(index)
        shape = (self.nodes, self.nodes)
        return csr_array((self.values(0, self.nodes, normalized), columns, self.indptr.astype(index)), shape)

    def values(self, start: int, stop: int, normalized: bool) -> NDArray[np.float32]:
        """The entries of rows start..stop-1."""
        first, last = int(self.indptr[start]), int(self.indptr[stop])
        if self.weights is None:
            values = ((self.indices[first:last] > COLUMN) + np.uint8(1)).astype(np.float32)
        else:
            values = self.weights[first:last].astype(np.float32)
        if normalized:
            values *= np.repeat(self.scale[start:stop], np.diff(self.indptr[start : stop + 1]))
        return values

    def __matmul__(self, dense: Any) -> NDArray[np.float32]:
        """W times a matrix of float32 (or a vector), by the kernel of the diffusion, on all cores."""
        from mmdiff.diffusion.engine.product import matmul

        return matmul(self, np.asarray(dense))

    # numpy would otherwise take `dense @ graph` apart entry by entry.
    __array_ufunc__ = None

    @property
    def nodes(self) -> int:
        return len(self.scale)

    @property
    def edges(self) -> int:
        """Entries of W; an edge between two nodes counts in either row."""
        return len(self.indices)

    def degrees(self, rows: NDArray[Any]) -> NDArray[np.int64]:
        """How many edges each of these rows has."""
        first = rows.astype(np.int64)
        return self.indptr[first + 1] - self.indptr[first]

    def edges_of(self, rows: NDArray[Any] | None) -> int:
        """How many edges these rows have, or all."""
        return self.edges if rows is None else int(self.degrees(rows).sum())

    def __len__(self) -> int:
        return self.nodes

    def __repr__(self) -> str:
        kind = "value-free" if self.weights is None else f"{self.weights.dtype} weights"
        return f"Graph({self.nodes:,} nodes, {self.edges:,} edges, {kind})"

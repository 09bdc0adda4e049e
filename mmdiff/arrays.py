"""The public API on arrays: `Graph`, `knn_graph`, `diffuse` and `evaluate`, in memory and in the caller's row order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.engine.product import matmul
from mmdiff.formats.errors import CountMismatch
from mmdiff.graph.graph import CsrGraph


class Graph:
    """The graph W = D^-1 (W0 + W0^T) over rows in the caller's order (paper, section 3.2)."""

    def __init__(self, internal: CsrGraph) -> None:
        self.internal = internal

    @classmethod
    def open(cls, store: str | Path) -> Graph:
        """The graph of a store, mapped."""
        return cls(CsrGraph.open(store))

    @classmethod
    def from_scipy(cls, matrix: Any) -> Graph:
        """A graph of your own: a square scipy.sparse matrix without negative entries."""
        return cls(CsrGraph.from_scipy(matrix))

    def __matmul__(self, dense: Any) -> NDArray[np.float32]:
        """W times a matrix or a vector."""
        values = np.asarray(dense)
        if values.ndim not in (1, 2) or len(values) != self.internal.nodes:
            raise CountMismatch(
                f"a matrix of shape {values.shape} for {self.internal.nodes:,} nodes. Give one row for each node."
            )
        if self.internal.order is None:
            return matmul(self.internal, values)
        rows = self.internal.rows_of(np.arange(self.internal.nodes))
        return matmul(self.internal, values[rows])[self.internal.node_of_row]

    # numpy would otherwise take `dense @ graph` apart entry by entry.
    __array_ufunc__ = None

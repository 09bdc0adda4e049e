"""Lists of neighbours, one per node: the rows of W0 (paper, section 3.2), in memory, mapped or in a file."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

MOST_NODES = (1 << 31) - 1
"""The largest number of nodes: the top bit of an index marks a reciprocal edge."""

Block = tuple[NDArray[np.uint32], NDArray[np.float32]]


class Lists(Protocol):
    """The k nearest neighbours of every node and their similarities, in blocks of rows."""

    @property
    def nodes(self) -> int: ...

    @property
    def k(self) -> int: ...

    def block(self, start: int, stop: int) -> Block:
        """Neighbours and similarities of rows start..stop-1; NONE, with any similarity, where there are fewer than k.

        May be called from several threads at once, and repeatedly for the same rows.
        """


class ArrayLists:
    """Lists in arrays, mapped or in memory. Missing similarities are all 0."""

    def __init__(self, neighbors: NDArray[np.uint32], similarities: NDArray[np.float32] | None = None) -> None:
        self.nodes: int = neighbors.shape[0]
        self.k: int = neighbors.shape[1]
        self._neighbors = neighbors
        self._similarities: NDArray[Any] = (
            np.broadcast_to(np.float32(0), neighbors.shape) if similarities is None else similarities
        )

    def block(self, start: int, stop: int) -> Block:
        return self._neighbors[start:stop], self._similarities[start:stop]

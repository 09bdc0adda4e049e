"""Needed rows: what test points look at, and what that is computed from (an exact shortcut of the last iterations)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.io.graph_stream import Block, Stream
from mmdiff.kernels.constants import COLUMN, NONE
from mmdiff.kernels.jit import kernel

Rows = NDArray[np.uint32]

# A set that is larger than this share of all nodes is not worth keeping apart.
_MOST = 0.7


def looked_at(neighbors: NDArray[np.uint32], nodes: int) -> Rows | None:
    """The nodes that lists name, or None where these are almost all."""
    mask = np.zeros(nodes, np.uint8)
    for start in range(0, len(neighbors), 1 << 16):
        block = neighbors[start : start + (1 << 16)]
        mask[block[block != NONE]] = 1
    return _rows(mask)


def closures(stream: Stream, rows: Rows | None, steps: int) -> list[Rows | None]:
    """The given rows, those whose product needs only them and their neighbours, and so on: `steps` + 1 sets, None is all."""
    found = [rows]
    while len(found) <= steps:
        before = found[-1]
        found.append(None if before is None else reached(stream, before))
    return found


def reached(stream: Stream, rows: NDArray[Any]) -> Rows | None:
    """Rows and their neighbours. W has entry (i, j) where it has (j, i), so this is also where their labels go in one step."""
    mask = np.zeros(stream.graph.nodes, np.uint8)
    mask[rows] = 1

    def work(block: Block) -> None:
        _mark(block.graph.indptr, block.graph.indices, block.rows, mask)

    for _ in stream.each(work, rows):
        pass
    return _rows(mask)


def _rows(mask: NDArray[np.uint8]) -> Rows | None:
    if np.count_nonzero(mask) > _MOST * len(mask):
        return None
    return np.flatnonzero(mask).astype(np.uint32)


@kernel
def _mark(indptr: NDArray[np.int64], indices: NDArray[np.uint32], rows: NDArray[np.int64], mask: NDArray[np.uint8]) -> None:
    for row in rows:
        for edge in range(indptr[row], indptr[row + 1]):
            mask[indices[edge] & COLUMN] = 1

"""Needed rows: the rows that test points gather, and the rows those are computed from (an exact shortcut, DESIGN section 5)."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.io.graph_stream import Block, Stream
from mmdiff.kernels.constants import COLUMN, NONE
from mmdiff.kernels.jit import kernel

Rows = NDArray[np.uint32]

# The share of all nodes above which a set of rows is treated as all rows.
_MOST = 0.7

# A pass over rows ends as soon as their neighbours are almost all nodes; they are counted so many times.
_COUNTS = 16


def gathered_rows(neighbors: NDArray[np.uint32], nodes: int) -> Rows | None:
    """The nodes in the lists of test points, or None where these are almost all."""
    mask = np.zeros(nodes, np.uint8)
    for start in range(0, len(neighbors), 1 << 16):
        block = neighbors[start : start + (1 << 16)]
        mask[block[block != NONE]] = 1
    return _rows(mask)


def closures(stream: Stream, rows: Rows | None, steps: int) -> list[Rows | None]:
    """`steps` + 1 sets, of which each has the neighbours of the one before: those within 0, 1, 2, ... edges. None is all."""
    found = [rows]
    while len(found) <= steps:
        before = found[-1]
        found.append(None if before is None else reached(stream, before, shared=True))
    return found


def reached(stream: Stream, rows: NDArray[Any], shared: bool = False) -> Rows | None:
    """Rows and their neighbours, or None where these are almost all nodes; `shared` rows will be requested again.

    The pattern of W is symmetric, so this is also where their labels go in one iteration.
    """
    mask = np.zeros(stream.graph.nodes, np.uint8)
    mask[rows] = 1

    def work(block: Block) -> int:
        _mark(block.graph.indptr, block.graph.indices, block.rows, mask)
        return len(block.rows)

    done = counted = 0
    with closing(stream.each(work, rows, shared=shared)) as blocks:
        for count in blocks:
            done += count
            if (done - counted) * _COUNTS >= len(rows):
                counted = done
                if _almost_all(mask):
                    return None
    return _rows(mask)


def _almost_all(mask: NDArray[np.uint8]) -> bool:
    return bool(np.count_nonzero(mask.view(np.bool_)) > _MOST * len(mask))


def _rows(mask: NDArray[np.uint8]) -> Rows | None:
    return None if _almost_all(mask) else np.flatnonzero(mask).astype(np.uint32)


@kernel
def _mark(indptr: NDArray[np.int64], indices: NDArray[np.uint32], rows: NDArray[np.int64], mask: NDArray[np.uint8]) -> None:
    for row in rows:
        for edge in range(indptr[row], indptr[row + 1]):
            mask[indices[edge] & COLUMN] = 1

"""Search in overlapping cells: in each of several partitions a row is compared with all rows of its cell.

Neighbours that every partition separates are found later by neighbours' neighbours (`search/refine.py`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.kernels.jit import kernel
from mmdiff.knn.search.topk import Lists, merge
from mmdiff.knn.search.visits import search_visited


@dataclass(frozen=True)
class Tree:
    """One partition: the cell of each row, and the rows sorted by cell. Cell c holds `members[offsets[c] : offsets[c + 1]]`.

    `members` and `offsets` may cover several partitions, one after the other.
    """

    cell_of: NDArray[np.uint32]
    rows: NDArray[np.uint32]
    members: NDArray[np.uint32]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, cell_of: NDArray[np.uint32]) -> Tree:
        """The partition in which each row has the given cell."""
        rows, offsets = by_cell(cell_of)
        return cls(cell_of, rows, rows, offsets)

    def search(self, vectors: NDArray[Any], rows: NDArray[np.int64], k: int) -> Lists:
        """The k nearest rows in the cell of each given row. Rows of the same cell share work."""
        return search_visited(vectors, rows, vectors, self.cell_of[rows][:, None], self.members, self.offsets, k)


@dataclass(frozen=True)
class Forest:
    """Several partitions of the same rows."""

    trees: tuple[Tree, ...]

    @classmethod
    def of(cls, cell_of: NDArray[np.uint32], members: NDArray[np.uint32], offsets: NDArray[np.int64], rows: int) -> Forest:
        """The partitions in the arrays of `models/cells`, one after the other, with consecutive cell numbers."""
        parts = [slice(start, start + rows) for start in range(0, len(members), rows)]
        return cls(tuple(Tree(cell_of[part], members[part], members, offsets) for part in parts))

    def search(self, vectors: NDArray[Any], rows: NDArray[np.int64], k: int) -> Lists:
        """The k nearest rows in the cells of each given row, over all partitions."""
        return functools.reduce(merge, (tree.search(vectors, rows, k) for tree in self.trees))


def by_cell(cell_of: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """The rows sorted by cell (a counting sort with 4 bytes per row), and the offset of each cell."""
    offsets = np.zeros(int(cell_of.max(initial=0)) + 2, np.int64)
    rows = np.empty(len(cell_of), np.uint32)
    _by_cell(cell_of, offsets, rows)
    return rows, offsets


@kernel
def _by_cell(cell_of: NDArray[np.uint32], offsets: NDArray[np.int64], rows: NDArray[np.uint32]) -> None:
    for cell in cell_of:
        offsets[cell + 1] += 1
    offsets[:] = np.cumsum(offsets)
    # While rows are placed, `offsets[c]` is the next free place of cell c; at the end, the offset of cell c + 1.
    for row in range(len(cell_of)):
        cell = cell_of[row]
        rows[offsets[cell]] = row
        offsets[cell] += 1
    for cell in range(len(offsets) - 1, 0, -1):
        offsets[cell] = offsets[cell - 1]
    offsets[0] = 0

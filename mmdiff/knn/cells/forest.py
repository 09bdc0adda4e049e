"""Overlapping cells: several partitions of the same rows, in each of which a row is compared with all others of its cell.

What all partitions cut apart is found by the pass over neighbours' neighbours (`refine.py`).
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
    """One partition: the cell of each row, all rows with those of a cell together, and the rows of cell c as
    `members[offsets[c] : offsets[c + 1]]`.
    """

    cell_of: NDArray[np.uint32]
    rows: NDArray[np.uint32]
    members: NDArray[np.uint32]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, cell_of: NDArray[np.uint32]) -> Tree:
        """From the cell of each row."""
        rows, offsets = by_cell(cell_of)
        return cls(cell_of, rows, rows, offsets)

    def search(self, vectors: NDArray[Any], rows: NDArray[np.int64], k: int) -> Lists:
        """The nearest that the cells of the given rows hold. Rows that are near each other share cells, and so work."""
        return search_visited(vectors, rows, vectors, self.cell_of[rows][:, None], self.members, self.offsets, k)


@dataclass(frozen=True)
class Forest:
    """Several partitions of the same rows."""

    trees: tuple[Tree, ...]

    @classmethod
    def of(cls, cell_of: NDArray[np.uint32], members: NDArray[np.uint32], offsets: NDArray[np.int64], rows: int) -> Forest:
        """From the arrays of an artifact, which hold one partition after the other, all cells numbered through."""
        parts = [slice(start, start + rows) for start in range(0, len(members), rows)]
        return cls(tuple(Tree(cell_of[part], members[part], members, offsets) for part in parts))

    def search(self, vectors: NDArray[Any], rows: NDArray[np.int64], k: int) -> Lists:
        """The nearest that the cells of the given rows hold in any of the partitions."""
        return functools.reduce(merge, (tree.search(vectors, rows, k) for tree in self.trees))


def by_cell(cell_of: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """All rows, those of a cell together and in order, and where each cell begins: sorting with 4 bytes a row."""
    offsets = np.zeros(int(cell_of.max(initial=0)) + 2, np.int64)
    rows = np.empty(len(cell_of), np.uint32)
    _by_cell(cell_of, offsets, rows)
    return rows, offsets


@kernel
def _by_cell(cell_of: NDArray[np.uint32], offsets: NDArray[np.int64], rows: NDArray[np.uint32]) -> None:
    for cell in cell_of:
        offsets[cell + 1] += 1
    offsets[:] = np.cumsum(offsets)
    # While rows are placed, `offsets[c]` is the next free place of cell c; in the end, where cell c + 1 begins.
    for row in range(len(cell_of)):
        cell = cell_of[row]
        rows[offsets[cell]] = row
        offsets[cell] += 1
    for cell in range(len(offsets) - 1, 0, -1):
        offsets[cell] = offsets[cell - 1]
    offsets[0] = 0

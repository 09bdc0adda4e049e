"""Search in overlapping cells: a row's neighbours are looked for in its cell of every partition, as products of matrices.

Within a cell everything is compared with everything by one matrix product, which costs a fraction of looking at the same
pairs one query at a time. What all partitions cut apart is found by the pass over neighbours' neighbours (`refine.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.jit import kernel
from mmdiff.knn.flat import QUERY_TILE, VECTOR_TILE, offer_scores
from mmdiff.knn.half import decode, for_kernels
from mmdiff.knn.lists import ROOM, SPARE, settle


@dataclass(frozen=True)
class Forest:
    """Several partitions of the same rows: for each row its cell, and for each cell its rows."""

    cell_of: NDArray[np.uint32]
    members: NDArray[np.uint32]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, partitions: list[NDArray[np.int64]]) -> Forest:
        """From the cell of each row in each partition; cells of all partitions are numbered through."""
        cell_of, members, offsets, first = [], [], [np.zeros(1, np.int64)], 0
        for number, cells in enumerate(partitions):
            sizes = np.bincount(cells)
            cell_of.append((cells + first).astype(np.uint32))
            members.append(np.argsort(cells, kind="stable").astype(np.uint32))
            offsets.append(number * len(cells) + np.cumsum(sizes))
            first += len(sizes)
        return cls(np.stack(cell_of), np.concatenate(members), np.concatenate(offsets))

    @property
    def partitions(self) -> int:
        return len(self.cell_of)

    def rows_of(self, partition: int) -> NDArray[np.uint32]:
        """All rows, those of one cell of a partition together."""
        rows = self.cell_of.shape[1]
        return self.members[partition * rows : (partition + 1) * rows]

    def alone(self, partition: int) -> Forest:
        """One partition by itself."""
        return Forest(self.cell_of[partition : partition + 1], self.members, self.offsets)

    def search(self, vectors: NDArray[Any], rows: NDArray[np.int64], k: int) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
        """The nearest that the cells of the given rows hold. Rows that are near each other share cells, and so work."""
        neighbors = np.empty((len(rows), k), np.uint32)
        similarities = np.empty((len(rows), k), np.float32)
        _search(for_kernels(vectors), rows, self.cell_of, self.members, self.offsets, neighbors, similarities)
        return neighbors, similarities


@kernel
def gather(vectors: NDArray[Any], rows: NDArray[Any], out: NDArray[np.float32]) -> None:
    """Scattered rows as a matrix of float32."""
    for i in range(len(rows)):
        for j in range(vectors.shape[1]):
            out[i, j] = decode(vectors[rows[i], j])


@kernel
def _search(
    vectors: NDArray[Any],
    rows: NDArray[np.int64],
    cell_of: NDArray[np.uint32],
    members: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    neighbors: NDArray[np.uint32],
    similarities: NDArray[np.float32],
) -> None:
    d, keep = vectors.shape[1], neighbors.shape[1] + SPARE
    scores = np.empty((len(rows), ROOM * keep), np.float32)
    nodes = np.empty((len(rows), ROOM * keep), np.uint32)
    counts = np.zeros(len(rows), np.int64)
    floor = np.full(len(rows), -np.inf, np.float32)
    left = np.empty((QUERY_TILE, d), np.float32)
    right = np.empty((VECTOR_TILE, d), np.float32)
    for partition in range(len(cell_of)):
        cells = cell_of[partition][rows]
        order = np.argsort(cells, kind="mergesort")
        start = 0
        while start < len(rows):
            cell = cells[order[start]]
            stop = start
            while stop < len(rows) and cells[order[stop]] == cell and stop - start < QUERY_TILE:
                stop += 1
            some = order[start:stop]
            gather(vectors, rows[some], left)
            for first in range(offsets[cell], offsets[cell + 1], VECTOR_TILE):
                ids = members[first : min(first + VECTOR_TILE, offsets[cell + 1])]
                gather(vectors, ids, right)
                tile = np.dot(left[: len(some)], right[: len(ids)].T)
                offer_scores(tile, ids, some, scores, nodes, counts, floor, keep)
            start = stop
    for i in range(len(rows)):
        settle(
            vectors[rows[i] : rows[i] + 1],
            vectors,
            scores[i : i + 1],
            nodes[i : i + 1],
            counts[i : i + 1],
            similarities[i : i + 1],
            neighbors[i : i + 1],
        )

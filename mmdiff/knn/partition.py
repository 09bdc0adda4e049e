"""Partitions of the descriptors into cells of a few hundred near rows, by k-means in two levels (Faiss).

Two levels of c centroids make c * c cells for the price of 2 c comparisons a row, where one level would take c * c.
Several partitions with different seeds cut neighbourhoods in different places: what one cuts apart another holds together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import MissingExtra
from mmdiff.parallel import in_threads
from mmdiff.progress import Advance

CELL_ROWS = 500
# A cell that is larger by this factor (many equal rows) is cut: its rows are as near to each other in any piece.
_LARGEST = 4
_ITERATIONS = (6, 4)
_SAMPLES_PER_CELL = 60
_MOST_SAMPLES = 1 << 18
_BLOCK_ROWS = 1 << 15
_POWER_STEPS = 8


@dataclass(frozen=True)
class Quantizer:
    """Centroids of the first level (c, d) and, below each, of the second (c, c', d)."""

    coarse: NDArray[np.float32]
    fine: tuple[NDArray[np.float32], ...]

    @property
    def centroids(self) -> NDArray[np.float32]:
        """Of all cells, those of one first-level cell together."""
        return np.concatenate(self.fine)

    def assign(self, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        """The cell of each row: the nearest second-level centroid below the nearest first-level one."""
        cells = np.empty(len(rows), np.int64)
        first = (rows @ self.coarse.T).argmax(axis=1)
        begins = np.concatenate([[0], np.cumsum([len(centroids) for centroids in self.fine])])
        order = np.argsort(first, kind="stable")
        bounds = np.searchsorted(first[order], np.arange(len(self.fine) + 1))
        for cell, centroids in enumerate(self.fine):
            members = order[bounds[cell] : bounds[cell + 1]]
            if len(members):
                cells[members] = begins[cell] + (rows[members] @ centroids.T).argmax(axis=1)
        return cells


def train(vectors: NDArray[Any], seed: int, gpu: bool = False) -> Quantizer:
    """A quantiser for cells of about CELL_ROWS rows, from a sample of the vectors."""
    cells = max(1, round(np.sqrt(len(vectors) / CELL_ROWS)))
    draw = np.random.default_rng(seed)
    count = min(len(vectors), _MOST_SAMPLES, max(_SAMPLES_PER_CELL * cells * cells, 256 * cells))
    sample = np.asarray(vectors[np.sort(draw.choice(len(vectors), count, replace=False))], np.float32)
    coarse = _kmeans(sample, cells, _ITERATIONS[0], seed, gpu)
    nearest = (sample @ coarse.T).argmax(axis=1)
    fine = []
    for cell in range(len(coarse)):
        members = sample[nearest == cell]
        # First-level cells differ in size; those below them should not.
        wanted = max(1, round(cells * cells * len(members) / count))
        fine.append(_kmeans(members, wanted, _ITERATIONS[1], seed + cell + 1, gpu) if len(members) else coarse[cell : cell + 1])
    return Quantizer(coarse, tuple(fine))


def assign_all(vectors: NDArray[Any], quantizer: Quantizer, advance: Advance) -> NDArray[np.int64]:
    """The cell of every row."""
    blocks = [vectors[start : start + _BLOCK_ROWS] for start in range(0, len(vectors), _BLOCK_ROWS)]
    found = []
    for cells in in_threads(lambda block: quantizer.assign(np.asarray(block, np.float32)), blocks):
        found.append(cells)
        advance(len(cells))
    return np.concatenate(found)


def cut_large(cells: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cells renumbered so that none is much larger than it should be; pieces of a cell stay next to each other."""
    order = np.argsort(cells, kind="stable")
    sizes = np.bincount(cells)
    rank = np.empty(len(cells), np.int64)
    rank[order] = np.arange(len(cells)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    piece = np.where(sizes[cells] > _LARGEST * CELL_ROWS, rank // CELL_ROWS, 0)
    pieces = np.where(sizes > _LARGEST * CELL_ROWS, -(-sizes // CELL_ROWS), 1)
    return (np.cumsum(pieces) - pieces)[cells] + piece


def near_order(centroids: NDArray[np.float32], along: NDArray[np.float32] | None = None) -> NDArray[np.int64]:
    """Cells in an order in which near ones are near: halved again and again along their principal direction.

    Each half is ordered `along` the direction that separated it from the other, so that the order runs on where they meet.
    """
    if len(centroids) <= 1:
        return np.arange(len(centroids))
    centred = centroids - centroids.mean(axis=0)
    direction = _principal(centred)
    if along is not None and direction @ along < 0:
        direction = -direction
    order = np.argsort(centred @ direction, kind="stable")
    half = len(order) // 2
    return np.concatenate([part[near_order(centroids[part], direction)] for part in (order[:half], order[half:])])


def _principal(centred: NDArray[np.float32]) -> NDArray[np.float32]:
    """The direction of the largest variance, near enough for halving: a few steps of power iteration."""
    direction: NDArray[Any] = centred[np.abs(centred).sum(axis=1).argmax()]
    for _ in range(_POWER_STEPS):
        direction = centred.T @ (centred @ direction)
        direction /= max(float(np.linalg.norm(direction)), float(np.finfo(np.float32).tiny))
    return direction


def _kmeans(rows: NDArray[np.float32], centroids: int, iterations: int, seed: int, gpu: bool) -> NDArray[np.float32]:
    try:
        import faiss
    except ImportError:
        raise MissingExtra("faiss", "cpu", "building the graph") from None
    wanted = min(centroids, len(rows))
    clusters = faiss.Kmeans(
        rows.shape[1],
        wanted,
        niter=iterations,
        seed=seed,
        spherical=True,
        gpu=gpu,
        min_points_per_centroid=1,
        max_points_per_centroid=len(rows),
    )
    clusters.train(np.ascontiguousarray(rows))
    return np.asarray(clusters.centroids, np.float32)

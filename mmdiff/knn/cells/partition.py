"""Partitions of the descriptors into cells of a few hundred similar rows, by two-level k-means (Faiss).

Two levels of c centroids make c * c cells with 2 c comparisons per row instead of c * c. Partitions with different seeds cut
neighbourhoods in different places: neighbours that one separates are together in another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from mmdiff.formats.errors import BadResult
from mmdiff.formats.extras import load
from mmdiff.kernels.jit import kernel
from mmdiff.runtime.progress import Advance
from mmdiff.runtime.threads import in_threads

CELL_ROWS = 500
# Cells larger than CELL_ROWS by this factor (many equal rows) are cut into pieces.
_LARGEST = 4
_ITERATIONS = (6, 4)
_SAMPLES_PER_CELL = 60
_MOST_SAMPLES = 1 << 18
BLOCK_ROWS = 1 << 15
_POWER_STEPS = 8


@dataclass(frozen=True)
class Quantizer:
    """Centroids of the first level and, below each, of the second."""

    coarse: NDArray[np.float32]
    fine: tuple[NDArray[np.float32], ...]

    @property
    def centroids(self) -> NDArray[np.float32]:
        """The centroids of all cells, those of one first-level cell together."""
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


def first_level(rows: int) -> int:
    """The number of first-level centroids; each has about as many below it."""
    return max(1, round(math.sqrt(rows / CELL_ROWS)))


def sample_rows(rows: int) -> int:
    """The number of rows that centroids are trained on."""
    cells = first_level(rows)
    return min(rows, _MOST_SAMPLES, max(_SAMPLES_PER_CELL * cells * cells, 256 * cells))


def train(vectors: NDArray[Any], seed: int) -> Quantizer:
    """Trains a quantiser for cells of about CELL_ROWS rows on a sample of the vectors."""
    cells = first_level(len(vectors))
    draw = np.random.default_rng(seed)
    count = sample_rows(len(vectors))
    sample = np.asarray(vectors[np.sort(draw.choice(len(vectors), count, replace=False))], np.float32)
    coarse = _kmeans(sample, cells, _ITERATIONS[0], seed)
    blocks = [sample[start : start + BLOCK_ROWS] for start in range(0, count, BLOCK_ROWS)]
    nearest = np.concatenate([(block @ coarse.T).argmax(axis=1) for block in blocks])

    def below(cell: int) -> NDArray[np.float32]:
        members = sample[nearest == cell]
        # First-level cells differ in size; the second-level cells should not.
        wanted = max(1, round(cells * cells * len(members) / count))
        return _kmeans(members, wanted, _ITERATIONS[1], seed + cell + 1) if len(members) else coarse[cell : cell + 1]

    return Quantizer(coarse, tuple(in_threads(below, range(len(coarse)))))


def assign_all(vectors: NDArray[Any], quantizer: Quantizer, threads: int | None, advance: Advance) -> NDArray[np.uint32]:
    """The cell of every row."""
    cells = np.empty(len(vectors), np.uint32)

    def assign(start: int) -> int:
        block = slice(start, min(start + BLOCK_ROWS, len(vectors)))
        cells[block] = quantizer.assign(np.asarray(vectors[block], np.float32))
        return block.stop - start

    for count in in_threads(assign, range(0, len(vectors), BLOCK_ROWS), threads):
        advance(count)
    return cells


def cut_large(cells: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Cuts cells that are much too large; the pieces of a cell get consecutive numbers."""
    pieces = np.empty_like(cells)
    _cut_large(cells, int(cells.max(initial=0)) + 1, CELL_ROWS, _LARGEST * CELL_ROWS, pieces)
    return pieces


@kernel
def _cut_large(cells: NDArray[np.uint32], count: int, cell_rows: int, largest: int, pieces: NDArray[np.uint32]) -> None:
    sizes = np.zeros(count, np.int64)
    for cell in cells:
        sizes[cell] += 1
    first = np.zeros(count, np.int64)
    for cell in range(1, count):
        before = sizes[cell - 1]
        first[cell] = first[cell - 1] + ((before + cell_rows - 1) // cell_rows if before > largest else 1)
    seen = np.zeros(count, np.int64)
    for row in range(len(cells)):
        cell = cells[row]
        pieces[row] = first[cell] + (seen[cell] // cell_rows if sizes[cell] > largest else 0)
        seen[cell] += 1


def near_order(centroids: NDArray[np.float32], along: NDArray[np.float32] | None = None) -> NDArray[np.int64]:
    """An order of cells that keeps similar ones close: recursive halving along the principal direction.

    Each half is oriented `along` the direction that separated the halves, so that the order continues where they meet.
    """
    if len(centroids) <= 1:
        return np.arange(len(centroids))
    order, direction = _in_line(centroids, along)
    half = len(order) // 2
    return np.concatenate([part[near_order(centroids[part], direction)] for part in (order[:half], order[half:])])


def _in_line(
    centroids: NDArray[np.float32], along: NDArray[np.float32] | None
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The order of centroids along their principal direction, and this direction, oriented like `along`."""
    centred = centroids - centroids.mean(axis=0)
    direction = _principal(centred)
    if along is not None and direction @ along < 0:
        direction = -direction
    return np.argsort(centred @ direction, kind="stable"), direction


def _principal(centred: NDArray[np.float32]) -> NDArray[np.float32]:
    """The direction of the largest variance, approximated by a few steps of power iteration."""
    direction: NDArray[Any] = centred[np.abs(centred).sum(axis=1).argmax()]
    for _ in range(_POWER_STEPS):
        direction = centred.T @ (centred @ direction)
        direction /= max(float(np.linalg.norm(direction)), float(np.finfo(np.float32).tiny))
    return direction


def _kmeans(rows: NDArray[np.float32], centroids: int, iterations: int, seed: int) -> NDArray[np.float32]:
    faiss = load("faiss", "building the graph")
    wanted = min(centroids, len(rows))
    clusters = faiss.Kmeans(
        rows.shape[1],
        wanted,
        niter=iterations,
        seed=seed,
        spherical=True,
        min_points_per_centroid=1,
        max_points_per_centroid=len(rows),
    )
    if not np.isfinite(rows).all():
        raise BadResult("the descriptors: values that are not finite. Import them again.")
    # Steps are short: Faiss's threads would spend more time waiting for each other than working.
    with threadpool_limits(1):
        clusters.train(np.ascontiguousarray(rows))
    return np.asarray(clusters.centroids, np.float32)

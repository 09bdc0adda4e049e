"""The partition of the descriptors into small cells of similar rows, by two-level k-means (Faiss).

Two levels of c centroids make c * c cells. A row finds its cell below its nearest first-level centroids, and the other cells
near to it among those around its cell, so that it is compared with some hundred centroids, however many cells there are.
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
from mmdiff.knn.search.devices import CORES, Comparing
from mmdiff.runtime.progress import Advance
from mmdiff.runtime.threads import in_threads

# Products with cells of this size are still efficient, and smaller cells waste fewer comparisons on rows that are far away.
CELL_ROWS = 60
# Cells larger than CELL_ROWS by this factor (many equal rows) are cut into pieces.
_LARGEST = 4
_ITERATIONS = (6, 4)
_SAMPLES_PER_CELL = 60
_MOST_SAMPLE_BYTES = 1 << 28
BLOCK_ROWS = 1 << 14
_POWER_STEPS = 8
# Centroids that are put in line without halving them further.
_LINE = 8

# First-level centroids below which the cell of a row, and the cells around a cell, are looked for. Rows of one cell share the
# cells around it, so these may be looked for among many more: below 8 instead of 32, 0.03 of the recall are lost at 1M rows.
_LOOKED_BELOW = 3
_LOOKED_AROUND = 32
# The share of the first-level centroids below which points outside the background look for their cells: at 1M rows they miss
# one in forty of the nearest 32 cells.
_LOOKED_SHARE = 0.25


@dataclass(frozen=True)
class Quantizer:
    """Centroids of two levels. Cells `children[i]` to `children[i + 1] - 1` are below first-level centroid i."""

    coarse: NDArray[np.float32]
    centroids: NDArray[np.float32]
    children: NDArray[np.int64]

    def assign(self, rows: NDArray[np.float32], device: Comparing = CORES) -> NDArray[np.uint32]:
        """The cell of each row."""
        return self._below(rows, 1, _LOOKED_BELOW, device)[:, 0]

    def near(self, rows: NDArray[np.float32], count: int, device: Comparing = CORES) -> NDArray[np.uint32]:
        """The cells near each row, the nearest first and the others in no order, where few rows have a cell in common.

        The centroids below many first-level ones are compared as they lie; gathering those around the cell of each row on its
        own takes ten times as long. A near cell can be missed.
        """
        share = max(_LOOKED_SHARE, 2 * count / max(1, len(self.centroids)))
        return self._below(rows, count, max(_LOOKED_AROUND, math.ceil(share * len(self.coarse))), device)

    def around(self, cells: NDArray[np.uint32], count: int, device: Comparing = CORES) -> NDArray[np.uint32]:
        """The cells around each of some cells: itself first, then others with near centroids; NONE where there are fewer.

        Only cells below some first-level centroids are considered, so a near cell can be missed.
        """
        below = math.ceil(2 * count * len(self.coarse) / max(1, len(self.centroids)))
        found = self._below(self.centroids[cells], count, max(_LOOKED_AROUND, below), device)
        # The cell takes the place where it was found, or else of the last.
        is_own = found == cells[:, None]
        place = np.where(is_own.any(axis=1), is_own.argmax(axis=1), count - 1)
        found[np.arange(len(cells)), place] = found[:, 0]
        found[:, 0] = cells
        return found

    def _below(self, rows: NDArray[np.float32], count: int, below: int, device: Comparing) -> NDArray[np.uint32]:
        first = np.zeros((len(rows), 1), np.uint32)
        whole = np.array([0, len(self.coarse)])
        if below < len(self.coarse):
            groups = device.groups(rows, self.coarse, first, whole, below)
            return device.groups(rows, self.centroids, groups, self.children, count)
        return device.groups(rows, self.centroids, first, np.array([0, len(self.centroids)]), count)


def first_level(rows: int) -> int:
    """The number of first-level centroids; each has about as many below it."""
    return max(1, round(math.sqrt(rows / CELL_ROWS)))


def sample_rows(rows: int, width: int) -> int:
    """The number of rows that centroids are trained on."""
    cells = first_level(rows) ** 2
    return min(rows, max(_SAMPLES_PER_CELL * cells, 256), max(256, _MOST_SAMPLE_BYTES // (4 * width)))


def train(vectors: NDArray[Any], seed: int, device: Comparing = CORES) -> Quantizer:
    """Trains a quantiser for cells of about CELL_ROWS rows on a sample of the vectors; similar cells are close in its order.

    GPUs find the first-level centroids. The k-means below each of them are too small for a GPU.
    """
    cells = first_level(len(vectors))
    draw = np.random.default_rng(seed)
    count = sample_rows(*vectors.shape)
    sample = np.asarray(vectors[np.sort(draw.choice(len(vectors), count, replace=False))], np.float32)
    coarse = _kmeans(sample, cells, _ITERATIONS[0], seed, on_gpus=device.on_gpus)
    coarse = coarse[near_order(coarse)]
    blocks = [sample[start : start + BLOCK_ROWS] for start in range(0, count, BLOCK_ROWS)]
    nearest = np.concatenate([(block @ coarse.T).argmax(axis=1) for block in blocks])
    members = np.split(np.argsort(nearest, kind="stable"), np.cumsum(np.bincount(nearest, minlength=len(coarse)))[:-1])
    onward = np.diff(coarse, axis=0, append=coarse[-1:])

    def below(cell: int) -> NDArray[np.float32]:
        # First-level cells differ in size; the second-level cells should not.
        wanted = max(1, round(cells * cells * len(members[cell]) / count))
        if not len(members[cell]):
            return coarse[cell : cell + 1]
        found = _kmeans(sample[members[cell]], wanted, _ITERATIONS[1], seed + cell + 1)
        return found[near_order(found, onward[cell])]

    fine = list(in_threads(below, range(len(coarse))))
    children = np.concatenate([[0], np.cumsum([len(centroids) for centroids in fine])])
    return Quantizer(coarse, np.concatenate(fine), children)


def assign_all(
    vectors: NDArray[Any], quantizer: Quantizer, threads: int | None, advance: Advance, device: Comparing = CORES
) -> NDArray[np.uint32]:
    """The cell of every row."""
    cells = np.empty(len(vectors), np.uint32)

    def assign(start: int) -> int:
        block = slice(start, min(start + BLOCK_ROWS, len(vectors)))
        cells[block] = quantizer.assign(np.asarray(vectors[block], np.float32), device)
        return block.stop - start

    for count in in_threads(assign, range(0, len(vectors), BLOCK_ROWS), threads):
        advance(count)
    return cells


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


def cut_large(cells: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Cuts cells that are much too large and leaves out empty ones; the pieces of a cell get consecutive numbers."""
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
        first[cell] = first[cell - 1] + ((before + cell_rows - 1) // cell_rows if before > largest else min(before, 1))
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
    if len(order) <= _LINE:
        return order
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


def _kmeans(
    rows: NDArray[np.float32], centroids: int, iterations: int, seed: int, on_gpus: bool = False
) -> NDArray[np.float32]:
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
        gpu=on_gpus,
    )
    if not np.isfinite(rows).all():
        raise BadResult("the descriptors: values that are not finite. Import them again.")
    # Steps are short: Faiss's threads would spend more time waiting for each other than working.
    with threadpool_limits(1):
        clusters.train(np.ascontiguousarray(rows))
    return np.asarray(clusters.centroids, np.float32)

"""Memory model of `mmdiff build-graph`: the memory of each stage and the disk, from sizes alone.

A run that does not fit is refused before anything is computed, and `mmdiff plan` shows the same figures. A stage holds a fixed
amount and an amount per thread; with little memory fewer threads work. Results are the same: chunks, pieces and tiles never
depend on memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from mmdiff.formats.errors import BadOption, Parameter
from mmdiff.formats.storage.arrays import ArraySpec
from mmdiff.formats.store.growing import WAITING
from mmdiff.graph.symmetrise import BLOCK_EDGES
from mmdiff.knn import background
from mmdiff.knn.cells import order, partition
from mmdiff.knn.choice import MOST_VISITS
from mmdiff.knn.search.devices import MOST_ROWS, PIECE_ROWS
from mmdiff.knn.search.flat import QUERY_TILE, VECTOR_TILE
from mmdiff.knn.search.refine import table_size
from mmdiff.knn.search.topk import ROOM, SPARE
from mmdiff.runtime.threads import cores

# The artifacts of the stages after `knn/BB`.
W0, TEST, GRAPH = "knn/W0", "knn/test", "graph/W"

# Python, its libraries, and compiling kernels, before any data.
PROCESS_BYTES = 224 << 20

# Typical numbers of cells that a row of the background, or a point outside it, visits where the search is not exhaustive.
USUAL_VISITS = 32

# Memory that symmetrising reserves for its kernels, and blocks that wait to be appended or written.
_SYMMETRISER_BYTES, _BLOCKS_WAITING = 64 << 20, 4

# Arrays of a patch that grow together.
_PATCH_ARRAYS = 3

_FLOAT, _INDEX, _LONG = 4, 4, 8
_ENTRY = _INDEX + _FLOAT


@dataclass(frozen=True)
class Stage:
    """The memory of one stage: a fixed amount, including the process, and an amount for each thread."""

    fixed: int
    thread: int

    @property
    def least(self) -> int:
        return self.fixed + self.thread

    def times(self, workers: int) -> Stage:
        """The memory of several workers together; `threads` is then the number for each of them."""
        return Stage(workers * self.fixed, workers * self.thread)

    def threads(self, memory: int) -> int:
        """The number of threads: one per core, or fewer where memory is short."""
        return min(cores(), self.most_threads(memory))

    def most_threads(self, memory: int) -> int:
        """The number of threads that fit the memory, at least one."""
        return max(1, (memory - self.fixed) // max(1, self.thread))


@dataclass(frozen=True)
class Sizes:
    """The sizes that memory follows from.

    `nodes` counts the background; `points` the other nodes: appended rows, seeds and, when transductive, test points; `copied`
    where they are of several roles and put together in memory. `index_bytes` is the memory of a Faiss index. `on_gpus` is
    where rows are compared.
    """

    nodes: int
    width: int
    dtype: str
    k: int
    points: int = 0
    copied: bool = False
    index_bytes: int = 0
    on_gpus: bool = False

    @property
    def gathered_bytes(self) -> int:
        """Rows that each thread gathers for a GPU, with the block of queries that is compared with them."""
        return (MOST_ROWS + 2 * PIECE_ROWS) * _FLOAT * self.width if self.on_gpus else 0

    @property
    def row_bytes(self) -> int:
        return self.width * np.dtype(self.dtype).itemsize


def for_cells(sizes: Sizes) -> Stage:
    """`models/cells`: a quantiser is trained; rows are assigned, sorted by cell and rewritten."""
    nodes, width = sizes.nodes, sizes.width
    below, sampled = partition.first_level(nodes), partition.sample_rows(nodes, width)
    # The sample as float32 and, where it is converted, as stored; and the rows below one first-level centroid.
    stored = 0 if sizes.dtype == "float32" else sizes.row_bytes
    training = sampled * (_FLOAT * width * (1 + 2 / below) + stored + 2 * _LONG) + _drawing(nodes, sampled)
    block = min(partition.BLOCK_ROWS, nodes)
    # The rows of a block as float32, the candidates of each at both levels, and the tiles of products.
    assigning = block * (_FLOAT * width + 4 * ROOM * _ENTRY + 4 * _LONG) + _tiles(width) + 2 * below * _LONG
    # The cell of each row, its piece and its place: at most three numbers a row.
    sorting = 3 * _INDEX * nodes
    rewriting = ArraySpec.fit((nodes, width), sizes.dtype).chunk_bytes
    return Stage(
        PROCESS_BYTES + 2 * _centroids(sizes) + int(max(training, sorting)),
        int(max(assigning + sizes.gathered_bytes, rewriting)),
    )


def for_background(sizes: Sizes) -> Stage:
    """`knn/BB`: the candidates of a piece, the cells that its rows visit, and the lists of a chunk."""
    thread = _of_lists(sizes.nodes, sizes) + table_size(sizes.k, sizes.k) * (2 * _INDEX + _LONG)
    return Stage(PROCESS_BYTES + sizes.index_bytes, thread)


def for_points(sizes: Sizes) -> Stage:
    """`knn/W0` and `knn/test`: as for the background, the points that visit each cell, and lists that wait for the disk."""
    points = sizes.points * (USUAL_VISITS * 4 * _LONG + (sizes.row_bytes if sizes.copied else 0))
    waiting = (WAITING // _PATCH_ARRAYS + 1) * min(PIECE_ROWS, sizes.nodes + sizes.points) * _patched_row(sizes)
    return Stage(PROCESS_BYTES + points + waiting + _LONG * _cells(sizes), _of_lists(sizes.nodes + sizes.points, sizes))


def for_graph(sizes: Sizes) -> Stage:
    """`graph/W`: the number of incoming edges of each row, and blocks of edges in work and waiting for the disk.

    A row with very many incoming edges takes more; that is only known when the lists are there.
    """
    blocks = (cores() + _BLOCKS_WAITING) * BLOCK_EDGES * 7 * _INDEX
    return Stage(PROCESS_BYTES + _SYMMETRISER_BYTES + 2 * _INDEX * (sizes.nodes + sizes.points) + blocks, 0)


def disk_for_patch(sizes: Sizes) -> int:
    """Usual bytes of `knn/W0`: lists of the points, and of the background rows that they enter.

    A node is in k lists on average, and so is a point that is like the background. No more than all lists can change.
    """
    return (sizes.points + min(sizes.nodes, sizes.k * sizes.points)) * _patched_row(sizes)


def disk_for_background(sizes: Sizes, passes: int) -> int:
    """Disk at the peak: `models/cells`, the lists (`knn/BB`), and, while there are passes, those before the last one."""

    def size(shape: tuple[int, ...], dtype: str, rows_per_chunk: int | None = None) -> int:
        return ArraySpec.fit(shape, dtype, rows_per_chunk).bytes_on_disk

    rows, chunk = sizes.nodes, background.rows_per_chunk(sizes.nodes, sizes.k)
    cell_order = size((rows, sizes.width), sizes.dtype) + 2 * size((rows,), "uint32")
    cells, groups = _cells(sizes), partition.first_level(rows)
    centroids = size((cells, sizes.width), "float32") + size((groups, sizes.width), "float32")
    centroids += size((cells + 1,), "int64") + size((groups + 1,), "int64")
    lists = size((rows, sizes.k), "uint32", chunk) + size((rows, sizes.k), "float32", chunk)
    return cell_order + centroids + (1 + min(passes, 1)) * lists


def least_disk(sizes: Sizes, tests: int, weighted: bool) -> dict[str, tuple[int, int]]:
    """For each stage of a run, in order, the bytes that stay on disk and the peak while it is made: at least so many.

    Passes over neighbours' neighbours, lists that points enter, and edges that are not reciprocal take more.
    """
    nodes = sizes.nodes + sizes.points
    index, lists = _INDEX * sizes.nodes, _ENTRY * sizes.k
    cells = sizes.nodes * sizes.row_bytes + 2 * index
    graph = (_INDEX + (_FLOAT if weighted else 0)) * sizes.k * nodes + (_LONG + _FLOAT) * nodes
    return {
        order.NAME: (cells, cells),
        background.NAME: (lists * sizes.nodes, lists * sizes.nodes),
        W0: (_patched_row(sizes) * sizes.points,) * 2,
        TEST: (lists * tests,) * 2,
        GRAPH: (graph, graph),
    }


def peak_disk(stages: Iterable[tuple[int, int]]) -> int:
    """The peak of stages that are made one after the other, each beside what the ones before it leave."""
    kept = peak = 0
    for stays, most in stages:
        peak = max(peak, kept + most)
        kept += stays
    return peak


def refuse_little_memory(memory: int, stages: Iterable[tuple[str, Stage]], sizes: Sizes) -> None:
    """Refuses memory that is too little for one of the stages, with the least that is enough."""
    name, largest = max(stages, key=lambda stage: stage[1].least)
    if memory < largest.least:
        raise BadOption(
            Parameter("memory", _in_words(memory)),
            f": at least {math.ceil(largest.least / 2**20)}M is needed for {sizes.nodes + sizes.points:,} nodes of "
            f"{sizes.width} dimensions ({name}). Allow more.",
        )


def _of_lists(rows: int, sizes: Sizes) -> int:
    """A chunk of lists, and a piece of it: vectors, candidates, visited cells, and the lists it is merged with."""
    chunk = background.rows_per_chunk(rows, sizes.k)
    piece = min(PIECE_ROWS, chunk)
    # Candidates of neighbours; visited cells by row and by cell, with their candidates in parts of a piece.
    candidates = ROOM * (sizes.k + SPARE) * _ENTRY + MOST_VISITS * (_INDEX + _LONG + ROOM * _ENTRY // 4)
    of_row = 2 * _FLOAT * sizes.width + 4 * sizes.k * _ENTRY + candidates + 4 * _LONG
    return chunk * sizes.k * _ENTRY + piece * of_row + _tiles(sizes.width) + 3 * _LONG * _cells(sizes) + sizes.gathered_bytes


def _patched_row(sizes: Sizes) -> int:
    """Bytes of a list in a patch, with the number of its node."""
    return sizes.k * _ENTRY + _INDEX


def _tiles(width: int) -> int:
    return _FLOAT * ((QUERY_TILE + VECTOR_TILE) * width + QUERY_TILE * VECTOR_TILE)


def _cells(sizes: Sizes) -> int:
    """The number of cells; large ones are cut into some more."""
    return max(1, 11 * sizes.nodes // (10 * partition.CELL_ROWS))


def _centroids(sizes: Sizes) -> int:
    return _cells(sizes) * sizes.width * _FLOAT


def _drawing(nodes: int, sampled: int) -> int:
    """Bytes of drawing a sample: numpy shuffles all row numbers if the sample is more than a fiftieth of them."""
    return _LONG * nodes if sampled > nodes // 50 else 4 * _LONG * sampled


def _in_words(memory: int) -> str:
    return f"{memory / 2**20:,.0f}M" if memory >= 1 << 20 else f"{memory / 2**10:,.0f}K"

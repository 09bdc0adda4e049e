"""What building a graph takes: memory stage by stage, and disk. Known before anything is computed, so that a run which does not
fit is refused at once, and `mmdiff plan` can say what to expect.

A stage holds some memory whatever it does, and some for each thread. Where `--memory` is too little for all cores, fewer
threads work. What they compute is the same: chunks, pieces and tiles never depend on memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from mmdiff.formats.errors import BadOption
from mmdiff.formats.storage.arrays import ArraySpec
from mmdiff.graph.symmetrise import BLOCK_EDGES
from mmdiff.knn import background
from mmdiff.knn.cells import partition
from mmdiff.knn.search.flat import QUERY_TILE, VECTOR_TILE
from mmdiff.knn.search.outside import SCORES_AT_ONCE
from mmdiff.knn.search.refine import table_size
from mmdiff.knn.search.topk import ROOM, SPARE
from mmdiff.runtime.threads import cores

# Python, its libraries, and kernels while they are compiled, before there is any data.
PROCESS_BYTES = 224 << 20

# How many partitions are usual; the search takes more where neighbourhoods are hard to keep together.
USUAL_PARTITIONS = 4

# A point looks into so many cells where not all are compared with all, about.
_PROBES = 64

# What symmetrising sets aside for its kernels, and blocks that are not in work but in line or on their way to the disk.
_SYMMETRISER_BYTES, _BLOCKS_WAITING = 64 << 20, 4

_FLOAT, _INDEX, _LONG = 4, 4, 8
_ENTRY = _INDEX + _FLOAT


@dataclass(frozen=True)
class Stage:
    """The memory of one stage: what it holds in any case, the process included, and what each of its threads adds."""

    fixed: int
    thread: int

    @property
    def least(self) -> int:
        return self.fixed + self.thread

    def times(self, workers: int) -> Stage:
        """Of so many workers together; their threads are those that each of them may have."""
        return Stage(workers * self.fixed, workers * self.thread)

    def threads(self, memory: int) -> int:
        """As many as there are cores and the memory allows for."""
        return min(cores(), self.most_threads(memory))

    def most_threads(self, memory: int) -> int:
        """As many as the memory allows for, whatever the cores."""
        return max(1, (memory - self.fixed) // max(1, self.thread))


@dataclass(frozen=True)
class Sizes:
    """What the needs follow from. `nodes` are those of the background, `points` the others: seeds, and test points when
    transductive. `index_bytes` is what an index that the user chose holds in memory.
    """

    nodes: int
    width: int
    dtype: str
    k: int
    points: int = 0
    transductive: bool = False
    index_bytes: int = 0

    @property
    def row_bytes(self) -> int:
        return self.width * np.dtype(self.dtype).itemsize


def for_cells(sizes: Sizes) -> Stage:
    """`models/cells`: a quantiser is trained, rows are assigned, sorted by cell, and rewritten."""
    nodes, width = sizes.nodes, sizes.width
    below, sampled = partition.first_level(nodes), partition.sample_rows(nodes)
    # As float32, once more as stored while it is converted, and the rows below one centroid of the first level.
    training = sampled * (_FLOAT * width * (1 + 2 / below) + sizes.row_bytes + 2 * _LONG) + _drawing(nodes, sampled)
    block = min(partition.BLOCK_ROWS, nodes)
    centroids = 4 * below * below * width * _FLOAT
    assigning = block * (_FLOAT * width * (1 + 2 / below) + _FLOAT * below + 4 * _LONG)
    # The cell of each row, its piece and its place: three numbers a row where there are most.
    sorting = 3 * _INDEX * nodes
    rewriting = ArraySpec.fit((nodes, width), sizes.dtype).chunk_bytes
    return Stage(PROCESS_BYTES + centroids + int(max(training, sorting)), int(max(assigning, rewriting)))


def for_background(sizes: Sizes) -> Stage:
    """`knn/BB`: candidates of a piece, the lists of a chunk; and where each row stands in the order of a partition."""
    candidates = ROOM * (sizes.k + SPARE) * _ENTRY + 4 * _LONG
    thread = _of_lists(sizes.nodes, sizes, candidates) + table_size(sizes.k, sizes.k) * (_INDEX + _LONG)
    return Stage(PROCESS_BYTES + _INDEX * sizes.nodes + sizes.index_bytes, thread)


def for_points(sizes: Sizes) -> Stage:
    """`knn/W0` and `knn/test`: points look for their nearest cells, and cells know the points that do."""
    candidates = ROOM * (sizes.k + SPARE) * _ENTRY + _PROBES * 4 * _LONG
    thread = _of_lists(sizes.nodes + sizes.points, sizes, candidates) + SCORES_AT_ONCE * (_FLOAT + _LONG)
    points = sizes.points * (_PROBES * 3 * _LONG + (sizes.row_bytes if sizes.transductive else 0))
    return Stage(PROCESS_BYTES + points, thread)


def for_graph(sizes: Sizes) -> Stage:
    """`graph/W`: the number of edges that lead to each row, and blocks of edges in work and on their way to the disk.

    A row that very many edges lead to takes more; how many is only known when the lists are there.
    """
    blocks = (cores() + _BLOCKS_WAITING) * BLOCK_EDGES * 7 * _INDEX
    return Stage(PROCESS_BYTES + _SYMMETRISER_BYTES + 2 * _INDEX * (sizes.nodes + sizes.points) + blocks, 0)


def disk_for_background(sizes: Sizes, partitions: int) -> int:
    """`models/cells`, and the lists of each partition, of all together and of one pass over them, which end in `knn/BB`."""

    def size(shape: tuple[int, ...], dtype: str, rows_per_chunk: int | None = None) -> int:
        return ArraySpec.fit(shape, dtype, rows_per_chunk).bytes_on_disk

    rows, chunk = sizes.nodes, background.rows_per_chunk(sizes.nodes, sizes.k)
    index = size((rows,), "uint32")
    cell_order = size((rows, sizes.width), sizes.dtype) + index + size((partitions * rows,), "uint32") * 2
    centroids = size((max(1, rows // partition.CELL_ROWS), sizes.width), "float32")
    lists = size((rows, sizes.k), "uint32", chunk) + size((rows, sizes.k), "float32", chunk)
    return cell_order + centroids + (partitions + 2) * lists + partitions * index


def refuse_little_memory(memory: int, stages: Iterable[tuple[str, Stage]], sizes: Sizes) -> None:
    """Says what is missing, and how much would do."""
    name, largest = max(stages, key=lambda stage: stage[1].least)
    if memory < largest.least:
        raise BadOption(
            f"--memory {_in_words(memory)}: at least {math.ceil(largest.least / 2**20)}M is needed for "
            f"{sizes.nodes + sizes.points:,} nodes of {sizes.width} dimensions ({name}). Allow for more."
        )


def _of_lists(rows: int, sizes: Sizes, candidates: int) -> int:
    """A chunk of lists; a piece of it with what is needed beside its lists, and those it is merged with; tiles of products."""
    chunk = background.rows_per_chunk(rows, sizes.k)
    piece = min(background.PIECE_ROWS, chunk)
    tiles = _FLOAT * ((QUERY_TILE + VECTOR_TILE) * sizes.width + QUERY_TILE * VECTOR_TILE)
    return chunk * sizes.k * _ENTRY + piece * (4 * sizes.k * _ENTRY + candidates) + tiles


def _drawing(nodes: int, sampled: int) -> int:
    """numpy shuffles all row numbers where a sample is more than a fiftieth of them."""
    return _LONG * nodes if sampled > nodes // 50 else 4 * _LONG * sampled


def _in_words(memory: int) -> str:
    return f"{memory / 2**20:,.0f}M" if memory >= 1 << 20 else f"{memory / 2**10:,.0f}K"

"""Searches of the background as work units: each names its inputs, and opens them in the process that runs it.

A chunk of lists is searched in pieces. The rows of a piece decide how scores are rounded, so their number is part of the work.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mmdiff.formats.store.array_writer import ArrayWriter
from mmdiff.formats.store.store import Artifact
from mmdiff.formats.store.worker_chunks import WorkerChunk, WorkerTarget
from mmdiff.knn.cells.order import Cells
from mmdiff.knn.faiss_index.factory import FactoryIndex
from mmdiff.knn.faiss_index.gpu import load_faiss
from mmdiff.knn.search.devices import CORES, Comparing
from mmdiff.knn.search.topk import SPARE, Lists, settle_candidates
from mmdiff.runtime.progress import Advance
from mmdiff.runtime.threads import cores, in_threads

if TYPE_CHECKING:
    from mmdiff.knn.background import ListWriter

Find = Callable[[int, int], Lists]
"""The lists of rows start..stop-1."""


class Search(Protocol):
    """A search that can be sent to a worker."""

    def open(self, device: Comparing = CORES) -> Find:
        """The search as this process runs it, on a device of its own."""
        ...


@dataclass(frozen=True)
class Exactly:
    """Exhaustive search."""

    cells: Artifact
    k: int

    def open(self, device: Comparing = CORES) -> Find:
        vectors = self.cells.array("vectors")
        return lambda start, stop: device.nearest(vectors[start:stop], vectors, self.k)


@dataclass(frozen=True)
class VisitedCells:
    """Search in the cells that each row visits."""

    cells: Artifact
    visits: int
    k: int

    def open(self, device: Comparing = CORES) -> Find:
        cells = Cells.of(self.cells, device)

        def find(start: int, stop: int) -> Lists:
            return cells.search(cells.vectors[start:stop], cells.visits_of(np.arange(start, stop), self.visits), self.k)

        return find


@dataclass(frozen=True)
class NeighboursNeighbours:
    """One refinement pass over the lists of the pass before, after rows have visited cells."""

    cells: Artifact
    visits: int
    before: ListWriter

    def open(self, device: Comparing = CORES) -> Find:
        cells, lists = Cells.of(self.cells, device), self.before.mapped()

        def find(start: int, stop: int) -> Lists:
            own = lists[0][start:stop], lists[1][start:stop]
            return cells.refine(cells.vectors[start:stop], own, lists[0], cells.visits_of(np.arange(start, stop), self.visits))

        return find


@dataclass(frozen=True)
class InIndex:
    """Search with a Faiss index that was built and tuned by another process and lies on disk as bytes."""

    cells: Artifact
    index: ArrayWriter
    parameters: dict[str, int]
    k: int

    def open(self, device: Comparing = CORES) -> Find:  # noqa: ARG002
        index = FactoryIndex.from_bytes(self.index.mapped(), self.parameters)
        find = find_in(index, self.cells.array("vectors"), self.k)

        def on_all_cores(start: int, stop: int) -> Lists:
            # Dask limits the libraries of a worker to one thread; the limit is lifted by the calling thread.
            load_faiss().omp_set_num_threads(cores())
            return find(start, stop)

        return on_all_cores


def find_in(index: FactoryIndex, vectors: Any, k: int) -> Find:
    """The search of rows with a Faiss index in memory."""

    def find(start: int, stop: int) -> Lists:
        found = index.search(np.asarray(vectors[start:stop], np.float32), k + SPARE)[1]
        return settle_candidates(vectors[start:stop], vectors, found, k)

    return find


Each = Callable[[Callable[[int], None], Iterable[int]], Iterable[None]]
"""Applies a function to pieces, one after the other or several at a time."""


def chunk_of_lists(find: Find, rows: tuple[int, int], k: int, piece_rows: int, each: Each = map) -> Lists:
    """The lists of a chunk of rows, piece by piece, because candidates take more memory than lists."""
    start, stop = rows
    neighbors, similarities = np.empty((stop - start, k), np.uint32), np.empty((stop - start, k), np.float32)

    def search(first: int) -> None:
        piece = slice(first - start, min(first + piece_rows, stop) - start)
        neighbors[piece], similarities[piece] = find(first, start + piece.stop)

    for _ in each(search, range(start, stop, piece_rows)):
        pass
    return neighbors, similarities


@dataclass(frozen=True)
class Chunks:
    """Chunks of lists that workers search and write. `threads` is the number that fits the memory of each worker."""

    search: Search
    neighbors: WorkerTarget
    similarities: WorkerTarget
    piece_rows: int
    threads: int

    @contextmanager
    def opened(self) -> Iterator[Callable[[int, Advance], tuple[list[WorkerChunk], ...]]]:
        find, spec = self.search.open(), self.neighbors.spec

        def write(chunk: int, _: Advance) -> tuple[list[WorkerChunk], ...]:
            each = functools.partial(in_threads, threads=min(cores(), self.threads))
            lists = chunk_of_lists(find, spec.rows(chunk), spec.shape[1], self.piece_rows, each)
            writers = [self.neighbors.writer(), self.similarities.writer()]
            for writer, values in zip(writers, lists, strict=True):
                writer.write(chunk, values)
            return tuple(writer.written for writer in writers)

        yield write

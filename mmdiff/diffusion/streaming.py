"""W in blocks of rows, on all cores, front to back: the pages of the next blocks are requested while this one is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.pages import announce_rows, pages_of
from mmdiff.formats.mapping import announce, is_mapped, release, request
from mmdiff.graph.graph import Graph
from mmdiff.knn.half import for_kernels
from mmdiff.parallel import cores, in_order
from mmdiff.progress import Advance

Unit = TypeVar("Unit")
Result = TypeVar("Result")
Rows = NDArray[np.int64]
Advise = Callable[[NDArray[Any], int, int], None]

# Edges of a block: their indices fit a core's cache, and the overhead of Python is lost among them. Of a large graph there are
# so many blocks that they may be larger.
BLOCK_EDGES = 1 << 18
_MANY = 1 << 12
_LARGE = 4

# Blocks that are asked for ahead, so that the disk always has something to do, and blocks that must be there. Pages of rows
# that lie scattered take more room than the rows do.
_ANNOUNCED_AHEAD = 64
_SCATTERED_AHEAD = 8
_REQUESTED_AHEAD = 12

# Of the pages between the first row and the last one, the share that is needed from which on all of them are read.
_MOST = 1 / 8


@dataclass(frozen=True)
class Block:
    """Some rows, and where they stand among all that are asked for."""

    rows: Rows
    first: int

    @property
    def places(self) -> Rows:
        return np.arange(self.first, self.first + len(self.rows))


def weights_of(graph: Graph) -> NDArray[Any] | None:
    """The weights of a graph as kernels take them: float16 as its bits."""
    return None if graph.weights is None else for_kernels(graph.weights)


class Stream:
    """Passes over the rows of a graph. `let_go`: pages are given back once they are read, for graphs larger than memory."""

    def __init__(self, graph: Graph, let_go: bool = False) -> None:
        self.graph, self.let_go = graph, let_go
        self.bytes = 0
        self.advance: Advance = lambda _: None
        self._mapped = is_mapped(graph.indices)

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        self._pool = self._stack.enter_context(ThreadPoolExecutor(cores()))
        self._reader = self._stack.enter_context(ThreadPoolExecutor(1))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, trace)

    def each(
        self, work: Callable[[Block], Result], rows: NDArray[Any] | None = None, multiple: int | None = None
    ) -> Iterator[Result]:
        """The result of each block of the given rows (in order, all by default), in order.

        No block goes beyond a row that is a multiple of the given number.
        """
        borders = self._borders(rows, multiple)
        blocks = list(zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True))

        def run(place: int) -> tuple[Result, int]:
            first, stop = blocks[place]
            chosen = np.arange(first, stop) if rows is None else rows[first:stop].astype(np.int64)
            result = work(Block(chosen, first))
            if self._mapped and self.let_go:
                self._pages(rows, first, stop, release)
            return result, int((self.graph.indptr[chosen + 1] - self.graph.indptr[chosen]).sum())

        def begun() -> Iterator[int]:
            far = _ANNOUNCED_AHEAD if rows is None else _SCATTERED_AHEAD
            announced = 0
            for place in range(len(blocks)):
                while self._mapped and announced < min(place + far, len(blocks)):
                    self._reader.submit(self._pages, rows, *blocks[announced], announce)
                    announced += 1
                if self._mapped and place + _REQUESTED_AHEAD < len(blocks):
                    self._reader.submit(self._pages, rows, *blocks[place + _REQUESTED_AHEAD], request)
                yield place

        entry = 4 + (0 if self.graph.weights is None else self.graph.weights.itemsize)
        for result, edges in self.map(run, begun()):
            self.bytes += edges * entry
            self.advance(edges)
            yield result

    def map(self, work: Callable[[Unit], Result], units: Iterable[Unit]) -> Iterator[Result]:
        """The results of other work on the same cores, in order."""
        return in_order(self._pool, work, units, 2 * cores())

    def _borders(self, rows: NDArray[Any] | None, multiple: int | None) -> NDArray[np.int64]:
        """Where blocks of about BLOCK_EDGES begin, counted in rows, and where the last one ends."""
        indptr = self.graph.indptr
        if rows is None:
            count, edges = self.graph.nodes, self.graph.edges
            block = min(max(BLOCK_EDGES, edges // _MANY), _LARGE * BLOCK_EDGES)
            cuts = np.searchsorted(indptr, np.arange(block, edges, block))
        else:
            chosen = rows.astype(np.int64)
            ends = np.cumsum(indptr[chosen + 1] - indptr[chosen])
            count, edges = len(rows), int(ends[-1]) if len(rows) else 0
            cuts = np.searchsorted(ends, np.arange(BLOCK_EDGES, edges, BLOCK_EDGES)) + 1
        fixed = np.arange(0, self.graph.nodes, multiple or max(1, self.graph.nodes))
        fixed = fixed if rows is None else np.searchsorted(rows, fixed)
        return np.unique(np.concatenate([[0], np.minimum(cuts, count), fixed, [count]])).astype(np.int64)

    def _pages(self, rows: NDArray[Any] | None, first: int, stop: int, advise: Advise) -> None:
        """Advises on the entries of rows first..stop-1; pages of scattered rows are announced one by one, and left alone."""
        graph = self.graph
        arrays = [graph.indices] if graph.weights is None else [graph.indices, graph.weights]
        low, high = (first, stop) if rows is None else (int(rows[first]), int(rows[stop - 1]) + 1)
        start, end = int(graph.indptr[low]), int(graph.indptr[high])
        for values in arrays:
            if rows is None or stop - first >= _MOST * pages_of(values, start, end):
                advise(values, start, end)
            elif advise is announce:
                announce_rows(values, graph.indptr, rows[first:stop])

"""Streams W in blocks of rows over all cores, front to back, and requests the next blocks while one is computed.

A graph that fits in memory is read through its map and stays in the page cache. A larger one would evict its own beginning
before the next iteration reads it again, so it is read past the cache (`formats/storage/windows.py`). Rows that all batches
need are then kept in memory, as far as there is room (`kept_rows.py`).

No kernel sees what has not been checked: a chunk is compared with its checksum when a block first touches it, and the offsets
and columns of every block are checked to lie within the graph, in every pass, here or by the kernel itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.io.kept_rows import SPAN, KeptRows, RowCache
from mmdiff.diffusion.io.prefetch import announce_rows, pages_of
from mmdiff.formats.storage.direct import page_aligned
from mmdiff.formats.storage.mapping import announce, is_mapped, release, request, touch
from mmdiff.formats.storage.windows import Windows, windows_on
from mmdiff.graph.graph import CsrGraph
from mmdiff.kernels.floats import for_kernels
from mmdiff.kernels.spmm import GraphArrays
from mmdiff.runtime.progress import Advance
from mmdiff.runtime.threads import cores, in_order

Unit = TypeVar("Unit")
Result = TypeVar("Result")
Rows = NDArray[np.int64]
Advise = Callable[[NDArray[Any], int, int], None]

# Edges of a block of 96 columns: their indices fit in a core's cache, and the overhead of Python does not matter. Blocks of
# fewer columns have more edges: an edge costs as much as so many columns of it. Large graphs have larger blocks, and so has
# every read past the cache, since the disk is faster with large requests.
BLOCK_EDGES = 1 << 18
_WIDE = 96
_EDGE_COST = 16
_MANY = 1 << 12
_LARGE_EDGES = 15 << 16

# Blocks whose pages are announced ahead, so that the disk is never idle, and blocks whose pages are requested. Scattered rows
# touch more pages, so fewer blocks of them are announced.
_ANNOUNCED_AHEAD = 64
# Graphs up to this size are not announced again after a whole pass: they are in the page cache, and announcing a block would
# take longer than its product with few columns.
_SETTLED_BYTES = 1 << 30
_SCATTERED_AHEAD = 8
_REQUESTED_AHEAD = 12

# Blocks that are read past the cache ahead, the threads that read them (one alone leaves the disk idle), and the edges that a
# window holds, in whole large pages: a block with a longer last row comes from the map.
_READ_AHEAD = 8
READERS = 8
_WINDOW_EDGES = 1 << 20

# The share of pages between the first and the last row of a block from which on all of these pages are read.
_MOST = 1 / 8
# The same for reads past the cache: the disk reads 32 consecutive pages in the time of one random page.
_ENOUGH = 1 / 32


@dataclass(frozen=True)
class Block:
    """Rows of the graph, the first of them at place `first` among all requested rows. `graph` may hold only these rows."""

    rows: Rows
    first: int
    graph: CsrGraph
    whole: CsrGraph

    @property
    def places(self) -> Rows:
        """The places of the rows among all requested rows."""
        return np.arange(self.first, self.first + len(self.rows))

    def refuse_bad_rows(self) -> None:
        """Raises Damaged unless kernels can follow these rows."""
        self.whole.refuse_bad_rows(self.rows, self.graph.indices)


def arrays_of(graph: CsrGraph) -> GraphArrays:
    """A graph as kernels read it: weights of float16 as their bits."""
    weights = None if graph.weights is None else for_kernels(graph.weights)
    return GraphArrays(indptr=graph.indptr, indices=graph.indices, weights=weights, scale=graph.scale)


@dataclass(frozen=True)
class _Window:
    """A stretch of W in buffers of its own."""

    graph: CsrGraph
    buffers: list[NDArray[np.uint8]]


class Stream:
    """Passes over the rows of a graph. `let_go` releases pages after they are read, for graphs larger than the memory limit.

    `past_cache` reads the graph past the page cache, for graphs larger than the available memory of the machine; then
    `cache` keeps rows that all batches need. `bytes` counts the entries that were read, from the disk or from the page cache.
    """

    def __init__(self, graph: CsrGraph, let_go: bool = False, past_cache: bool = False, cache: RowCache | None = None) -> None:
        self.graph, self.let_go, self.past_cache = graph, let_go, past_cache
        self.cache = cache or RowCache()
        self.bytes = 0
        self.advance: Advance = lambda _: None
        self._mapped = is_mapped(graph.indices)
        self._settled = False
        self._windows: list[Windows] = []
        self._buffers: deque[list[NDArray[np.uint8]]] = deque()

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        if self.past_cache:
            windows = [windows_on(values) for values in self.graph.entries]
            self._windows = [self._stack.enter_context(found) for found in windows if found is not None]
            if len(self._windows) < len(windows):
                self._windows = []
        self._pool = self._stack.enter_context(ThreadPoolExecutor(cores()))
        self._reader = self._stack.enter_context(ThreadPoolExecutor(READERS if self._windows else 1))
        self._checker = self._stack.enter_context(ThreadPoolExecutor(1))
        if self._windows:
            # Finding the borders of blocks reads all over the offsets, which is slow page by page.
            for values in (self.graph.indptr, self.graph.scale):
                self._reader.submit(announce, values, 0, len(values))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, trace)

    def each(
        self,
        work: Callable[[Block], Result],
        rows: NDArray[Any] | None = None,
        multiple: int | None = None,
        kernel_checks: bool = False,
        shared: bool = False,
        columns: int = _WIDE,
    ) -> Generator[Result, None, None]:
        """The results of all blocks of the given rows (sorted; all rows by default), in order.

        No block crosses a row whose number is a multiple of `multiple`. With `kernel_checks`, the work refuses bad rows itself.
        `shared` rows will be requested again, for another iteration or another batch. `columns` says how much work an edge is.
        """
        if rows is not None and self.reads_all(rows):
            kept = self.cache.find(rows)
            if kept is not None:
                yield from self._each_kept(work, kept, rows, multiple)
                return
            if shared and (kept := self.cache.room_for(self.graph, rows)) is not None:
                yield from self._each(work, rows, multiple, kernel_checks, kept, columns)
                self.cache.add(kept)
                return
        yield from self._each(work, rows, multiple, kernel_checks, None, columns)
        if rows is None and not self.let_go and stored_bytes(self.graph) <= _SETTLED_BYTES:
            self._settled = True

    def _each(
        self,
        work: Callable[[Block], Result],
        rows: NDArray[Any] | None,
        multiple: int | None,
        kernel_checks: bool,
        keep: KeptRows | None,
        columns: int,
    ) -> Iterator[Result]:
        """The results of all blocks, as they are read; the entries of their rows are copied to `keep`."""
        past_cache = self.reads_all(rows)
        borders = self._borders(rows, multiple, past_cache, columns)
        blocks = list(zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True))
        entry = sum(values.itemsize for values in self.graph.entries)

        def run(unit: tuple[int, Future[_Window | None] | None]) -> tuple[Result, int, int]:
            place, coming = unit
            first, stop = blocks[place]
            chosen = np.arange(first, stop) if rows is None else rows[first:stop].astype(np.int64)
            window = None if coming is None else coming.result()
            graph = self.graph if window is None else window.graph
            self._touch(rows, first, stop)
            block = Block(chosen, first, graph, self.graph)
            if not kernel_checks:
                block.refuse_bad_rows()
            result = work(block)
            if keep is not None:
                # After the work, which has refused bad rows.
                keep.copy(graph, first, chosen)
            edges = self._edges(rows, first, stop)
            read = edges
            if window is not None:
                self._buffers.append(window.buffers)
                start, end = self._span(rows, first, stop)
                read = end - start
            elif self._mapped and self.let_go:
                self._pages(rows, first, stop, release)
            return result, edges, read

        units = self._read(rows, blocks) if past_cache else self._mapped_ahead(rows, blocks)
        for result, edges, read in self.map(run, units):
            self.bytes += read * entry
            self.advance(edges)
            yield result

    def _each_kept(
        self, work: Callable[[Block], Result], kept: KeptRows, rows: NDArray[Any], multiple: int | None
    ) -> Iterator[Result]:
        """The results of all blocks of kept rows, which were checked before they were kept."""
        borders = self._borders(rows, multiple or SPAN, past_cache=False)

        def run(unit: tuple[int, int]) -> tuple[Result, int]:
            first, stop = unit
            chosen = rows[first:stop].astype(np.int64)
            result = work(Block(chosen, first, kept.graph(self.graph, chosen), self.graph))
            return result, self._edges(rows, first, stop)

        for result, edges in self.map(run, zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True)):
            self.advance(edges)
            yield result

    def map(self, work: Callable[[Unit], Result], units: Iterable[Unit]) -> Iterator[Result]:
        """The results of other work on the same threads, in order."""
        return in_order(self._pool, work, units, 2 * cores())

    def reads_all(self, rows: NDArray[Any] | None) -> bool:
        """Whether a pass reads all of W past the cache: for all rows, or for many scattered ones."""
        return bool(self._windows) and (rows is None or reads_whole(self.graph, len(rows)))

    def _read(self, rows: NDArray[Any] | None, blocks: list[tuple[int, int]]) -> Iterator[tuple[int, Future[_Window | None]]]:
        """Places of blocks, and their windows, which are being read past the cache."""
        coming: deque[Future[_Window | None]] = deque()
        try:
            for place in range(len(blocks)):
                while place + len(coming) < min(place + _READ_AHEAD, len(blocks)):
                    coming.append(self._reader.submit(self._window, rows, *blocks[place + len(coming)]))
                yield place, coming.popleft()
        finally:
            # A pass that ends early leaves windows that no block takes.
            for future in coming:
                future.cancel()

    def _mapped_ahead(self, rows: NDArray[Any] | None, blocks: list[tuple[int, int]]) -> Iterator[tuple[int, None]]:
        """Places of blocks, whose pages are announced and requested ahead."""
        far, ahead = _ANNOUNCED_AHEAD if rows is None else _SCATTERED_AHEAD, self._mapped and not self._settled
        announced = 0
        for place in range(len(blocks)):
            while ahead and announced < min(place + far, len(blocks)):
                self._reader.submit(self._pages, rows, *blocks[announced], announce)
                # Checked ahead, too: the threads that compute would wait for it.
                self._checker.submit(self._touch, rows, *blocks[announced])
                announced += 1
            if ahead and place + _REQUESTED_AHEAD < len(blocks):
                self._reader.submit(self._pages, rows, *blocks[place + _REQUESTED_AHEAD], request)
            yield place, None

    def _borders(
        self, rows: NDArray[Any] | None, multiple: int | None, past_cache: bool, columns: int = _WIDE
    ) -> NDArray[np.int64]:
        """The places where blocks begin, and the end of the last one.

        Past the cache, edges between the first and the last row of a block count as well, since they are read.
        """
        indptr, edges = self.graph.indptr, self.graph.edges
        large = _LARGE_EDGES if past_cache else self._edges_of_block(columns)
        count = self.graph.nodes if rows is None else len(rows)
        if rows is None:
            cuts = np.searchsorted(indptr, np.arange(large, edges, large))
        elif past_cache:
            cuts = np.searchsorted(indptr[rows], np.arange(large, edges, large))
        else:
            ends = np.cumsum(self.graph.degrees(rows))
            edges = int(ends[-1]) if len(rows) else 0
            cuts = np.searchsorted(ends, np.arange(BLOCK_EDGES, edges, BLOCK_EDGES)) + 1
        fixed = np.arange(0, self.graph.nodes, multiple or max(1, self.graph.nodes))
        fixed = fixed if rows is None else np.searchsorted(rows, fixed)
        return np.unique(np.concatenate([[0], np.minimum(cuts, count), fixed, [count]])).astype(np.int64)

    def _edges_of_block(self, columns: int) -> int:
        """Edges of a block of a whole pass: all cores get as many blocks."""
        edges = self.graph.edges
        wanted = BLOCK_EDGES * (_EDGE_COST + _WIDE) // (_EDGE_COST + min(columns, _WIDE))
        blocks = -(-edges // min(max(wanted, edges // _MANY), _LARGE_EDGES))
        return max(1, -(-edges // max(1, -(-blocks // cores()) * cores())))

    def _edges(self, rows: NDArray[Any] | None, first: int, stop: int) -> int:
        """The number of edges of requested rows first..stop-1."""
        if rows is None:
            return int(self.graph.indptr[stop] - self.graph.indptr[first])
        return self.graph.edges_of(rows[first:stop])

    def _span(self, rows: NDArray[Any] | None, first: int, stop: int) -> tuple[int, int]:
        """The entries from the first to the last edge of requested rows first..stop-1."""
        low, high = (first, stop) if rows is None else (int(rows[first]), int(rows[stop - 1]) + 1)
        return int(self.graph.indptr[low]), int(self.graph.indptr[high])

    def _touch(self, rows: NDArray[Any] | None, first: int, stop: int) -> bool:
        """Checks the chunks of requested rows first..stop-1 that were not read before; returns whether there were any."""
        if rows is not None:
            return self.graph.touch_rows(rows[first:stop])
        span = self._span(rows, first, stop)
        return sum(touch(values, *span) for values in self.graph.entries) > 0

    def _pages(self, rows: NDArray[Any] | None, first: int, stop: int, advise: Advise) -> None:
        """Advises on the entries of requested rows first..stop-1. Pages of scattered rows are only announced, one by one."""
        start, end = self._span(rows, first, stop)
        for values in self.graph.entries:
            if rows is None or stop - first >= _MOST * pages_of(values, start, end):
                advise(values, start, end)
            elif advise is announce:
                announce_rows(values, self.graph.indptr, rows[first:stop])

    def _window(self, rows: NDArray[Any] | None, first: int, stop: int) -> _Window | None:
        """Reads the entries of requested rows first..stop-1 and those between; None where the map has to do."""
        if self._touch(rows, first, stop):
            # The check has just read all of it through the map.
            return None
        start, end = self._span(rows, first, stop)
        try:
            # The buffers that were returned last, since they are still in the processor's cache.
            buffers = self._buffers.pop()
        except IndexError:
            buffers = [page_aligned((_WINDOW_EDGES * values.itemsize,), "uint8") for values in self.graph.entries]
        read = (windows.read(start, end, buffer) for windows, buffer in zip(self._windows, buffers, strict=True))
        found = [values for values in read if values is not None]
        if len(found) < len(buffers):
            self._buffers.append(buffers)
            self._pages(rows, first, stop, request)
            return None
        indices, *weights = found
        return _Window(replace(self.graph, indices=indices, weights=weights[0] if weights else None), buffers)


def reads_whole(graph: CsrGraph, rows: int) -> bool:
    """Whether so many scattered rows are read with all of W, where that is read past the cache."""
    return rows >= _ENOUGH * pages_of(graph.indices, 0, graph.edges)


def window_bytes(graph: CsrGraph) -> int:
    """The most memory that windows take when the graph is read past the cache."""
    return (_READ_AHEAD + 2 * cores() + 1) * _WINDOW_EDGES * sum(values.itemsize for values in graph.entries)


def stored_bytes(graph: CsrGraph) -> int:
    """Bytes of all entries, as they are stored."""
    return sum(values.nbytes for values in graph.entries)

"""W = D^-1 (W0 + W0^T) from lists of neighbours (paper, section 3.2): an external transpose in bounded memory.

One sequential pass over the lists counts the incoming edges of each row. Rows are cut into ranges whose incoming edges fit the
memory. For each range one more pass gathers these edges; then each row is merged from its list and its incoming edges and
appended to the graph. The diagonal stays: a node that is its own neighbour has the entry 2 there. Checkpoints follow every
range, and blocks of edges within one: a killed run repeats the counting and at most one range. The bytes do not depend on
the ranges.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadOption, Corrupt, Parameter, Stale, call
from mmdiff.formats.store.growing import WAITING, Growth
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.publish import Draft
from mmdiff.graph import transpose, union
from mmdiff.graph.lists import Lists
from mmdiff.graph.union import Incoming, MergedRows, Outgoing
from mmdiff.graph.weights import Weighting
from mmdiff.kernels.constants import NONE
from mmdiff.runtime.memory import anonymous_bytes
from mmdiff.runtime.progress import Advance, Progress
from mmdiff.runtime.threads import cores, in_order

# Edges that a thread takes at a time: few enough for the cache, enough to make Python's overhead negligible.
BLOCK_EDGES = 1 << 18

# Cursors into the incoming edges of a range have 32 bits.
MOST_EDGES = (1 << 32) - 1

# A graph is cut into this many ranges even if fewer would fit the memory, unless ranges would be smaller than this.
_PASSES = 4
_LITTLE_BYTES = 128 << 20

# Share of the memory for counting the edges of each slice of the lists separately.
_COUNTING_SHARE = 1 / 8

# Edges between checkpoints.
_CHECKPOINT_EDGES = 1 << 23

# Memory for loading and compiling kernels.
_KERNEL_BYTES = 64 << 20

_NODE_BYTES, _CURSOR_BYTES, _COLUMN_BYTES, _WEIGHT_BYTES = 4, 4, 4, 4


@dataclass(frozen=True)
class Done:
    """Progress of the graph: rows, edges and reciprocal edges that are written.

    Of weighted rows also whether an edge leads to another node, and whether a label could spread along one.
    """

    rows: int = 0
    edges: int = 0
    reciprocal: int = 0
    leads: bool = False
    spreads: bool = False

    def then(self, block: MergedBlock) -> Done:
        """The progress after another block of rows."""
        return Done(
            self.rows + len(block.rows.ends),
            self.edges + len(block.rows.columns),
            self.reciprocal + block.reciprocal,
            self.leads or block.leads,
            self.spreads or block.spreads,
        )


class MergedBlock(NamedTuple):
    """A block of rows with its number of reciprocal edges, and `leads` and `spreads` as in `Done`."""

    rows: MergedRows
    reciprocal: int
    leads: bool = False
    spreads: bool = False


@dataclass(frozen=True)
class Range:
    """The edges that lead to rows first..first+len(cursors)-1."""

    first: int
    incoming: Incoming


@dataclass(frozen=True)
class Task:
    """The share of one thread in a pass over the lists: edges from a slice of the lists to a lane of rows."""

    part: int
    lists: tuple[int, int]
    lane: tuple[int, int]


Weights = NDArray[np.float32] | None
Visit = Callable[[Task, int, NDArray[np.uint32], Weights], None]
"""Called with a task, the first row of a block, and the neighbours and weights of the block."""


def symmetrise(lists: Lists, draft: Draft, memory: int, progress: Progress, weighting: Weighting | None = None) -> Json:
    """Writes `indptr`, `indices`, `scale` (and `weights`) of W; returns the facts `nodes`, `edges` and `reciprocal`.

    The process holds at most `memory` bytes of anonymous memory, including what it held before this call. It needs at least 4
    bytes per node, the incoming edges of the row that has the most, and some blocks of edges in work.
    """
    if weighting is not None:
        weighting.check(lists.k)
    with Symmetriser.of(lists, draft, memory, weighting) as work:
        done = work.run(progress)
        if weighting is not None and done.leads and not done.spreads:
            weighting.refuse_isolation()
    return {
        "nodes": lists.nodes,
        "edges": done.edges,
        "reciprocal": round(done.reciprocal / done.edges, 6) if done.edges else 0.0,
    }


class Symmetriser:
    """The external transpose of one graph: its threads, its memory, and the arrays it appends to."""

    def __init__(
        self,
        lists: Lists,
        growth: Growth,
        pool: ThreadPoolExecutor,
        memory: int,
        fixed: int,
        weighting: Weighting | None,
    ) -> None:
        self.lists, self.growth, self.pool, self.weighting = lists, growth, pool, weighting
        self.memory, self.fixed = memory, fixed
        self.threads = cores()
        self.slices = slices_of(lists.nodes, self.threads, memory)
        self.edge_bytes = _COLUMN_BYTES + (_WEIGHT_BYTES if weighting else 0)
        self.rows_per_block = max(1, BLOCK_EDGES // max(1, lists.k))

    @classmethod
    @contextmanager
    def of(cls, lists: Lists, draft: Draft, memory: int, weighting: Weighting | None) -> Iterator[Symmetriser]:
        dtypes = {"indptr": "int64", "indices": "uint32", "scale": "float32"}
        if weighting is not None:
            dtypes["weights"] = weighting.dtype
        # A block in work holds lists, similarities and weights, and twice as many columns (and weights) of the result.
        block = BLOCK_EDGES * (3 + 2 * (2 if weighting else 1)) * _COLUMN_BYTES
        counting = _NODE_BYTES * lists.nodes * slices_of(lists.nodes, cores(), memory)
        fixed = anonymous_bytes() + _KERNEL_BYTES + counting + block * (_ahead(cores()) + _waiting(dtypes))
        refuse_little_memory(memory, fixed, lists.nodes)
        with Growth(draft, dtypes) as growth, ThreadPoolExecutor(cores()) as pool:
            yield cls(lists, growth, pool, memory, fixed, weighting)

    def run(self, progress: Progress) -> Done:
        """Writes all rows that are missing."""
        done = Done(**self.growth.note)
        if not self.growth.note:
            self.growth.append("indptr", np.zeros(1, np.int64))
        if done.rows < self.lists.nodes:
            degrees = self._count(progress)
            ranges = self._ranges(degrees, done.rows)
            passes = len(ranges) * self.lists.nodes + self.lists.nodes - done.rows
            with progress("symmetrising", passes, "rows") as advance:
                for first, stop in ranges:
                    # No variable keeps the gathered edges: the next range needs their memory.
                    done = self._merge(self._gather(degrees, first, stop, advance), done, advance)
                    if stop < self.lists.nodes:
                        self.growth.checkpoint(asdict(done))
        self.growth.close()
        return done

    def _count(self, progress: Progress) -> NDArray[np.uint32]:
        """The number of edges from each slice of the lists to each row."""
        nodes = self.lists.nodes
        degrees = np.zeros((self.slices, nodes), np.uint32)

        def count(task: Task, start: int, neighbors: NDArray[np.uint32], weights: Weights) -> None:
            del weights
            bad = transpose.count(neighbors, *task.lane, degrees[task.part])
            if bad >= 0:
                self._refuse(start + bad, neighbors[bad])

        lanes = self.threads // self.slices
        with progress("counting edges", nodes, "rows") as advance:
            self._pass([nodes * lane // lanes for lane in range(lanes + 1)], count, advance, weighted=False)
        return degrees

    def _ranges(self, degrees: NDArray[np.uint32], first: int) -> list[tuple[int, int]]:
        """Rows from `first` on, cut into ranges whose incoming edges fit the memory."""
        nodes, cursor_bytes = self.lists.nodes, _CURSOR_BYTES * self.slices
        blocks = (degrees[:, start : start + BLOCK_EDGES] for start in range(0, nodes, BLOCK_EDGES))
        longest = max(int(block.sum(axis=0, dtype=np.int64).max()) for block in blocks)
        # Several rows with more edges than a block may be in work at once.
        at_once = _ahead(self.threads) + _waiting(self.growth.arrays)
        fixed = self.fixed + max(0, longest - BLOCK_EDGES) * self.edge_bytes * at_once
        refuse_little_memory(self.memory, fixed + longest * self.edge_bytes + cursor_bytes, nodes)
        # Another pass over the lists is no slower than touching memory for the first time.
        edges = int(degrees.sum(dtype=np.int64))
        enough = cursor_bytes * nodes + self.edge_bytes * edges
        budget = min(self.memory - fixed, max(enough // _PASSES, longest * self.edge_bytes + cursor_bytes, _LITTLE_BYTES))
        if enough <= budget and edges <= MOST_EDGES:
            return [(first, nodes)]
        ranges = []
        while first < nodes:
            stop = transpose.end_of_range(degrees, first, budget, self.edge_bytes, cursor_bytes, MOST_EDGES)
            ranges.append((first, stop))
            first = stop
        return ranges

    def _gather(self, degrees: NDArray[np.uint32], first: int, stop: int, advance: Advance) -> Range:
        edges = int(degrees[:, first:stop].sum(dtype=np.int64))
        sources = np.empty(edges, np.uint32)
        weights = None if self.weighting is None else np.empty(edges, np.float32)
        cursors = transpose.starts_of(degrees, first, stop)

        def gather(task: Task, start: int, neighbors: NDArray[np.uint32], of_block: Weights) -> None:
            own = cursors[task.part, slice(*task.lane)]
            transpose.gather(neighbors, of_block, start, first + task.lane[0], own, sources, weights)

        # Lanes have equal numbers of edges.
        lanes = self.threads // self.slices
        shares = np.arange(1, lanes) * edges // lanes
        self._pass([0, *np.searchsorted(cursors[0], shares.astype(np.uint32)).tolist(), len(cursors[0])], gather, advance)
        if not transpose.is_filled(degrees, first, cursors):
            raise Stale("the lists of neighbours changed while the graph was made from them. Try again.")
        return Range(first, Incoming(cursors[-1], sources, weights))

    def _merge(self, rows: Range, done: Done, advance: Advance) -> Done:
        written = done.edges
        for block in in_order(
            self.pool, lambda cut: self._merge_rows(rows, *cut), self._cuts(rows.incoming), _ahead(self.threads)
        ):
            merged = block.rows
            self.growth.append("indptr", merged.ends + done.edges)
            self.growth.append("indices", merged.columns)
            self.growth.append("scale", merged.scale)
            if merged.weights is not None:
                self.growth.append("weights", merged.weights)
            done = done.then(block)
            advance(len(merged.ends))
            if done.edges - written >= _CHECKPOINT_EDGES:
                self.growth.checkpoint(asdict(done))
                written = done.edges
        return done

    def _cuts(self, incoming: Incoming) -> Iterator[tuple[int, int]]:
        """Rows of a range, counted from its first, in blocks of no more incoming edges than BLOCK_EDGES, or of one row."""
        cursors = incoming.cursors
        start = 0
        while start < len(cursors):
            before = int(cursors[start - 1]) if start else 0
            near = cursors[start : start + self.rows_per_block].astype(np.int64)
            stop = start + max(1, int(np.searchsorted(near, before + BLOCK_EDGES, "right")))
            yield start, stop
            start = stop

    def _merge_rows(self, rows: Range, start: int, stop: int) -> MergedBlock:
        """Rows start..stop-1 of a range."""
        incoming = rows.incoming
        outgoing = Outgoing(*self._block(rows.first + start, rows.first + stop))
        before = int(incoming.cursors[start - 1]) if start else 0
        most = outgoing.neighbors.size + int(incoming.cursors[stop - 1]) - before
        merged = MergedRows.empty(stop - start, most, self.weighting is not None)
        reciprocal = union.merge(outgoing, start, incoming, merged)
        edges = int(merged.ends[-1])
        merged = merged._replace(columns=merged.columns[:edges])
        if merged.weights is None or self.weighting is None:
            return MergedBlock(merged, reciprocal)
        # Rows are normalised by the sum of what is stored, so that they sum to 1 in either precision.
        stored = merged.weights[:edges].astype(self.weighting.dtype, copy=False)
        values = stored.astype(np.float32, copy=False)
        union.scale_of(merged.ends, values, merged.scale)
        leads, spreads = union.spread(merged._replace(weights=values), rows.first + start)
        return MergedBlock(merged._replace(weights=stored), reciprocal, leads, spreads)

    def _pass(self, lanes: list[int], visit: Visit, advance: Advance, weighted: bool = True) -> None:
        """Visits all lists once per lane; `lanes` are the bounds of lanes. All slices and lanes run at the same time."""
        stopped = threading.Event()

        def go(task: Task) -> None:
            for start in range(*task.lists, self.rows_per_block):
                if stopped.is_set():
                    return
                stop = min(start + self.rows_per_block, task.lists[1])
                visit(task, start, *self._block(start, stop, weighted))
                if task.lane[0] == lanes[0]:
                    advance(stop - start)

        cuts = [self.lists.nodes * part // self.slices for part in range(self.slices + 1)]
        try:
            list(self.pool.map(go, [Task(*part, lane) for part in enumerate(pairwise(cuts)) for lane in pairwise(lanes)]))
        finally:
            stopped.set()

    def _block(self, start: int, stop: int, weighted: bool = True) -> tuple[NDArray[np.uint32], NDArray[np.float32] | None]:
        neighbors, similarities = self.lists.block(start, stop)
        if self.weighting is None or not weighted:
            return neighbors, None
        return neighbors, self.weighting.of(neighbors, similarities)

    def _refuse(self, row: int, neighbors: NDArray[np.uint32]) -> None:
        node = next(int(node) for node in neighbors if self.lists.nodes <= node < NONE)
        raise Corrupt(
            f"lists of neighbours, row {row}: node {node} of {self.lists.nodes}. Find the damage with ", call("verify"), "."
        )


def slices_of(nodes: int, threads: int, memory: int) -> int:
    """The number of slices of the lists: the largest divisor of `threads` whose counts fit a share of the memory."""
    allowed = memory * _COUNTING_SHARE // max(1, _NODE_BYTES * nodes)
    return max(slices for slices in range(1, threads + 1) if threads % slices == 0 and (slices <= allowed or slices == 1))


def refuse_little_memory(memory: int, needed: int, nodes: int) -> None:
    if memory < needed:
        allowed, least = memory / 2**20, math.ceil(needed / 2**20)
        raise BadOption(
            Parameter("memory", f"{allowed:,.0f}M"), f": a graph of {nodes:,} nodes needs at least {least:,}M. Allow more."
        )


def _ahead(threads: int) -> int:
    """Blocks in work or waiting to be appended."""
    return 2 * threads


def _waiting(arrays: Collection[str]) -> int:
    """Blocks that are appended and wait for the disk."""
    return WAITING // len(arrays) + 1

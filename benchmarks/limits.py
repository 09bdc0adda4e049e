"""The cost of an edge in the product W L: with its row in the cache, near in memory, or far away.

First the product of all rows is timed, as in a diffusion but with results discarded, which works at every size. Then rows are
sampled from the whole graph and their edges replaced: all by the row itself (arithmetic alone), only those to near rows, or
only those to far rows. Together with the shares of such edges and the processor time for reading W and writing S, these give a
model of the time of an iteration. Costs are averages of alternating runs, since an iteration is long enough to see the machine
both fast and slow.

    python -m benchmarks.limits STORE COLUMNS      seconds per edge, and shares, as JSON
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.engine.product import SeedUpdate, multiply
from mmdiff.diffusion.engine.states import Matrix
from mmdiff.diffusion.io.graph_stream import Block, Stream
from mmdiff.diffusion.io.remote_batches import stream_of
from mmdiff.diffusion.io.spill import rows_per_chunk
from mmdiff.diffusion.seeds import Seeds
from mmdiff.formats.storage.arrays import ArraySpec
from mmdiff.formats.storage.direct import page_aligned
from mmdiff.formats.store.array_writer import ArrayWriter
from mmdiff.graph.graph import CsrGraph
from mmdiff.kernels.constants import COLUMN
from mmdiff.runtime.memory import available_bytes
from mmdiff.runtime.threads import cores, in_threads

_NEAR = 1000
_PIECES, _ROWS = 256, 4096
_WRITTEN = 32
RUNS = 3
ROUNDS = 8
_LEAST_SECONDS = 10


def measure(store: Path, width: int) -> dict[str, float]:
    """Seconds per edge of each kind on all cores, the share of near edges, and seconds to sum the columns of S.

    Also processor seconds per byte of W read past the page cache, and per byte of S written.
    """
    graph = CsrGraph.open(store)
    source = page_aligned((graph.nodes, width), "uint16")
    for start in range(0, graph.nodes, 1 << 20):
        source[start : start + (1 << 20)] = 0x3F80
    pieces = [_edges(graph, int(start)) for start in np.linspace(0, graph.nodes - _ROWS, _PIECES)]
    near = [np.abs((columns & COLUMN).astype(np.int64) - rows) <= _NEAR for rows, columns in pieces]
    found = {
        "near_share": float(np.concatenate(near).mean()),
        "product": _product_seconds(graph, source) / graph.edges,
        "sums": _best(lambda: Matrix(source).column_sums(None)),
    }
    kinds = {
        "itself": [rows.astype(np.uint32) for rows, _ in pieces],
        "near": [columns[close] for (_, columns), close in zip(pieces, near, strict=True)],
        "far": [columns[~close] for (_, columns), close in zip(pieces, near, strict=True)],
    }
    graphs = {kind: list(map(_graph, edges)) for kind, edges in kinds.items()}
    _seconds(graphs["itself"][:1], source)
    times = [{kind: _seconds(own, source) for kind, own in graphs.items()} for _ in range(ROUNDS)]
    for kind, edges in kinds.items():
        found[kind] = float(np.mean([own[kind] for own in times])) / sum(map(len, edges))
    found["busy_reading"] = _busy_reading(graph)
    with tempfile.TemporaryDirectory(dir=store.parent) as folder:
        found["busy_writing"] = _busy_writing(Path(folder), source)
    return found


def _busy_reading(graph: CsrGraph) -> float:
    """Processor seconds per byte of W, read past the page cache as in a diffusion."""
    with Stream(graph, past_cache=True) as stream:
        clock = time.process_time()
        for _ in stream.each(lambda block: len(block.rows)):
            pass
        return (time.process_time() - clock) / stream.bytes


def _busy_writing(folder: Path, source: NDArray[np.uint16]) -> float:
    """Processor seconds per byte of S, written past the page cache with its checksum."""
    spec = ArraySpec.fit(source.shape, "uint16", rows_per_chunk((source.shape[0], source.shape[1]), "uint16"))
    spill, chunks = ArrayWriter(folder / "S", spec), range(min(spec.chunks, _WRITTEN))
    clock = time.process_time()
    for chunk in chunks:
        spill.write(chunk, source[slice(*spec.rows(chunk))], cached=False)
    return (time.process_time() - clock) / (len(chunks) * spec.chunk_bytes)


def _edges(graph: CsrGraph, start: int) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """The rows and columns of the edges of a range of rows."""
    ends = graph.indptr[start : start + _ROWS + 1]
    rows = np.repeat(np.arange(start, start + _ROWS), np.diff(ends))
    return rows, np.array(graph.indices[ends[0] : ends[-1]])


def _graph(columns: NDArray[np.uint32]) -> CsrGraph:
    """A graph of these edges, 50 per row."""
    indptr = np.append(np.arange(0, len(columns), 50), len(columns)).astype(np.int64)
    return CsrGraph(indptr, columns, np.ones(len(indptr) - 1, np.float32))


def _product_seconds(graph: CsrGraph, source: NDArray[np.uint16]) -> float:
    """Seconds for the product of all rows, with W from the page cache, or from the disk if it is larger."""
    seed_update, own = _no_seeds(source), threading.local()

    def work(block: Block) -> int:
        if len(getattr(own, "out", ())) < len(block.rows):
            own.out = np.empty((len(block.rows), source.shape[1]), np.uint16)
        return multiply(block, source, own.out, np.arange(len(block.rows)), seed_update)

    with stream_of(graph, 0, available_bytes()) as stream:
        return _best(lambda: sum(stream.each(work, kernel_checks=True)))


def _no_seeds(source: NDArray[np.uint16]) -> SeedUpdate:
    return SeedUpdate(Seeds.of(np.empty(0, np.int64), np.empty((0, 1), np.int32), source.shape[1]))


def _seconds(graphs: list[CsrGraph], source: NDArray[np.uint16]) -> float:
    """Seconds for the products of several graphs on all cores."""
    seed_update, own = _no_seeds(source), threading.local()
    most = max(len(graph.indptr) for graph in graphs)

    def run(graph: CsrGraph) -> None:
        if not hasattr(own, "out"):
            own.out = np.empty((most, source.shape[1]), np.uint16)
        rows = np.arange(len(graph.indptr) - 1)
        multiply(Block(rows, 0, graph, graph), source, own.out, rows, seed_update)

    clock = time.perf_counter()
    for _ in in_threads(run, graphs, cores()):
        pass
    return time.perf_counter() - clock


def _best(work: Callable[[], Any]) -> float:
    """Seconds of the fastest of several runs, at least `RUNS` and `_LEAST_SECONDS` in total, to outlast disturbances."""
    times: list[float] = []
    while len(times) < RUNS or sum(times) < _LEAST_SECONDS:
        clock = time.perf_counter()
        work()
        times.append(time.perf_counter() - clock)
    return min(times)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]))))

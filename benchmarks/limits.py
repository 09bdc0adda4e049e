"""What limits the product over a graph: the cost of an edge, and of one whose row lies in the cache, near it, or far away.

The product is taken of all rows, as a diffusion takes it, but its results are not kept, which works at every size. Then rows
are taken from all over the graph, and their edges changed: all to the row itself, which leaves only the work; to rows of the
same cell; or only those that lead farther away. From the last two and the shares of such edges, and from what the processor
does to read W and to write S, follows the time of an iteration, which is compared with the one that was measured. These are
averages of many times in turn, since an iteration lasts long enough to see the machine at its best and at its worst.

    python -m benchmarks.limits STORE COLUMNS      seconds an edge, and shares, as JSON
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
from mmdiff.formats.store.publish import ArrayWriter
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
    """Seconds an edge of each kind, on all cores, the share of edges that are near, and seconds to sum the columns of S.

    Also seconds that processors are busy for each byte of W that is read past the cache, and of S that is written.
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
    """Seconds of processors for a byte of W, read past the cache as a diffusion reads it."""
    with Stream(graph, past_cache=True) as stream:
        clock = time.process_time()
        for _ in stream.each(lambda block: len(block.rows)):
            pass
        return (time.process_time() - clock) / stream.bytes


def _busy_writing(folder: Path, source: NDArray[np.uint16]) -> float:
    """Seconds of processors for a byte of S, written past the cache with its checksum."""
    spec = ArraySpec.fit(source.shape, "uint16", rows_per_chunk((source.shape[0], source.shape[1]), "uint16"))
    sheet, chunks = ArrayWriter(folder / "S", spec), range(min(spec.chunks, _WRITTEN))
    clock = time.process_time()
    for chunk in chunks:
        sheet.write(chunk, source[slice(*spec.rows(chunk))], cached=False)
    return (time.process_time() - clock) / (len(chunks) * spec.chunk_bytes)


def _edges(graph: CsrGraph, start: int) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """The row and the column of the edges of some rows."""
    ends = graph.indptr[start : start + _ROWS + 1]
    rows = np.repeat(np.arange(start, start + _ROWS), np.diff(ends))
    return rows, np.array(graph.indices[ends[0] : ends[-1]])


def _graph(columns: NDArray[np.uint32]) -> CsrGraph:
    """Edges as rows with 50 of them each."""
    indptr = np.append(np.arange(0, len(columns), 50), len(columns)).astype(np.int64)
    return CsrGraph(indptr, columns, np.ones(len(indptr) - 1, np.float32))


def _product_seconds(graph: CsrGraph, source: NDArray[np.uint16]) -> float:
    """The product of all rows, W as it comes from where it lies: the page cache, or the disk where it is larger than that."""
    seed_update, own = _no_pull(source), threading.local()

    def work(block: Block) -> int:
        if len(getattr(own, "out", ())) < len(block.rows):
            own.out = np.empty((len(block.rows), source.shape[1]), np.uint16)
        return multiply(block.graph, source, block.rows, own.out, np.arange(len(block.rows)), seed_update)

    with stream_of(graph, 0, available_bytes()) as stream:
        return _best(lambda: sum(stream.each(work)))


def _no_pull(source: NDArray[np.uint16]) -> SeedUpdate:
    return SeedUpdate(Seeds.of(np.empty(0, np.int64), np.empty((0, 1), np.int32), source.shape[1]))


def _seconds(graphs: list[CsrGraph], source: NDArray[np.uint16]) -> float:
    """The product of graphs of some rows each, on all cores."""
    seed_update, own = _no_pull(source), threading.local()
    most = max(len(graph.indptr) for graph in graphs)

    def run(graph: CsrGraph) -> None:
        if not hasattr(own, "out"):
            own.out = np.empty((most, source.shape[1]), np.uint16)
        rows = np.arange(len(graph.indptr) - 1)
        multiply(graph, source, rows, own.out, rows, seed_update)

    clock = time.perf_counter()
    for _ in in_threads(run, graphs, cores()):
        pass
    return time.perf_counter() - clock


def _best(work: Callable[[], Any]) -> float:
    """Seconds of the quickest of several times, which take long enough together to outlast what disturbs them."""
    times: list[float] = []
    while len(times) < RUNS or sum(times) < _LEAST_SECONDS:
        clock = time.perf_counter()
        work()
        times.append(time.perf_counter() - clock)
    return min(times)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]))))

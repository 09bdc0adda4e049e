"""What limits the product over a graph: the cost of an edge, and of one whose row lies in the cache, near it, or far away.

The product is taken of all rows, as a diffusion takes it, but its results are not kept, which works at every size. Then rows
are taken from all over the graph, and their edges changed: all to the row itself, which leaves only the work; to rows of the
same cell; or only those that lead farther away. From the last two and the shares of such edges follows the time of an
iteration, which is compared with the one that was measured.

    python -m benchmarks.limits STORE COLUMNS      seconds an edge, and shares, as JSON
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.product import Pull, multiply
from mmdiff.diffusion.seeds import Seeds
from mmdiff.diffusion.spreading import stream_of
from mmdiff.diffusion.states import Matrix
from mmdiff.diffusion.streaming import Block
from mmdiff.formats.direct import page_aligned
from mmdiff.graph.graph import COLUMN, Graph
from mmdiff.memory import available_bytes
from mmdiff.parallel import cores, in_threads

_NEAR = 1000
_PIECES, _ROWS = 64, 4096
RUNS = 3


def measure(store: Path, width: int) -> dict[str, float]:
    """Seconds an edge of each kind, on all cores, the share of edges that are near, and seconds to sum the columns of S."""
    graph = Graph.open(store)
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
    for kind, edges in kinds.items():
        found[kind] = _seconds(list(map(_graph, edges)), source) / sum(map(len, edges))
    return found


def _edges(graph: Graph, start: int) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """The row and the column of the edges of some rows."""
    ends = graph.indptr[start : start + _ROWS + 1]
    rows = np.repeat(np.arange(start, start + _ROWS), np.diff(ends))
    return rows, np.array(graph.indices[ends[0] : ends[-1]])


def _graph(columns: NDArray[np.uint32]) -> Graph:
    """Edges as rows with 50 of them each."""
    indptr = np.append(np.arange(0, len(columns), 50), len(columns)).astype(np.int64)
    return Graph(indptr, columns, np.ones(len(indptr) - 1, np.float32))


def _product_seconds(graph: Graph, source: NDArray[np.uint16]) -> float:
    """The product of all rows, W as it comes from where it lies: the page cache, or the disk where it is larger than that."""
    pull, own = _no_pull(source), threading.local()

    def work(block: Block) -> int:
        if len(getattr(own, "out", ())) < len(block.rows):
            own.out = np.empty((len(block.rows), source.shape[1]), np.uint16)
        return multiply(block.graph, source, block.rows, own.out, np.arange(len(block.rows)), pull)

    with stream_of(graph, 0, available_bytes()) as stream:
        return _best(lambda: sum(stream.each(work)))


def _no_pull(source: NDArray[np.uint16]) -> Pull:
    return Pull(Seeds.of(np.empty(0, np.int64), np.empty((0, 1), np.int32), source.shape[1]))


def _seconds(graphs: list[Graph], source: NDArray[np.uint16]) -> float:
    pull = _no_pull(source)

    def run(graph: Graph) -> None:
        rows = np.arange(len(graph.indptr) - 1)
        out = np.empty((len(rows), source.shape[1]), np.uint16)
        multiply(graph, source, rows, out, rows, pull)

    return _best(lambda: list(in_threads(run, graphs, cores())))


def _best(work: Callable[[], Any]) -> float:
    """Seconds of the quickest of several times."""
    times = []
    for _ in range(RUNS):
        clock = time.perf_counter()
        work()
        times.append(time.perf_counter() - clock)
    return min(times)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]))))

"""Compares searches on the GPUs of a machine with those on its processor: the lists, and both times.

    python -m benchmarks.gpu_check [--rows 200000] [--width 256]

Generated rows are searched exactly, and in the cells that they visit, by the code that `mmdiff build-graph` runs. It takes a
few minutes, mostly on the processor.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from mmdiff.formats.errors import BadOption
from mmdiff.knn.cells import partition
from mmdiff.knn.cells.order import Cells
from mmdiff.knn.faiss_index.gpu import gpus, require_gpu
from mmdiff.knn.search.devices import CORES, PIECE_ROWS, Comparing, device_for
from mmdiff.knn.search.topk import Lists
from mmdiff.runtime.threads import in_threads

_K = 30
_VISITS = 32
# Rows that are searched exactly; all rows are searched in cells.
_EXACT = 1 << 14


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000, help="generated rows (default: 200000)")
    parser.add_argument("--width", type=int, default=256, help="dimensions (default: 256)")
    chosen = parser.parse_args(words)
    try:
        require_gpu()
    except BadOption as error:
        sys.stderr.write(f"{error}\n")
        return 2
    on_gpus = device_for("gpu")
    cells = _cells(chosen.rows, chosen.width)
    sys.stdout.write(f"{gpus()} GPUs, {chosen.rows:,} rows of {chosen.width} dimensions, k = {_K}\n")
    exact = [_timed(partial(_nearest, cells, device), min(_EXACT, chosen.rows)) for device in (on_gpus, CORES)]
    _show("exact search", *exact)
    visited = [_timed(partial(_visited, cells, device), chosen.rows) for device in (on_gpus, CORES)]
    _show(f"{_VISITS} visited cells", *visited)
    wrong = (exact[0][0][1] < exact[1][0][1] - 1e-6).any() or (visited[0][0][1] < visited[1][0][1] - 1e-6).any()
    sys.stdout.write(
        "FAILED: some neighbours of the GPUs are further away\n" if wrong else "no neighbour of the GPUs is further away\n"
    )
    return int(wrong)


def _cells(rows: int, width: int) -> Cells:
    draw = np.random.default_rng(0)
    centers = draw.standard_normal((max(1, rows // 200), width), np.float32)
    values = centers[draw.integers(0, len(centers), rows)] + draw.standard_normal((rows, width), np.float32)
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    quantizer = partition.train(values, 0)
    assigned = partition.assign_all(values, quantizer, None, lambda _: None)
    order, offsets = partition.by_cell(assigned)
    # Cells without rows stay, so that they are those of the quantiser.
    offsets = np.append(offsets, np.full(len(quantizer.centroids) + 1 - len(offsets), rows))
    return Cells(values[order], order, assigned[order], offsets, quantizer)


def _nearest(cells: Cells, device: Comparing, start: int) -> Lists:
    return device.nearest(cells.vectors[start : min(start + PIECE_ROWS, _EXACT)], cells.vectors, _K)


def _visited(cells: Cells, device: Comparing, start: int) -> Lists:
    rows = np.arange(start, min(start + PIECE_ROWS, len(cells.vectors)))
    return device.visited(cells.vectors[rows], cells.vectors, cells.visits_of(rows, _VISITS), cells.offsets, _K)


def _timed(search: Callable[[int], Lists], rows: int) -> tuple[Lists, float]:
    """The lists of all pieces, and the seconds of the second run: the first one compiles kernels and starts devices."""
    for _ in range(2):
        clock = time.perf_counter()
        found = list(in_threads(search, range(0, rows, PIECE_ROWS)))
        seconds = time.perf_counter() - clock
    return (np.concatenate([lists[0] for lists in found]), np.concatenate([lists[1] for lists in found])), seconds


def _show(what: str, on_gpus: tuple[Lists, float], on_cores: tuple[Lists, float]) -> None:
    same = float((on_gpus[0][0] == on_cores[0][0]).all(axis=1).mean())
    times = f"GPUs {on_gpus[1]:.2f} s, processor {on_cores[1]:.2f} s ({on_cores[1] / on_gpus[1]:.1f} times)"
    sys.stdout.write(f"{what}: {times}; the same lists in {same:.4f} of rows\n")


if __name__ == "__main__":
    sys.exit(main())

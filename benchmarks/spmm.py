"""The product W L of 1 to 128 columns against scipy, MKL (the paper's kernel) and torch, in one process.

Graphs are nearest-neighbour graphs of generated descriptors and of Tiny ImageNet. The original order of nodes is that of the
user's rows, which are shuffled; cell order is that of the store; random order has the same degrees and random neighbours.
L is aligned to cache lines for all libraries.

    python -m benchmarks.spmm STORE      the times, as JSON; taskset -c 0 for one core
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import stores
from benchmarks.measure import Figure

COLUMNS = 96
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 96, 128)
ORDERS = {"random": "random order", "original": "original order", "cells": "cell order"}
RUNS = 4


def figures(folder: Path, rows: int = 1_000_000) -> list[Figure]:
    """Comparisons on both graphs."""
    found = []
    for title, store in ((f"{rows / 1e6:g}M nodes", stores.generated(folder, rows)), ("Tiny ImageNet", stores.tiny(folder))):
        if store is not None:
            found += _compare(title, _times(store))
    return found


def _times(store: Path) -> Any:
    """Runs `measure` in its own process, in which all libraries have the same number of threads."""
    cores = str(len(os.sched_getaffinity(0)))
    threads = {"OMP_NUM_THREADS": cores, "MKL_NUM_THREADS": cores}
    library = next(iter(sorted((Path(sys.prefix) / "lib").glob("libmkl_rt.so*"))), None)
    environment = os.environ | threads | ({} if library is None else {"MKL_RT": str(library)})
    output = subprocess.run(
        [sys.executable, "-m", "benchmarks.spmm", store], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(output.stdout)


def _compare(title: str, times: Any) -> list[Figure]:
    ours, edges = times["original"][str(COLUMNS)], times["edges"]
    what = f"W L, {title}, {edges / times['nodes']:.0f} edges a node, {COLUMNS} columns"

    def figure(key: str, order: str, mine: float, peer: str, theirs: float) -> Figure:
        name = f"spmm_{title.split()[0]}_{key}"
        return Figure(name, f"{what}, {order}", 1000 * mine, peer, 1000 * theirs, "ms", more_is_better=False)

    found = [
        figure(f"original_{peer}", "original order", ours["mmdiff"], f"{peer}, same order", ours[peer])
        for peer in ("mkl", "scipy", "torch")
        if peer in ours
    ]
    cell = times["cells"][str(COLUMNS)]
    if "mkl" in ours:
        found.append(figure("cells_original", "cell order", cell["mmdiff"], "mkl, original order", ours["mkl"]))
        found.append(figure("cells_mkl", "cell order", cell["mmdiff"], "mkl, same order", cell["mkl"]))
    for order, name in ORDERS.items():
        wide = times[order][str(COLUMNS)]
        found.append(figure(f"bfloat16_{order}", f"{name}, bfloat16", wide["bfloat16"], "float32", wide["mmdiff"]))
    found += _widths(title, times)
    gathered = edges * COLUMNS * 4 / cell["mmdiff"] / 1e9
    name = f"spmm_{title.split()[0]}_gathered"
    found.append(Figure(name, f"{what}, cell order, rows gathered", gathered, "memory copy", times["copy"], "GB/s"))
    return found


def _widths(title: str, times: Any) -> list[Figure]:
    """Each width in each order against MKL, which has no bfloat16."""
    found = []
    for order, name in ORDERS.items():
        for width, own in times[order].items():
            for key, kind in (("mmdiff", "float32"), ("bfloat16", "bfloat16")):
                if "mkl" in own:
                    what = f"W L, {title}, {width} column{'' if width == '1' else 's'}, {name}, {kind}"
                    figure = f"spmm_{title.split()[0]}_{order}_{width}_{kind}"
                    theirs = ("mkl, float32", 1000 * own["mkl"])
                    found.append(Figure(figure, what, 1000 * own[key], *theirs, "ms", more_is_better=False))
    return found


def measure(store: Path) -> dict[str, Any]:
    """Seconds of each library in all orders and widths; fails if results differ."""
    import scipy.sparse

    from mmdiff.graph.graph import CsrGraph

    graph = CsrGraph.open(store)
    W = graph.to_scipy()
    order = (
        np.arange(graph.nodes)
        if graph.order is None
        else np.concatenate([graph.order, np.arange(len(graph.order), graph.nodes)])
    )
    place = np.argsort(order)
    original = scipy.sparse.csr_array(W[place][:, place])
    original.sort_indices()
    A = scipy.sparse.csr_array(graph.to_scipy(normalized=False)[place][:, place])
    A.sort_indices()
    times: dict[str, Any] = {"nodes": graph.nodes, "edges": graph.edges, "copy": _copy_speed()}
    times["random"] = _all_widths(*_with_random_neighbors(graph))
    times["original"] = _all_widths(CsrGraph.from_scipy(A), original)
    times["cells"] = _all_widths(graph, W)
    return times


def _with_random_neighbors(graph: Any) -> tuple[Any, Any]:
    """A graph of the same degrees and weights whose neighbours are drawn at random, in ascending order in each row."""
    from dataclasses import replace

    from mmdiff.kernels.constants import COLUMN

    drawn = np.random.default_rng(0).integers(0, graph.nodes, graph.edges)
    rows = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    drawn = np.sort(rows * graph.nodes + drawn) - rows * graph.nodes
    found = replace(graph, indices=drawn.astype(np.uint32) | (graph.indices & ~COLUMN))
    return found, found.to_scipy()


def _all_widths(graph: Any, W: Any) -> dict[str, dict[str, float]]:
    from mmdiff.formats.storage.direct import page_aligned

    times = {}
    for width in WIDTHS:
        L = page_aligned((graph.nodes, width), "float32")
        np.random.default_rng(0).random(out=L, dtype=np.float32)
        times[str(width)] = _all(graph, W, L)
    return times


def _all(graph: Any, W: Any, L: NDArray[np.float32]) -> dict[str, float]:
    from mmdiff.diffusion.engine.product import SeedUpdate, product
    from mmdiff.diffusion.io.graph_stream import Stream
    from mmdiff.diffusion.seeds import Seeds
    from mmdiff.formats.storage.direct import page_aligned
    from mmdiff.kernels.floats import bfloat16_encode

    out, seed_update = (
        page_aligned(L.shape, "float32"),
        SeedUpdate(Seeds.of(np.empty(0, np.int64), np.empty((0, 1), np.int32), L.shape[1])),
    )
    short, short_out = page_aligned(L.shape, "uint16"), page_aligned(L.shape, "uint16")
    short[:] = bfloat16_encode(L)
    runs: dict[str, Callable[[], Any]] = {}
    with Stream(graph) as stream:
        runs["mmdiff"] = lambda: product(stream, L, out, seed_update)
        runs["bfloat16"] = lambda: product(stream, short, short_out, seed_update)
        runs["scipy"] = lambda: W @ L
        runs |= _mkl(W, L) | _torch(W, L)
        # Narrow products are short, so that disturbances affect them more.
        times = _best(runs, RUNS + 16 // L.shape[1])
    for peer in runs.keys() - {"mmdiff", "bfloat16"}:
        result = runs[peer]()
        if not np.allclose(out, np.asarray(result), rtol=1e-4, atol=1e-6):
            raise RuntimeError(f"{peer} and mmdiff give different results")
    return times


def _best(runs: dict[str, Callable[[], Any]], count: int) -> dict[str, float]:
    """The best of several runs of each, alternating, so that disturbances affect all alike."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(count):
        for name, run in runs.items():
            clock = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - clock)
    return {name: min(taken) for name, taken in times.items()}


def _mkl(W: Any, L: NDArray[np.float32]) -> dict[str, Callable[[], Any]]:
    try:
        from sparse_dot_mkl import dot_product_mkl
    except ImportError:
        return {}
    import scipy.sparse

    matrix = scipy.sparse.csr_matrix((W.data, W.indices, W.indptr), W.shape)
    return {"mkl": lambda: dot_product_mkl(matrix, L)}


def _torch(W: Any, L: NDArray[np.float32]) -> dict[str, Callable[[], Any]]:
    try:
        import torch
    except ImportError:
        return {}
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    indptr, indices = (torch.from_numpy(values.astype(np.int64)) for values in (W.indptr, W.indices))
    with warnings.catch_warnings():
        # Warnings that sparse CSR is in beta state, and that invariants are not checked.
        warnings.simplefilter("ignore", UserWarning)
        matrix = torch.sparse_csr_tensor(indptr, indices, torch.from_numpy(W.data), W.shape)
    dense = torch.from_numpy(L)
    return {"torch": lambda: (matrix @ dense).numpy()}


def _copy_speed() -> float:
    """GB/s read by a memory copy on all cores, which writes as much."""
    from mmdiff.runtime.threads import cores, in_threads

    source = np.ones(1 << 28, np.float32)
    target = np.empty_like(source)
    pieces = [
        slice(*piece)
        for piece in zip(*[np.linspace(0, source.size, cores() + 1).astype(int)[i : cores() + i] for i in (0, 1)], strict=True)
    ]
    times = []
    for _ in range(RUNS):
        clock = time.perf_counter()
        for _ in in_threads(lambda piece: np.copyto(target[piece], source[piece]), pieces):
            pass
        times.append(time.perf_counter() - clock)
    return source.nbytes / min(times) / 1e9


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(Path(sys.argv[1]))))

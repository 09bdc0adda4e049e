"""Large runs: all stages at one and ten million images, the diffusion at a hundred million nodes, and growth of costs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks import large
from benchmarks.generate import Surface
from benchmarks.knn import PROGRAM
from benchmarks.large import CLASSES, T
from benchmarks.measure import evict, watch
from benchmarks.whole import Job, whole_job
from mmdiff.diffusion.io.graph_stream import Block, Stream
from mmdiff.formats.storage import seam
from mmdiff.formats.storage.direct import page_aligned
from mmdiff.formats.store.manifest import Json
from mmdiff.graph.graph import CsrGraph

# Batch width and memory limit: 20 GB hold 64 columns of bfloat16 of a hundred million nodes once.
WIDTH = 64
RUNS = 3
LIMIT = "19000M"
_MILLION = 1_000_000

# The share of the free disk that the graph of the largest job may take; matrices S and scores need some too.
_DISK_SHARE = 0.8


def F1M(folder: Path) -> Json:
    """All stages for a million images, with a warm and with a cold page cache."""
    (folder / "compile").mkdir()
    whole_job(folder / "compile", Job(20_000, "2G"))
    runs = {}
    for state in ("warm", "cold"):
        own = folder / state
        own.mkdir()
        runs[state] = whole_job(own, Job(_MILLION, "2G", cold=state == "cold"))
        shutil.rmtree(own)
    return runs


def F10M(folder: Path) -> Json:
    """All stages for ten million images within 4 GB."""
    return whole_job(folder, Job(10 * _MILLION, "4G"))


def D100M(folder: Path) -> Json:
    """All stages from descriptors for a hundred million images within 16 GB, or for as many as the free disk allows.

    A job of a million, which also compiles the kernels, says how many bytes of disk a row takes.
    """
    job = Job(_MILLION, "16G", Surface(dims=64, clusters=50_000), "<f2", recall=0.9, classes=CLASSES, iterations=T)
    (folder / "million").mkdir()
    first = whole_job(folder / "million", job)
    shutil.rmtree(folder / "million")
    # The source lies beside the store while it is imported; it is smaller than what comes after.
    graph = max(first["held"][stage] for stage in ("import", "build-graph", "complete"))
    rows = min(100, int(_DISK_SHARE * seam.free_bytes(folder) / graph)) * _MILLION
    return {**whole_job(folder, replace(job, rows=rows)), "million": first}


def F100M(folder: Path) -> Json:
    """The diffusion over a hundred million nodes (paper: 54 minutes on 24 cores, more than 75 GiB)."""
    store, symmetrised = large.large_store(folder, 100 * _MILLION)
    W = (store / "graph" / "W").resolve()
    edges, size = large.edges_of(store), sum(file.stat().st_size for file in W.rglob("*") if file.is_file())
    half, of_half = large.diffuse(store, *one_batch(WIDTH), "--dtype", "bfloat16")
    # Right after the runs they explain, since the speed of the machine varies over time.
    limits = limits_of(store)
    single, of_single = large.diffuse(store, *one_batch(WIDTH // 2), iterations=3)
    whole, of_whole = large.diffuse(store, "--memory", LIMIT, "--dtype", "bfloat16")
    # Alternating, for the same reason.
    speeds = [(sequential_speed(W), *streaming_speeds(store), writing_speed(folder)) for _ in range(RUNS)]
    sequential, first, streaming, writing = (max(own) for own in zip(*speeds, strict=True))
    evict(W)
    narrow, of_narrow = large.diffuse(store, *one_batch(1), iterations=1)
    return {
        "nodes": 100 * _MILLION,
        "edges": edges,
        "bytes": size,
        "classes": CLASSES,
        "iterations": T,
        "symmetrise": symmetrised,
        "batch": {**half.figures(), "columns": WIDTH, "steps": of_half["steps"]},
        "float32": {**single.figures(), "columns": WIDTH // 2, "steps": of_single["steps"]},
        "whole": {**whole.figures(), "steps": of_whole["steps"]},
        "narrow": {**narrow.figures(), "steps": of_narrow["steps"]},
        "sequential": sequential,
        "streaming": streaming,
        "streaming_first": first,
        "sequential_writing": writing,
        "limits": limits,
    }


def reading(folder: Path, nodes: int = 10 * _MILLION) -> Json:
    """Reads of a diffusion with shortcuts where W is larger than memory: all columns at once, and in batches of 64.

    A tenth of the nodes, memory and test points of F100M, and an iteration less, so that S stays a frontier as it does there.
    The machine has memory for the run and for a third of W.
    """
    store, _ = large.large_store(folder, nodes, tests=nodes // 10_000)
    W = 4 * large.edges_of(store)
    limit = 200 * nodes + (256 << 20)
    options = ["--memory", f"{limit >> 20}M", "--dtype", "bfloat16"]
    found: Json = {"nodes": nodes, "bytes": W, "classes": CLASSES, "iterations": T - 1, "memory": limit}
    for name, batches in (("all columns", []), (f"batches of {WIDTH}", ["--cols-per-batch", str(WIDTH)])):
        runs = []
        for _ in range(RUNS):
            evict(store)
            runs.append(large.diffuse(store, *options, *batches, iterations=T - 1, machine_bytes=limit + W // 3))
        watched, report = min(runs, key=lambda run: run[0].seconds)
        command: list[str | Path] = [
            PROGRAM,
            "plan",
            "diffuse",
            "--iterations",
            str(T - 1),
            *options,
            *batches,
            "--store",
            store,
            "--json",
        ]
        plan = json.loads(watch(command, limit + W // 3).output)
        planned = {key: plan[key] for key in ("read", "seconds", "memory")}
        found[name] = {**watched.figures(), "batches": report["batches"], "steps": report["steps"], "planned": planned}
        sys.stdout.write(
            f"{name}: {report['batches']} batches, {watched.read_bytes / 1e9:.1f} GB read "
            f"({planned['read'] / 1e9:.1f} planned), {watched.seconds:.1f} s ({planned['seconds']} planned), "
            f"{watched.megabytes:,.0f} MB\n"
        )
    return found


def growth(folder: Path) -> Json:
    """Time and memory against nodes, neighbours, classes and iterations, one at a time."""
    found: list[Json] = []
    for nodes in (_MILLION, 3 * _MILLION, 10 * _MILLION, 30 * _MILLION):
        with_store(folder, found, "nodes", nodes, nodes, 30)
    for k in (10, 20, 50, 100):
        with_store(folder, found, "k", k, _MILLION, k)
    store, _ = large.large_store(folder / "million", _MILLION)
    for classes in (32, 64, 128, 256, CLASSES):
        found.append({"axis": "classes", "at": classes, **of_command(store, "--classes", listed(classes))})
    for iterations in (1, 2, 3, 4, 6, 8, 10):
        watched, _ = large.diffuse(store, iterations=iterations)
        found.append({"axis": "iterations", "at": iterations, **watched.figures()})
    return {"points": found}


def with_store(folder: Path, found: list[Json], axis: str, at: int, nodes: int, k: int) -> None:
    """Measures symmetrising, the whole command, iterations without shortcuts, and the product alone, at one size.

    Memory is measured as at a hundred million nodes: S fits once, W exceeds the remaining memory, and with as many iterations,
    since memory grows a little in the first ones.
    """
    store, symmetrised = large.large_store(folder / f"{axis}-{at}", nodes, k)
    S, W = 2 * nodes * WIDTH, 4 * large.edges_of(store)
    limit = S * 5 // 4 + (300 << 20)
    options = [*one_batch(WIDTH, f"{limit >> 20}M"), "--dtype", "bfloat16"]
    tight, _ = large.diffuse(store, *options, machine_bytes=limit + W // 2)
    _, report = large.diffuse(store, *one_batch(WIDTH), "--dtype", "bfloat16")
    steps = [step["seconds"] for step in report["steps"][1:]]
    found.append(
        {
            "axis": axis,
            "at": at,
            "edges": large.edges_of(store),
            "symmetrise": symmetrised,
            "iteration": {"seconds": min(steps), "columns": WIDTH, "anonymous": tight.anonymous_bytes},
            "limits": limits_of(store),
            **of_command(store),
        }
    )
    shutil.rmtree(folder / f"{axis}-{at}")


def limits_of(store: Path) -> Json:
    """The product alone, and the cost per edge of each kind."""
    command = [sys.executable, "-m", "benchmarks.limits", str(store), str(WIDTH)]
    found: Json = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return found


def one_batch(columns: int, limit: str = LIMIT) -> list[str]:
    """Options for the first columns in one batch without shortcuts."""
    return ["--plain", "--memory", limit, "--classes", listed(columns), "--cols-per-batch", str(columns)]


def of_command(store: Path, *options: str) -> Json:
    """Figures of the whole command with shortcuts."""
    return large.diffuse(store, *options)[0].figures()


def listed(classes: int) -> str:
    return ",".join(map(str, range(classes)))


def sequential_speed(folder: Path) -> float:
    """Bytes per second of a sequential read with a cold page cache, by the fastest of four methods."""
    return max(_read(folder, threads, direct) for threads, direct in ((1, False), (1, True), (2, True), (4, True)))


def _read(folder: Path, threads: int, direct: bool, size: int = 4 << 20) -> float:
    """Bytes per second of threads that read pieces in sequence, each into its own allocated buffer."""
    evict(folder)
    files = [(file, file.stat().st_size) for file in files_of(folder)]
    pieces = [(file, start) for file, end in files for start in range(0, end - size, size)]
    local = threading.local()

    def prepare() -> None:
        local.buffer = page_aligned((size,), "uint8")
        local.buffer[:] = 0

    def read(piece: tuple[Path, int]) -> int:
        descriptor = os.open(piece[0], os.O_RDONLY | (os.O_DIRECT if direct else 0))
        try:
            return os.preadv(descriptor, [local.buffer], piece[1])
        finally:
            os.close(descriptor)

    with ThreadPoolExecutor(threads, initializer=prepare) as pool:
        start = time.perf_counter()
        total = sum(pool.map(read, pieces))
        return total / (time.perf_counter() - start)


def streaming_speeds(store: Path) -> tuple[float, float]:
    """Bytes per second of W streamed as in a diffusion but without computation: in the first pass, and in later ones.

    The first pass has a cold page cache; later ones find offsets and scale there, which are read through it.
    """
    graph = CsrGraph.open(store)
    evict((store / "graph" / "W").resolve())

    def touch(block: Block) -> int:
        return int(block.graph.indices[graph.indptr[block.rows[0]]])

    clocks = [time.perf_counter()]
    with Stream(graph, past_cache=True) as stream:
        for _ in range(2):
            for _ in stream.each(touch):
                pass
            clocks.append(time.perf_counter())
    entries = stream.bytes / 2
    first, other = np.diff(clocks)
    return (entries + graph.indptr.nbytes + graph.scale.nbytes) / first, entries / other


def writing_speed(folder: Path, size: int = 64 << 20, pieces: int = 64) -> float:
    """Bytes per second of a sequential write with syncs, past the page cache, as S is written."""
    piece = page_aligned((size,), "uint8")
    piece[:] = np.random.default_rng(0).integers(0, 256, size)
    start = time.perf_counter()
    for number in range(pieces):
        seam.write_file(folder / f"written-{number}", piece, cached=False)
    speed = size * pieces / (time.perf_counter() - start)
    for number in range(pieces):
        (folder / f"written-{number}").unlink()
    return speed


def files_of(folder: Path) -> Iterable[Path]:
    return sorted(file for file in folder.rglob("c.*") if file.is_file())

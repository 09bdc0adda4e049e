"""`make bench-scale`: the whole job at one and ten million images, the diffusion at a hundred million, and how costs grow."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks import large
from benchmarks.large import CLASSES, T
from benchmarks.measure import evict
from benchmarks.whole import whole_job
from mmdiff.formats.manifest import Json

WIDTH = 64
_MILLION = 1_000_000


def F1M(folder: Path) -> Json:
    """A million images, with a page cache that holds what was written before, and with one that holds nothing."""
    (folder / "compile").mkdir()
    whole_job(folder / "compile", 20_000, "2G")
    runs = {}
    for state in ("warm", "cold"):
        own = folder / state
        own.mkdir()
        runs[state] = whole_job(own, _MILLION, "2G", cold=state == "cold")
        shutil.rmtree(own)
    return runs


def F10M(folder: Path) -> Json:
    """Ten million images within 4 GB."""
    return whole_job(folder, 10 * _MILLION, "4G")


def F100M(folder: Path) -> Json:
    """A hundred million nodes (paper: 54 minutes on 24 cores, more than 75 GiB)."""
    store, symmetrised = large.large_store(folder, 100 * _MILLION)
    W = (store / "graph" / "W").resolve()
    edges, size = large.edges_of(store), sum(file.stat().st_size for file in W.rglob("*") if file.is_file())
    batch = ["--plain", "--memory", "20G", "--classes", listed(WIDTH), "--cols-per-batch", str(WIDTH)]
    half, of_half = large.diffuse(store, *batch, "--dtype", "bfloat16")
    single, of_single = large.diffuse(
        store, "--plain", "--memory", "20G", "--classes", listed(WIDTH // 2), "--cols-per-batch", str(WIDTH // 2), iterations=2
    )
    whole, of_whole = large.diffuse(store, "--memory", "20G", "--dtype", "bfloat16", "--cols-per-batch", str(WIDTH))
    command = [sys.executable, "-m", "benchmarks.limits", str(store), str(WIDTH)]
    limits = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    sequential = sequential_speed(W)
    evict(W)
    narrow, of_narrow = large.diffuse(store, "--plain", "--memory", "20G", "--classes", "0", iterations=1)
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
        "limits": limits,
    }


def growth(folder: Path) -> Json:
    """Time and memory as nodes, neighbours, classes and iterations grow, one at a time."""
    found: list[Json] = []
    for nodes in (_MILLION // 10, _MILLION * 3 // 10, _MILLION, 3 * _MILLION, 10 * _MILLION):
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
    """Symmetrising, the whole command, and the product alone, at one size."""
    store, symmetrised = large.large_store(folder / f"{axis}-{at}", nodes, k)
    options = ["--plain", "--dtype", "bfloat16", "--classes", listed(WIDTH), "--cols-per-batch", str(WIDTH), "--memory", "20G"]
    watched, report = large.diffuse(store, *options, iterations=3)
    steps = [step["seconds"] for step in report["steps"][1:]]
    found.append(
        {
            "axis": axis,
            "at": at,
            "edges": large.edges_of(store),
            "symmetrise": symmetrised,
            "product": {"seconds": min(steps), "columns": WIDTH, "anonymous": watched.anonymous_bytes},
            **of_command(store),
        }
    )
    shutil.rmtree(folder / f"{axis}-{at}")


def of_command(store: Path, *options: str) -> Json:
    """The whole command, with shortcuts."""
    return large.diffuse(store, *options)[0].figures()


def listed(classes: int) -> str:
    return ",".join(map(str, range(classes)))


def sequential_speed(folder: Path) -> float:
    """Bytes a second that the disk gives, read front to back in large pieces, none of them in the page cache."""
    evict(folder)
    files, size, total = files_of(folder), 8 << 20, 0
    buffer = memoryview(bytearray(size))
    start = time.perf_counter()
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while count := os.readv(descriptor, [buffer]):
            total += count
        os.close(descriptor)
        if total > 8 << 30:
            break
    return total / (time.perf_counter() - start)


def files_of(folder: Path) -> Iterable[Path]:
    return sorted(file for file in folder.rglob("c.*") if file.is_file())

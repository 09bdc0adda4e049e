"""Suggestions: the time and the peak memory of `mmdiff suggest 500` on generated rows.

    python -m benchmarks.suggest ROWS --memory 4G [--folder DIR]            generated descriptors; the graph is built first
    python -m benchmarks.suggest ROWS --memory 4G --lists [--folder DIR]    generated lists of neighbours: no search is needed

Prints its figures as JSON: without labels, with a label on a thousandth of the rows, and by uncertainty and mixed with
predictions from these labels (not with --lists). `cold` is with the store evicted from the page cache.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.generate import generate
from benchmarks.knn import PROGRAM
from benchmarks.large import large_store
from benchmarks.measure import evict, machine, watch
from mmdiff.formats.store.manifest import Json

COUNT, CLASSES, _LABELLED = 500, 100, 1000


class Suggesting:
    """Runs of the command on one store."""

    def __init__(self, store: Path, memory: str, count: int) -> None:
        self._store, self._memory, self._count = store, memory, count

    def run(self, *options: str, cold: bool = False) -> Json:
        """The figures of one run."""
        if cold:
            evict(self._store)
        asked = ["suggest", str(self._count), *options, "--memory", self._memory, "--out", str(self._store.parent / "out.csv")]
        watched = watch([PROGRAM, *asked, "--store", self._store, "--json"])
        found = json.loads(watched.output)
        kept = {key: found[key] for key in ("suggestions", "labelled", "reached", "reached_with")}
        return watched.figures() | kept | {"computing": found["seconds"]}

    def command(self, *words: str | Path) -> float:
        """The seconds of another command."""
        return watch([PROGRAM, *words, "--store", self._store, "--json"]).seconds


def descriptors(folder: Path, rows: int, memory: str, count: int) -> Json:
    """Suggestions on a graph of generated descriptors, before and after some rows are labelled."""
    vectors, labels = folder / "rows.npy", folder / "labels.csv"
    suggesting = Suggesting(folder / "store", memory, count)
    generate(vectors, rows)
    suggesting.command("import", vectors, "--dtype", "float16")
    vectors.unlink()
    found: Json = {"build": suggesting.command("build-graph", "--memory", memory)}
    # The first run of a process that compiles the kernels is left out.
    suggesting.run()
    found |= {"cold": suggesting.run(cold=True), "without_labels": suggesting.run()}
    chosen = np.random.default_rng(0).choice(rows, max(1, rows // _LABELLED), replace=False)
    with labels.open("w", newline="") as stream:
        csv.writer(stream).writerows([("id", "label"), *((int(row), f"class {row % CLASSES}") for row in chosen)])
    suggesting.command("label", labels)
    found["with_labels"] = suggesting.run()
    found["diffuse"] = suggesting.command("diffuse", "--iterations", "4", "--memory", memory)
    return found | {by: suggesting.run("--by", by) for by in ("uncertainty", "mixed")}


def lists(folder: Path, rows: int, memory: str, count: int) -> Json:
    """Suggestions on a graph of generated lists, which has labelled seeds."""
    store, symmetrised = large_store(folder / "large", rows)
    suggesting = Suggesting(store, memory, count)
    suggesting.run()
    return {"symmetrise": symmetrised, "cold": suggesting.run(cold=True), "with_labels": suggesting.run()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suggest")
    parser.add_argument("rows", type=int)
    parser.add_argument("--memory", default="4G")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--lists", action="store_true", help="generate lists of neighbours instead of descriptors")
    parser.add_argument("--folder", default=".", help="folder for large temporary files")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="bench-") as folder:
        measure = lists if given.lists else descriptors
        found = measure(Path(folder), given.rows, given.memory, given.count)
    head = {"rows": given.rows, "count": given.count, "memory": given.memory}
    sys.stdout.write(json.dumps({**head, **found, "machine": machine()}, indent=1) + "\n")


if __name__ == "__main__":
    main()

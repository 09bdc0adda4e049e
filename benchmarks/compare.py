"""Compares this checkout with another one: the same work in turn, in processes of their own, the best of several rounds.

    git worktree add /tmp/before HEAD~1
    python -m benchmarks.compare /tmp/before [--rows 300000] [--rounds 3] [--only TEXT] [--folder DIR]

Both run the same commands on stores with the same bytes: `build-graph` (search, completion, symmetrising), `diffuse` with and
without shortcuts, in float32 and bfloat16, and the product W L alone. Prints the time of each, and the ratio here / there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import stores
from benchmarks.measure import machine

ROOT = Path(__file__).parent.parent

# The product alone; its module has moved since the first versions. Prints the best time of several.
_PRODUCT = """
import sys, time
import numpy as np
import mmdiff
try:
    from mmdiff.diffusion.engine.product import matmul
except ImportError:
    from mmdiff.diffusion.product import matmul
graph = mmdiff.Graph.open(sys.argv[1])
graph = getattr(graph, "internal", graph)
S = np.random.default_rng(0).random((graph.nodes, 96), np.float32)
times = []
for _ in range(6):
    clock = time.perf_counter()
    matmul(graph, S)
    times.append(time.perf_counter() - clock)
print(min(times[1:]))
"""

_DIFFUSE = {
    "diffuse": (),
    "diffuse --plain": ("--plain",),
    "diffuse --plain --dtype bfloat16": ("--plain", "--dtype", "bfloat16"),
    "diffuse --eta prior --alpha 0.8": ("--eta", "prior", "--alpha", "0.8"),
}


class Checkout:
    """A version of the program, run from its source with the packages of this environment."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._environment = {**os.environ, "PYTHONPATH": str(root)}

    def run(self, *arguments: str) -> str:
        return subprocess.run(
            [sys.executable, *arguments], cwd=self.root, env=self._environment, capture_output=True, text=True, check=True
        ).stdout

    def command(self, store: Path, *words: str) -> float:
        """The seconds that a command takes, with the start of the program."""
        clock = time.perf_counter()
        self.run("-c", "from mmdiff.cli import main; main()", *words, "--store", str(store))
        return time.perf_counter() - clock


def compare(other: Path, rows: int, rounds: int, only: str, folder: Path) -> None:
    """Prints one line for each piece of work."""
    checkouts = {"here": Checkout(ROOT), "there": Checkout(other)}
    imported = stores.imported(folder, rows)
    tiny = stores.tiny(folder) if only in "build-graph, Tiny ImageNet" else None
    built = {name: folder / f"built-{name}" for name in checkouts}
    for name, store in built.items():
        shutil.copytree(imported, store, symlinks=True)
        checkouts[name].command(store, "build-graph")

    def build(name: str, source: Path) -> float:
        store = folder / "fresh"
        shutil.copytree(source, store, symlinks=True)
        for namespace in ("knn", "graph"):
            shutil.rmtree(store / namespace, ignore_errors=True)
        (store / "models" / "cells").unlink(missing_ok=True)
        for made in (*store.glob("objects/knn-*"), *store.glob("objects/graph-*"), *store.glob("objects/cells-*")):
            shutil.rmtree(made)
        seconds = checkouts[name].command(store, "build-graph")
        shutil.rmtree(store)
        return seconds

    def diffuse(name: str, options: tuple[str, ...]) -> float:
        for made in built[name].glob("objects/scores-*"):
            shutil.rmtree(made)
        shutil.rmtree(built[name] / "scores", ignore_errors=True)
        return checkouts[name].command(built[name], "diffuse", *options)

    work: dict[str, Callable[[str], float]] = {f"build-graph, {rows:,} rows": lambda name: build(name, imported)}
    if tiny is not None:
        work["build-graph, Tiny ImageNet"] = lambda name: build(name, tiny)
    work["W L, 96 columns"] = lambda name: float(checkouts[name].run("-c", _PRODUCT, str(built[name])))
    for title, options in _DIFFUSE.items():
        work[title] = lambda name, options=options: diffuse(name, options)  # type: ignore[misc]
    for title, measure in work.items():
        if only not in title:
            continue
        times = {name: [] for name in checkouts}  # type: dict[str, list[float]]
        for turn in range(rounds + 1):
            # Each goes first as often as the other; the first round loads kernels and warms the cache.
            for name in sorted(checkouts, reverse=bool(turn % 2)):
                seconds = measure(name)
                if turn:
                    times[name].append(seconds)
        here, there = min(times["here"]), min(times["there"])
        sys.stdout.write(f"{title}: {here:.3f} s here, {there:.3f} s there, ratio {here / there:.3f}\n")
        sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare")
    parser.add_argument("other", type=Path, help="another checkout of mmdiff")
    parser.add_argument("--rows", type=int, default=300_000, help="rows of the generated background")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds")
    parser.add_argument("--only", default="", help="only work whose title contains this, such as diffuse")
    parser.add_argument("--folder", default=None, help="folder for temporary stores")
    arguments = parser.parse_args()
    sys.stdout.write(f"{machine()}\n")
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="compare-") as folder:
        compare(arguments.other.resolve(), arguments.rows, arguments.rounds, arguments.only, Path(folder))


if __name__ == "__main__":
    main()

"""Stores with graphs of any size from generated lists, and the diffusion over them (the paper uses 100 million images).

The lists are symmetrised as usual. Seeds are the last nodes; test points have the lists of random nodes.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.knn import PROGRAM
from benchmarks.lists import GeneratedLists
from benchmarks.measure import Watched, watch
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import Publication
from mmdiff.formats.store.store import Store
from mmdiff.graph.lists import ArrayLists
from mmdiff.graph.symmetrise import symmetrise
from mmdiff.runtime.progress import silent

CLASSES, SEEDS, TESTS, T = 507, 1014, 10_000, 5
_DIMS = 8
# Edges of W per list entry.
_EDGES_PER_ENTRY = 1.8

_SYMMETRISE = """
import sys
from pathlib import Path
from benchmarks.large import make_graph
make_graph(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
"""


def large_store(folder: Path, nodes: int, k: int = 30, tests: int = TESTS) -> tuple[Path, Json]:
    """A store ready for `mmdiff diffuse`, and the cost of symmetrising. Reused if it exists."""
    lists, store, taken = folder / "lists.npy", folder / "store", folder / "symmetrise.json"
    if taken.exists():
        return store, json.loads(taken.read_text())
    folder.mkdir(exist_ok=True)
    needed, free = int(4 * k * nodes * (1 + _EDGES_PER_ENTRY)) + 12 * nodes, shutil.disk_usage(folder).free
    if free < needed:
        raise RuntimeError(f"{folder}: {needed / 1e9:.0f} GB are needed, but {free / 1e9:.0f} GB are free. Free more space.")
    GeneratedLists(nodes, k).write(lists)
    draw = np.random.default_rng(0)
    for role, count, options in (("seeds", SEEDS, ["--no-background"]), ("test", tests, [])):
        points, labels = folder / f"{role}.npy", folder / f"{role}_labels.npy"
        np.save(points, draw.standard_normal((count, _DIMS), dtype=np.float32))
        np.save(labels, np.arange(count) % CLASSES)
        command = ["import", str(points), "--role", role, "--labels", str(labels), *options]
        subprocess.run([PROGRAM, *command, "--store", store], check=True, stdout=sys.stderr)
    watched = watch([sys.executable, "-c", _SYMMETRISE, lists, store, str(4 << 30), str(tests)])
    lists.unlink()
    taken.write_text(json.dumps(watched.figures()))
    return store, watched.figures()


def make_graph(lists: Path, store: Path, memory: int, tests: int = TESTS) -> None:
    """Publishes graph/W from lists, and knn/test with the lists of random nodes."""
    neighbors = np.load(lists, mmap_mode="r")
    nodes = len(neighbors)
    beside = neighbors[np.sort(np.random.default_rng(1).choice(nodes, tests, replace=False))]
    with Publication(store, ["graph/W", "knn/test"], "benchmark") as publication:
        draft = publication.draft("graph/W", Recipe("graph", 1, {}, {}))
        facts = symmetrise(ArrayLists(neighbors), draft, memory, silent)
        facts |= {"background": nodes - SEEDS, "seeds": SEEDS, "test": 0}
        graph = publication.publish(draft, facts, {"command": "benchmark"})
        draft = publication.draft("knn/test", Recipe("knn", 1, {}, {}))
        for name, values in (("neighbors", beside), ("similarities", np.zeros(beside.shape, np.float32))):
            draft.values(name, values)
        points = publication.publish(draft, {"nodes": nodes}, {"command": "benchmark"})
        publication.link({"graph/W": graph, "knn/test": points})


def diffuse(store: Path, *options: str, iterations: int = T, machine_bytes: int | None = None) -> tuple[Watched, Json]:
    """Runs `mmdiff diffuse` without earlier scores, on a machine limited to `machine_bytes`; returns its JSON output too."""
    shutil.rmtree(store / "scores", ignore_errors=True)
    subprocess.run([PROGRAM, "gc", "--store", store], check=True, stdout=subprocess.DEVNULL)
    command: list[str | Path] = [PROGRAM, "diffuse", "--iterations", str(iterations), "--store", store, "--json", *options]
    watched = watch(command, machine_bytes)
    return watched, json.loads(watched.output)


def edges_of(store: Path) -> int:
    return int(Store.open(store).open_artifact("graph/W").manifest.facts["edges"])

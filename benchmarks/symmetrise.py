"""Symmetrising (W0 + W0^T of lists of 30 neighbours) against scipy, each in its own process, and ten million nodes alone.

The lists are generated (see `lists.py`); both sides map them from an uncompressed file.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.lists import GeneratedLists
from benchmarks.measure import Figure, Watched, best_of, watch

K = 30
RUNS = 5
MEMORY = 4 << 30

_OURS = """
import sys, time
from pathlib import Path
import numpy as np
from mmdiff.formats.store.manifest import Recipe
from mmdiff.formats.store.publish import Publication
from mmdiff.graph.lists import ArrayLists
from mmdiff.graph.symmetrise import symmetrise
from mmdiff.runtime.progress import silent
def run(lists, store):
    with Publication(store, ["graph/W"], "benchmark") as publication:
        draft = publication.draft("graph/W", Recipe("graph", 1, {}, {}))
        facts = symmetrise(lists, draft, int(sys.argv[3]), silent)
        publication.link({"graph/W": publication.publish(draft, facts, {"command": "benchmark"})})
    return facts["edges"]
lists = np.load(sys.argv[1], mmap_mode="r")
# Loads the kernels for read-only lists before timing, as scipy's are loaded on import.
run(ArrayLists(np.frombuffer(bytes(4), np.uint32).reshape(1, 1)), Path(sys.argv[2]) / "warm")
start = time.perf_counter()
edges = run(ArrayLists(lists), Path(sys.argv[2]) / "store")
print(edges, time.perf_counter() - start)
"""
_SCIPY = """
import sys, time
import numpy as np
from scipy.sparse import csr_array
lists = np.load(sys.argv[1], mmap_mode="r")
nodes, k = lists.shape
start = time.perf_counter()
indptr = np.arange(0, nodes * k + 1, k, dtype=np.int32)
W0 = csr_array((np.ones(nodes * k, np.float32), lists.reshape(-1).astype(np.int32), indptr), (nodes, nodes))
W = W0 + W0.T
print(W.nnz, time.perf_counter() - start)
"""


def figures(folder: Path, large: int = 10_000_000) -> list[Figure]:
    """Both at a million nodes, and mmdiff at ten million beside scipy at one."""
    million, many, store = folder / "million.npy", folder / "many.npy", folder / "store"
    GeneratedLists(1_000_000, K).write(million)
    ours = best_of(RUNS, lambda: _symmetrise(million, store), lambda: _start_anew(store))
    scipy = best_of(RUNS, lambda: watch([sys.executable, "-c", _SCIPY, million]))
    if _edges(ours) != _edges(scipy):
        raise RuntimeError(f"{_edges(ours):,} edges, but scipy has {_edges(scipy):,}")
    GeneratedLists(large, K).write(many)
    alone = best_of(RUNS, lambda: _symmetrise(many, store), lambda: _start_anew(store))
    speed, lists = K * large / _seconds(alone) / 1e6, 4 * K * large / 1e6
    what = f"symmetrise {large / 1e6:.0f} M x {K}"
    return [
        Figure(
            "symmetrise",
            f"symmetrise 1 M x {K}, into the store",
            K / _seconds(ours),
            "`W0 + W0.T`, in memory",
            K / _seconds(scipy),
            "M edges/s",
        ),
        Figure("symmetrise_memory", "memory for that", ours.megabytes, "scipy", scipy.megabytes, "MB", more_is_better=False),
        Figure("symmetrise_large", what, speed, "`W0 + W0.T` at 1 M", K / _seconds(scipy), "M edges/s"),
        Figure(
            "symmetrise_large_memory",
            "memory for that",
            alone.megabytes,
            "the lists themselves",
            lists,
            "MB",
            more_is_better=False,
        ),
    ]


def _symmetrise(lists: Path, store: Path) -> Watched:
    return watch([sys.executable, "-c", _OURS, lists, store, str(MEMORY)])


def _start_anew(store: Path) -> None:
    shutil.rmtree(store, ignore_errors=True)
    subprocess.run(["sync"], check=True)


def _edges(watched: Watched) -> int:
    return int(watched.output.split()[0])


def _seconds(watched: Watched) -> float:
    """Seconds without the start of Python and its libraries."""
    return float(watched.output.split()[1])

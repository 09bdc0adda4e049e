"""The nearest-neighbour search against Faiss IVFFlat as in the paper, and against pynndescent if it is installed.

mmdiff is timed as a whole stage: cells, search, measured recall, results on disk. IVFFlat (4 sqrt(N) lists, nprobe 256) is
timed for the search alone, on a sample of queries, scaled to all rows; pynndescent for finding neighbours alone. Memory is the
peak of anonymous memory of each process from start to end.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.generate import generate
from benchmarks.measure import Figure, Watched, watch

K = 30
PROGRAM = Path(sys.executable).parent / "mmdiff"
TINY = Path(__file__).parent.parent.parent / "shared" / "data" / "tiny-imagenet"

_IVFFLAT = """
import json, sys, time
from pathlib import Path
import faiss, numpy as np
from mmdiff.formats.store.store import Store
vectors = np.asarray(Store.open(Path(sys.argv[1])).open_artifact("descriptors/background").array("vectors"), np.float32)
lists = int(4 * np.sqrt(len(vectors)))
index = faiss.index_factory(vectors.shape[1], f"IVF{lists},Flat", faiss.METRIC_INNER_PRODUCT)
index.train(vectors[:: max(1, len(vectors) // (64 * lists))])
index.add(vectors)
index.nprobe = 256
queries = vectors[:: len(vectors) // int(sys.argv[2])]
index.search(queries[:100], 30)
times = []
for _ in range(2):
    start = time.perf_counter()
    index.search(queries, 30)
    times.append(time.perf_counter() - start)
print(json.dumps({"seconds": min(times) / len(queries) * len(vectors)}))
"""

# The process limits itself: an alarm ends it, and allocations beyond the limit raise MemoryError.
_PYNNDESCENT = """
import json, resource, signal, sys, time
from pathlib import Path
import numpy as np, pynndescent
from mmdiff.formats.store.store import Store
store = Store.open(Path(sys.argv[1]))
vectors = np.asarray(store.open_artifact("descriptors/background").array("vectors"), np.float32)
pynndescent.NNDescent(vectors[:2000], metric="dot", n_neighbors=30, n_jobs=2)
signal.alarm(int(sys.argv[2]))
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[3]),) * 2)
start = time.perf_counter()
try:
    found = pynndescent.NNDescent(vectors, metric="dot", n_neighbors=30, n_jobs=2).neighbor_graph[0]
except MemoryError:
    print(json.dumps({"seconds": time.perf_counter() - start}))
    sys.exit()
seconds = time.perf_counter() - start
signal.alarm(0)
rows = np.random.default_rng(0).choice(len(vectors), 1000, replace=False)
shares = []
for some in np.array_split(rows, 100):
    truth = np.argpartition(-(vectors[some] @ vectors.T), 30, axis=1)[:, :30]
    shares += [len(np.intersect1d(a, b)) / 30 for a, b in zip(found[some], truth)]
print(json.dumps({"seconds": seconds, "recall": float(np.mean(shares))}))
"""
_MOST_SECONDS, _MOST_BYTES = 900, 20 * 10**9


def figures(folder: Path, rows: int) -> list[Figure]:
    """Generated descriptors at two recalls, and Tiny ImageNet if it is there."""
    generate(folder / "generated.npy", rows)
    title = f"{rows / 1e6:g}M x 256 generated"
    found = _compare(folder, "generated.npy", title, (0.95, 0.985), "2G", 500)
    if TINY.is_dir():
        parts = [np.load(TINY / f"{part}_features.npy") for part in ("train", "val")]
        np.save(folder / "tiny.npy", np.random.default_rng(0).permutation(np.concatenate(parts)))
        found += _compare(folder, "tiny.npy", "Tiny ImageNet, 110k x 256", (0.95, 0.99), "2G", 5000)
    return found


def _compare(folder: Path, file: str, title: str, recalls: tuple[float, ...], memory: str, queries: int) -> list[Figure]:
    """mmdiff at each recall against IVFFlat, and at the highest against pynndescent, which has its own target."""
    store = folder / f"{file}.store"
    subprocess.run([PROGRAM, "import", folder / file, "--role", "background", "--store", store], check=True, stdout=sys.stderr)
    ivfflat = watch([sys.executable, "-c", _IVFFLAT, store, str(queries)])
    seconds = json.loads(ivfflat.output)["seconds"]
    found = []
    for recall in recalls:
        ours, facts = _build(store, recall, memory)
        what = f"neighbours of {title}, recall {facts['recall']:.3f} (asked for {recall})"
        found += _both(f"knn_{file}_{recall}", what, ours, "IVFFlat, nprobe 256", seconds, ivfflat.megabytes)
    if importlib.util.find_spec("pynndescent"):
        found += _both(f"knn_pynndescent_{file}", what, ours, *_pynndescent(store))
    return found


def _both(key: str, what: str, ours: Watched, peer: str, seconds: float, megabytes: float | None) -> list[Figure]:
    """Figures of time, and of memory if known."""
    found = [Figure(key, what, ours.seconds, peer, seconds, "s", more_is_better=False)]
    if megabytes is not None:
        found.append(Figure(f"{key}_memory", "memory for that", ours.megabytes, peer, megabytes, "MB", more_is_better=False))
    return found


def _pynndescent(store: Path) -> tuple[str, float, float | None]:
    """The title for the table, seconds and megabytes; if a limit is exceeded, those up to that point."""
    limits = [str(_MOST_SECONDS), str(_MOST_BYTES)]
    start = time.perf_counter()
    try:
        run = watch([sys.executable, "-W", "ignore", "-c", _PYNNDESCENT, store, *limits])
    except RuntimeError:
        # After the alarm there is no output, and no figure for memory.
        if time.perf_counter() - start < _MOST_SECONDS:
            raise
        return f"pynndescent, stopped after {_MOST_SECONDS // 60} minutes", _MOST_SECONDS, None
    found = json.loads(run.output)
    recall = f"recall {found['recall']:.3f}" if "recall" in found else f"gave up at {_MOST_BYTES / 1e9:.0f} GB"
    return f"pynndescent, {recall}", found["seconds"], run.megabytes


def _build(store: Path, recall: float, memory: str) -> tuple[Watched, Any]:
    """The whole stage in its own process, the better of two runs; the first one compiles the kernels."""
    command: list[str | Path] = [
        PROGRAM,
        "build-graph",
        "--recall",
        str(recall),
        "--memory",
        memory,
        "--store",
        store,
        "--json",
        "--seed",
    ]
    runs = [watch([*command, str(seed)]) for seed in (1, 2)]
    best = min(runs, key=lambda run: run.seconds)
    return best, json.loads(best.output)["knn/BB"]["facts"]

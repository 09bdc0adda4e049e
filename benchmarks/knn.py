"""The graph of the background against Faiss IVFFlat as the paper uses it, and against pynndescent where that is installed.

Ours is the whole stage: cells, search, recall measured, everything on disk; of IVFFlat (4 sqrt(N) lists, nprobe 256) only the
search is timed, on a sample of queries, and scaled to all rows.
"""

from __future__ import annotations

import json
import subprocess
import sys
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
from mmdiff.formats.store import Store
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

_PYNNDESCENT = """
import json, sys, time
from pathlib import Path
import numpy as np, pynndescent
from mmdiff.formats.store import Store
store = Store.open(Path(sys.argv[1]))
vectors = np.asarray(store.open_artifact("descriptors/background").array("vectors"), np.float32)
pynndescent.NNDescent(vectors[:2000], metric="dot", n_neighbors=30, n_jobs=2)
start = time.perf_counter()
found = pynndescent.NNDescent(vectors, metric="dot", n_neighbors=30, n_jobs=2).neighbor_graph[0]
seconds = time.perf_counter() - start
rows = np.random.default_rng(0).choice(len(vectors), 1000, replace=False)
scores = vectors[rows] @ vectors.T
truth = np.argpartition(-scores, 30, axis=1)[:, :30]
recall = np.mean([len(np.intersect1d(a, b)) / 30 for a, b in zip(found[rows], truth)])
print(json.dumps({"seconds": seconds, "recall": float(recall)}))
"""


def figures(folder: Path, rows: int) -> list[Figure]:
    """On generated descriptors at two recalls, and on Tiny ImageNet where it lies beside the project."""
    generate(folder / "generated.npy", rows)
    title = f"{rows / 1e6:g}M x 256 generated"
    found = _compare(folder, "generated.npy", title, (0.95, 0.98), "2G", 500)
    if TINY.is_dir():
        parts = [np.load(TINY / f"{part}_features.npy") for part in ("train", "val")]
        np.save(folder / "tiny.npy", np.random.default_rng(0).permutation(np.concatenate(parts)))
        found += _compare(folder, "tiny.npy", "Tiny ImageNet, 110k x 256", (0.95,), "2G", 5000)
        found += _against_pynndescent(folder / "tiny.npy.store", found[-1])
    return found


def _compare(folder: Path, file: str, title: str, recalls: tuple[float, ...], memory: str, queries: int) -> list[Figure]:
    store = folder / f"{file}.store"
    subprocess.run([PROGRAM, "import", folder / file, "--role", "background", "--store", store], check=True, stdout=sys.stderr)
    theirs = json.loads(watch([sys.executable, "-c", _IVFFLAT, store, str(queries)]).output)["seconds"]
    found = []
    for recall in recalls:
        ours, facts = _build(store, recall, memory)
        what = f"neighbours of {title}, recall {facts['recall']:.3f} (asked for {recall}), {ours.megabytes:,.0f} MB"
        found.append(Figure(f"knn_{file}_{recall}", what, ours.seconds, "IVFFlat, nprobe 256", theirs, "s", False))
    return found


def _build(store: Path, recall: float, memory: str) -> tuple[Watched, Any]:
    """The whole stage, in a process of its own; once before, so that no kernel is compiled while it is timed."""
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


def _against_pynndescent(store: Path, ours: Figure) -> list[Figure]:
    try:
        found = json.loads(watch([sys.executable, "-W", "ignore", "-c", _PYNNDESCENT, store]).output)
    except RuntimeError:
        return []
    peer = f"pynndescent, recall {found['recall']:.3f}"
    return [Figure("knn_pynndescent", ours.what, ours.ours, peer, found["seconds"], "s", False)]

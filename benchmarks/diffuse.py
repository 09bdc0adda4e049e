"""Diffusion end to end against `--plain`, a loop in scipy, scikit-learn's LabelPropagation and GraphLearning.

Also the cost of a cold page cache, the agreement of bfloat16 with float32, and the accuracy of `mmdiff plan`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import large, stores
from benchmarks.knn import PROGRAM
from benchmarks.measure import Figure, Watched, best_of, evict, watch
from mmdiff.formats.store.manifest import Json

T = 3
RUNS = 3
COLUMNS = 96

_SCIPY = """
import json, sys, time
import numpy as np
from pathlib import Path
from mmdiff.formats.store.store import Store
from mmdiff.graph.graph import CsrGraph
store = Store.open(Path(sys.argv[1]))
W = CsrGraph.open(sys.argv[1]).to_scipy()
seeds, graph = store.open_artifact("descriptors/seeds"), store.open_artifact("graph/W")
labels, classes = seeds.array("labels"), int(seeds.array("labels").max()) + 1
neighbors = store.open_artifact("knn/test").array("neighbors").astype(np.int64)
L = np.zeros((W.shape[0], classes), np.float32)
L[graph.manifest.facts["background"] + np.arange(len(labels)), labels] = 1
start = time.perf_counter()
for _ in range(int(sys.argv[2])):
    L = W @ L
    sums = L.sum(0)
    L /= np.where(sums > 0, sums, 1)
scores = np.stack([L[rows].sum(0) for rows in neighbors])
print(json.dumps({"seconds": time.perf_counter() - start}))
"""

_SKLEARN = """
import json, sys, time, warnings
import numpy as np
from pathlib import Path
from mmdiff.formats.store.store import Store
from mmdiff.graph.graph import CsrGraph
from sklearn.semi_supervised import LabelPropagation
warnings.simplefilter("ignore")
store = Store.open(Path(sys.argv[1]))
graph = CsrGraph.open(sys.argv[1])
seeds = store.open_artifact("descriptors/seeds").array("labels")
labels = np.full(graph.nodes, -1)
labels[store.open_artifact("graph/W").manifest.facts["background"] :][: len(seeds)] = seeds
class Given(LabelPropagation):
    def _build_graph(self):
        return graph.to_scipy()
    def _get_kernel(self, X, y=None):
        return None
model = Given(max_iter=int(sys.argv[2]), tol=0)
start = time.perf_counter()
model.fit(np.zeros((graph.nodes, 1)), labels)
print(json.dumps({"seconds": time.perf_counter() - start}))
"""

_GRAPHLEARNING = """
import json, sys, time
import numpy as np
from pathlib import Path
import graphlearning
from mmdiff.formats.store.store import Store
from mmdiff.graph.graph import CsrGraph
store = Store.open(Path(sys.argv[1]))
seeds = store.open_artifact("descriptors/seeds").array("labels")
nodes = store.open_artifact("graph/W").manifest.facts["background"] + np.arange(len(seeds))
W = CsrGraph.open(sys.argv[1]).to_scipy(normalized=False).astype(np.float64)
T = int(sys.argv[2])
model = graphlearning.ssl.poisson(W, solver="gradient_descent", min_iter=T, max_iter=T)
start = time.perf_counter()
model.fit(nodes, np.asarray(seeds))
print(json.dumps({"seconds": time.perf_counter() - start}))
"""

_OURS = """
import json, sys, time
import numpy as np
from pathlib import Path
import mmdiff, scipy.sparse
from mmdiff.formats.store.store import Store
store = Store.open(Path(sys.argv[1]))
graph = mmdiff.Graph.open(sys.argv[1])
seeds = store.open_artifact("descriptors/seeds").array("labels")
facts = store.open_artifact("graph/W").manifest.facts
labels = np.full(facts["background"] + facts["seeds"], -1)
labels[facts["background"] :] = seeds
small = mmdiff.Graph.from_scipy(scipy.sparse.csr_array(np.ones((50, 50))))
options = json.loads(sys.argv[3])
mmdiff.diffuse(small, np.arange(50) % 3, iterations=3, **options)
start = time.perf_counter()
L = mmdiff.diffuse(graph, labels, iterations=int(sys.argv[2]), **options)
print(json.dumps({"seconds": time.perf_counter() - start}))
"""


def figures(folder: Path, rows: int = 1_000_000) -> list[Figure]:
    """All comparisons."""
    store = stores.generated(folder, rows)
    found = _end_to_end(store, rows)
    found += _cold(folder / "cold", 10 * rows)
    found += _plans(folder, [rows // 10, rows // 2, rows])
    small = stores.generated(folder / "small", 200_000, classes=100, tests=1000)
    found += _sklearn(small)
    if find_spec("graphlearning") is not None:
        found += _graphlearning(small)
    return found + _bfloat16(folder)


def diffuse(store: Path, *options: str) -> Watched:
    """Runs `mmdiff diffuse` after removing earlier scores."""
    return large.diffuse(store, *options, iterations=T)[0]


def _end_to_end(store: Path, rows: int) -> list[Figure]:
    what = f"diffuse, {rows / 1e6:g}M nodes, 500 classes, T = {T}"
    # A first run compiles the kernels.
    diffuse(store), diffuse(store, "--plain")
    quick, plain = best_of(RUNS, lambda: diffuse(store)), best_of(RUNS, lambda: diffuse(store, "--plain"))
    scipy = best_of(2, lambda: watch([sys.executable, "-c", _SCIPY, store, str(T)]))
    loop = json.loads(scipy.output)["seconds"]
    return [
        Figure("diffuse_plain", f"{what}, whole command", quick.seconds, "--plain", plain.seconds, "s", more_is_better=False),
        Figure(
            "diffuse_scipy", f"{what}, whole command", quick.seconds, "scipy, its loop alone", loop, "s", more_is_better=False
        ),
        Figure("diffuse_memory", "memory for that", quick.megabytes, "scipy", scipy.megabytes, "MB", more_is_better=False),
        Figure(
            "diffuse_plain_scipy", f"{what}, --plain", plain.seconds, "scipy, its loop alone", loop, "s", more_is_better=False
        ),
    ]


def _cold(folder: Path, nodes: int) -> list[Figure]:
    """W never in the page cache against W always in it. Memory holds the columns and a quarter of W.

    During the cold run, pages are evicted as soon as they are read, so that every iteration reads W again.
    """
    store, _ = large.large_store(folder, nodes)
    size = sum(path.stat().st_size for path in (store / "graph" / "W" / "indices").glob("c.*"))
    columns = ["--plain", "--cols-per-batch", str(COLUMNS), "--classes", ",".join(map(str, range(COLUMNS)))]
    plan = json.loads(watch([PROGRAM, "plan", "diffuse", *columns, "--memory", "20G", "--store", store, "--json"]).output)
    memory = plan["memory"] + size // 4
    options = [*columns, "--memory", f"{memory >> 20}M"]
    diffuse(store, *options)
    warm = best_of(2, lambda: diffuse(store, *options))
    with _kept_cold(store / "graph" / "W"):
        cold = best_of(2, lambda: diffuse(store, *options), lambda: evict(store))
    speeds = [T / _iterations(run) for run in (cold, warm)]
    title = f"{COLUMNS} columns, {nodes / 1e6:g}M nodes, {size / 1e9:.1f} GB of W never in the page cache"
    return [
        Figure("diffuse_cold", title, speeds[0], "all of it there", speeds[1], "iterations/s"),
        Figure("diffuse_cold_memory", "memory for that", cold.megabytes, "--memory", memory / 1e6, "MB", more_is_better=False),
        Figure(
            "diffuse_cold_read",
            "read from the disk for that",
            cold.read_bytes / 1e6,
            "W, T times",
            T * size / 1e6,
            "MB",
            more_is_better=False,
        ),
    ]


@contextmanager
def _kept_cold(folder: Path) -> Iterator[None]:
    """Evicts a folder from the page cache repeatedly; pages that are mapped stay."""
    done = threading.Event()

    def evict_repeatedly() -> None:
        while not done.wait(0.5):
            evict(folder.resolve(), sync=False)

    thread = threading.Thread(target=evict_repeatedly)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _iterations(run: Watched) -> float:
    """Seconds of the iterations without start-up."""
    return float(sum(step["seconds"] for step in json.loads(run.output)["steps"]))


def _sklearn(store: Path) -> list[Figure]:
    """scikit-learn's LabelPropagation on the same graph: normalised rows, reset seeds, the same number of iterations."""
    options = {"eta": "row", "reset_seeds": True}
    (ours, own), (theirs, other) = _fits(store, _SKLEARN, options)
    what = f"--eta row --reset-seeds, 200k nodes x 100 classes, T = {T}"
    return [
        Figure("diffuse_sklearn", what, own, "LabelPropagation's loop", other, "s", more_is_better=False),
        Figure(
            "diffuse_sklearn_memory",
            "memory for that",
            ours.megabytes,
            "scikit-learn",
            theirs.megabytes,
            "MB",
            more_is_better=False,
        ),
    ]


def _graphlearning(store: Path) -> list[Figure]:
    """GraphLearning's Poisson learning: another method, but with the same kind of iteration, W S + B, over all classes."""
    (ours, own), (theirs, other) = _fits(store, _GRAPHLEARNING, {"alpha": 0.5, "eta": "none"})
    what = f"--alpha 0.5 --eta none, 200k nodes x 100 classes, T = {T}"
    return [
        Figure("diffuse_graphlearning", what, own, "GraphLearning, poisson", other, "s", more_is_better=False),
        Figure(
            "diffuse_graphlearning_memory",
            "memory for that",
            ours.megabytes,
            "GraphLearning",
            theirs.megabytes,
            "MB",
            more_is_better=False,
        ),
    ]


def _fits(store: Path, program: str, options: Json) -> list[tuple[Watched, float]]:
    """mmdiff and a peer, each in its own process, with the seconds that the process itself measures."""
    ours = best_of(RUNS, lambda: watch([sys.executable, "-c", _OURS, store, str(T), json.dumps(options)]))
    theirs = best_of(2, lambda: watch([sys.executable, "-c", program, store, str(T)]))
    return [(run, float(json.loads(run.output)["seconds"])) for run in (ours, theirs)]


def _bfloat16(folder: Path) -> list[Figure]:
    """The share of test points with the same five best classes as in float32."""
    store = stores.tiny(folder)
    if store is None:
        return []
    best = []
    for dtype in ("float32", "bfloat16"):
        subprocess.run([PROGRAM, "diffuse", "--dtype", dtype, "--name", dtype, "--store", store], check=True, stdout=sys.stderr)
        best.append(_five_best(store, dtype))
    same = 100 * float(np.mean([set(a) == set(b) for a, b in zip(*best, strict=True)]))
    return [Figure("diffuse_bfloat16", "same five best classes with bfloat16, Tiny ImageNet", same, "float32", 100, "%")]


def _five_best(store: Path, name: str) -> Sequence[Any]:
    from mmdiff.formats.store.store import Store

    scores = Store.open(store).open_artifact(f"scores/{name}").array("scores")[-1]
    return list(np.argsort(-scores, axis=1, kind="stable")[:, :5])


def _plans(folder: Path, sizes: Sequence[int]) -> list[Figure]:
    """Estimates of `mmdiff plan diffuse` against measurements from outside."""
    found = []
    for rows in sizes:
        store = stores.generated(folder, rows)
        diffuse(store)
        plan = json.loads(watch([PROGRAM, "plan", "diffuse", "--iterations", str(T), "--store", store, "--json"]).output)
        real = min((diffuse(store) for _ in range(2)), key=lambda run: run.seconds)
        title = f"plan, {rows / 1e6:g}M nodes"
        written = json.loads(real.output)["bytes"]
        found += [
            Figure(f"plan_time_{rows}", f"{title}, time", plan["seconds"], "measured", real.seconds, "s", more_is_better=False),
            Figure(
                f"plan_memory_{rows}",
                f"{title}, memory",
                plan["memory"] / 1e6,
                "measured",
                real.megabytes,
                "MB",
                more_is_better=False,
            ),
            Figure(
                f"plan_disk_{rows}",
                f"{title}, disk",
                plan["artifact"] / 1e6,
                "measured",
                written / 1e6,
                "MB",
                more_is_better=False,
            ),
        ]
    return found

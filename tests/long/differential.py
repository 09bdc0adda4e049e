"""Differential: random small problems with all options against naive twins in float64, and against themselves in other ways.

Graphs have hubs, isolated nodes, several components, weights or none, cell order or none. Rows have several labels, and some
classes no seeds. The scores equal the twin's, near-ties aside, and their bytes do not depend on threads, batch widths, blocks,
memory, shortcuts, the store or Dask workers. Searches, symmetrising and evaluation are compared with their twins too.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

import mmdiff
from mmdiff.diffusion.api import diffuse
from mmdiff.diffusion.options import ETAS
from mmdiff.diffusion.variant import Variant
from mmdiff.evaluation.metrics import NO_RANK, ranks_of
from mmdiff.formats.store.store import Store
from mmdiff.graph.graph import CsrGraph
from mmdiff.graph.in_memory import graph_of
from mmdiff.kernels.constants import NONE
from mmdiff.knn.search.flat import search_flat
from mmdiff.runtime.dask import executor_on
from mmdiff.runtime.threads import limit_cores
from tests.diffusion.test_diffusion import small_pieces
from tests.support.graphs import some_lists
from tests.support.naive import naive_symmetrise
from tests.support.naive_diffusion import naive_diffusion, naive_scores, naive_Y
from tests.support.naive_evaluation import naive_ranks
from tests.support.naive_knn import naive_neighbors, naive_similarities
from tests.support.paths import ROOT
from tests.support.stores import MEMORY, SMALL_CHUNKS, chunks_of

CASES = 12_000

# Predictions are compared where the best class leads by more than this share.
_TIE = 1e-4
_TOLERANCE = {"float32": 2e-5, "bfloat16": 2**-7}

# Below this, entries of float32 lose digits to underflow.
_TINY = 1e-30


@dataclass(frozen=True)
class Problem:
    """A graph, labels of its rows, lists of test points, and the options of a diffusion."""

    graph: CsrGraph
    labels: NDArray[np.int32]
    neighbors: NDArray[np.uint32]
    classes: int
    options: dict[str, Any]

    @property
    def variant(self) -> Variant:
        return Variant(**{key: self.options[key] for key in Variant().parameters()})

    def prior(self) -> NDArray[np.float64]:
        given, power = self.options["prior"], self.options["prior_power"]
        if given is None or not self.variant.takes_prior:
            return np.full(self.classes, 1 / self.classes)
        if isinstance(given, str):
            counts = naive_Y(self.graph.nodes, self.labels, self.classes).sum(axis=0)
            given = counts if given == "seeds" else np.ones(self.classes)
        raised = (given / given.max()) ** (1 if power is None else power)
        return np.asarray(raised / raised.sum())

    def solve(self, rows: bool, **changes: Any) -> NDArray[np.float32]:
        lists = None if rows else self.neighbors
        return diffuse(self.graph, self.labels, classes=self.classes, neighbors=lists, **{**self.options, **changes})


def some_adjacency(draw: np.random.Generator, nodes: int) -> NDArray[np.float64]:
    """The 0-1 matrix of a symmetric graph of some shape."""
    shape = draw.choice(["sparse", "hub", "path", "components", "dense", "empty", "star of hubs"])
    own = np.zeros((nodes, nodes))
    if shape in ("sparse", "hub", "star of hubs"):
        own = (draw.random((nodes, nodes)) < 2 / nodes).astype(np.float64)
    if shape == "dense":
        own = (draw.random((nodes, nodes)) < 0.6).astype(np.float64)
    if shape in ("hub", "star of hubs"):
        own[draw.integers(nodes, size=1 if shape == "hub" else 4)] = 1
    if shape == "path":
        own[np.arange(nodes - 1), np.arange(1, nodes)] = 1
    if shape == "components":
        part = draw.integers(0, 5, nodes)
        own = ((part[:, None] == part[None, :]) & (draw.random((nodes, nodes)) < 0.3)).astype(np.float64)
    if draw.random() < 0.5:
        np.fill_diagonal(own, draw.random() < 0.5)
    isolated = draw.random(nodes) < draw.choice([0, 0.1, 0.5])
    own[isolated] = 0
    own[:, isolated] = 0
    return own


def some_problem(draw: np.random.Generator) -> Problem:
    nodes, classes = int(draw.choice([1, 2, 3, 10, 40, 120])), int(draw.choice([1, 2, 3, 7, 20]))
    own = some_adjacency(draw, nodes)
    if draw.random() < 0.5:
        own *= np.exp(draw.normal(size=own.shape) * draw.choice([0.1, 2]))
    graph = CsrGraph.from_scipy(scipy.sparse.csr_array(own + own.T if draw.random() < 0.5 else own))
    if draw.random() < 0.5:
        background = int(draw.integers(0, nodes + 1))
        order = draw.permutation(background).astype(np.uint32)
        graph = CsrGraph(graph.indptr, graph.indices, graph.scale, graph.weights, order)
    per_row = int(draw.choice([1, 1, 2, 3]))
    labels = np.where(
        draw.random((nodes, per_row)) < draw.choice([0.02, 0.2, 1]), draw.integers(0, classes, (nodes, per_row)), -1
    )
    if draw.random() < 0.5:
        # Classes without seeds.
        labels[labels == classes - 1] = -1
    labels[draw.integers(nodes), 0] = draw.integers(classes)
    neighbors = draw.integers(0, nodes, (int(draw.integers(1, 9)), int(draw.integers(1, 5)))).astype(np.uint32)
    neighbors[draw.random(neighbors.shape) < draw.choice([0, 0.3])] = NONE
    return Problem(graph, labels.astype(np.int32), neighbors, classes, some_options(draw, classes))


def pick(draw: np.random.Generator, *values: Any) -> Any:
    return values[int(draw.integers(len(values)))]


def some_options(draw: np.random.Generator, classes: int) -> dict[str, Any]:
    eta = str(draw.choice(ETAS))
    takes_prior = eta in ("prior", "sinkhorn")
    prior = pick(draw, None, "uniform", "seeds", draw.random(classes) + 0.1) if takes_prior else None
    return {
        "eta": eta,
        "prior": prior,
        "prior_power": pick(draw, None, 0.5, 2.0) if prior is not None else None,
        "gamma": pick(draw, None, None, 0.5, 1.3, 2.0),
        "alpha": pick(draw, None, None, 0.1, 0.8, 1.0),
        "reset_seeds": bool(draw.random() < 0.3),
        "normalize_graph": str(draw.choice(["row", "symmetric"])),
        "dtype": str(draw.choice(["float32", "float32", "float32", "bfloat16"])),
        "iterations": int(draw.choice([0, 1, 2, 3, 5, 9])),
    }


def close(found: NDArray[Any], expected: NDArray[Any], tolerance: float) -> None:
    """Equal to the twin, relative to each entry and to the largest of its row; predictions are equal, near-ties aside."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    assert np.isfinite(found).all()
    size = np.abs(expected)
    assert ((found == 0) | (size > 0)).all(), "a label arrived where none can"
    assert ((found > 0) | (size < _TINY)).all(), "a label did not arrive"
    wrong = np.abs(found - expected) > tolerance * size + _TINY
    assert not wrong.any(), (np.argwhere(wrong)[:3], found[wrong][:3], expected[wrong][:3])
    best = np.sort(expected.reshape(-1, expected.shape[-1]), axis=1)
    if best.shape[1] > 1:
        lead = best[:, -1] - best[:, -2] > np.maximum(max(_TIE, 2 * tolerance) * best[:, -1], 4 * _TINY)
        rows = found.reshape(-1, expected.shape[-1])[lead]
        assert (rows.argmax(axis=1) == expected.reshape(-1, expected.shape[-1])[lead].argmax(axis=1)).all(), "another class"


def same_bytes(found: NDArray[Any], expected: NDArray[Any], what: str) -> None:
    assert found.shape == expected.shape, what
    assert np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(expected).tobytes(), what


def check_diffusion(draw: np.random.Generator) -> None:
    """The diffusion in memory: the twin's values; the same bytes for any threads, widths and blocks."""
    problem = some_problem(draw)
    variant, T = problem.variant, problem.options["iterations"]
    # The twin counts nodes as the graph stores them.
    labels = problem.labels[problem.graph.rows_of(np.arange(problem.graph.nodes))]
    by_node = naive_diffusion(problem.graph, labels, problem.classes, variant, problem.prior(), T)
    expected = [L[problem.graph.node_of_row] for L in by_node]
    # Powers amplify the rounding of the entries.
    tolerance = _TOLERANCE[variant.dtype] * (1 + T) * (1 if variant.gamma is None else max(1.0, variant.gamma) ** T)
    rows, scores = problem.solve(True), problem.solve(False)
    close(rows, expected[-1], tolerance)
    close(scores, np.stack([naive_scores(L, problem.neighbors) for L in expected]), tolerance)
    before = limit_cores(int(draw.integers(1, 3)))
    try:
        width: Any = draw.choice([1, 2, 3, 7, 64])
        with small_pieces(int(draw.choice([5, 60, 1 << 18])), int(draw.choice([0, 8, 1 << 40]))):
            same_bytes(problem.solve(True, cols_per_batch=int(width)), rows, "rows in other batches")
            same_bytes(problem.solve(False, cols_per_batch="auto"), scores, "scores in other blocks")
            same_bytes(problem.solve(False, keep_scores="last")[-1], scores[-1], "scores of the last iteration alone")
            plain = problem.solve(False, plain=True)
    finally:
        limit_cores(before)
    if variant.eta == "none":
        same_bytes(plain, scores, "scores without shortcuts")
    else:
        # Sums of columns are accumulated in another order.
        np.testing.assert_allclose(plain, scores, rtol=tolerance, atol=_TINY)


def some_rows(draw: np.random.Generator, rows: int, width: int) -> NDArray[np.float32]:
    """Random rows; sometimes several are equal."""
    values = draw.normal(size=(rows, width))
    if draw.random() < 0.3:
        values = values[draw.integers(0, max(1, rows // 3), rows)]
    return values.astype(np.float32)


def check_search(draw: np.random.Generator) -> None:
    """Exact lists of neighbours. Of rows that are equally near, any may be the last ones of a list."""
    rows, width, k = int(draw.integers(1, 80)), int(draw.choice([1, 2, 3, 8, 17])), int(draw.integers(1, 12))
    vectors, queries = some_rows(draw, rows, width), some_rows(draw, int(draw.integers(1, 30)), width)
    found, similarities = search_flat(queries, vectors, k)
    expected = naive_neighbors(queries, vectors, k)
    exact = naive_similarities(queries, vectors)
    given = expected != NONE
    assert ((found != NONE) == given).all()
    for lists in (found, expected):
        assert (similarities[given] == exact[np.nonzero(given)[0], lists[given].astype(np.int64)]).all()
    last = similarities[:, -1:] if k <= rows else np.full((len(queries), 1), -np.inf)
    assert (found == expected)[similarities > last].all()
    assert all(len(set(own[own != NONE].tolist())) == (own != NONE).sum() for own in found)


def check_symmetrise(draw: np.random.Generator) -> None:
    """W0 + W0^T of lists equals that of scipy."""
    lists = some_lists(
        int(draw.integers(1, 70)),
        int(draw.integers(1, 12)),
        int(draw.integers(1 << 30)),
        bool(draw.random() < 0.5),
        float(draw.choice([0, 0.2, 1])),
        float(draw.choice([0, 0.3])),
    )
    graph = graph_of(lists.neighbors, lists.similarities)
    expected, sums = naive_symmetrise(lists.neighbors)
    found = graph.to_scipy(normalized=False)
    assert (found.toarray() == expected.toarray()).all()
    assert (found.indptr == expected.indptr).all()
    np.testing.assert_allclose(graph.scale, np.where(sums > 0, 1 / np.where(sums > 0, sums, 1), 0), rtol=1e-6)


def check_evaluation(draw: np.random.Generator) -> None:
    """Ranks and accuracies equal those of the twin; scores have ties, zeros and NaN."""
    rows, classes = int(draw.integers(1, 30)), int(draw.integers(1, 9))
    scores = draw.integers(0, 5, (rows, classes)).astype(np.float32)
    scores[draw.random(scores.shape) < 0.05] = np.nan
    labels = draw.integers(-1, classes, (rows, int(draw.integers(1, 4))))
    expected = naive_ranks(scores, labels, NO_RANK)
    assert ranks_of(scores, labels).tolist() == expected
    labelled = [rank for rank in expected if rank != NO_RANK]
    if labelled:
        k = int(draw.integers(1, classes + 1))
        found, share = mmdiff.evaluate(scores, labels, top=(k,)), float(np.mean([rank <= k for rank in labelled]))
        assert found["points"] == len(labelled)
        assert np.isclose(found[f"top{k}"]["accuracy"], share, atol=1e-6)


def check_store(draw: np.random.Generator, dask: str | None = None) -> None:
    """A store gives the bytes of arrays in memory, for any memory and batches; its lists and graph equal their twins."""
    folder = Path(tempfile.mkdtemp(dir=MEMORY, prefix="differential-"))
    try:
        with chunks_of(SMALL_CHUNKS):
            _check_store(draw, folder / "store", dask)
    finally:
        shutil.rmtree(folder)


def _check_store(draw: np.random.Generator, path: Path, dask: str | None) -> None:
    rows, classes, k = int(draw.integers(3, 120)), int(draw.choice([1, 2, 5])), int(draw.integers(1, 6))
    seeds, tests = int(draw.integers(1, 12)), int(draw.integers(1, 20))
    store = mmdiff.open(path, create=True, memory="4G")
    store.add(some_rows(draw, rows, 6), normalize=bool(draw.random() < 0.5))
    labels = draw.integers(0, classes, (seeds, int(draw.choice([1, 2]))))
    labels[0, 0] = classes - 1
    store.add(some_rows(draw, seeds, 6), role="seeds", labels=labels)
    store.add(some_rows(draw, tests, 6), role="test")
    store.build_graph(k=k, index="flat")
    options = some_options(draw, len(np.unique(labels)))
    if dask is not None and Variant(options["eta"]).coupled:
        # Operators that couple the classes do not run on workers.
        options |= {"eta": "column", "prior": None, "prior_power": None}
    small = mmdiff.open(path, memory=str(draw.choice(["2G", "4G"])), dask=dask)
    found = small.diffuse(**options, cols_per_batch=int(draw.integers(1, 6)))
    graph, files = store.graph, Store.open(path)
    nodes = files.open_artifact("knn/test")["neighbors"]
    neighbors = np.where(nodes == NONE, NONE, graph.internal.rows_of(np.where(nodes == NONE, 0, nodes))).astype(np.uint32)
    own = files.open_artifact("descriptors/seeds")["labels"].reshape(seeds, -1)
    given = np.concatenate([np.full((rows, own.shape[1]), -1, np.int32), own])
    expected = diffuse(graph.internal, given, classes=len(found.classes), neighbors=neighbors, **options)
    same_bytes(np.array(files.open_artifact("scores/diffusion")["scores"]), expected, "a store and arrays in memory")
    vectors = np.concatenate([np.array(store[f"descriptors/{role}"]["vectors"]) for role in ("background", "seeds")])
    lists = naive_neighbors(vectors, vectors, k)
    matrix, _ = naive_symmetrise(lists)
    exact = graph.to_scipy(normalized=False)
    if (exact.toarray() != matrix.toarray()).any():
        # Rows of equal similarity are ordered by node, and nodes by cell.
        assert len(np.unique(vectors, axis=0)) < len(vectors), "another graph than that of the naive lists"


CHECKS: tuple[tuple[Callable[[np.random.Generator], None], float], ...] = (
    (check_diffusion, 0.6),
    (check_search, 0.12),
    (check_symmetrise, 0.12),
    (check_evaluation, 0.12),
    (check_store, 0.04),
)


def run_case(seed: int, case: int) -> str:
    """Runs one case; returns its check and what failed, or "" if nothing did."""
    draw = np.random.default_rng([seed, case])
    check = CHECKS[int(draw.choice(len(CHECKS), p=[share for _, share in CHECKS]))][0]
    try:
        check(draw)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{check.__name__}: {type(error).__name__} in {place.name}: {' '.join(str(error).split())[:300]}"
    return ""


def run(scale: float, seed: int, cases: int | None = None, dask: bool = True) -> dict[str, int | float | str]:
    """Runs the campaign; raises AssertionError with all differences."""
    count = max(50, round(CASES * scale)) if cases is None else cases
    failures: list[str] = []
    told = time.monotonic()
    for case in range(count):
        failure = run_case(seed, case)
        if failure:
            failures.append(f"case {case}: {failure}")
        if time.monotonic() - told > 60:
            told = time.monotonic()
            sys.stderr.write(f"differential: {case:,} of {count:,}, {len(failures)} differences\n")
    on_workers = max(3, round(40 * scale)) if dask else 0
    if on_workers:
        with executor_on("local:2", ROOT):
            address = import_module("distributed").default_client().scheduler.address
            for case in range(on_workers):
                try:
                    check_store(np.random.default_rng([seed, case, 1]), address)
                except Exception as error:
                    failures.append(
                        f"case {case} on Dask workers: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
                    )
    kinds = Counter(failure.partition(": ")[2][:60] for failure in failures)
    assert not failures, f"{len(failures)} differences of seed {seed}: {dict(kinds)}\n" + "\n".join(failures[:50])
    return {"cases": count, "on_dask_workers": on_workers, "differences": 0}

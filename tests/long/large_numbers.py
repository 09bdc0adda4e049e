"""Large numbers: limits lowered so that small graphs exceed them, and once a graph with more than 2^31 entries.

With lowered limits a graph of a thousand edges has many ranges, blocks, checkpoints and chunks, and its bytes are those of the
graph in one piece. The large graph is made from generated lists; its rows around and beyond entry 2^31, and two iterations of a
diffusion there, equal a naive computation from the lists.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.lists import GeneratedLists
from mmdiff.diffusion.api import diffuse
from mmdiff.diffusion.engine import coupled
from mmdiff.diffusion.io import graph_stream
from mmdiff.formats.store.manifest import Recipe
from mmdiff.formats.store.publish import Publication
from mmdiff.graph import symmetrise as stage
from mmdiff.graph.graph import CsrGraph
from mmdiff.graph.lists import ArrayLists
from mmdiff.graph.weights import Weighting
from mmdiff.kernels.constants import COLUMN
from mmdiff.runtime.progress import silent
from mmdiff.runtime.threads import in_threads
from tests.support.graphs import SomeLists, make_graph, some_lists
from tests.support.stores import MEMORY, chunks_of, tree

CASES = 400
LIMIT = 1 << 31

# About 52.5 entries a node.
NODES, K = 42_000_000, 30
MEMORY_BYTES = 6 << 30
DISK_BYTES = 20 << 30
CLASSES = 4

_BLOCK_ROWS = 1 << 16


@contextmanager
def lowered(draw: np.random.Generator) -> Iterator[None]:
    """Limits of few edges and bytes instead of billions."""
    places: list[tuple[Any, str, int]] = [
        (stage, "MOST_EDGES", int(draw.choice([100, 1000]))),
        (stage, "BLOCK_EDGES", int(draw.choice([1, 7, 64]))),
        (stage, "_CHECKPOINT_EDGES", int(draw.choice([1, 50, 1000]))),
        (stage, "_LITTLE_BYTES", int(draw.choice([0, 500, 5000]))),
        (graph_stream, "BLOCK_EDGES", int(draw.choice([1, 7, 64]))),
        (coupled, "BLOCK_ROWS", int(draw.choice([1, 5]))),
    ]
    before = [getattr(module, name) for module, name, _ in places]
    for module, name, value in places:
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name, _), value in zip(places, before, strict=True):
            setattr(module, name, value)


class HugeGraph(CsrGraph):
    """A graph that says it has 2^31 entries more than it has, and so takes the way of large ones."""

    @property
    def edges(self) -> int:
        return len(self.indices) + LIMIT


def check_lowered(draw: np.random.Generator, folder: Path) -> None:
    """A graph with lowered limits has the bytes of one without, and so have its products and scores."""
    lists = some_lists(int(draw.integers(1, 200)), int(draw.integers(1, 12)), int(draw.integers(1 << 30)))
    if draw.random() < 0.3:
        lists = with_hub(lists, draw)
    weighting = Weighting("gaussian", 0.5) if draw.random() < 0.4 else None
    longest = int(np.bincount(lists.neighbors[lists.neighbors < len(lists.neighbors)], minlength=1).max())
    with chunks_of(4096):
        expected = make_graph(folder / "whole", lists.lists, weighting)
        with lowered(draw):
            stage.MOST_EDGES = max(stage.MOST_EDGES, longest)
            found = make_graph(folder / "pieces", lists.lists, weighting)
            assert tree(found.folder, with_runs=False) == tree(expected.folder, with_runs=False), "other bytes in pieces"
            graph = CsrGraph.from_artifact(found)
            labels = np.where(np.arange(graph.nodes) % 5, -1, np.arange(graph.nodes) % 3).astype(np.int32)
            options: dict[str, Any] = {"iterations": 2, "eta": str(draw.choice(["column", "row"])), "classes": 3}
            scores = diffuse(graph, labels, cols_per_batch=1, **options)
        assert scores.tobytes() == diffuse(graph, labels, **options).tobytes(), "other scores in pieces"
    small = graph.to_scipy()
    large = HugeGraph(graph.indptr, graph.indices, graph.scale, graph.weights).to_scipy()
    assert large.indices.dtype == large.indptr.dtype == np.int64
    assert (small != large).nnz == 0, "another matrix with 64-bit numbers"
    most = int(draw.choice([1, 10, 1000]))
    values = [block.values for block in graph.user_rows(most_edges=most)]
    assert np.concatenate(values).tobytes() == small.data.tobytes(), "other rows in blocks"


def with_hub(lists: SomeLists, draw: np.random.Generator) -> SomeLists:
    """The same lists, all of which name one node."""
    neighbors = lists.neighbors.copy()
    neighbors[:, -1] = draw.integers(len(neighbors))
    similarities = np.where(np.isneginf(lists.similarities), np.float32(-1), lists.similarities)
    return SomeLists(neighbors, similarities.astype(np.float32))


def incoming(lists: NDArray[np.uint32], nodes: NDArray[np.int64]) -> dict[int, list[int]]:
    """For each of some nodes, the nodes whose lists name it: one pass over all lists."""
    wanted = np.zeros(len(lists), bool)
    wanted[nodes] = True

    def search(start: int) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        neighbors = lists[start : start + _BLOCK_ROWS]
        rows, places = np.nonzero(wanted[neighbors])
        return rows + start, neighbors[rows, places]

    found: dict[int, list[int]] = {int(node): [] for node in nodes}
    for rows, targets in in_threads(search, range(0, len(lists), _BLOCK_ROWS)):
        for row, target in zip(rows.tolist(), targets.tolist(), strict=True):
            found[target].append(row)
    return found


def naive_rows(lists: NDArray[np.uint32], nodes: NDArray[np.int64]) -> dict[int, dict[int, int]]:
    """Rows of W0 + W0^T from the lists: for each node its columns and entries."""
    rows = {}
    for node, sources in incoming(lists, nodes).items():
        own = set(lists[node].tolist())
        rows[node] = {column: (column in own) + (column in set(sources)) for column in sorted(own | set(sources))}
    return rows


def label_of(nodes: NDArray[np.int64]) -> NDArray[np.int32]:
    """A third of the nodes are seeds, of all classes."""
    return np.where(nodes % 3 == 0, nodes // 3 % CLASSES, -1).astype(np.int32)


def check_large(folder: Path, nodes: int, limit: int, say: Callable[[str], None]) -> dict[str, int | float | str]:
    """A graph of more than `limit` entries; its rows around that entry and a diffusion there against the lists."""
    GeneratedLists(nodes, K).write(folder / "lists.npy")
    lists: NDArray[np.uint32] = np.load(folder / "lists.npy", mmap_mode="r")
    say(f"{lists.size:,} entries of lists generated")
    start = time.monotonic()
    with Publication(folder / "store", ["graph/W"], "a test") as publication:
        draft = publication.draft("graph/W", Recipe("graph", 1, {}, {}))
        facts = stage.symmetrise(ArrayLists(lists), draft, MEMORY_BYTES, silent)
        facts |= {"background": nodes, "seeds": 0, "test": 0}
        artifact = publication.publish(draft, facts, {"command": "a test"})
        publication.link({"graph/W": artifact})
    made = time.monotonic() - start
    say(f"{facts['edges']:,} entries in {made:.0f} s")
    assert facts["edges"] > limit, facts
    graph = CsrGraph.open(folder / "store")
    # Entries 2^29 and 2^30 are bytes 2^31 and 2^32 of the columns.
    places = [0, limit // 4, limit // 2, limit - 1, limit, limit + 1, (limit + facts["edges"]) // 2, facts["edges"] - 1]
    near = np.searchsorted(graph.indptr, places, "right") - 1
    sampled = np.unique(np.clip(np.concatenate([near - 1, near, near + 1]), 0, nodes - 1)).astype(np.int64)
    rows = naive_rows(lists, sampled)
    for node, expected in rows.items():
        stored = graph.indices[graph.indptr[node] : graph.indptr[node + 1]]
        assert (stored & COLUMN).tolist() == list(expected), f"row {node}"
        assert (1 + (stored > COLUMN)).tolist() == list(expected.values()), f"entries of row {node}"
    say(f"{len(rows)} rows equal those of the lists")
    start = time.monotonic()
    neighbors = sampled[:, None].astype(np.uint32)
    scores = diffuse(graph, label_of(np.arange(nodes)), iterations=2, eta="none", neighbors=neighbors, classes=CLASSES)
    taken = time.monotonic() - start
    say(f"two iterations of {CLASSES} columns in {taken:.0f} s")
    around = np.array(sorted({column for row in rows.values() for column in row} - rows.keys()))
    rows |= naive_rows(lists, around)

    def product(node: int, L: Callable[[int], NDArray[np.float64]]) -> NDArray[np.float64]:
        total = sum(rows[node].values())
        return np.asarray(np.sum([weight / total * L(column) for column, weight in rows[node].items()], axis=0))

    def Y(node: int) -> NDArray[np.float64]:
        return np.asarray(np.arange(CLASSES) == label_of(np.array([node]))[0], np.float64)

    first = {node: product(node, Y) for node in rows}
    second = np.stack([product(int(node), first.__getitem__) for node in sampled])
    np.testing.assert_allclose(scores[1], np.stack([first[int(node)] for node in sampled]), rtol=1e-5)
    np.testing.assert_allclose(scores[2], second, rtol=1e-5)
    say(f"scores of {len(sampled)} rows equal the naive ones")
    return {
        "nodes": nodes,
        "entries": facts["edges"],
        "seconds_symmetrising": round(made),
        "seconds_diffusing": round(taken),
        "rows_compared": len(rows),
    }


def run(scale: float, seed: int) -> dict[str, int | float | str]:
    """Runs the cases with lowered limits; from scale 1 on also the graph of more than 2^31 entries, below it a small one."""

    def say(text: str) -> None:
        sys.stderr.write(f"large_numbers: {text}\n")

    failures = []
    count = max(20, round(CASES * scale))
    for case in range(count):
        with tempfile.TemporaryDirectory(dir=MEMORY) as quick:
            try:
                check_lowered(np.random.default_rng([seed, case]), Path(quick))
            except Exception as error:
                failures.append(f"case {case}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
    say(f"{count} graphs with lowered limits, {len(failures)} failures")
    assert not failures, f"{len(failures)} failures of seed {seed}:\n" + "\n".join(failures[:50])
    large = scale >= 1
    folder = Path(tempfile.mkdtemp(prefix="large-numbers-"))
    try:
        if large and shutil.disk_usage(folder).free < DISK_BYTES:
            raise AssertionError(f"{folder}: the large graph needs {DISK_BYTES >> 30} GB of disk. Set TMPDIR to another disk.")
        figures = check_large(folder, NODES, LIMIT, say) if large else check_large(folder, 3000, 1 << 16, say)
    finally:
        shutil.rmtree(folder)
    return {"graphs_with_lowered_limits": count, **figures}

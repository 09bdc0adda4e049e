"""W equals scipy's to the last bit, for any memory, and after any number of kills."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.measure import anonymous_bytes
from mmdiff.formats.errors import BadOption, Corrupt, Stale
from mmdiff.formats.store.store import Store
from mmdiff.graph import symmetrise as stage
from mmdiff.graph.graph import CsrGraph
from mmdiff.graph.lists import ArrayLists, Block
from mmdiff.graph.union import Incoming, MergedRows, Outgoing, merge
from mmdiff.graph.weights import Weighting
from mmdiff.kernels.constants import COLUMN, NONE
from mmdiff.runtime.progress import Advance, Progress
from mmdiff.runtime.threads import cores
from tests.support.graphs import SomeLists, anew, lists_of_all_kinds, make_graph, pieces_of, some_lists
from tests.support.naive import naive_symmetrise, naive_weights
from tests.support.paths import ROOT
from tests.support.stores import SMALL_CHUNKS, chunk_inodes, chunks_of, problems, tree
from tests.support.sweeping import swept

blocks = st.sampled_from([20, 150, 1 << 19])
ranges = st.sampled_from([30, 200, 1 << 32])


def check_structure(graph: CsrGraph, neighbors: NDArray[np.uint32]) -> None:
    expected, sums = naive_symmetrise(neighbors)
    np.testing.assert_array_equal(graph.indptr, expected.indptr)
    np.testing.assert_array_equal(graph.indices & COLUMN, expected.indices)
    np.testing.assert_array_equal((graph.indices > COLUMN) + 1, expected.data)
    if graph.weights is None:
        np.testing.assert_array_equal(graph.scale, np.divide(1, sums, out=sums * 0, where=sums > 0).astype(np.float32))


@settings(max_examples=30)
@given(made=lists_of_all_kinds, block=blocks, edges=ranges, chunk=st.sampled_from([4096, 1 << 26]))
def test_graph_is_that_of_scipy_to_the_last_bit(
    quick_folder: Path, made: SomeLists, block: int, edges: int, chunk: int
) -> None:
    with pieces_of(block, edges), chunks_of(chunk):
        artifact = make_graph(anew(quick_folder / "store"), made.lists)
        graph = CsrGraph.from_artifact(artifact)
        check_structure(graph, made.neighbors)
        facts = artifact.manifest.facts
        assert (facts["nodes"], facts["edges"]) == (len(made.neighbors), graph.edges)
        assert facts["reciprocal"] == pytest.approx(float((graph.indices > COLUMN).mean()) if graph.edges else 0, abs=1e-6)
        assert problems(Store.open(quick_folder / "store")) == []


@settings(max_examples=30)
@given(
    made=lists_of_all_kinds,
    block=blocks,
    edges=ranges,
    formula=st.sampled_from(["gaussian", "meaningful"]),
    dtype=st.sampled_from(["float32", "float16"]),
)
def test_weighted_graph_is_that_of_scipy(
    quick_folder: Path, made: SomeLists, block: int, edges: int, formula: Any, dtype: Any
) -> None:
    with pieces_of(block, edges):
        graph = CsrGraph.from_artifact(make_graph(anew(quick_folder / "store"), made.lists, Weighting(formula, 3.0, dtype)))
    check_structure(graph, made.neighbors)
    weights = naive_weights(made.neighbors, made.similarities, formula, 3.0)
    expected, sums = naive_symmetrise(made.neighbors, weights)
    assert graph.weights is not None
    assert graph.weights.dtype == dtype
    np.testing.assert_allclose(graph.weights, expected.data, atol=1e-6 if dtype == "float32" else 1e-3)
    rows = graph.to_scipy().sum(axis=1)
    np.testing.assert_allclose(rows[sums > 1e-6], 1, atol=1e-5)


@pytest.mark.parametrize("k", [1, 31, 32, 33, 64, 100, 257])
@pytest.mark.parametrize("weighting", [None, Weighting("gaussian", 0.7, "float32")])
def test_lists_without_repetitions_of_any_length(quick_folder: Path, k: int, weighting: Weighting | None) -> None:
    """A few rows have a repeated or a missing neighbour, among many that do not."""
    draw = np.random.default_rng(k)
    neighbors = np.argsort(draw.random((400, 400)), axis=1)[:, :k].astype(np.uint32)
    neighbors[7, 0], neighbors[90, -1] = neighbors[7, -1], NONE
    similarities = draw.random(neighbors.shape, np.float32)
    graph = CsrGraph.from_artifact(make_graph(quick_folder / "store", ArrayLists(neighbors, similarities), weighting))
    check_structure(graph, neighbors)
    if graph.weights is not None:
        expected, _ = naive_symmetrise(neighbors, naive_weights(neighbors, similarities, "gaussian", 0.7))
        np.testing.assert_allclose(graph.weights, expected.data, atol=1e-6)


@settings(max_examples=22)
@given(seed=st.integers(0, 1 << 16), own=st.integers(0, 40), leading=st.integers(0, 90), nodes=st.integers(100, 300))
def test_a_row_is_the_same_by_place_and_by_order(seed: int, own: int, leading: int, nodes: int) -> None:
    draw = np.random.default_rng(seed)
    neighbors = draw.choice(nodes, (1, own), replace=False).astype(np.uint32)
    incoming = np.sort(draw.choice(nodes, leading, replace=False)).astype(np.uint32)
    rows = []
    # A missing neighbour at the end makes the list be sorted.
    for lists in (neighbors, np.append(neighbors, np.full((1, 1), NONE, np.uint32), axis=1)):
        merged = MergedRows.empty(1, own + leading + 1, weighted=False)
        both = merge(Outgoing(lists, None), 0, Incoming(np.array([leading], np.uint32), incoming.copy(), None), merged)
        rows.append((both, merged.columns[: merged.ends[0]].tolist(), merged.scale.tolist()))
    expected = np.union1d(neighbors[0], incoming)
    twice = np.isin(expected, neighbors[0]) & np.isin(expected, incoming)
    assert rows[0] == rows[1]
    assert rows[0][:2] == (int(twice.sum()), (expected.astype(np.uint32) | (twice.astype(np.uint32) << 31)).tolist())


def test_self_neighbour_has_twice_the_weight_and_others_keep_their_rows(quick_folder: Path) -> None:
    neighbors = np.array([[0, 1], [1, NONE], [NONE, NONE], [0, 0]], np.uint32)
    graph = CsrGraph.from_artifact(make_graph(quick_folder / "store", ArrayLists(neighbors)))
    np.testing.assert_array_equal(
        graph.to_scipy(normalized=False).toarray(), [[2, 1, 0, 1], [1, 2, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]
    )
    np.testing.assert_allclose(graph.scale, [1 / 4, 1 / 3, 0, 1])


def test_long_lists_and_a_hub_that_everybody_names(quick_folder: Path) -> None:
    made = some_lists(500, 300, none=0.3)
    made.neighbors[:, 5] = 7
    with pieces_of(1000, 1 << 32):
        check_structure(CsrGraph.from_artifact(make_graph(quick_folder / "store", made.lists)), made.neighbors)


def test_bytes_do_not_depend_on_memory_blocks_or_ranges(quick_folder: Path) -> None:
    made = some_lists(150, 10)
    trees = []
    for block, edges in ((1 << 19, 1 << 32), (50, 300), (3000, 1), (1, 3000)):
        with chunks_of(4096), pieces_of(block, edges):
            make_graph(anew(quick_folder / "store"), made.lists)
        trees.append(tree(quick_folder / "store"))
    assert all(found == trees[0] for found in trees)


def test_too_little_memory_is_refused_with_the_number_that_is_needed(quick_folder: Path) -> None:
    made = some_lists(50, 4)
    with pytest.raises(BadOption, match=r"memory='1M': a graph of 50 nodes needs at least [\d,]+M") as refused:
        make_graph(quick_folder / "store", made.lists, memory=1 << 20)
    least = int(str(refused.value).split("at least ")[1].split("M.")[0].replace(",", ""))
    make_graph(quick_folder / "store", made.lists, memory=(least + 50) << 20)


def test_hub_that_does_not_fit_the_memory_is_refused_before_anything_is_written(quick_folder: Path) -> None:
    neighbors = np.zeros((3 << 20, 1), np.uint32)
    with pieces_of(1 << 16, 1 << 32), chunks_of(SMALL_CHUNKS):
        with pytest.raises(BadOption) as refused:
            make_graph(quick_folder / "store", ArrayLists(neighbors[:10]), memory=1)
        base = int(str(refused.value).split("at least ")[1].split("M.")[0].replace(",", ""))
        with pytest.raises(BadOption, match="at least"):
            make_graph(quick_folder / "store", ArrayLists(neighbors), memory=(base + 30) << 20)
    assert not (quick_folder / "store").exists()


def test_neighbour_that_is_no_node_is_found(quick_folder: Path) -> None:
    made = some_lists(100, 5, none=0, empty=0)
    made.neighbors[63, 2] = 100
    with pieces_of(50, 1 << 32), pytest.raises(Corrupt, match="row 63: node 100 of 100"):
        make_graph(quick_folder / "store", made.lists)


@dataclass
class Watched:
    """Lists that record the rows that were read, and may change after some reads."""

    made: SomeLists
    changes_after: int = 1 << 30
    read: list[tuple[int, int]] = field(default_factory=list)

    @property
    def nodes(self) -> int:
        return len(self.made.neighbors)

    @property
    def k(self) -> int:
        return self.made.lists.k

    def block(self, start: int, stop: int) -> Block:
        self.read.append((start, stop))
        neighbors = self.made.neighbors[start:stop]
        return neighbors[:, ::-1] * 0 if len(self.read) > self.changes_after else neighbors, self.made.similarities[start:stop]


def test_lists_that_change_while_they_are_read_are_noticed(quick_folder: Path) -> None:
    with pytest.raises(Stale, match="changed while"):
        make_graph(quick_folder / "store", Watched(some_lists(100, 5, none=0, empty=0), changes_after=1))


@contextmanager
def interrupted_at_half(what: str, total: int, unit: str) -> Iterator[Advance]:
    """A progress bar that raises KeyboardInterrupt when half of the rows are written."""
    del unit
    done = [0]

    def advance(count: int) -> None:
        done[0] += count
        if what == "symmetrising" and done[0] > total // 2:
            raise KeyboardInterrupt

    yield advance


@pytest.mark.parametrize("weighting", [None, Weighting("gaussian", 0.7, "float16")])
def test_interrupted_run_repeats_at_most_one_range(quick_folder: Path, weighting: Weighting | None) -> None:
    made = some_lists(400, 10)
    with chunks_of(4096), pieces_of(100, 400):
        undisturbed = Watched(made)
        make_graph(quick_folder / "other", undisturbed, weighting)
        with pytest.raises(KeyboardInterrupt):
            make_graph(quick_folder / "store", first := Watched(made), weighting, progress=interrupted_at_half)
        assert Store.open(quick_folder / "store").names() == []
        finished = chunk_inodes(quick_folder / "store")
        make_graph(quick_folder / "store", second := Watched(made), weighting)
    assert tree(quick_folder / "store") == tree(quick_folder / "other")
    assert finished <= chunk_inodes(quick_folder / "store")
    a_pass = 40 * cores()
    assert len(first.read) + len(second.read) <= len(undisturbed.read) + 2 * a_pass + 20


def isolated_lists(nodes: int, near: int = 0) -> SomeLists:
    """Nodes in a ring, far from each other except for the first `near` of them."""
    neighbors = (np.arange(nodes)[:, None] + np.arange(2)).astype(np.uint32) % np.uint32(nodes)
    similarities = np.where(np.arange(2) == 0, 1, np.where(np.arange(nodes)[:, None] < near, 0.999, -1))
    return SomeLists(neighbors, similarities.astype(np.float32))


NARROW = Weighting("gaussian", 0.1)


def interrupted_at_checkpoint(checkpoint: Path, rows: int) -> Progress:
    """A progress bar that raises KeyboardInterrupt once a checkpoint covers so many rows."""

    @contextmanager
    def bar(what: str, total: int, unit: str) -> Iterator[Advance]:
        del total, unit
        yield lambda _: None
        if what == "symmetrising":
            # Checkpoints are written in the background.
            while not checkpoint.exists() or json.loads(checkpoint.read_bytes())["note"]["rows"] < rows:
                time.sleep(0.001)
            raise KeyboardInterrupt

    return bar


def test_isolated_nodes_are_refused_by_a_run_that_continues_behind_the_last_row(
    quick_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "_CHECKPOINT_EDGES", 1)
    made, checkpoint = isolated_lists(100), quick_folder / "store" / "work" / "graph.W" / "checkpoint"
    with pytest.raises(KeyboardInterrupt):
        make_graph(quick_folder / "store", made.lists, NARROW, progress=interrupted_at_checkpoint(checkpoint, 100))
    with pytest.raises(BadOption, match=r"sigma=0.1: all weights between different nodes vanish"):
        make_graph(quick_folder / "store", made.lists, NARROW)


def test_nodes_near_each_other_before_a_checkpoint_are_remembered(quick_folder: Path) -> None:
    made = isolated_lists(400, near=3)
    with pieces_of(50, 100):
        with pytest.raises(KeyboardInterrupt):
            make_graph(quick_folder / "store", made.lists, NARROW, progress=interrupted_at_half)
        assert (quick_folder / "store" / "work" / "graph.W" / "checkpoint").exists()
        make_graph(quick_folder / "store", made.lists, NARROW)
        make_graph(quick_folder / "other", made.lists, NARROW)
    assert tree(quick_folder / "store") == tree(quick_folder / "other")


def test_damaged_checkpoint_or_chunk_makes_the_run_begin_anew(quick_folder: Path) -> None:
    made = some_lists(400, 10)
    work = quick_folder / "store" / "work" / "graph.W"
    for damaged in ("checkpoint", "object/indices/c.0"):
        with chunks_of(4096), pieces_of(100, 400):
            with pytest.raises(KeyboardInterrupt):
                make_graph(anew(quick_folder / "store"), made.lists, progress=interrupted_at_half)
            content = bytearray((work / damaged).read_bytes())
            content[len(content) // 2] ^= 1
            (work / damaged).write_bytes(content)
            make_graph(quick_folder / "store", made.lists)
            make_graph(anew(quick_folder / "other"), made.lists)
        assert tree(quick_folder / "store") == tree(quick_folder / "other")


def test_chunks_of_an_interrupted_run_are_not_taken_for_those_of_another_graph(quick_folder: Path) -> None:
    with chunks_of(4096), pieces_of(100, 400):
        with pytest.raises(KeyboardInterrupt):
            make_graph(quick_folder / "store", some_lists(400, 10, seed=1).lists, progress=interrupted_at_half)
        (quick_folder / "store" / "work" / "graph.W" / "checkpoint").unlink()
        make_graph(quick_folder / "store", some_lists(400, 10).lists)
        make_graph(quick_folder / "other", some_lists(400, 10).lists)
    assert tree(quick_folder / "store") == tree(quick_folder / "other")


@pytest.mark.parametrize(("moment", "every"), [("before", 3), ("within", 2)])
def test_killed_at_any_step_it_resumes_to_identical_bytes(quick_folder: Path, moment: str, every: int) -> None:
    kills = swept("import-graph", f"killed {moment}", quick_folder, every)
    assert sum(kills.values()) > (50 if moment == "before" else 20)


def test_memory_stays_within_what_is_allowed(tmp_path: Path) -> None:
    """Peak memory, watched from outside, with lists whose incoming edges are twice as large as the limit."""
    np.save(tmp_path / "lists.npy", some_lists(400_000, 30, none=0, empty=0).neighbors)
    script = """if True:
        import sys, numpy as np
        from pathlib import Path
        from mmdiff.formats.errors import BadOption
        from mmdiff.graph.lists import ArrayLists
        from tests.support.graphs import make_graph, pieces_of
        from tests.support.stores import chunks_of
        lists = ArrayLists(np.load(sys.argv[1], mmap_mode="r"))
        with chunks_of(1 << 20), pieces_of(1 << 16, 1 << 32):
            try:
                make_graph(Path(sys.argv[2]), lists, memory=1)
            except BadOption as error:
                least = int(str(error).split("at least ")[1].split("M.")[0])
            make_graph(Path(sys.argv[2]), lists, memory=(least + 24) << 20)
        print((least + 24) << 20)
    """
    command = [sys.executable, "-c", script, str(tmp_path / "lists.npy"), str(tmp_path / "store")]
    most = 0
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            most = max(most, anonymous_bytes(process.pid))
        allowed = int(process.communicate()[0])
    assert 50 << 20 < most <= allowed
    assert CsrGraph.open(tmp_path / "store").nodes == 400_000

"""W is read as rarely as memory allows: all columns at once where S stays a frontier, and shared rows only once."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mmdiff.diffusion import prepared, stage
from mmdiff.diffusion.engine.deferred_sums import column_sums
from mmdiff.diffusion.engine.frontier import Outgrown, advance_frontier, spread_frontier
from mmdiff.diffusion.engine.independent import Step
from mmdiff.diffusion.engine.needed_rows import closures, reached
from mmdiff.diffusion.engine.product import SeedUpdate, product, product_of_rows
from mmdiff.diffusion.engine.run import Diffusion
from mmdiff.diffusion.io import checkpoint, graph_stream, remote_batches
from mmdiff.diffusion.io.graph_stream import Stream
from mmdiff.diffusion.io.kept_rows import KeptRows, RowCache
from mmdiff.diffusion.planning import memory_model
from mmdiff.diffusion.planning.estimate import plan_diffuse
from mmdiff.diffusion.planning.forecast import FEW_VISITS, extrapolate_batch, forecast_batch
from mmdiff.diffusion.planning.memory_model import Footprint
from mmdiff.diffusion.seeds import Seeds
from mmdiff.diffusion.stage import Request, diffuse, prepare
from mmdiff.diffusion.variant import Variant
from mmdiff.formats.store.store import Store
from mmdiff.graph.graph import CsrGraph
from mmdiff.graph.weights import Weighting
from mmdiff.runtime.dask import executor_on
from tests.diffusion.test_diffuse_interrupted import interrupt
from tests.diffusion.test_diffuse_kernels import frontier_of, some_S
from tests.diffusion.test_diffuse_shortcuts import forget, large
from tests.diffusion.test_diffusion import graphs
from tests.support.graphs import make_graph, some_lists
from tests.support.stores import tree

NODES, WIDTH = 6000, 24
ROWS = np.arange(0, NODES, 3).astype(np.uint32)
MUCH = 1 << 30


@settings(max_examples=45, deadline=None)
@given(graph=graphs, seed=st.integers(0, 1000), data=st.data())
def test_kept_rows_are_the_rows_of_the_graph_at_their_own_numbers(graph: CsrGraph, seed: int, data: st.DataObject) -> None:
    draw = np.random.default_rng(seed)
    rows = np.flatnonzero(draw.random(graph.nodes) < 0.6).astype(np.uint32)
    if not len(rows):
        return
    kept = RowCache(MUCH).room_for(graph, rows)
    assert kept is not None
    cut = data.draw(st.integers(0, len(rows)))
    for first, stop in ((0, cut), (cut, len(rows))):
        kept.copy(graph, first, rows[first:stop].astype(np.int64))
    chosen = rows[draw.random(len(rows)) < 0.5]
    assert not len(chosen) or kept.has(chosen)
    assert not kept.has(np.append(rows, np.uint32(graph.nodes)))
    if not len(chosen):
        return
    part = kept.graph(graph, chosen.astype(np.int64))
    for row in chosen.tolist():
        for own, whole in zip(part.entries, graph.entries, strict=True):
            found = own[part.indptr[row] : part.indptr[row + 1]]
            np.testing.assert_array_equal(found, whole[graph.indptr[row] : graph.indptr[row + 1]])


def test_a_set_without_one_of_the_rows_is_not_taken_for_them() -> None:
    kept = KeptRows(np.arange(0, 9000, 3), np.zeros(3001, np.int64), [])
    assert kept.has(np.array([0, 3, 8997]))
    assert not kept.has(np.array([0, 3, 5]))
    assert not kept.has(np.array([], np.int64))
    rows = np.arange(0, 9000, 3)
    # Beyond the sample that is looked up first.
    rows[1001] += 1
    assert not kept.has(rows)


@pytest.fixture(scope="module", params=["value-free", "weighted"])
def mapped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CsrGraph:
    store = tmp_path_factory.mktemp("kept") / "store"
    make_graph(store, some_lists(NODES, 20).lists, Weighting("gaussian", 0.5) if request.param == "weighted" else None)
    return CsrGraph.open(store)


def some(stream: Stream) -> NDArray[Any]:
    out = np.empty((len(ROWS), WIDTH), np.float32)
    product_of_rows(stream, some_S(NODES, WIDTH, 0), out, seed_update(), ROWS, shared=True)
    return out


def whole(stream: Stream) -> NDArray[Any]:
    out = np.zeros((NODES, WIDTH), np.float32)
    product(stream, some_S(NODES, WIDTH, 0), out, seed_update(), ROWS, shared=True)
    return out


def spread(stream: Stream) -> NDArray[Any]:
    out = np.empty((len(ROWS), WIDTH), np.float32)
    spread_frontier(stream, frontier_of(some_S(NODES, WIDTH, 0, 0.01)), out, seed_update(), ROWS, compact=True, shared=True)
    return out


def advanced(stream: Stream) -> NDArray[Any]:
    after = advance_frontier(stream, frontier_of(some_S(NODES, WIDTH, 0, 0.01)), seed_update(), ROWS, short=False, shared=True)
    return np.concatenate([after.offsets, after.columns, after.values])


def neighbours(stream: Stream) -> NDArray[Any]:
    found = reached(stream, np.arange(0, NODES, 50), shared=True)
    assert found is not None
    return found


def sums(stream: Stream) -> NDArray[Any]:
    seeds = Seeds.of(np.arange(5), np.arange(5, dtype=np.int32)[:, None] % WIDTH, WIDTH)
    return column_sums(stream, seeds, Variant(), None, 2)


def seed_update() -> SeedUpdate:
    labels = np.full((NODES, 1), -1, np.int32)
    labels[::9, 0] = np.arange(len(labels[::9])) % WIDTH
    return SeedUpdate(Seeds.of(np.arange(NODES), labels, WIDTH), 0.8)


@pytest.fixture
def past_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pass over rows reads W past the page cache, in small blocks."""
    monkeypatch.setattr(graph_stream, "_ENOUGH", 0)
    monkeypatch.setattr(graph_stream, "_LARGE_EDGES", 500)
    monkeypatch.setattr(graph_stream, "BLOCK_EDGES", 700)


@pytest.mark.usefixtures("past_cache")
@pytest.mark.parametrize("compute", [some, whole, spread, advanced, neighbours, sums])
def test_shared_rows_are_read_once_and_give_the_same_to_the_last_bit(
    mapped: CsrGraph, compute: Callable[[Stream], NDArray[Any]]
) -> None:
    with Stream(mapped) as stream:
        expected = compute(stream)
    cache = RowCache(MUCH)
    with Stream(mapped, past_cache=True, cache=cache) as stream:
        np.testing.assert_array_equal(compute(stream), expected)
        before = stream.bytes
        np.testing.assert_array_equal(compute(stream), expected)
        # The first step of the sums takes all rows, which are not kept.
        again = sum(values.nbytes for values in mapped.entries) if compute is sums else 0
        assert before > 0
        assert stream.bytes - before <= again
    assert 0 < cache.nbytes <= MUCH
    # Another stream, as of the next stage of a run.
    with Stream(mapped, past_cache=True, cache=cache) as stream:
        np.testing.assert_array_equal(compute(stream), expected)


@pytest.mark.usefixtures("past_cache")
def test_rows_are_kept_within_the_limit_and_small_sets_stay(mapped: CsrGraph) -> None:
    few, many = ROWS[:20], ROWS[20:]
    out = np.empty((len(ROWS), WIDTH), np.float32)
    cache = RowCache(MUCH)
    with Stream(mapped, past_cache=True, cache=cache) as stream:
        for rows in (many, few):
            product_of_rows(stream, some_S(NODES, WIDTH, 0), out[: len(rows)], seed_update(), rows, shared=True)
        assert cache.find(many) is not None
        cache.limit(cache.nbytes - 1)
        assert cache.find(many) is None
        assert cache.find(few) is not None
        product_of_rows(stream, some_S(NODES, WIDTH, 0), out[: len(many)], seed_update(), many, shared=True)
        assert cache.nbytes <= cache.most
        assert cache.find(many) is None


@pytest.mark.usefixtures("past_cache")
def test_a_pass_ends_once_almost_all_nodes_are_reached(mapped: CsrGraph) -> None:
    with Stream(mapped, past_cache=True) as stream:
        assert reached(stream, np.arange(1, NODES)) is None
        assert stream.bytes < 0.8 * sum(values.nbytes for values in mapped.entries)
        assert closures(stream, np.arange(1, NODES).astype(np.uint32), 2)[1:] == [None, None]


def test_a_frontier_that_outgrows_its_memory_is_given_up(mapped: CsrGraph) -> None:
    frontier = frontier_of(some_S(NODES, WIDTH, 0, 0.01))
    with Stream(mapped) as stream:
        after = advance_frontier(stream, frontier, seed_update(), None, short=False)
        most = len(after.values)
        again = advance_frontier(stream, frontier, seed_update(), None, short=False, most_entries=most)
        np.testing.assert_array_equal(again.values, after.values)
        with pytest.raises(Outgrown):
            advance_frontier(stream, frontier, seed_update(), None, short=False, most_entries=most - 1)


CLASSES, ITERATIONS = 40, 3
ASKED = Request(iterations=ITERATIONS, most_cols=8)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Few seeds and few test points among many nodes: S stays a frontier for three iterations."""
    return large(tmp_path_factory.mktemp("wide") / "folder", 60_000, 30, CLASSES, k=5)


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original / "store", tmp_path / "store", symlinks=True)
    return tmp_path


@pytest.fixture
def larger_than_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the machine could not cache W."""
    monkeypatch.setattr(remote_batches, "available_bytes", lambda: 0)
    monkeypatch.setattr(memory_model, "available_bytes", lambda: 0)
    monkeypatch.setattr(graph_stream, "_ENOUGH", 0)


def test_all_columns_are_computed_at_once_where_S_stays_a_frontier(folder: Path) -> None:
    wide = diffuse(folder / "store", ASKED)
    assert (wide.needs.batches, wide.needs.width) == (1, CLASSES)
    assert wide.artifact.run["peak_memory"] <= wide.needs.most_memory
    plan = plan_diffuse(folder / "store", ASKED)
    assert (plan.batches, plan.cols_per_batch) == (1, CLASSES)
    assert len(plan.steps) == ITERATIONS
    forget(folder)
    narrow = diffuse(folder / "store", replace(ASKED, cols_per_batch=8))
    assert narrow.needs.batches == 5
    assert narrow.artifact.id == wide.artifact.id


@pytest.mark.parametrize(
    "options", [{"plain": True}, {"gamma": 1.2}, {"eta": "row"}, {"iterations": 0}, {"iterations": 12}], ids=str
)
def test_batches_stay_narrow_where_S_becomes_a_matrix(folder: Path, options: dict[str, Any]) -> None:
    prepared = prepare(Store.open(folder / "store"), replace(ASKED, **options))
    assert prepared.widened is prepared
    assert prepared.needs.width == 8


@pytest.mark.usefixtures("larger_than_memory")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_graph_larger_than_memory_is_read_less_and_gives_the_same_bytes(folder: Path, dtype: Any) -> None:
    found = {}
    for width, memory in ((None, 8 << 30), (8, 8 << 30), (3, 8 << 30)):
        outcome = diffuse(folder / "store", replace(ASKED, dtype=dtype, cols_per_batch=width, memory=memory))
        found[width] = outcome.artifact.id, sum(step["bytes"] for step in outcome.artifact.run["steps"])
        forget(folder)
    assert len({name for name, _ in found.values()}) == 1
    size = 4 * int(Store.open(folder / "store").open_artifact("graph/W").manifest.facts["edges"])
    # Sums take all rows once. Reading all of W in each iteration of the five batches would be fifteen times its size.
    assert all(read <= 4 * size for _, read in found.values())


@pytest.fixture
def outgrown(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Frontiers outgrow their memory; the list has the width of each run that is begun."""
    widths = []
    footprint, run = memory_model.wide_footprint, stage._run

    def small(*arguments: Any) -> Footprint | None:
        wide = footprint(*arguments)
        return None if wide is None else replace(wide, frontier=2000)

    def noted(draft: Any, prepared: Any, *rest: Any) -> Any:
        widths.append(prepared.needs.width)
        return run(draft, prepared, *rest)

    monkeypatch.setattr(prepared, "wide_footprint", small)
    monkeypatch.setattr(stage, "_run", noted)
    return widths


def test_frontiers_that_outgrow_their_memory_are_computed_in_narrow_batches(
    original: Path, folder: Path, outgrown: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = replace(ASKED, cols_per_batch=8)
    expected = diffuse(Path(shutil.copytree(original / "store", folder / "other", symlinks=True)), asked).artifact.id
    outgrown.clear()
    monkeypatch.setattr(checkpoint, "CHECKPOINT_SECONDS", 0)
    announced: list[int] = []
    outcome = diffuse(folder / "store", ASKED, announce=lambda needs: announced.append(needs.width))
    assert outcome.artifact.id == expected
    assert outcome.needs.width == 8
    assert outgrown == announced == [CLASSES, 8]
    forget(folder)
    (folder / "store" / "scores" / "diffusion").unlink()
    # A run that is killed in a narrow batch continues with narrow ones.
    outgrown.clear()
    assert interrupt(folder / "store", ASKED, 20)
    assert outgrown == [CLASSES, 8]
    assert diffuse(folder / "store", ASKED).artifact.id == expected
    assert outgrown == [CLASSES, 8, 8]


@pytest.fixture
def resumed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """States are saved after every iteration; the list has the iterations that runs continue from."""
    monkeypatch.setattr(checkpoint, "CHECKPOINT_SECONDS", 0)
    found: list[int] = []
    resume, save = checkpoint.DraftCheckpoint.resume, checkpoint.DraftCheckpoint.save

    def noted(self: checkpoint.DraftCheckpoint, batch: int) -> Any:
        state = resume(self, batch)
        found.append(0 if state is None else state[0])
        return state

    def settled(self: checkpoint.DraftCheckpoint, batch: int, step: Step) -> None:
        save(self, batch, step)
        # The next iteration may be interrupted before its state is written.
        self._settle()

    monkeypatch.setattr(checkpoint.DraftCheckpoint, "resume", noted)
    monkeypatch.setattr(checkpoint.DraftCheckpoint, "save", settled)
    return found


def test_interrupted_anywhere_a_wide_run_continues_from_its_frontier_to_the_same_bytes(
    original: Path, folder: Path, resumed: list[int]
) -> None:
    reference = Path(shutil.copytree(original / "store", folder / "reference", symlinks=True))
    diffuse(reference, ASKED)
    expected = tree(reference, with_runs=False)
    continued = set()
    for moment in itertools.count():
        store = Path(shutil.copytree(original / "store", folder / str(moment), symlinks=True))
        if not interrupt(store, ASKED, moment):
            break
        outcome = diffuse(store, ASKED)
        assert outcome.needs.width == CLASSES
        continued.add(resumed[-1])
        assert tree(store, with_runs=False) == expected
        shutil.rmtree(store)
    assert continued == {0, 1, 2}


def test_damaged_frontier_is_computed_again(folder: Path, resumed: list[int]) -> None:
    store = folder / "store"
    expected = diffuse(store, ASKED).artifact.id
    forget(folder)
    (store / "scores" / "diffusion").unlink()
    saved: list[Path] = []
    for moment in itertools.count():
        assert interrupt(store, ASKED, moment)
        saved = sorted(store.rglob("pass_frontier_*_values/c.*"))
        if saved:
            break
    for file in saved:
        content = bytearray(file.read_bytes())
        content[1] ^= 0xFF
        file.write_bytes(content)
    assert diffuse(store, ASKED).artifact.id == expected
    assert resumed[-1] == 0


def test_workers_compute_wide_batches_too(folder: Path) -> None:
    expected = diffuse(folder / "store", replace(ASKED, cols_per_batch=8)).artifact.id
    forget(folder)
    (folder / "store" / "scores" / "diffusion").unlink()
    with executor_on("local:2", folder / "store") as executor:
        outcome = diffuse(folder / "store", ASKED, executor=executor)
    assert (outcome.needs.batches, outcome.needs.width) == (2, CLASSES // 2)
    assert outcome.artifact.id == expected


@settings(max_examples=30, deadline=None)
@given(graph=graphs, classes=st.integers(1, 6), seed=st.integers(0, 1000), iterations=st.integers(1, 5))
def test_extrapolated_products_are_those_of_the_forecast_while_they_are_computed(
    graph: CsrGraph, classes: int, seed: int, iterations: int
) -> None:
    draw = np.random.default_rng(seed)
    labels = np.where(draw.random(graph.nodes) < 0.1, draw.integers(0, classes, graph.nodes), -1)
    seeds = Seeds.of(np.arange(graph.nodes), labels.astype(np.int32), classes)
    with Stream(graph) as stream:
        diffusion = Diffusion(
            stream=stream,
            seeds=seeds,
            variant=Variant(),
            prior=np.full(classes, 1 / classes),
            iterations=iterations,
            width=classes,
            neighbors=np.array([[0]], np.uint32),
        )
        exact = list(forecast_batch(diffusion, 0, spills=False))
        computed = list(extrapolate_batch(diffusion, 0, FEW_VISITS))
        guessed = list(extrapolate_batch(diffusion, 0, -1))
    assert [product._replace(seconds=0) for product in computed] == [product._replace(seconds=0) for product in exact]
    assert guessed[0].before == exact[0].before
    assert len(guessed) == iterations

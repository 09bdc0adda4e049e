"""Searches on GPUs, without a GPU: the whole path runs over `faiss.knn` on the CPU, with memory that runs out on demand."""

from __future__ import annotations

import ast
import inspect
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks import gpu_check
from mmdiff.building.estimate import plan_build_graph
from mmdiff.building.memory_model import Sizes, Stage, for_background, for_cells, for_points
from mmdiff.building.stage import Outcome, Request, build_graph
from mmdiff.formats.store.publish import Draft
from mmdiff.formats.store.store import Store
from mmdiff.kernels.constants import NONE
from mmdiff.knn.search import devices
from mmdiff.knn.search.devices import CORES, Cores, Gpus, device_for, rows_of_cells
from mmdiff.knn.search.flat import search_flat
from mmdiff.runtime.executor import LocalExecutor
from tests.building.test_build_graph import make
from tests.knn.test_gpu import NO_ROOM, Resources

# Names of Faiss that devices.py uses; `real_module` tests check them in an environment with faiss-gpu (see test_gpu.py).
USED = {"StandardGpuResources", "knn_gpu", "METRIC_INNER_PRODUCT"}


class StandIn:
    """`faiss.knn_gpu` on the CPU, with memory for `most` queries at once."""

    def __init__(self) -> None:
        self.most = 1 << 30
        self.devices: list[int] = []
        self.compared: list[int] = []
        self._busy: set[int] = set()
        self._lock = threading.Lock()

    def knn_gpu(
        self,
        res: Any,
        xq: NDArray[Any],
        xb: NDArray[Any],
        k: int,
        metric: int,
        device: int,
        vectorsMemoryLimit: int,
        queriesMemoryLimit: int,
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        assert isinstance(res, Resources)
        assert metric == faiss.METRIC_INNER_PRODUCT
        assert xq.dtype == xb.dtype
        assert xq.flags.c_contiguous
        assert xb.flags.c_contiguous
        assert 0 < k <= min(2048, len(xb))
        assert min(vectorsMemoryLimit, queriesMemoryLimit) > 0
        with self._lock:
            assert device not in self._busy
            self._busy.add(device)
            self.devices.append(device)
            self.compared.append(len(xb))
        try:
            if len(xq) > self.most:
                raise RuntimeError(NO_ROOM)
            scores, ids = faiss.knn(xq.astype(np.float32), xb.astype(np.float32), k, faiss.METRIC_INNER_PRODUCT)
            return np.asarray(scores), np.asarray(ids)
        finally:
            with self._lock:
                self._busy.discard(device)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Two GPUs."""
    found = StandIn()
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 2)
    monkeypatch.setattr(faiss, "StandardGpuResources", Resources, raising=False)
    monkeypatch.setattr(faiss, "knn_gpu", found.knn_gpu, raising=False)
    # K-means of Faiss moves its index with this function.
    monkeypatch.setattr(faiss, "index_cpu_to_all_gpus", lambda index, **_: faiss.clone_index(index))
    return found


def clustered(rows: int, seed: int, width: int = 24) -> NDArray[np.float32]:
    draw = np.random.default_rng(seed)
    centers = np.random.default_rng(7).standard_normal((60, width))
    return (centers[draw.integers(0, 60, rows)] + 0.8 * draw.standard_normal((rows, width))).astype(np.float32)


def imported(folder: Path, dtype: str = "float32", rows: int = 5000) -> Path:
    folder.mkdir()
    make(folder, rows, dtype=dtype)
    return folder / "store"


def lists_of(store: Path, name: str) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    artifact = Store.open(store).open_artifact(name)
    return artifact.array("neighbors"), artifact.array("similarities")


def build(store: Path, **options: Any) -> Outcome:
    return build_graph(store, Request(k=10, **options))


def test_auto_takes_the_gpus_that_faiss_sees(stand_in: StandIn) -> None:
    assert isinstance(device_for("auto"), Gpus)
    assert isinstance(device_for("gpu"), Gpus)
    assert device_for("cpu") is CORES
    assert not stand_in.devices


def test_without_gpus_or_without_faiss_auto_is_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(device_for("auto"), Cores)
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert isinstance(device_for("auto"), Cores)


def test_check_script_compares_lists_and_times(stand_in: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main(["--rows", "3000", "--width", "16"]) == 0
    printed = capsys.readouterr().out
    assert "2 GPUs" in printed
    assert "the same lists in 1.0000 of rows" in printed
    assert set(stand_in.devices) == {0, 1}


def test_check_script_without_a_gpu_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main([]) == 2
    assert "the installed faiss is the CPU one" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_exact_graph_of_gpus_is_that_of_the_processor(tmp_path: Path, stand_in: StandIn, dtype: str) -> None:
    stores = {device: imported(tmp_path / device, dtype, 1200) for device in ("cpu", "auto")}
    for device, store in stores.items():
        build(store, device=device, index="flat")
    assert set(stand_in.devices) == {0, 1}
    for name in ("knn/BB", "knn/W0", "knn/test"):
        for own, expected in zip(lists_of(stores["auto"], name), lists_of(stores["cpu"], name), strict=True):
            np.testing.assert_array_equal(own, expected)
    graphs = [Store.open(store).open_artifact("graph/W") for store in stores.values()]
    np.testing.assert_array_equal(graphs[0].array("indices"), graphs[1].array("indices"))


def test_lists_found_in_cells_on_gpus_are_at_least_as_near(tmp_path: Path, stand_in: StandIn) -> None:
    stores = {device: imported(tmp_path / device) for device in ("cpu", "auto")}
    for device, store in stores.items():
        build(store, device=device, index="cells", recall=0.6)
    facts = Store.open(stores["auto"]).open_artifact("knn/BB").manifest.facts
    assert facts["search"] == {"device": "gpu", "gpus": 2, "splits": 0, "fallbacks": 0}
    assert facts["tuning"]["passes"] == 0
    assert facts["reached"]
    visited = Store.open(stores["cpu"]).open_artifact("knn/BB").manifest.facts
    assert facts["recall"] >= visited["recall"] - 0.02
    # Never a row that is not there, never a row twice, similarities as everywhere.
    neighbors, similarities = lists_of(stores["auto"], "knn/BB")
    vectors = Store.open(stores["auto"]).open_artifact("models/cells").array("vectors").astype(np.float64)
    assert all(len(set(row)) == 10 for row in neighbors.tolist())
    np.testing.assert_allclose(similarities, np.einsum("ij,ikj->ik", vectors, vectors[neighbors]), atol=1e-6)
    assert max(stand_in.compared) <= 5000


def test_search_begun_on_gpus_starts_over_where_there_are_none(
    tmp_path: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists of both, found with what either chose, would be those of neither."""
    store, other = imported(tmp_path / "here"), tmp_path / "other"

    def stop(_: Draft, name: str) -> None:
        raise KeyboardInterrupt(name)

    with monkeypatch.context() as patched:
        patched.setattr(Draft, "drop", stop)
        with pytest.raises(KeyboardInterrupt):
            build(store, index="cells", recall=0.6)
    assert stand_in.devices
    shutil.copytree(store, other, symlinks=True)
    shutil.rmtree(other / "work")
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0)
    ids = [build(path, index="cells", recall=0.6).artifacts["knn/BB"].id for path in (store, other)]
    assert ids[0] == ids[1]


def test_memory_that_runs_out_changes_no_list_and_is_said(tmp_path: Path, stand_in: StandIn) -> None:
    store = imported(tmp_path / "store", rows=3000)
    build(store, device="gpu", index="flat")
    roomy = [np.array(values) for values in lists_of(store, "knn/BB")]
    small = imported(tmp_path / "small", rows=3000)
    stand_in.most = 100
    outcome = build(small, device="gpu", index="flat")
    for own, expected in zip(lists_of(small, "knn/BB"), roomy, strict=True):
        np.testing.assert_array_equal(own, expected)
    facts = outcome.artifacts["knn/BB"].manifest.facts
    assert facts["search"]["fallbacks"] >= 3000 // 256
    [warning] = outcome.summary()["knn/BB"]["warnings"]
    assert "did not fit the free memory of the GPUs and used the CPU instead" in warning


def test_other_errors_of_a_gpu_are_raised_and_free_the_gpu(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, rows = Gpus(1), clustered(300, 3)

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("CUDA error 700 an illegal memory access was encountered")

    with monkeypatch.context() as patch:
        patch.setattr(faiss, "knn_gpu", broken)
        with pytest.raises(RuntimeError, match="illegal memory access"):
            pool.nearest(rows, rows, 5)
    np.testing.assert_array_equal(pool.nearest(rows, rows, 5)[0], search_flat(rows, rows, 5)[0])
    assert stand_in.devices == [0]


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(("rows", "k"), [(0, 3), (2, 5), (2100, 2060)])
def test_more_neighbours_than_rows_or_than_a_gpu_selects(rows: int, k: int) -> None:
    vectors, queries = clustered(rows, 4), clustered(20, 5)
    for own, expected in zip(Gpus(2).nearest(queries, vectors, k), search_flat(queries, vectors, k), strict=True):
        np.testing.assert_array_equal(own, expected)


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=12), data=st.data())
def test_rows_of_cells_are_those_that_the_naive_loop_finds(sizes: list[int], data: st.DataObject) -> None:
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    cell = st.one_of(st.integers(0, len(sizes) - 1), st.just(int(NONE)))
    visits = np.array(data.draw(st.lists(st.tuples(cell, cell, cell), min_size=1, max_size=6)), np.uint32)
    naive = sorted({row for c in set(visits.ravel().tolist()) - {int(NONE)} for row in range(offsets[c], offsets[c + 1])})
    assert rows_of_cells(visits, offsets).tolist() == naive


@pytest.mark.parametrize("most", [1 << 17, 700, 90])
def test_blocks_that_visit_many_rows_are_halved_and_taken_in_turns(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(devices, "MOST_ROWS", most)
    rows = clustered(2000, 6)
    offsets = np.arange(0, 2001, 50).astype(np.int64)
    every = np.tile(np.arange(40, dtype=np.uint32), (1000, 1))
    for own, expected in zip(
        Gpus(2).visited(rows[:1000], rows, every, offsets, 7), search_flat(rows[:1000], rows, 7), strict=True
    ):
        np.testing.assert_array_equal(own, expected)
    assert max(stand_in.compared) <= most
    some = np.random.default_rng(0).integers(0, 40, (1000, 3)).astype(np.uint32)
    some[:, 2] = NONE
    some[some[:, 0] == some[:, 1], 1] = NONE
    nearer = Gpus(2).visited(rows[:1000], rows, some, offsets, 7)
    fewest = CORES.visited(rows[:1000], rows, some, offsets, 7)
    assert (nearer[1] >= fewest[1]).all()
    groups = Gpus(2).groups(rows[:1000], rows, every, offsets, 5)
    best = (rows[:1000] @ rows.T).max(axis=1)
    np.testing.assert_allclose(np.einsum("ij,ij->i", rows[:1000], rows[groups[:, 0]]), best, rtol=1e-5)


def test_several_threads_share_the_gpus_and_none_is_used_twice_at_a_time(stand_in: StandIn) -> None:
    pool, rows = Gpus(2), clustered(400, 8)
    expected = search_flat(rows, rows, 4)[0]
    wrong: list[int] = []

    def search() -> None:
        if not np.array_equal(pool.nearest(rows, rows, 4)[0], expected):
            wrong.append(1)

    threads = [threading.Thread(target=search) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(stand_in.devices) == 16


@pytest.mark.usefixtures("stand_in")
def test_plan_says_where_rows_are_compared(tmp_path: Path) -> None:
    store = imported(tmp_path / "store", rows=1200)
    on_gpus, on_cores = (plan_build_graph(store, Request(k=10, device=device)) for device in ("auto", "cpu"))
    assert any("on GPUs" in note for note in on_gpus.notes)
    assert not any("on GPUs" in note for note in on_cores.notes)


@pytest.mark.parametrize("stage", [for_cells, for_background, for_points])
def test_memory_model_counts_the_rows_that_are_gathered_for_gpus(stage: Callable[[Sizes], Stage]) -> None:
    on_gpus, on_cores = (stage(Sizes(10**6, 256, "float16", 30, 1000, on_gpus=where)) for where in (True, False))
    assert on_gpus.thread - on_cores.thread >= devices.MOST_ROWS * 256 * 2


class NoWorkers(LocalExecutor):
    """An executor that must not be asked."""

    def each(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("workers search, where there are GPUs")


def test_gpus_are_searched_by_this_process_even_where_there_are_workers(tmp_path: Path, stand_in: StandIn) -> None:
    store = imported(tmp_path / "store", rows=1200)
    with pytest.raises(AssertionError, match="workers search"):
        build_graph(store, Request(k=10, device="cpu"), executor=NoWorkers())
    assert not stand_in.devices
    build_graph(store, Request(k=10), executor=NoWorkers())
    assert stand_in.devices


def test_names_of_faiss_are_the_verified_ones() -> None:
    tree = ast.walk(ast.parse(Path(devices.__file__).read_text()))
    used = {node.attr for node in tree if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "faiss"}
    assert used == USED


@pytest.mark.skipif(not hasattr(faiss, "StandardGpuResources"), reason="faiss-gpu is not installed")
def test_names_and_parameters_are_names_of_the_real_module() -> None:
    assert all(hasattr(faiss, name) for name in USED)
    taken = inspect.signature(faiss.knn_gpu).parameters.keys()
    assert inspect.signature(StandIn.knn_gpu).parameters.keys() - {"self"} <= set(taken)
    assert "gpu" in inspect.getsource(faiss.Kmeans.__init__)

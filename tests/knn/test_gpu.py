"""Faiss indexes on GPUs, without a GPU: names are checked against the real module, the rest runs on a stand-in."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray

from mmdiff.formats.errors import BadOption, MissingExtra
from mmdiff.knn.faiss_index import gpu
from mmdiff.knn.faiss_index.factory import Device, FactoryIndex, recall_of
from mmdiff.knn.faiss_index.gpu import Placement, Size, placements, search_in_parts
from mmdiff.runtime.progress import silent

SOURCE = Path(gpu.__file__).read_text()
GIB = 1 << 30

# Names that gpu.py uses, verified against the wheel faiss-gpu 1.15.1 of PyPI, in a separate environment and without a GPU:
#   python3 -m venv V && V/bin/pip install faiss-gpu==1.15.1 pytest
#   V/bin/python -m pytest tests/knn/test_gpu.py -k real_module
# Each name is looked up on its class or module. SWIG objects accept any attribute, so a misspelt option would be no error.
VERIFIED = {
    "faiss": {
        *("downcast_index", "get_num_gpus", "index_cpu_to_all_gpus", "index_cpu_to_gpu_multiple_py"),
        *("IndexFlat", "IndexFlatIP", "IndexIVFFlat", "IndexIVFPQ", "IndexIVFScalarQuantizer", "IndexPreTransform"),
        *("GpuMultipleClonerOptions", "GpuParameterSpace", "StandardGpuResources", "INDICES_32_BIT", "INDICES_64_BIT"),
    },
    "options": {"usePrecomputed", "indicesOptions", "shard"},
    "resource": {"setTempMemory", "setPinnedMemory"},
    "inner": {"d", "nlist", "code_size", "quantizer"},
    "ivf": {"d", "clustering_index"},
    "index": {"index", "ntotal"},
    "runtime": {"cudaGetDevice", "cudaSetDevice", "cudaMemGetInfo"},
}
CLASSES = {
    "options": "GpuMultipleClonerOptions",
    "resource": "StandardGpuResources",
    "inner": "IndexIVFFlat",
    "ivf": "IndexIVF",
    "index": "IndexPreTransform",
}

# As StandardGpuResources words it (strings of libfaiss.so), and as Python receives it.
NO_ROOM = (
    "Error in virtual void* faiss::gpu::StandardGpuResourcesImpl::allocMemory(const faiss::gpu::AllocRequest&) at "
    "/project/faiss/gpu/StandardGpuResources.cpp:601: Error: 'err == cudaSuccess' failed: StandardGpuResources: alloc fail "
    "type TemporaryMemoryOverflow dev 0 space Device stream 0x55 size 1610612736 bytes (cudaMalloc error out of memory [2])\n"
)


def test_names_used_are_names_verified() -> None:
    used: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(SOURCE)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in VERIFIED:
            used.setdefault(node.value.id, set()).add(node.attr)
    assert used == VERIFIED


@pytest.mark.skipif(not hasattr(faiss, "StandardGpuResources"), reason="faiss-gpu is not installed")
def test_names_verified_are_names_of_the_real_module() -> None:
    import ctypes

    missing = {name for name in VERIFIED["faiss"] if not hasattr(faiss, name)}
    for name, holder in CLASSES.items():
        missing |= {f"{holder}.{attribute}" for attribute in VERIFIED[name] if not hasattr(getattr(faiss, holder), attribute)}
    missing |= {name for name in VERIFIED["runtime"] if not hasattr(ctypes.CDLL(None), name)}
    assert not missing
    assert hasattr(faiss.GpuParameterSpace, "set_index_parameter")


class StandIn:
    """The functions of faiss-gpu that the module calls, on the CPU: copies are clones, and memory runs out on demand."""

    def __init__(self) -> None:
        self.free: list[int | None] = [16 * GIB, 16 * GIB]
        self.copies: list[tuple[list[int], SimpleNamespace]] = []
        self.refusing: Callable[[SimpleNamespace], str | None] = lambda _: None
        self.clusterings = 0

    def copy(self, resources: list[Any], index: Any, options: SimpleNamespace, devices: list[int]) -> Any:
        assert len(resources) == len(devices)
        self.copies.append((devices, options))
        if error := self.refusing(options):
            raise RuntimeError(error)
        return faiss.clone_index(index)

    def clustering(self, index: Any) -> Any:
        self.clusterings += 1
        return faiss.clone_index(index)


class Resources:
    def setTempMemory(self, _: int) -> None: ...

    def setPinnedMemory(self, _: int) -> None: ...


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Two GPUs of 16 GiB."""
    stand_in = StandIn()
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: len(stand_in.free))
    monkeypatch.setattr(faiss, "StandardGpuResources", Resources, raising=False)
    monkeypatch.setattr(faiss, "GpuMultipleClonerOptions", SimpleNamespace, raising=False)
    monkeypatch.setattr(faiss, "GpuParameterSpace", faiss.ParameterSpace, raising=False)
    monkeypatch.setattr(faiss, "INDICES_32_BIT", 2, raising=False)
    monkeypatch.setattr(faiss, "index_cpu_to_gpu_multiple_py", stand_in.copy)
    monkeypatch.setattr(faiss, "index_cpu_to_all_gpus", stand_in.clustering)
    monkeypatch.setattr(gpu, "free_memory", lambda _: stand_in.free)
    return stand_in


@pytest.fixture(scope="module")
def rows() -> NDArray[np.float32]:
    drawn = np.random.default_rng(1).standard_normal((3000, 16)).astype(np.float32)
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True), np.float32)


def exact(rows: NDArray[np.float32], queries: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    return np.argsort(-(queries @ rows.T), axis=1, kind="stable")[:, :k]


def build(rows: NDArray[np.float32], factory: str, device: Device) -> FactoryIndex:
    return FactoryIndex.build(rows, factory, device, 0, silent)


def test_index_that_fits_one_gpu_is_on_all_that_have_room() -> None:
    assert placements(Size(1, 10), [100, 5, 100])[0] == Placement((0, 2), False)


def test_index_that_fits_no_single_gpu_is_sharded() -> None:
    assert placements(Size(10, 150), [100, 100]) == [Placement((0, 1), True)]


def test_small_gpu_is_left_out_of_shards_that_it_cannot_hold() -> None:
    assert placements(Size(10, 150), [100, 10, 100]) == [Placement((0, 2), True)]


def test_what_every_gpu_needs_is_not_divided_by_sharding() -> None:
    assert placements(Size(95, 10), [100] * 8) == []


def test_index_that_fits_nowhere_has_no_place() -> None:
    assert placements(Size(10, 1000), [100, 100]) == []
    assert placements(Size(10, 1000), [100]) == []


def test_unknown_memory_is_found_out_by_trying_replicas_then_shards() -> None:
    assert placements(Size(10, 1000), [None, None]) == [Placement((0, 1), False), Placement((0, 1), True)]


def test_some_of_the_memory_is_left_alone() -> None:
    assert placements(Size(0, 95), [100]) == []
    assert placements(Size(0, 85), [100])


@pytest.mark.parametrize(
    ("factory", "row_bytes"),
    [
        ("Flat", 1024),
        ("IVF4096,Flat", 1028),
        ("IVF4096,SQfp16", 516),
        ("IVF4096,PQ32", 36),
        ("OPQ32_64,IVF4096,PQ32", 36),
    ],
)
def test_size_on_a_gpu_is_that_of_the_codes_and_ids(factory: str, row_bytes: int) -> None:
    index = faiss.index_factory(256, factory, faiss.METRIC_INNER_PRODUCT)
    size = gpu.size_on_gpu(index, 10**8)
    assert size.divided == row_bytes * 10**8
    assert gpu.TEMPORARY_BYTES <= size.common < GIB


def test_free_memory_is_unknown_where_there_is_no_cuda_runtime() -> None:
    assert gpu.free_memory(2) == [None, None]


def counting(search: gpu.Search, most: int, sizes: list[int], error: str = NO_ROOM) -> gpu.Search:
    """A GPU with memory for `most` queries at once."""

    def limited(queries: NDArray[np.float32], k: int) -> gpu.Lists:
        sizes.append(len(queries))
        if len(queries) > most:
            raise RuntimeError(error)
        return search(queries, k)

    return limited


def never(queries: NDArray[np.float32], k: int) -> gpu.Lists:
    raise AssertionError((len(queries), k))


@pytest.mark.parametrize(("most", "splits"), [(3000, 0), (1500, 1), (1499, 2), (300, 4)])
def test_block_is_halved_until_it_fits(rows: NDArray[np.float32], most: int, splits: int) -> None:
    flat = faiss.IndexFlatIP(16)
    flat.add(rows)
    sizes: list[int] = []
    found = search_in_parts(counting(flat.search, most, sizes), never, rows, 5)
    np.testing.assert_array_equal(found.lists[1], exact(rows, rows, 5))
    assert (found.splits, found.fallbacks) == (splits, 0)
    assert sum(size for size in sizes if size <= most) == len(rows)


def test_small_parts_that_do_not_fit_are_searched_on_the_cpu(rows: NDArray[np.float32]) -> None:
    flat = faiss.IndexFlatIP(16)
    flat.add(rows)
    on_cpu: list[int] = []
    found = search_in_parts(counting(never, 0, []), counting(flat.search, 10**9, on_cpu), rows[:1000], 5)
    np.testing.assert_array_equal(found.lists[1], exact(rows, rows[:1000], 5))
    assert on_cpu == [256, 256, 256, 232]
    assert found.fallbacks == 4


def test_other_errors_of_the_device_are_not_swallowed(rows: NDArray[np.float32]) -> None:
    with pytest.raises(RuntimeError, match="illegal memory access"):
        search_in_parts(counting(never, 0, [], "CUDA error 700 an illegal memory access was encountered"), never, rows, 5)


def test_no_queries_are_no_search() -> None:
    assert search_in_parts(never, never, np.empty((0, 16), np.float32), 5).lists[1].shape == (0, 5)


@pytest.mark.parametrize("asked", ["auto", "gpu"])
def test_index_is_trained_and_searched_on_all_gpus(rows: NDArray[np.float32], device: StandIn, asked: Device) -> None:
    index = build(rows, "IVF16,Flat", asked)
    queries = rows[:200]
    assert index.tune(queries, exact(rows, queries, 10), 0.95)["reached"]
    assert index.parameters["device"] == "gpu"
    assert index.parameters["training"]["device"] == "gpu"
    assert index.parameters["gpu"] == {"gpus": 2, "layout": "replicated", "float16": False, "splits": 0, "fallbacks": 0}
    assert device.clusterings == 1
    devices, options = device.copies[-1]
    assert devices == [0, 1]
    assert (options.shard, options.indicesOptions) == (False, 2)


def test_index_too_large_for_one_gpu_is_sharded(rows: NDArray[np.float32], device: StandIn) -> None:
    size = gpu.size_on_gpu(faiss.IndexFlatIP(16), len(rows))
    device.free = [int((size.common + size.divided * 0.6) / gpu.USABLE)] * 2
    assert build(rows, "Flat", "gpu").parameters["gpu"]["layout"] == "sharded"
    assert device.copies[-1][1].shard


def test_shards_are_tried_when_replicas_run_out_of_memory(rows: NDArray[np.float32], device: StandIn) -> None:
    seen: list[bool] = []

    def refusing(options: SimpleNamespace) -> str | None:
        seen.append(options.shard)
        return NO_ROOM if len(seen) == 2 else None

    device.refusing = refusing
    assert build(rows, "Flat", "gpu").parameters["gpu"]["layout"] == "sharded"
    assert seen == [False, False, True]


def test_blocks_that_ran_out_of_gpu_memory_are_counted(rows: NDArray[np.float32]) -> None:
    flat = faiss.IndexFlatIP(16)
    flat.add(rows)
    full = SimpleNamespace(search=counting(never, 0, []))
    on_gpus = gpu.OnGpus(flat, full, Placement((0,), False))
    np.testing.assert_array_equal(on_gpus.search(rows[:100], 5)[1], exact(rows, rows[:100], 5))
    on_gpus.search(rows[:512], 5)
    assert on_gpus.parameters["fallbacks"] == 3
    assert on_gpus.parameters["splits"] == 1


def test_more_neighbours_than_a_gpu_selects_come_from_the_cpu(rows: NDArray[np.float32]) -> None:
    flat = faiss.IndexFlatIP(16)
    flat.add(rows)
    on_gpus = gpu.OnGpus(flat, SimpleNamespace(search=never), Placement((0,), False))
    assert on_gpus.search(rows[:3], gpu.MOST_SELECTED + 1)[1].shape == (3, 2049)
    assert on_gpus.parameters["fallbacks"] == 1


@pytest.mark.usefixtures("device")
def test_no_more_cells_are_probed_than_a_gpu_selects(rows: NDArray[np.float32], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmdiff.knn.faiss_index.factory.MOST_SELECTED", 4)
    queries = rows[:100]
    on_gpus, on_cpu = (build(rows, "IVF64,Flat", device) for device in ("gpu", "cpu"))
    truth = exact(rows, queries, 10)
    tried = [trial["nprobe"] for trial in on_gpus.tune(queries, truth, 1.0)["tried"]]
    assert tried == [1, 2, 4]
    assert on_cpu.tune(queries, truth, 1.0)["tried"][-1]["nprobe"] > 4


@pytest.mark.usefixtures("device")
def test_probes_beyond_the_limit_of_a_gpu_are_cut_to_it() -> None:
    copy: Any = faiss.index_factory(16, "IVF16,Flat", faiss.METRIC_INNER_PRODUCT)
    gpu.OnGpus(None, copy, Placement((0,), False)).set_parameter("nprobe", 5000)
    assert copy.nprobe == 2048


def test_training_that_runs_out_of_gpu_memory_is_done_on_the_cpu(
    rows: NDArray[np.float32], device: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Any) -> Any:
        raise RuntimeError(NO_ROOM)

    monkeypatch.setattr(faiss, "index_cpu_to_all_gpus", full)
    index = build(rows, "IVF16,Flat", "auto")
    assert index.parameters["training"]["device"] == "cpu"
    assert index.parameters["device"] == "gpu"
    assert len(device.copies) == 2


def test_training_leaves_no_pointer_to_the_index_on_the_gpus(rows: NDArray[np.float32], device: StandIn) -> None:
    index = faiss.index_factory(16, "IVF16,Flat", faiss.METRIC_INNER_PRODUCT)
    ivf = faiss.extract_index_ivf(index)
    with gpu.clustering_on_gpus(ivf):
        assert ivf.clustering_index is not None
        index.train(rows)
    assert ivf.clustering_index is None
    assert index.is_trained
    assert device.clusterings == 1


UNHELD = [
    ("HNSW16", "GPUs cannot hold a Faiss IndexHNSWFlat"),
    ("IVF16,PQ8x4fsr", "GPUs cannot hold a Faiss IndexIVFPQFastScan"),
    ("IVF16,PQ8x4fsr,RFlat", "GPUs cannot hold a Faiss IndexRefineFlat"),
    ("IVF16,FlatDedup", "GPUs cannot hold a Faiss IndexIVFFlatDedup"),
    ("SQ8", "GPUs cannot hold a Faiss IndexScalarQuantizer"),
    ("IVF16_HNSW16,Flat", "GPUs cannot hold a coarse quantiser that is a Faiss IndexHNSWFlat"),
]


@pytest.mark.parametrize(("factory", "reason"), UNHELD)
def test_index_that_gpus_cannot_hold_stays_on_the_cpu_with_the_reason(
    rows: NDArray[np.float32], device: StandIn, factory: str, reason: str
) -> None:
    parameters = build(rows, factory, "auto").parameters
    assert (parameters["device"], parameters["device_reason"]) == ("cpu", reason)
    assert not device.copies


@pytest.mark.parametrize(("factory", "reason"), UNHELD)
def test_index_that_gpus_cannot_hold_is_refused_when_gpus_are_asked_for(
    rows: NDArray[np.float32], device: StandIn, factory: str, reason: str
) -> None:
    with pytest.raises(BadOption, match=f"device='gpu' with index='{factory}': {reason}. Use device='auto'"):
        build(rows, factory, "gpu")
    assert not device.clusterings


def test_index_that_does_not_fit_is_refused_with_both_sizes_before_training(rows: NDArray[np.float32], device: StandIn) -> None:
    device.free = [GIB // 4, GIB // 2]
    with pytest.raises(BadOption, match=r"0\.5 GiB of index do not fit the GPUs, which have 0\.2, 0\.5 GiB free"):
        build(rows, "IVF16,Flat", "gpu")
    assert not device.clusterings


def test_what_faiss_does_not_copy_to_a_gpu_is_known_before_training(rows: NDArray[np.float32], device: StandIn) -> None:
    device.refusing = lambda _: (
        "Error in void faiss::gpu::GpuIndexIVFPQ::verifyPQSettings_() const at /project/faiss/gpu/GpuIndexIVFPQ.cu:1: "
        "Error: 'bitsPerCode_ == 8' failed: Bits per code must be 8 (passed 6)"
    )
    reason = "faiss does not copy it to a GPU (Bits per code must be 8 (passed 6))"
    assert build(rows, "IVF16,PQ4x6", "auto").parameters["device_reason"] == reason
    device.clusterings = 0
    with pytest.raises(BadOption, match="Bits per code must be 8"):
        build(rows, "IVF16,PQ4x6", "gpu")
    assert not device.clusterings


def test_memory_that_is_gone_after_training_leaves_the_index_on_the_cpu(rows: NDArray[np.float32], device: StandIn) -> None:
    device.refusing = lambda _: NO_ROOM if len(device.copies) > 1 else None
    parameters = build(rows, "IVF16,Flat", "auto").parameters
    assert parameters["device"] == "cpu"
    assert "out of memory" in parameters["device_reason"]


def test_cpu_is_used_when_it_is_asked_for(rows: NDArray[np.float32], device: StandIn) -> None:
    parameters = build(rows, "IVF16,Flat", "cpu").parameters
    assert parameters["device"] == "cpu"
    assert "device_reason" not in parameters
    assert not device.copies
    assert not device.clusterings


def test_search_on_gpus_gives_the_lists_of_the_cpu(rows: NDArray[np.float32], device: StandIn) -> None:
    found = [build(rows, "IVF16,Flat", asked).search(rows[:50], 5)[1] for asked in ("gpu", "cpu")]
    assert recall_of(*found) == 1.0
    assert device.copies


@pytest.mark.skipif(hasattr(faiss, "StandardGpuResources"), reason="faiss-gpu is installed")
def test_gpu_without_faiss_gpu_is_refused_with_the_line_that_installs_it(rows: NDArray[np.float32]) -> None:
    assert gpu.gpus() == 0
    with pytest.raises(BadOption, match=r"pip uninstall faiss-cpu && pip install 'mmdiff\[gpu\]'") as refusal:
        build(rows, "Flat", "gpu")
    assert refusal.value.exit_code == 2


def test_gpu_that_faiss_gpu_does_not_see_is_refused(rows: NDArray[np.float32], device: StandIn) -> None:
    device.free = []
    assert gpu.gpus() == 0
    with pytest.raises(BadOption, match="faiss-gpu is installed, but it sees no GPU"):
        build(rows, "Flat", "gpu")
    assert build(rows, "Flat", "auto").parameters["device"] == "cpu"


def test_absent_faiss_gives_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtra, match=r"pip install 'mmdiff\[cpu\]'"):
        gpu.gpus()

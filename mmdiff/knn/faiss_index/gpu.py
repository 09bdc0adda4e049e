"""Faiss indexes on GPUs: training, placement and search (paper, supplement "Computation of the W0 blocks", uses eight GPUs).

The index is built on the CPU and copied to every GPU if it fits one, else in shards over all of them. The copy on the CPU
searches the blocks of queries for which GPU memory runs out.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadOption, Parameter
from mmdiff.formats.extras import load

Lists = tuple[NDArray[np.float32], NDArray[np.int64]]
Search = Callable[[NDArray[np.float32], int], Lists]

# The most neighbours, or cells to probe, that Faiss selects on a GPU.
MOST_SELECTED = 2048
# Fewer queries than this are not split further when memory runs out.
SMALLEST_PART = 256
TEMPORARY_BYTES = 512 << 20
# Faiss pins 256 MiB of host memory per GPU by default, outside the memory budget; blocks of queries need much less.
PINNED_BYTES = 32 << 20
# Share of a GPU's free memory that is used; the CUDA context, cuBLAS and rounded allocations take the rest.
USABLE = 0.9
GIB = float(1 << 30)


def load_faiss() -> Any:
    """The faiss module, of faiss-cpu or faiss-gpu."""
    return load("faiss", "building the graph")


def gpus() -> int:
    """The number of GPUs that Faiss can use."""
    faiss = load_faiss()
    return int(faiss.get_num_gpus()) if hasattr(faiss, "StandardGpuResources") else 0


def require_gpu() -> None:
    """Refuses device="gpu" without a usable GPU, and says whether the GPU or faiss-gpu is missing."""
    if gpus():
        return
    if not hasattr(load_faiss(), "StandardGpuResources"):
        raise BadOption(
            Parameter("device", "gpu"),
            ": the installed faiss is the CPU one. Run: pip uninstall faiss-cpu && pip install 'mmdiff[gpu]', or use ",
            Parameter("device", "cpu"),
            ".",
        )
    raise BadOption(
        Parameter("device", "gpu"),
        ": faiss-gpu is installed, but it sees no GPU. Look at nvidia-smi and CUDA_VISIBLE_DEVICES, or use ",
        Parameter("device", "cpu"),
        ".",
    )


def reason_of(error: RuntimeError) -> str:
    """The first line of a Faiss error, without the C++ function and source line."""
    said = re.sub(r"^Error in .*? at \S+:\d+: ", "", str(error), flags=re.DOTALL)
    said = re.sub(r"^Error: (?:'.*?' failed: (?=\S))?", "", said)
    return said.strip().partition("\n")[0].strip(" .")


def out_of_memory(error: RuntimeError) -> bool:
    """Whether an allocation on a GPU failed. Faiss has no exception class for it, only the text."""
    return "alloc fail" in str(error) or "out of memory" in str(error)


def core(index: Any) -> Any:
    """The index behind vector transformations (which stay on the CPU), downcast to its class."""
    faiss = load_faiss()
    index = faiss.downcast_index(index)
    return core(index.index) if isinstance(index, faiss.IndexPreTransform) else index


@dataclass(frozen=True)
class Size:
    """Bytes of GPU memory: `common` on every GPU, `divided` among shards."""

    common: int
    divided: int


def size_on_gpu(index: Any, rows: int) -> Size:
    """An upper estimate for an index with this many rows, filled or not."""
    inner = core(index)
    if not hasattr(inner, "nlist"):
        return Size(TEMPORARY_BYTES, rows * inner.d * 4)
    # Cells are padded to 32 rows; ids are 32-bit where that is enough.
    each = inner.code_size + (4 if rows < 1 << 31 else 8)
    return Size(TEMPORARY_BYTES + inner.nlist * (4 * inner.d + 32 * each), rows * each)


@dataclass(frozen=True)
class Placement:
    """The GPUs of an index, which hold shards of it or a replica each."""

    devices: tuple[int, ...]
    sharded: bool


def placements(size: Size, free: Sequence[int | None]) -> list[Placement]:
    """Possible placements, best first, given the free bytes of each GPU (None: unknown, found out by trying)."""

    def having(needed: int) -> tuple[int, ...]:
        return tuple(device for device, there in enumerate(free) if there is None or there * USABLE >= needed)

    found = [Placement(devices, False)] if (devices := having(size.common + size.divided)) else []
    # Shards have equal sizes: a small GPU is left out if the index fits the others without it.
    for count in range(len(free), 1, -1):
        if len(devices := having(size.common + -(-size.divided // count))) >= count:
            return [*found, Placement(devices[:count], True)]
    return found


def free_memory(count: int) -> list[int | None]:
    """The free bytes of each GPU, from the CUDA runtime that Faiss's wheel loads; Faiss itself does not expose them."""
    runtime = ctypes.CDLL(None)
    if not hasattr(runtime, "cudaMemGetInfo"):
        return [None] * count
    before, available, total = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_size_t()
    runtime.cudaGetDevice(ctypes.byref(before))
    free: list[int | None] = []
    for device in range(count):
        failed = runtime.cudaSetDevice(device) or runtime.cudaMemGetInfo(ctypes.byref(available), ctypes.byref(total))
        free.append(None if failed else available.value)
    runtime.cudaSetDevice(before)
    return free


def obstacle(index: Any, rows: int) -> str:
    """The reason why GPUs cannot hold this index with this many rows, or "". Checked before a training of up to an hour."""
    faiss = load_faiss()
    inner = core(index)
    # Subclasses have other layouts (IndexIVFFlatDedup), which a copy to a GPU would lose.
    if type(inner) not in (
        *(faiss.IndexFlat, faiss.IndexFlatIP),
        *(faiss.IndexIVFFlat, faiss.IndexIVFPQ, faiss.IndexIVFScalarQuantizer),
    ):
        return f"GPUs cannot hold a Faiss {type(inner).__name__}"
    if hasattr(inner, "quantizer") and not isinstance(quantizer := core(inner.quantizer), faiss.IndexFlat):
        return f"GPUs cannot hold a coarse quantiser that is a Faiss {type(quantizer).__name__}"
    size, free = size_on_gpu(index, rows), free_memory(gpus())
    if not (places := placements(size, free)):
        shown = ", ".join(f"{(there or 0) / GIB:.1f}" for there in free)
        return f"{(size.common + size.divided) / GIB:.1f} GiB of index do not fit the GPUs, which have {shown} GiB free"
    try:
        _copy(index, Placement(places[0].devices[:1], False), rows)
    except RuntimeError as error:
        return f"faiss does not copy it to a GPU ({reason_of(error)})"
    return ""


def _copy(index: Any, placement: Placement, rows: int) -> Any:
    """The index on GPUs; raises Faiss's RuntimeError."""
    faiss = load_faiss()
    options = faiss.GpuMultipleClonerOptions()
    # Precomputed tables are only used for L2 distances.
    options.usePrecomputed = False
    options.indicesOptions = faiss.INDICES_32_BIT if rows < 1 << 31 else faiss.INDICES_64_BIT
    options.shard = placement.sharded
    resources = [faiss.StandardGpuResources() for _ in placement.devices]
    for resource in resources:
        resource.setTempMemory(TEMPORARY_BYTES)
        resource.setPinnedMemory(PINNED_BYTES)
    return faiss.index_cpu_to_gpu_multiple_py(resources, index, options, list(placement.devices))


@contextmanager
def clustering_on_gpus(ivf: Any) -> Iterator[None]:
    """Lets training assign points to centroids on all GPUs; the centroids end up in the CPU's coarse quantiser."""
    faiss = load_faiss()
    # The index does not own its clustering index; this variable keeps it alive.
    assigning = faiss.index_cpu_to_all_gpus(faiss.IndexFlatIP(ivf.d))
    ivf.clustering_index = assigning
    try:
        yield
    finally:
        ivf.clustering_index = None


@dataclass(frozen=True)
class Parts:
    """Lists of a search in parts, and how often a part was split or searched on the CPU."""

    lists: Lists
    splits: int
    fallbacks: int


def search_in_parts(on_gpus: Search, on_cpu: Search, queries: NDArray[np.float32], k: int) -> Parts:
    """Searches a block in halves, quarters, ... while GPU memory runs out; parts of SMALLEST_PART go to the CPU.

    The next block starts whole again: another process may have taken the memory.
    """
    similarities = np.empty((len(queries), k), np.float32)
    ids = np.empty((len(queries), k), np.int64)
    start = splits = fallbacks = 0
    most = len(queries)
    while start < len(queries):
        part = slice(start, min(start + most, len(queries)))
        try:
            similarities[part], ids[part] = on_gpus(queries[part], k)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            if (count := part.stop - part.start) > SMALLEST_PART:
                most = max(SMALLEST_PART, (count + 1) // 2)
                splits += 1
                continue
            similarities[part], ids[part] = on_cpu(queries[part], k)
            fallbacks += 1
        start = part.stop
    return Parts((similarities, ids), splits, fallbacks)


class OnGpus:
    """An index on GPUs, with the index on the CPU that it was copied from as a fallback."""

    def __init__(self, cpu: Any, index: Any, placement: Placement) -> None:
        self._cpu = cpu
        self._index = index
        self._placement = placement
        self._splits = self._fallbacks = 0

    def set_parameter(self, name: str, value: int) -> None:
        faiss = load_faiss()
        most = MOST_SELECTED if name == "nprobe" else value
        faiss.GpuParameterSpace().set_index_parameter(self._index, name, min(value, most))

    def search(self, queries: NDArray[np.float32], k: int) -> Lists:
        if k > MOST_SELECTED:
            self._fallbacks += 1
            lists: Lists = self._cpu.search(queries, k)
            return lists
        found = search_in_parts(self._index.search, self._cpu.search, queries, k)
        self._splits += found.splits
        self._fallbacks += found.fallbacks
        return found.lists

    @property
    def parameters(self) -> dict[str, Any]:
        """The placement as a manifest describes it; `fallbacks` counts parts of blocks that the CPU searched."""
        return {
            "gpus": len(self._placement.devices),
            "layout": "sharded" if self._placement.sharded else "replicated",
            "float16": False,
            "splits": self._splits,
            "fallbacks": self._fallbacks,
        }


def to_gpus(index: Any) -> OnGpus | str:
    """The built index on the GPUs, or the reason why it is not there: memory may have been taken since it was planned."""
    rows = int(index.ntotal)
    reason = "its memory on the GPUs is no longer free"
    for placement in placements(size_on_gpu(index, rows), free_memory(gpus())):
        try:
            return OnGpus(index, _copy(index, placement, rows), placement)
        except RuntimeError as error:
            reason = f"faiss does not copy it to the GPUs ({reason_of(error)})"
            if not out_of_memory(error):
                break
    return reason

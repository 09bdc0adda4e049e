"""A Faiss index on GPUs: training, placement and search (paper, supplement "Computation of the W0 blocks": eight of them).

The index is built on the CPU and copied: to every GPU when it fits one, in shards over all of them when it does not. The CPU
keeps its copy, for the blocks of queries for which GPU memory runs out.
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

from mmdiff.formats.errors import BadOption
from mmdiff.formats.extras import load

Lists = tuple[NDArray[np.float32], NDArray[np.int64]]
Search = Callable[[NDArray[np.float32], int], Lists]

# Faiss selects at most so many of anything on a GPU: neighbours, and cells to probe.
MOST_SELECTED = 2048
# Fewer queries than this do not run out of memory because they are too many.
SMALLEST_PART = 256
TEMPORARY_BYTES = 512 << 20
# Faiss pins 256 MiB of host memory for each GPU, which would be no part of --memory; blocks of queries need much less.
PINNED_BYTES = 32 << 20
# What the CUDA context, cuBLAS and the rounding of allocations take of a GPU's free memory.
USABLE = 0.9
GIB = float(1 << 30)


def load_faiss() -> Any:
    """The module, which faiss-cpu and faiss-gpu both provide."""
    return load("faiss", "building the graph")


def gpus() -> int:
    """How many GPUs Faiss can use."""
    faiss = load_faiss()
    return int(faiss.get_num_gpus()) if hasattr(faiss, "StandardGpuResources") else 0


def require_gpu() -> None:
    """Refuses `--device gpu` where there is none, and says which half of it is missing."""
    if gpus():
        return
    if not hasattr(load_faiss(), "StandardGpuResources"):
        raise BadOption(
            "--device gpu: the installed faiss is the CPU one. Run: pip uninstall faiss-cpu && pip install 'mmdiff[gpu]', "
            "or use --device cpu."
        )
    raise BadOption(
        "--device gpu: faiss-gpu is installed, but it sees no GPU. Look at nvidia-smi and CUDA_VISIBLE_DEVICES, "
        "or use --device cpu."
    )


def reason_of(error: RuntimeError) -> str:
    """The first line of what Faiss says, without the C++ function and source line in front of it."""
    said = re.sub(r"^Error in .*? at \S+:\d+: ", "", str(error), flags=re.DOTALL)
    said = re.sub(r"^Error: (?:'.*?' failed: (?=\S))?", "", said)
    return said.strip().partition("\n")[0].strip(" .")


def out_of_memory(error: RuntimeError) -> bool:
    """Whether an allocation on a GPU failed: Faiss has no class of exception for it, only the text."""
    return "alloc fail" in str(error) or "out of memory" in str(error)


def core(index: Any) -> Any:
    """The index behind the transformations of its vectors, which stay on the CPU, as the class that it is."""
    faiss = load_faiss()
    index = faiss.downcast_index(index)
    return core(index.index) if isinstance(index, faiss.IndexPreTransform) else index


@dataclass(frozen=True)
class Size:
    """Bytes of GPU memory: what every GPU needs whatever it holds, and what is divided among shards."""

    common: int
    divided: int


def size_on_gpu(index: Any, rows: int) -> Size:
    """An upper estimate for an index with so many rows, which need not be in it yet."""
    inner = core(index)
    if not hasattr(inner, "nlist"):
        return Size(TEMPORARY_BYTES, rows * inner.d * 4)
    # Cells are padded to 32 rows; ids are 32-bit where that is enough.
    each = inner.code_size + (4 if rows < 1 << 31 else 8)
    return Size(TEMPORARY_BYTES + inner.nlist * (4 * inner.d + 32 * each), rows * each)


@dataclass(frozen=True)
class Placement:
    devices: tuple[int, ...]
    sharded: bool


def placements(size: Size, free: Sequence[int | None]) -> list[Placement]:
    """Where the index may go, best first, given the free bytes of each GPU (None: unknown, so that only trying tells)."""

    def having(needed: int) -> tuple[int, ...]:
        return tuple(device for device, room in enumerate(free) if room is None or room * USABLE >= needed)

    found = [Placement(devices, False)] if (devices := having(size.common + size.divided)) else []
    # Shards are of equal size: a small GPU is left out when the others hold the index better without it.
    for count in range(len(free), 1, -1):
        if len(devices := having(size.common + -(-size.divided // count))) >= count:
            return [*found, Placement(devices[:count], True)]
    return found


def free_memory(count: int) -> list[int | None]:
    """Free bytes of each GPU. Faiss's Python module does not tell; the CUDA runtime that its wheel loads globally does."""
    runtime = ctypes.CDLL(None)
    if not hasattr(runtime, "cudaMemGetInfo"):
        return [None] * count
    before, room, total = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_size_t()
    runtime.cudaGetDevice(ctypes.byref(before))
    free: list[int | None] = []
    for device in range(count):
        failed = runtime.cudaSetDevice(device) or runtime.cudaMemGetInfo(ctypes.byref(room), ctypes.byref(total))
        free.append(None if failed else room.value)
    runtime.cudaSetDevice(before)
    return free


def obstacle(index: Any, rows: int) -> str:
    """Why GPUs cannot hold this index with so many rows, or nothing. Asked before training, which may take an hour."""
    faiss = load_faiss()
    inner = core(index)
    # Subclasses are other layouts (IndexIVFFlatDedup), which copying to a GPU would lose.
    if type(inner) not in (
        *(faiss.IndexFlat, faiss.IndexFlatIP),
        *(faiss.IndexIVFFlat, faiss.IndexIVFPQ, faiss.IndexIVFScalarQuantizer),
    ):
        return f"GPUs cannot hold a Faiss {type(inner).__name__}"
    if hasattr(inner, "quantizer") and not isinstance(quantizer := core(inner.quantizer), faiss.IndexFlat):
        return f"GPUs cannot hold a coarse quantiser that is a Faiss {type(quantizer).__name__}"
    size, free = size_on_gpu(index, rows), free_memory(gpus())
    if not (places := placements(size, free)):
        rooms = ", ".join(f"{(room or 0) / GIB:.1f}" for room in free)
        return f"{(size.common + size.divided) / GIB:.1f} GiB of index do not fit the GPUs, which have {rooms} GiB free"
    try:
        _copy(index, Placement(places[0].devices[:1], False), rows)
    except RuntimeError as error:
        return f"faiss does not copy it to a GPU ({reason_of(error)})"
    return ""


def _copy(index: Any, placement: Placement, rows: int) -> Any:
    """The index on GPUs. Any RuntimeError is Faiss's."""
    faiss = load_faiss()
    options = faiss.GpuMultipleClonerOptions()
    # Tables that only L2 distances have a use for.
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
    """Within it, training assigns points to centroids on all GPUs; centroids end up in the CPU's coarse quantiser."""
    faiss = load_faiss()
    # The index does not own what it is given here, so this name keeps it alive.
    assigning = faiss.index_cpu_to_all_gpus(faiss.IndexFlatIP(ivf.d))
    ivf.clustering_index = assigning
    try:
        yield
    finally:
        ivf.clustering_index = None


@dataclass(frozen=True)
class Parts:
    """What a search in parts found, and how often GPU memory ran out for it."""

    lists: Lists
    splits: int
    fallbacks: int


def search_in_parts(on_gpus: Search, on_cpu: Search, queries: NDArray[np.float32], k: int) -> Parts:
    """Searches the block in halves, quarters ... while GPU memory runs out, and on the CPU what is small and still too large.

    The next block starts whole again: what took the memory may have been another process.
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
    """An index that searches on GPUs, with the index on the CPU that it was copied from behind it."""

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
        """What a manifest says: `fallbacks` are parts of blocks that the CPU searched."""
        return {
            "gpus": len(self._placement.devices),
            "layout": "sharded" if self._placement.sharded else "replicated",
            "float16": False,
            "splits": self._splits,
            "fallbacks": self._fallbacks,
        }


def to_gpus(index: Any) -> OnGpus | str:
    """The built index on the GPUs, or why it is not there: memory may have gone since it was planned."""
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

"""The devices that compare queries with rows: the cores of this machine, or its GPUs (paper, supplement "W0 blocks").

Everything that searches neighbours asks one of these questions: the nearest of all rows, or the nearest in the cells that each
query visits. Cores answer the second one cell by cell, which compares the fewest pairs. GPUs are fast with large products, so
there a block of queries is compared with all rows that any of them visits, by brute force (`faiss.knn_gpu`): the lists can only
be nearer. Either way the lists are settled by exact similarities, so that they do not depend on how a device rounds.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import MissingExtra
from mmdiff.formats.store.manifest import Json
from mmdiff.kernels.constants import NONE
from mmdiff.knn.faiss_index.gpu import MOST_SELECTED, PINNED_BYTES, TEMPORARY_BYTES, gpus, load_faiss, search_in_parts
from mmdiff.knn.search.flat import search_flat
from mmdiff.knn.search.topk import SPARE, Lists, settle_candidates
from mmdiff.knn.search.visits import nearest_in_groups, search_visited

# Device memory for the rows and the queries that are compared at a time; Faiss takes more of them in turns.
_VECTOR_BYTES, _QUERY_BYTES = 1 << 30, 256 << 20

PIECE_ROWS = 1 << 13
"""Rows of the background that are searched together. It does not depend on memory: the rows of a product decide how scores are
rounded, and those of a block what a GPU compares them with."""

# Rows that a block is compared with at a time. A block that visits more of them is halved: in cell order, halves visit fewer.
MOST_ROWS = 1 << 17
# Queries of a block that is not halved further.
_FEWEST_QUERIES = 256

# How many times as many pairs a GPU is assumed to compare in the time of all cores. It only decides where exact search is used.
_TIMES_FASTER = 50

# A machine with GPUs has one of these: NVIDIA's driver, the same under WSL, AMD's driver.
_DEVICE_FILES = (Path("/dev/nvidiactl"), Path("/dev/dxg"), Path("/dev/kfd"))

Scored = tuple[NDArray[np.float32], NDArray[np.int64]]
"""Scores and ids of candidates, the best first; -1 is none."""


class Comparing(Protocol):
    """A device that compares queries with rows."""

    @property
    def on_gpus(self) -> bool: ...

    @property
    def times_faster(self) -> int:
        """The pairs compared in a given time, as a multiple of what the cores of a usual machine compare."""
        ...

    def nearest(self, queries: NDArray[Any], vectors: NDArray[Any], k: int) -> Lists:
        """The exact k nearest vectors of each query."""
        ...

    def visited(
        self, queries: NDArray[Any], vectors: NDArray[Any], visits: NDArray[np.uint32], offsets: NDArray[np.int64], k: int
    ) -> Lists:
        """The k nearest vectors in the visited cells, as `search_visited` describes them, or nearer ones."""
        ...

    def groups(
        self,
        queries: NDArray[np.float32],
        vectors: NDArray[np.float32],
        visits: NDArray[np.uint32],
        offsets: NDArray[np.int64],
        count: int,
    ) -> NDArray[np.uint32]:
        """The `count` nearest vectors in the visited groups, the nearest first, as `nearest_in_groups` describes them."""
        ...

    def facts(self) -> Json:
        """Facts for the manifest about the device."""
        ...


@dataclass(frozen=True)
class Cores:
    """The cores of this machine; the caller's threads divide the work."""

    on_gpus: bool = False
    times_faster: int = 1

    def nearest(self, queries: NDArray[Any], vectors: NDArray[Any], k: int) -> Lists:
        return search_flat(queries, vectors, k)

    def visited(
        self, queries: NDArray[Any], vectors: NDArray[Any], visits: NDArray[np.uint32], offsets: NDArray[np.int64], k: int
    ) -> Lists:
        return search_visited(queries, vectors, visits, offsets, k)

    def groups(
        self,
        queries: NDArray[np.float32],
        vectors: NDArray[np.float32],
        visits: NDArray[np.uint32],
        offsets: NDArray[np.int64],
        count: int,
    ) -> NDArray[np.uint32]:
        return nearest_in_groups(queries, vectors, visits, offsets, count)

    def facts(self) -> Json:
        return {}


CORES = Cores()


class Gpus:
    """All GPUs as a pool: a block of queries takes the next one that is free, and waits while there is none."""

    on_gpus = True

    def __init__(self, count: int) -> None:
        faiss = load_faiss()
        self._count = count
        self._free: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        for device in range(count):
            resource = faiss.StandardGpuResources()
            resource.setTempMemory(TEMPORARY_BYTES)
            resource.setPinnedMemory(PINNED_BYTES)
            self._free.put((device, resource))
        self._lock = threading.Lock()
        self._splits = self._fallbacks = 0

    @property
    def times_faster(self) -> int:
        return _TIMES_FASTER * self._count

    def nearest(self, queries: NDArray[Any], vectors: NDArray[Any], k: int) -> Lists:
        return settle_candidates(queries, vectors, self._compare(queries, vectors, k + SPARE)[1], k)

    def visited(
        self, queries: NDArray[Any], vectors: NDArray[Any], visits: NDArray[np.uint32], offsets: NDArray[np.int64], k: int
    ) -> Lists:
        return settle_candidates(queries, vectors, self._in_cells(queries, vectors, visits, offsets, k + SPARE), k)

    def groups(
        self,
        queries: NDArray[np.float32],
        vectors: NDArray[np.float32],
        visits: NDArray[np.uint32],
        offsets: NDArray[np.int64],
        count: int,
    ) -> NDArray[np.uint32]:
        found = self._in_cells(queries, vectors, visits, offsets, count)
        return np.where(found < 0, NONE, found).astype(np.uint32)

    def facts(self) -> Json:
        """The number of GPUs; `splits` counts blocks that were halved for lack of memory, `fallbacks` those left to the CPU."""
        return {"device": "gpu", "gpus": self._count, "splits": self._splits, "fallbacks": self._fallbacks}

    def _in_cells(
        self, queries: NDArray[Any], vectors: NDArray[Any], visits: NDArray[np.uint32], offsets: NDArray[np.int64], count: int
    ) -> NDArray[np.int64]:
        """The ids of the best vectors in all cells that a block of similar queries visits, the best first."""
        found = np.empty((len(queries), count), np.int64)
        # Queries whose nearest cells are close to each other visit many cells in common.
        order = np.argsort(visits[:, 0], kind="stable")
        waiting = [order] if len(order) else []
        while waiting:
            some = waiting.pop()
            rows = rows_of_cells(visits[some], offsets)
            if len(rows) > MOST_ROWS and len(some) > _FEWEST_QUERIES:
                waiting += np.array_split(some, 2)
                continue
            # Memory is bounded even where few queries visit many rows.
            parts = [
                self._compare_some(queries[some], vectors, rows[first : first + MOST_ROWS], count)
                for first in range(0, max(1, len(rows)), MOST_ROWS)
            ]
            found[some] = _best(parts, count)
        return found

    def _compare_some(self, queries: NDArray[Any], vectors: NDArray[Any], rows: NDArray[np.int64], count: int) -> Scored:
        scores, places = self._compare(queries, vectors[rows], count)
        # A missing candidate, -1, leads to the last entry.
        return scores, np.append(rows, -1)[places]

    def _compare(self, queries: NDArray[Any], vectors: NDArray[Any], count: int) -> Scored:
        """The best vectors of each query by the scores of a device; by those of the CPU where no GPU has room."""

        def on_cpu(some: NDArray[Any], most: int) -> Scored:
            neighbors, similarities = search_flat(some, vectors, most)
            return similarities, np.where(neighbors == NONE, -1, neighbors.astype(np.int64))

        # GPUs select no more neighbours than there are rows.
        selected = min(count, len(vectors))
        if not 0 < selected <= MOST_SELECTED:
            return on_cpu(queries, count)
        device, resource = self._free.get()
        try:
            on_gpu = self._brute_force(device, resource, np.ascontiguousarray(vectors))
            # Faiss compares rows of one type only.
            parts = search_in_parts(on_gpu, on_cpu, np.ascontiguousarray(queries, vectors.dtype), selected)
        finally:
            self._free.put((device, resource))
        with self._lock:
            self._splits += parts.splits
            self._fallbacks += parts.fallbacks
        missing = ((0, 0), (0, count - selected))
        return np.pad(parts.lists[0], missing, constant_values=-np.inf), np.pad(parts.lists[1], missing, constant_values=-1)

    @staticmethod
    def _brute_force(device: int, resource: Any, vectors: NDArray[Any]) -> Callable[[NDArray[Any], int], Scored]:
        faiss = load_faiss()

        def search(queries: NDArray[Any], k: int) -> Scored:
            scores, ids = faiss.knn_gpu(
                resource,
                queries,
                vectors,
                k,
                metric=faiss.METRIC_INNER_PRODUCT,
                device=device,
                vectorsMemoryLimit=_VECTOR_BYTES,
                queriesMemoryLimit=_QUERY_BYTES,
            )
            return scores, ids

        return search


def device_for(wanted: Literal["auto", "cpu", "gpu"]) -> Comparing:
    """The device that a parameter names; "auto" is the GPUs where Faiss is installed and sees any."""
    if wanted == "cpu" or (wanted == "auto" and not _may_have_gpus()):
        return CORES
    try:
        count = gpus()
    except MissingExtra:
        # Small graphs are searched without Faiss.
        return CORES
    return Gpus(count) if count else CORES


def _may_have_gpus() -> bool:
    """Whether it is worth asking Faiss for GPUs: loading it takes time and memory, and small graphs do without it."""
    return "faiss" in sys.modules or any(device.exists() for device in _DEVICE_FILES)


def rows_of_cells(visits: NDArray[np.uint32], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows of all cells that some queries visit, in order."""
    cells = np.unique(visits[visits != NONE]).astype(np.int64)
    sizes = offsets[cells + 1] - offsets[cells]
    return np.repeat(offsets[cells] - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())


def _best(parts: list[Scored], count: int) -> NDArray[np.int64]:
    """The ids of the best candidates of several searches of the same queries."""
    if len(parts) == 1:
        return parts[0][1]
    scores, ids = (np.concatenate([part[i] for part in parts], axis=1) for i in (0, 1))
    return np.take_along_axis(ids, np.argsort(-scores, axis=1, kind="stable")[:, :count], axis=1)

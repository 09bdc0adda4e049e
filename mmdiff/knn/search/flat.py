"""Exact search by products of blocks, for small sets and as the reference; recall of lists, measured on a sample against it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from mmdiff.formats.store.manifest import Json
from mmdiff.kernels.constants import NONE
from mmdiff.kernels.floats import for_kernels, half_to_float
from mmdiff.kernels.jit import kernel
from mmdiff.knn.search.topk import ROOM, SPARE, Candidates, Lists, keep_best, merge, settle
from mmdiff.runtime.threads import in_threads

# A tile of scores and its vectors fit the second-level cache.
QUERY_TILE = 256
VECTOR_TILE = 1024

# Entries of a tile that are compared with the floor at a time.
_LANES = 16

# Standard deviations of a two-sided 95 % confidence interval.
_DEVIATIONS = 1.96

# Vectors that an exact search of a sample reads at a time.
_BLOCK_ROWS = 1 << 15


def search_flat(queries: NDArray[Any], vectors: NDArray[Any], k: int) -> Lists:
    """The exact k nearest vectors of each query; ids are row numbers."""
    neighbors = np.empty((len(queries), k), np.uint32)
    similarities = np.empty((len(queries), k), np.float32)
    _search(for_kernels(queries), for_kernels(vectors), neighbors, similarities)
    return neighbors, similarities


@kernel
def as_matrix(vectors: NDArray[Any], start: int, stop: int, out: NDArray[np.float32]) -> None:
    """Writes rows start..stop-1 as float32."""
    for i in range(start, stop):
        for j in range(vectors.shape[1]):
            out[i - start, j] = half_to_float(vectors[i, j])


def matrix_of(vectors: Any, start: int, stop: int, room: Any) -> Any:  # noqa: ARG001
    """Rows start..stop-1 as a matrix of float32, inside kernels: the rows themselves, or copies in `room`."""
    raise RuntimeError("matrix_of is for kernels")


@overload(matrix_of)
def _matrix_of(vectors: Any, start: Any, stop: Any, room: Any) -> Any:  # noqa: ARG001
    def copy(vectors: Any, start: Any, stop: Any, room: Any) -> Any:
        as_matrix(vectors, start, stop, room)
        return room[: stop - start]

    def take(vectors: Any, start: Any, stop: Any, room: Any) -> Any:  # noqa: ARG001
        return vectors[start:stop]

    return take if vectors.dtype == types.float32 and vectors.layout == "C" else copy


@kernel
def offer_scores(
    tile: NDArray[np.float32],
    ids: NDArray[np.uint32],
    rows: NDArray[np.int64],
    candidates: Candidates,
    floor: NDArray[np.float32],
    keep: int,
) -> None:
    """Adds the entries of a tile that reach the `floor` of their row to the candidates; full rows get a higher floor.

    Row i of the tile belongs to candidates `rows[i]`, column j to node `ids[j]`. No pair may be offered twice.
    """
    scores, nodes, counts = candidates
    capacity = scores.shape[1]
    for i in range(tile.shape[0]):
        row = rows[i]
        count, least = counts[row], floor[row]
        for start in range(0, tile.shape[1], _LANES):
            stop = min(start + _LANES, tile.shape[1])
            # Most entries are too small; the processor compares many at a time.
            some = np.uint32(0)
            for j in range(start, stop):
                some |= np.uint32(tile[i, j] >= least)
            if some == 0:
                continue
            for j in range(start, stop):
                if tile[i, j] >= least:
                    scores[row, count], nodes[row, count] = tile[i, j], ids[j]
                    count += 1
                    if count == capacity:
                        count = keep_best(scores[row], nodes[row], count, keep)
                        least = np.float32(np.inf)
                        for q in range(count):
                            least = min(least, scores[row, q])
        counts[row], floor[row] = count, least


@kernel
def _search(
    queries: NDArray[Any], vectors: NDArray[Any], neighbors: NDArray[np.uint32], similarities: NDArray[np.float32]
) -> None:
    d, keep = vectors.shape[1], neighbors.shape[1] + SPARE
    left = np.empty((QUERY_TILE, d), np.float32)
    right = np.empty((VECTOR_TILE, d), np.float32)
    for start in range(0, len(queries), QUERY_TILE):
        stop = min(start + QUERY_TILE, len(queries))
        rows = np.arange(stop - start)
        scores = np.empty((stop - start, ROOM * keep), np.float32)
        nodes = np.empty((stop - start, ROOM * keep), np.uint32)
        candidates = Candidates(scores, nodes, np.zeros(stop - start, np.int64))
        floor = np.full(stop - start, -np.inf, np.float32)
        some = matrix_of(queries, start, stop, left)
        for first in range(0, len(vectors), VECTOR_TILE):
            last = min(first + VECTOR_TILE, len(vectors))
            tile = np.dot(some, matrix_of(vectors, first, last, right).T)
            ids = np.arange(first, last).astype(np.uint32)
            offer_scores(tile, ids, rows, candidates, floor, keep)
        settle(queries[start:stop], vectors, candidates, similarities[start:stop], neighbors[start:stop])


@dataclass(frozen=True)
class Recall:
    """A recall with the half-width of its 95 % confidence interval."""

    value: float
    margin: float
    queries: int

    def to_json(self) -> Json:
        low, high = max(0.0, self.value - self.margin), min(1.0, self.value + self.margin)
        return {"recall": round(self.value, 5), "low": round(low, 5), "high": round(high, 5), "queries": self.queries}


@dataclass(frozen=True)
class Sample:
    """Queries with their exact neighbours. `last` is the similarity of each query's k-th neighbour."""

    rows: NDArray[np.int64]
    neighbors: NDArray[np.uint32]
    last: NDArray[np.float32]

    def recall(self, similarities: NDArray[np.float32]) -> Recall:
        """The recall of lists with these similarities; every neighbour as near as the true k-th counts as true."""
        shares = (similarities >= self.last[:, None]).mean(axis=1)
        margin = _DEVIATIONS * float(shares.std()) / np.sqrt(len(shares))
        return Recall(float(shares.mean()), float(margin), len(shares))


ExactSearch = Callable[[NDArray[Any], NDArray[Any], int], Lists]
"""A search that `search_flat` describes, perhaps on another device."""


def draw(vectors: NDArray[Any], k: int, count: int, seed: int, search: ExactSearch = search_flat) -> Sample:
    """Draws rows at random and finds their exact neighbours among all rows."""
    rows = np.sort(np.random.default_rng(seed).choice(len(vectors), min(count, len(vectors)), replace=False))
    return exact(vectors[rows], vectors, k, rows, search)


def exact(
    queries: NDArray[Any], vectors: NDArray[Any], k: int, rows: NDArray[np.int64], search: ExactSearch = search_flat
) -> Sample:
    """Finds the exact neighbours of queries among the vectors; `rows` identify the queries."""

    def in_block(start: int) -> Lists:
        neighbors, similarities = search(queries, vectors[start : start + _BLOCK_ROWS], k)
        neighbors[neighbors != NONE] += np.uint32(start)
        return neighbors, similarities

    neighbors, similarities = functools.reduce(merge, in_threads(in_block, range(0, len(vectors), _BLOCK_ROWS)))
    return Sample(rows, neighbors, similarities[:, -1])

"""The labelled row that is most similar to each of some rows, by exact search among the labelled rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.store.store import Artifact, Store
from mmdiff.knn.search.flat import search_flat
from mmdiff.labels.collection import Collection, rows_of
from mmdiff.labels.rows_by_id import SEEDS
from mmdiff.runtime.threads import in_threads

# Labelled rows that a thread compares at a time, and pairs that are compared at most: some ten seconds on two cores.
_BLOCK_ROWS = 1 << 13
_MOST_PAIRS = 1 << 31


@dataclass(frozen=True)
class Nearest:
    """For each row its nearest labelled row, as a place among those, -1 for none, and their similarity.

    `compared` labelled rows were looked at: all, unless there are very many.
    """

    places: NDArray[np.int64]
    similarities: NDArray[np.float32]
    compared: int


class Vectors:
    """The descriptors of the rows of a graph: the collection, then the seeds."""

    def __init__(self, parts: Sequence[Artifact]) -> None:
        self._parts = [(part["vectors"], rows_of(part)) for part in parts]

    @classmethod
    def of(cls, store: Store) -> Vectors:
        seeds = [] if store.id(SEEDS) is None else [store.open_artifact(SEEDS)]
        return cls([*Collection.of(store).parts, *seeds])

    def __len__(self) -> int:
        return sum(rows for _, rows in self._parts)

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The descriptors of some rows."""
        width = self._parts[0][0].shape[1]
        found, first = np.empty((len(rows), width), np.float32), 0
        for vectors, count in self._parts:
            own = np.flatnonzero((rows >= first) & (rows < first + count))
            if len(own):
                found[own] = vectors[rows[own] - first]
            first += count
        return found


def nearest_labelled(vectors: Vectors, rows: NDArray[np.int64], labelled: NDArray[np.int64]) -> Nearest:
    """The labelled row with the largest inner product with each of some rows; of equal ones the first."""
    step = max(1, -(-len(labelled) * len(rows) // _MOST_PAIRS))
    compared = np.arange(0, len(labelled), step)
    places, similarities = np.full(len(rows), -1, np.int64), np.full(len(rows), -np.inf, np.float32)
    if not len(rows) or not len(labelled):
        return Nearest(places, similarities, 0)
    queries = vectors.take(rows)

    def work(start: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        own = compared[start : start + _BLOCK_ROWS]
        found, similar = search_flat(queries, vectors.take(labelled[own]), 1)
        return own[found[:, 0].astype(np.int64)], similar[:, 0]

    for found, similar in in_threads(work, range(0, len(compared), _BLOCK_ROWS)):
        better = similar > similarities
        places[better], similarities[better] = found[better], similar[better]
    return Nearest(places, similarities, len(compared))

"""How many of the true neighbours are in the lists, measured on a sample against exact search."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.manifest import Json
from mmdiff.knn.flat import search_flat
from mmdiff.knn.lists import NONE, Lists, merge
from mmdiff.parallel import in_threads

# Two-sided, 95 %.
_DEVIATIONS = 1.96
# Vectors are compared with all queries at once, a few at a time: each is read once.
_BLOCK_ROWS = 1 << 15


@dataclass(frozen=True)
class Recall:
    """A share with its confidence interval."""

    value: float
    margin: float
    queries: int

    def to_json(self) -> Json:
        low, high = max(0.0, self.value - self.margin), min(1.0, self.value + self.margin)
        return {"recall": round(self.value, 5), "low": round(low, 5), "high": round(high, 5), "queries": self.queries}


@dataclass(frozen=True)
class Sample:
    """Queries with their exact lists. `last` is the similarity of the k-th neighbour of each."""

    rows: NDArray[np.int64]
    neighbors: NDArray[np.uint32]
    last: NDArray[np.float32]

    def recall(self, similarities: NDArray[np.float32]) -> Recall:
        """Of lists with these similarities. Whoever is as near as the true k-th neighbour is a true one: equals are equal."""
        shares = (similarities >= self.last[:, None]).mean(axis=1)
        margin = _DEVIATIONS * float(shares.std()) / np.sqrt(len(shares))
        return Recall(float(shares.mean()), float(margin), len(shares))


def draw(vectors: NDArray[Any], k: int, count: int, seed: int) -> Sample:
    """Rows at random, with their exact neighbours among all."""
    rows = np.sort(np.random.default_rng(seed).choice(len(vectors), min(count, len(vectors)), replace=False))
    return exact(vectors[rows], vectors, k, rows)


def exact(queries: NDArray[Any], vectors: NDArray[Any], k: int, rows: NDArray[np.int64]) -> Sample:
    """Queries of any kind with their exact neighbours among the vectors."""

    def search(start: int) -> Lists:
        neighbors, similarities = search_flat(queries, vectors[start : start + _BLOCK_ROWS], k)
        neighbors[neighbors != NONE] += np.uint32(start)
        return neighbors, similarities

    neighbors, similarities = functools.reduce(merge, in_threads(search, range(0, len(vectors), _BLOCK_ROWS)))
    return Sample(rows, neighbors, similarities[:, -1])

"""The neighbours of rows among those of a fit: of these themselves, as its store lists them, and of rows that come later.

Rows that come later are looked for as the test points of a store are: they are compared with all rows where that takes some
seconds, else with those in as many cells as reach the recall.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadRow
from mmdiff.formats.store.store import Artifact
from mmdiff.importing.rows import as_float32
from mmdiff.importing.space import Space
from mmdiff.kernels.constants import NONE
from mmdiff.kernels.floats import for_kernels, half_to_float
from mmdiff.kernels.jit import kernel
from mmdiff.knn.cells.order import Cells
from mmdiff.knn.cells.partition import Quantizer
from mmdiff.knn.search.devices import PIECE_ROWS
from mmdiff.knn.search.outside import Probe
from mmdiff.runtime.threads import in_threads

Rows = tuple[NDArray[np.int64], NDArray[Any]]
"""Numbers of rows, k for each query, -1 where there are fewer, and their Euclidean distances from it."""

_BLOCK_ROWS = 1 << 10


@dataclass(frozen=True)
class Neighbours:
    """The rows of a fit in cell order, the space they are in, and their lists of neighbours, which hold numbers of nodes."""

    space: Space
    cells: Cells
    lists: NDArray[np.uint32]
    recall: float
    seed: int

    @classmethod
    def of(cls, pca: Artifact, cells: Artifact, lists: Artifact, recall: float, seed: int) -> Neighbours:
        """The neighbours in a store, mapped."""
        ordered = Cells.of(cells)
        return cls(Space.of(pca), ordered, lists.index_array("neighbors", len(ordered.order), int(NONE)), recall, seed)

    def in_memory(self) -> Neighbours:
        """A copy that needs no file."""
        own = self.cells
        vectors, order, cell_of, offsets = map(_copied, (own.vectors, own.order, own.cell_of, own.offsets))
        quantizer = Quantizer(*map(_copied, vars(own.quantizer).values()))
        return replace(self, cells=Cells(vectors, order, cell_of, offsets, quantizer), lists=_copied(self.lists))

    @property
    def k(self) -> int:
        return int(self.lists.shape[1])

    def within(self) -> Rows:
        """The neighbours of the rows themselves, in the order of the fit."""
        rows, order = len(self.lists), self.cells.order

        def find(start: int, stop: int) -> Rows:
            return self._told(self.cells.vectors[start:stop], np.asarray(self.lists[start:stop]))

        numbers, distances = np.empty(self.lists.shape, np.int64), np.empty(self.lists.shape, np.float32)
        numbers[order], distances[order] = _in_pieces(find, rows)
        return numbers, distances

    def of_rows(self, X: NDArray[Any]) -> Rows:
        """The neighbours of other rows."""
        queries = np.empty((len(X), self.space.dims), np.float32)
        for start in range(0, len(X), PIECE_ROWS):
            some = as_float32(X[start : start + PIECE_ROWS]).copy(order="C")
            refuse_zeros(some, start)
            queries[start : start + len(some)] = self.space.project(some, partial(_named, start))
        # As mapped rows are, so that the same compiled kernels serve both.
        queries.flags.writeable = False
        probe = Probe(self.cells, self.lists, queries, self.recall, self.seed)
        return _in_pieces(lambda start, stop: self._told(queries[start:stop], probe.find(queries[start:stop])[0]), len(X))

    def _told(self, queries: NDArray[Any], nodes: NDArray[np.uint32]) -> Rows:
        """Lists of nodes as rows of the fit, with their distances."""
        distances = np.empty(nodes.shape, np.float32)
        _distances(for_kernels(queries), for_kernels(self.cells.vectors), nodes, distances)
        there = nodes != NONE
        return np.where(there, self.cells.order[np.where(there, nodes, 0)], np.int64(-1)).astype(np.int64), distances


def _named(start: int, row: int) -> str:
    return f"X, row {start + row}"


def _copied(values: Any) -> NDArray[Any]:
    copied = np.array(values)
    copied.flags.writeable = False
    return copied


def refuse_zeros(rows: NDArray[Any], first: int = 0) -> None:
    """Refuses rows of zeros, which have no direction; `first` is the number of the first row."""
    zero = ~rows.any(axis=1)
    if zero.any():
        row = first + int(zero.argmax())
        raise BadRow(f"X, row {row}: all {rows.shape[1]} values are zero, so the row has no direction. Remove it.")


def _in_pieces(find: Callable[[int, int], Rows], rows: int) -> Rows:
    """The lists of all rows, some at a time, on all cores."""
    starts = range(0, rows, _BLOCK_ROWS)
    found = [*in_threads(lambda start: find(start, min(start + _BLOCK_ROWS, rows)), starts)]
    return np.concatenate([numbers for numbers, _ in found]), np.concatenate([distances for _, distances in found])


@kernel
def _distances(queries: NDArray[Any], vectors: NDArray[Any], nodes: NDArray[np.uint32], distances: NDArray[np.float32]) -> None:
    """Euclidean distances, summed in float64: equal rows have the distance 0, which similarities of float32 cannot tell."""
    for i in range(len(nodes)):
        for q in range(nodes.shape[1]):
            total = 0.0
            if nodes[i, q] == NONE:
                total = np.inf
            else:
                for j in range(queries.shape[1]):
                    difference = np.float64(half_to_float(queries[i, j])) - np.float64(half_to_float(vectors[nodes[i, q], j]))
                    total += difference * difference
            distances[i, q] = np.float32(np.sqrt(total))

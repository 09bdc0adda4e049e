"""Rows of W kept in memory, for passes that would read all of W from the disk for some of its rows.

The rows that test points depend on, and those that labels reach, are the same for all batches of columns. Where W is larger
than memory, a pass over such rows reads nearly all of it. The first pass copies their entries, and later passes over the same
rows, or over some of them, read nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.graph.graph import CsrGraph
from mmdiff.kernels.floats import for_kernels
from mmdiff.kernels.jit import kernel

# The most rows between the first and the last one of a block, which has an offset for each: they are made anew for each block.
SPAN = 1 << 20

# Rows that are looked up first, to find out quickly that a set does not have them.
_SAMPLE = 1 << 10

_ROW_BYTES = 4 + 8


@dataclass(frozen=True)
class KeptRows:
    """Some rows of a graph, sorted: entries starts[i]..starts[i+1] - 1 belong to rows[i]. `entries` are as in the graph."""

    rows: NDArray[Any]
    starts: NDArray[np.int64]
    entries: list[NDArray[Any]]

    @property
    def nbytes(self) -> int:
        return kept_bytes(self.rows, int(self.starts[-1]), self.entries)

    def copy(self, graph: CsrGraph, first: int, rows: NDArray[np.int64]) -> None:
        """Copies the entries of these rows, which are at place `first` among the kept ones."""
        for source, target in zip(graph.entries, self.entries, strict=True):
            copy_rows(graph.indptr, for_kernels(source), rows, self.starts[first : first + len(rows) + 1], for_kernels(target))

    def has(self, rows: NDArray[Any]) -> bool:
        """Whether all of these rows are kept."""
        if rows is self.rows:
            return True
        some = rows[:: max(1, len(rows) // _SAMPLE)]
        return 0 < len(rows) <= len(self.rows) and self._has(some) and self._has(rows)

    def _has(self, rows: NDArray[Any]) -> bool:
        places = np.searchsorted(self.rows, rows)
        return bool(places[-1] < len(self.rows)) and bool((self.rows[places] == rows).all())

    def graph(self, whole: CsrGraph, rows: NDArray[np.int64]) -> CsrGraph:
        """A graph in which kernels find these kept rows, and at most those between them, at their numbers in the whole one."""
        low, high = int(rows[0]), int(rows[-1])
        first, last = np.searchsorted(self.rows, (low, high))
        starts = self.starts[first : last + 2]
        offsets = np.zeros(high - low + 2, np.int64)
        offsets[self.rows[first : last + 1].astype(np.int64) - low + 1] = np.diff(starts)
        np.cumsum(offsets, out=offsets)
        indices, *weights = (_read_only(values[starts[0] : starts[-1]]) for values in self.entries)
        indptr = np.asarray(_Offsets(offsets, low))
        return replace(whole, indptr=indptr, indices=indices, weights=weights[0] if weights else None)


class RowCache:
    """Sets of kept rows, of at most `most` bytes together."""

    def __init__(self, most: int = 0) -> None:
        self.most = most
        self._sets: list[KeptRows] = []

    @property
    def nbytes(self) -> int:
        return sum(kept.nbytes for kept in self._sets)

    def find(self, rows: NDArray[Any]) -> KeptRows | None:
        """A set that has all of these rows."""
        return next((kept for kept in self._sets if kept.has(rows)), None)

    def room_for(self, graph: CsrGraph, rows: NDArray[Any]) -> KeptRows | None:
        """Room for the entries of these rows, which `add` makes known once they are copied; None where there is too little."""
        edges = graph.edges_of(rows)
        if kept_bytes(rows, edges, graph.entries) > self.most - self.nbytes:
            return None
        starts = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(graph.degrees(rows), out=starts[1:])
        return KeptRows(rows, starts, [np.empty(edges, values.dtype) for values in graph.entries])

    def add(self, kept: KeptRows) -> None:
        self._sets.append(kept)

    def limit(self, most: int) -> None:
        """Changes the limit, and drops the largest sets until the others fit."""
        self.most = most
        self._sets.sort(key=lambda kept: kept.nbytes)
        while self._sets and self.nbytes > most:
            self._sets.pop()


def kept_bytes(rows: NDArray[Any], edges: int, entries: list[NDArray[Any]]) -> int:
    """Memory of kept rows with so many edges."""
    return _ROW_BYTES * len(rows) + edges * sum(values.itemsize for values in entries)


class _Offsets:
    """An array interface for the offsets of a range of rows, at the numbers of these rows: the address lies before them."""

    def __init__(self, offsets: NDArray[np.int64], low: int) -> None:
        self._offsets = offsets
        self.__array_interface__ = {
            "version": 3,
            "shape": (low + len(offsets),),
            "typestr": offsets.dtype.str,
            "data": (offsets.__array_interface__["data"][0] - low * offsets.itemsize, True),
        }


def _read_only(values: NDArray[Any]) -> NDArray[Any]:
    """A view as kernels know the entries of a mapped graph: they are compiled for read-only arrays separately."""
    view = values[:]
    view.flags.writeable = False
    return view


@kernel
def copy_rows(
    indptr: NDArray[np.int64],
    source: NDArray[Any],
    rows: NDArray[np.int64],
    starts: NDArray[np.int64],
    target: NDArray[Any],
) -> None:
    """Copies the entries of row rows[i] of a graph to places starts[i]..starts[i+1] - 1 of the target."""
    for r in range(len(rows)):
        edge = indptr[rows[r]]
        for place in range(starts[r], starts[r + 1]):
            target[place] = source[edge]
            edge += 1

"""The state S of a batch between two iterations: a matrix, some rows of it, or a frontier while few entries are nonzero.

Each form gathers the rows of test points' neighbours (V S) and returns its rows as float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mmdiff.kernels.constants import NONE
from mmdiff.kernels.floats import bfloat16_decode, widen
from mmdiff.kernels.jit import exact_kernel, kernel
from mmdiff.runtime.threads import in_threads

SqrtDegrees = NDArray[np.float32] | None
"""sqrt(degree) of each node of a symmetric graph, None otherwise. The state is S in these units: its product is that of W."""

_BLOCK_ROWS = 1 << 14


class State(Protocol):
    """Some columns of S, in sqrt-degree units."""

    @property
    def width(self) -> int: ...

    def gather(self, neighbors: NDArray[np.uint32], sqrt_degrees: SqrtDegrees) -> NDArray[np.float32]:
        """V S for test points with these neighbours."""

    def block(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows start..stop-1, in sqrt-degree units."""


@dataclass(frozen=True)
class Matrix:
    """All rows, float32 or the bits of bfloat16."""

    values: NDArray[Any]

    @property
    def width(self) -> int:
        return int(self.values.shape[1])

    def gather(self, neighbors: NDArray[np.uint32], sqrt_degrees: SqrtDegrees) -> NDArray[np.float32]:
        places = np.where(neighbors == NONE, np.int64(-1), neighbors.astype(np.int64))
        return _gathered(self.values, places, _of_neighbors(sqrt_degrees, neighbors))

    def block(self, start: int, stop: int) -> NDArray[np.float32]:
        return bfloat16_decode(self.values[start:stop])

    def column_sums(self, sqrt_degrees: SqrtDegrees) -> NDArray[np.float64]:
        """The sums of the columns of S."""
        starts = range(0, len(self.values), _BLOCK_ROWS)
        total = np.zeros(self.width)
        for part in in_threads(
            lambda start: _sums(self.values, sqrt_degrees, start, min(start + _BLOCK_ROWS, len(self.values))), starts
        ):
            total += part
        return total


@dataclass(frozen=True)
class SomeRows:
    """The rows that test points gather, and no others; float32 or the bits of bfloat16."""

    rows: NDArray[np.uint32]
    values: NDArray[Any]

    @property
    def width(self) -> int:
        return int(self.values.shape[1])

    def gather(self, neighbors: NDArray[np.uint32], sqrt_degrees: SqrtDegrees) -> NDArray[np.float32]:
        places = np.searchsorted(self.rows, neighbors).astype(np.int64)
        places[neighbors == NONE] = -1
        return _gathered(self.values, places, _of_neighbors(sqrt_degrees, neighbors))

    def computed(self) -> NDArray[np.float32]:
        """The rows, in sqrt-degree units."""
        return bfloat16_decode(self.values)

    def block(self, start: int, stop: int) -> NDArray[np.float32]:
        raise RuntimeError(f"rows {start} to {stop - 1} were not computed")


class FrontierArrays(NamedTuple):
    """A frontier as kernels read it. Bit i of `present` tells whether row i has an entry: few bytes, which stay in cache."""

    present: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    columns: NDArray[np.int32]
    values: NDArray[np.float32]


@dataclass(frozen=True)
class Frontier:
    """The nonzero entries, row after row: row i has entries offsets[i]..offsets[i+1] - 1."""

    offsets: NDArray[np.int64]
    columns: NDArray[np.int32]
    values: NDArray[np.float32]
    width: int

    @property
    def rows(self) -> NDArray[np.int64]:
        """The rows that have an entry."""
        return np.flatnonzero(self.offsets[1:] != self.offsets[:-1])

    @cached_property
    def arrays(self) -> FrontierArrays:
        present = np.packbits(self.offsets[1:] != self.offsets[:-1], bitorder="little")
        return FrontierArrays(present=present, offsets=self.offsets, columns=self.columns, values=self.values)

    def gather(self, neighbors: NDArray[np.uint32], sqrt_degrees: SqrtDegrees) -> NDArray[np.float32]:
        out = np.zeros((len(neighbors), self.width), np.float32)
        _gather_entries(self.arrays, neighbors, _of_neighbors(sqrt_degrees, neighbors), out)
        return out

    def block(self, start: int, stop: int) -> NDArray[np.float32]:
        out = np.zeros((stop - start, self.width), np.float32)
        first, last = self.offsets[start], self.offsets[stop]
        rows = np.repeat(np.arange(stop - start), np.diff(self.offsets[start : stop + 1]))
        out[rows, self.columns[first:last]] = self.values[first:last]
        return out


def sqrt_degrees_of(scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """sqrt(degree) of each node; 1 for nodes without edges, whose value does not matter."""
    with np.errstate(divide="ignore"):
        return np.where(scale > 0, 1 / np.sqrt(scale.astype(np.float64)), 1).astype(np.float32)


def _of_neighbors(sqrt_degrees: SqrtDegrees, neighbors: NDArray[np.uint32]) -> NDArray[np.float32] | None:
    return None if sqrt_degrees is None else sqrt_degrees[np.where(neighbors == NONE, 0, neighbors)]


def _gathered(values: NDArray[Any], places: NDArray[np.int64], sqrt_degrees: NDArray[np.float32] | None) -> NDArray[np.float32]:
    out = np.zeros((len(places), values.shape[1]), np.float32)
    _gather(values, places, sqrt_degrees, out)
    return out


@exact_kernel
def _gather(
    values: NDArray[Any], places: NDArray[np.int64], sqrt_degrees: NDArray[np.float32] | None, out: NDArray[np.float32]
) -> None:
    for i in range(len(places)):
        for q in range(places.shape[1]):
            place = places[i, q]
            if place < 0:
                continue
            sqrt_degree = np.float32(1) if sqrt_degrees is None else sqrt_degrees[i, q]
            for c in range(values.shape[1]):
                out[i, c] += sqrt_degree * widen(values[place, c])


@exact_kernel
def _gather_entries(
    frontier: FrontierArrays,
    neighbors: NDArray[np.uint32],
    sqrt_degrees: NDArray[np.float32] | None,
    out: NDArray[np.float32],
) -> None:
    for i in range(len(neighbors)):
        for q in range(neighbors.shape[1]):
            node = neighbors[i, q]
            if node == NONE:
                continue
            sqrt_degree = np.float32(1) if sqrt_degrees is None else sqrt_degrees[i, q]
            for entry in range(frontier.offsets[node], frontier.offsets[node + 1]):
                out[i, frontier.columns[entry]] += sqrt_degree * frontier.values[entry]


@kernel
def _sums(values: NDArray[Any], sqrt_degrees: NDArray[np.float32] | None, start: int, stop: int) -> NDArray[np.float64]:
    total = np.zeros(values.shape[1], np.float64)
    for i in range(start, stop):
        sqrt_degree = np.float64(1) if sqrt_degrees is None else np.float64(sqrt_degrees[i])
        for c in range(values.shape[1]):
            total[c] += sqrt_degree * widen(values[i, c])
    return total

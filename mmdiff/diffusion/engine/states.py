"""A batch of columns of S between two iterations: a matrix, some of its rows, or, while labels have not come far, a frontier.

Each can say what test points see of it (V S), give its rows as float32, and sum its columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mmdiff.kernels.constants import NONE
from mmdiff.kernels.floats import bfloat16_decode, widen
from mmdiff.kernels.jit import exact_kernel, kernel
from mmdiff.runtime.threads import in_threads

SqrtDegrees = NDArray[np.float32] | None
"""Of a symmetric graph sqrt(degree): the state that is iterated is S in these units, so that its product is W's as well."""

_BLOCK_ROWS = 1 << 14


class State(Protocol):
    """Some columns of S, in units of sqrt_degrees."""

    @property
    def width(self) -> int: ...

    def look(self, neighbors: NDArray[np.uint32], sqrt_degrees: SqrtDegrees) -> NDArray[np.float32]:
        """V S for test points with these neighbours."""

    def block(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows start..stop-1, in units of sqrt_degrees."""


@dataclass(frozen=True)
class Matrix:
    """All rows, float32 or the bits of bfloat16."""

    values: NDArray[Any]

    @property
    def width(self) -> int:
        return int(self.values.shape[1])

    def look(self, neighbors: NDArray[np.uint32], sqrt_degrees: SqrtDegrees) -> NDArray[np.float32]:
        places = np.where(neighbors == NONE, np.int64(-1), neighbors.astype(np.int64))
        return _looked(self.values, places, _of(sqrt_degrees, neighbors))

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
    """The rows that test points look at, and no others; float32 or the bits of bfloat16."""

    rows: NDArray[np.uint32]
    values: NDArray[Any]

    @property
    def width(self) -> int:
        return int(self.values.shape[1])

    def look(self, neighbors: NDArray[np.uint32], sqrt_degrees: SqrtDegrees) -> NDArray[np.float32]:
        places = np.searchsorted(self.rows, neighbors).astype(np.int64)
        places[neighbors == NONE] = -1
        return _looked(self.values, places, _of(sqrt_degrees, neighbors))

    def block(self, start: int, stop: int) -> NDArray[np.float32]:
        raise RuntimeError(f"rows {start} to {stop - 1} were not computed")


@dataclass(frozen=True)
class Frontier:
    """The entries that are not zero: row i has those from offsets[i] to offsets[i+1] - 1."""

    offsets: NDArray[np.int64]
    columns: NDArray[np.int32]
    values: NDArray[np.float32]
    width: int

    @property
    def rows(self) -> NDArray[np.int64]:
        """The rows that have an entry."""
        return np.flatnonzero(self.offsets[1:] != self.offsets[:-1])

    @cached_property
    def present(self) -> NDArray[np.uint8]:
        """A bit for each row, set where it has an entry: few enough to stay in the cache while kernels look around."""
        return np.packbits(self.offsets[1:] != self.offsets[:-1], bitorder="little")

    def look(self, neighbors: NDArray[np.uint32], sqrt_degrees: SqrtDegrees) -> NDArray[np.float32]:
        out = np.zeros((len(neighbors), self.width), np.float32)
        _look_sparsely(self.offsets, self.columns, self.values, neighbors, _of(sqrt_degrees, neighbors), out)
        return out

    def block(self, start: int, stop: int) -> NDArray[np.float32]:
        out = np.zeros((stop - start, self.width), np.float32)
        first, last = self.offsets[start], self.offsets[stop]
        rows = np.repeat(np.arange(stop - start), np.diff(self.offsets[start : stop + 1]))
        out[rows, self.columns[first:last]] = self.values[first:last]
        return out


def sqrt_degrees_of(scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """sqrt(degree); a node without edges neither gives nor takes, so that any value would do for it."""
    with np.errstate(divide="ignore"):
        return np.where(scale > 0, 1 / np.sqrt(scale.astype(np.float64)), 1).astype(np.float32)


def _of(sqrt_degrees: SqrtDegrees, neighbors: NDArray[np.uint32]) -> NDArray[np.float32] | None:
    return None if sqrt_degrees is None else sqrt_degrees[np.where(neighbors == NONE, 0, neighbors)]


def _looked(values: NDArray[Any], places: NDArray[np.int64], sqrt_degrees: NDArray[np.float32] | None) -> NDArray[np.float32]:
    out = np.zeros((len(places), values.shape[1]), np.float32)
    _look(values, places, sqrt_degrees, out)
    return out


@exact_kernel
def _look(
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
def _look_sparsely(
    offsets: NDArray[np.int64],
    columns: NDArray[np.int32],
    values: NDArray[np.float32],
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
            for entry in range(offsets[node], offsets[node + 1]):
                out[i, columns[entry]] += sqrt_degree * values[entry]


@kernel
def _sums(values: NDArray[Any], sqrt_degrees: NDArray[np.float32] | None, start: int, stop: int) -> NDArray[np.float64]:
    total = np.zeros(values.shape[1], np.float64)
    for i in range(start, stop):
        sqrt_degree = np.float64(1) if sqrt_degrees is None else np.float64(sqrt_degrees[i])
        for c in range(values.shape[1]):
            total[c] += sqrt_degree * widen(values[i, c])
    return total

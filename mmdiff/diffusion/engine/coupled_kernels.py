"""Kernels of coupled operators (paper, section 3.4): passes over S, which is computed from a product row by row as it is read.

Sums are rounded in the order of the columns, so that no result depends on how the columns are batched.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmdiff.kernels.floats import keep
from mmdiff.kernels.jit import exact_kernel


class Applied(NamedTuple):
    """A batch of S = (rows * P * columns)^gamma * after, with the rows of `seeds` reset to Y.

    P is `product` times `sqrt_degrees`. An empty `rows` or `sqrt_degrees` stands for ones, an empty `product` for zeros.
    """

    product: NDArray[np.float32]
    sqrt_degrees: NDArray[np.float32]
    rows: NDArray[np.float32]
    columns: NDArray[np.float32]
    gamma: float
    after: NDArray[np.float32]
    seeds: NDArray[np.int64]
    offsets: NDArray[np.int64]
    labels: NDArray[np.int32]


@exact_kernel
def _fill(s: Any, i: int, seed: int, row: NDArray[np.float32]) -> int:
    """Writes row i of S to `row`; returns the place of the first seed that is not before it."""
    while seed < len(s.seeds) and s.seeds[seed] < i:
        seed += 1
    if seed < len(s.seeds) and s.seeds[seed] == i:
        row[:] = 0
        for entry in range(s.offsets[seed], s.offsets[seed + 1]):
            row[s.labels[entry]] = 1
    elif len(s.product) == 0:
        row[:] = 0
    else:
        factor = s.rows[i] if len(s.rows) else np.float32(1)
        sqrt_degree = s.sqrt_degrees[i] if len(s.sqrt_degrees) else np.float32(1)
        product = s.product[i]
        for c in range(len(row)):
            row[c] = product[c] * sqrt_degree * factor * s.columns[c]
        if s.gamma != 1:
            for c in range(len(row)):
                raised = np.float32(row[c] ** s.gamma) if row[c] > 0 else np.float32(0)
                row[c] = raised * s.after[c]
    return seed


@exact_kernel
def add_row_sums(s: Applied, start: int, stop: int, factors: NDArray[np.float32], sums: NDArray[np.float64]) -> None:
    """Adds the sums of rows start..stop-1, each column times its factor."""
    row = np.empty(len(s.columns), np.float32)
    seed = int(np.searchsorted(s.seeds, start))
    for i in range(start, stop):
        seed = _fill(s, i, seed, row)
        total = sums[i - start]
        for c in range(len(row)):
            total += row[c] * factors[c]
        sums[i - start] = total


@exact_kernel
def column_sums(s: Applied, start: int, stop: int, factors: NDArray[np.float32]) -> NDArray[np.float64]:
    """The sums of the columns over rows start..stop-1, each row times its factor; without factors, as they are."""
    row, sums = np.empty(len(s.columns), np.float32), np.zeros(len(s.columns), np.float64)
    seed = int(np.searchsorted(s.seeds, start))
    for i in range(start, stop):
        seed = _fill(s, i, seed, row)
        factor = factors[i] if len(factors) else np.float32(1)
        for c in range(len(row)):
            sums[c] += row[c] * factor
    return sums


@exact_kernel
def store(s: Applied, start: int, stop: int, out: NDArray[Any], sums: NDArray[np.float64]) -> int:
    """Stores rows start..stop-1 in sqrt-degree units, adds them to the column sums, and returns their nonzero entries."""
    row = np.empty(len(s.columns), np.float32)
    seed, nonzero = int(np.searchsorted(s.seeds, start)), 0
    for i in range(start, stop):
        seed = _fill(s, i, seed, row)
        sqrt_degree = s.sqrt_degrees[i] if len(s.sqrt_degrees) else np.float32(1)
        count = np.int32(0)
        for c in range(len(row)):
            sums[c] += row[c]
            count += np.int32(row[c] != 0)
            keep(out, (i, c), row[c] / sqrt_degree)
        nonzero += int(count)
    return nonzero

"""Gamma: entries to a power, then columns normalised (paper, section 3.4, "non-linear updates")."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.engine.states import Matrix, SqrtDegrees
from mmdiff.kernels.floats import keep, widen
from mmdiff.kernels.jit import kernel
from mmdiff.runtime.threads import in_threads

_BLOCK_ROWS = 1 << 14


def raise_power(state: Matrix, power: float, sqrt_degrees: SqrtDegrees) -> None:
    """Replaces S by Gamma(S). Each column is first divided by its largest entry, so that powers stay within float32."""
    values = state.values
    blocks = [(start, min(start + _BLOCK_ROWS, len(values))) for start in range(0, len(values), _BLOCK_ROWS)]
    largest = np.zeros(state.width, np.float32)
    for part in in_threads(lambda block: _largest(values, sqrt_degrees, *block), blocks):
        np.maximum(largest, part, out=largest)
    inverse = np.divide(1, largest, out=np.ones_like(largest), where=largest > np.finfo(np.float32).tiny)
    sums = np.zeros(state.width)
    for total in in_threads(lambda block: _raise(values, sqrt_degrees, inverse, power, *block), blocks):
        sums += total
    factors = np.divide(1, sums, out=np.ones_like(sums), where=sums > 0).astype(np.float32)
    for _ in in_threads(lambda block: _scale(values, factors, *block), blocks):
        pass


@kernel
def _largest(values: NDArray[Any], sqrt_degrees: NDArray[np.float32] | None, start: int, stop: int) -> NDArray[np.float32]:
    largest = np.zeros(values.shape[1], np.float32)
    for i in range(start, stop):
        sqrt_degree = np.float32(1) if sqrt_degrees is None else sqrt_degrees[i]
        for c in range(values.shape[1]):
            largest[c] = max(largest[c], sqrt_degree * widen(values[i, c]))
    return largest


@kernel
def _raise(
    values: NDArray[Any],
    sqrt_degrees: NDArray[np.float32] | None,
    inverse: NDArray[np.float32],
    power: float,
    start: int,
    stop: int,
) -> NDArray[np.float64]:
    sums = np.zeros(values.shape[1], np.float64)
    for i in range(start, stop):
        sqrt_degree = np.float32(1) if sqrt_degrees is None else sqrt_degrees[i]
        for c in range(values.shape[1]):
            value = sqrt_degree * inverse[c] * widen(values[i, c])
            raised = np.float32(value**power) if value > 0 else np.float32(0)
            sums[c] += raised
            keep(values, (i, c), raised / sqrt_degree)
    return sums


@kernel
def _scale(values: NDArray[Any], factors: NDArray[np.float32], start: int, stop: int) -> None:
    for i in range(start, stop):
        for c in range(values.shape[1]):
            keep(values, (i, c), factors[c] * widen(values[i, c]))

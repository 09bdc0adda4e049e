"""Kernels as plain Python, for coverage: NUMBA_DISABLE_JIT=1 interprets them, and this module stands in for raw LLVM.

Each function here says in Python what the LLVM instructions of the same name do (`mmdiff/kernels/llvm.py`, `register_sums.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.kernels import floats, llvm, register_sums


def install() -> None:
    """Replaces the instructions. It must run before the modules that import them are imported."""
    for columns in (16, 8, 4, 2, 1):
        setattr(register_sums, f"sum_of_{columns}", sum_up_to(columns))
    for columns in (96, 64, 32, 16, 8, 4):
        setattr(register_sums, f"sum_up_to_{columns}", sum_up_to(columns))
    register_sums.sum_up_to_most = sum_up_to(register_sums.MOST_COLUMNS)
    _replace(llvm, prefetch, count_smaller)
    llvm.prefetch_to_read = prefetch
    _replace(floats, half_to_float, widen, keep)
    _replace(register_sums, fused)
    # These import the functions above.
    from mmdiff.diffusion.io import prefetch as pages
    from mmdiff.graph import union

    _replace(pages, _madvise)
    _replace(union, weight_at, set_weight)
    from mmdiff.knn.search import flat

    _replace(flat, matrix_of)


def _replace(module: ModuleType, *functions: Callable[..., Any]) -> None:
    for function in functions:
        setattr(module, function.__name__, function)


def _madvise(*_: Any) -> int:
    """Does nothing: advice on pages changes no value."""
    return 0


def weight_at(weights: NDArray[np.float32] | None, at: Any) -> np.float32:
    return np.float32(0 if weights is None else weights[at])


def set_weight(weights: NDArray[np.float32] | None, at: Any, weight: Any) -> None:
    if weights is not None:
        weights[at] = weight


def matrix_of(vectors: NDArray[Any], start: int, stop: int, room: NDArray[np.float32]) -> NDArray[np.float32]:
    del room
    rows = vectors[start:stop]
    return rows.view(np.float16).astype(np.float32) if rows.dtype == np.uint16 else rows


def prefetch(array: NDArray[Any], index: Any) -> None:
    """Does nothing: a prefetch changes no value."""
    del array, index


def count_smaller(entries: NDArray[np.uint32], count: int, at: int, places: NDArray[np.uint32]) -> None:
    for place in range(at, at + llvm.LANES):
        places[place] = np.count_nonzero(entries[:count].view(np.int32) < entries[place : place + 1].view(np.int32))


def half_to_float(value: Any) -> np.float32:
    return np.float32(value.view(np.float16) if isinstance(value, np.uint16) else value)


def widen(value: Any) -> np.float32:
    return floats.bfloat16_decode(np.array([value]))[0] if isinstance(value, np.uint16) else np.float32(value)


def keep(array: NDArray[Any], place: Any, value: Any) -> None:
    single = np.array([value], np.float32)
    array[place] = floats.bfloat16_encode(single)[0] if array.dtype == np.uint16 else single[0]


def fused(factor: Any, value: Any, total: Any) -> np.float32:
    return np.float32(np.float64(factor) * np.float64(value) + np.float64(total))


def sum_up_to(most: int) -> Callable[..., None]:
    def sum_rows(
        rows: register_sums.UnpackedRows, row: int, source: NDArray[Any], width: int, column: int, sums: NDArray[np.float32]
    ) -> None:
        count = min(most, width - column)
        chosen: Any = range(row, row + 1 + (most <= register_sums.PAIRED_COLUMNS))
        if most <= register_sums.GROUPED_COLUMNS:
            chosen = rows.order[row : row + register_sums.GROUP].tolist()
        for own in chosen:
            total = np.zeros(count, np.float32)
            for edge in range(rows.starts[own], rows.starts[own + 1]):
                first = int(rows.nodes[edge]) * width + column
                total = fused_rows(rows.weights[edge], floats.bfloat16_decode(source[first : first + count]), total)
            sums[own * width + column : own * width + column + count] = total * rows.factors[own]

    return sum_rows


def fused_rows(weight: np.float32, row: NDArray[np.float32], sums: NDArray[np.float32]) -> NDArray[np.float32]:
    return (np.float64(weight) * row.astype(np.float64) + sums.astype(np.float64)).astype(np.float32)

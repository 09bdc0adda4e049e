"""What is done to every row on its way in: it is examined, and scaled to unit length (paper, section 4.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadRow
from mmdiff.jit import kernel

GOOD, NOT_FINITE, ALL_ZERO = 0, 1, 2


@kernel
def examine(rows: NDArray[np.float32], normalize: bool) -> NDArray[np.uint8]:
    """Says for each row whether it is GOOD, NOT_FINITE or ALL_ZERO; scales the good ones to unit length when asked to.

    The squared norm is NaN or Inf exactly when a value is: in float64 the squares of float32 do not overflow.
    """
    condition = np.empty(len(rows), np.uint8)
    for i in range(len(rows)):
        row = rows[i]
        squares = 0.0
        for j in range(len(row)):
            squares += np.float64(row[j]) * np.float64(row[j])
        if not np.isfinite(squares):
            condition[i] = NOT_FINITE
        elif squares == 0.0:
            condition[i] = ALL_ZERO
        else:
            condition[i] = GOOD
            if normalize:
                scale = 1.0 / np.sqrt(squares)
                for j in range(len(row)):
                    row[j] = np.float32(row[j] * scale)
    return condition


def as_float32(rows: NDArray[Any]) -> NDArray[np.float32]:
    """The rows in the precision of all arithmetic; what is too large for it becomes Inf, and is found as such."""
    with np.errstate(over="ignore"):
        return rows.astype(np.float32, copy=False)


def refuse_bad(rows: NDArray[Any], condition: NDArray[np.uint8], where: Callable[[int], str]) -> None:
    """Raises BadRow for the first row that is not GOOD; `where` tells the user where a row is."""
    if condition.any():
        row = int((condition != GOOD).argmax())
        raise BadRow(
            f"{where(row)}: {_in_words(rows[row], int(condition[row]))}. Fix the row, or skip such rows with --on-bad drop."
        )


def _in_words(row: NDArray[Any], condition: int) -> str:
    if condition == ALL_ZERO:
        return f"all {len(row)} values are zero"
    values = as_float32(row)
    nan, inf = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    return " and ".join(f"{name} in {count} of {len(row)} values" for name, count in (("NaN", nan), ("Inf", inf)) if count)

"""Integers among labels and ids: which values become int64, the same for all formats.

Text becomes an integer only if Python would write the integer the same way, so that nothing is lost: `007` and `+7` stay
strings, and so do numbers of more than 18 digits, which may not fit in 64 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadLabels
from mmdiff.formats.storage.strings import Strings

MAX_DIGITS = 18

BLOCK = 1 << 20

ZERO, NINE, MINUS = b"09-"

# Larger whole numbers are not all representable as float64, so the original value is unknown.
MAX_EXACT = 2.0**53


def integers_or_strings(texts: Strings) -> NDArray[np.int64] | Strings:
    """Integers if every nonempty text is one (empty is -1), else the texts unchanged."""
    # In blocks: a column of strings may have gigabytes, and its first block usually decides.
    blocks = (texts.utf8[start : start + BLOCK] for start in range(0, len(texts.utf8), BLOCK))
    if not all(np.all(_is_digit(block) | (block == MINUS)) for block in blocks):
        return texts
    given = np.flatnonzero(np.diff(texts.offsets))
    starts, ends = texts.offsets[given], texts.offsets[given + 1]
    negative = texts.utf8[starts] == MINUS
    starts = starts + negative
    digits = ends - starts
    if np.count_nonzero(texts.utf8 == MINUS) != np.count_nonzero(negative) or np.any((digits < 1) | (digits > MAX_DIGITS)):
        return texts
    if np.any((texts.utf8[starts] == ZERO) & ((digits > 1) | negative)):
        return texts
    numbers = np.zeros(len(given), np.int64)
    for position in range(int(digits.max(initial=0))):
        longer = np.flatnonzero(digits > position)
        numbers[longer] = 10 * numbers[longer] + (texts.utf8[starts[longer] + position] - ZERO)
    values = np.full(len(texts), -1, np.int64)
    values[given] = np.where(negative, -numbers, numbers)
    return values


def _is_digit(utf8: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return (utf8 >= ZERO) & (utf8 <= NINE)


def int64_or_strings(values: NDArray[np.integer[Any]]) -> NDArray[np.int64] | Strings:
    """Integers of any width. A column with values beyond int64, such as unsigned hashes, becomes strings."""
    if values.dtype == np.uint64 and values.max(initial=0) > np.iinfo(np.int64).max:
        return Strings.of(map(str, values.tolist()))
    return values.astype(np.int64, copy=False)


def whole_numbers(values: NDArray[np.floating[Any]], name: str) -> NDArray[np.int64]:
    """Floats that are whole numbers, with NaN for none, as pandas writes an integer column with gaps."""
    missing = np.isnan(values)
    wrong = np.flatnonzero(~missing & ((values != np.floor(values)) | (np.abs(values) >= MAX_EXACT)))
    if len(wrong):
        row = int(wrong[0])
        raise BadLabels(
            f"{name}, value {row}: found {values[row]}, expected a whole number (or NaN for none). "
            "Save labels and ids as integers or strings."
        )
    return np.where(missing, -1, values).astype(np.int64)

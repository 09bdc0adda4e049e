"""Labels or ids in memory, as the column that a file of the same values gives.

Integers, bools (0 and 1) and whole floats become integers; NaN, None and "" stand for "none". Strings become integers where all
of them are, as in text files. A 2-D array, or a list of lists, has several values per row. pandas columns are read through
numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadLabels, UnreadableSource
from mmdiff.formats.sources.base import Column
from mmdiff.formats.sources.columns.integers import int64_or_strings, integers_or_strings, whole_numbers
from mmdiff.formats.sources.columns.npy import fixed_width_strings
from mmdiff.formats.storage.strings import Strings

_LISTS = (list, tuple, np.ndarray)
# Longer numbers cannot be written as text within Python's limit, and identify nothing.
_MOST_BITS = 1024
# The missing values of pandas, which is not imported here.
_MISSING_TYPES = ("NAType", "NaTType")


def column_of(values: Any, what: str) -> Column:
    """The column of an array-like; `what` names it in messages ("labels")."""
    # numpy would turn a list of names and numbers into names.
    array = np.array(values, object) if isinstance(values, list | tuple) else np.asarray(values)
    if array.dtype.kind == "T":
        array = array.astype(object)
    if array.ndim not in (1, 2):
        raise UnreadableSource(
            f"{what}: has {array.ndim} dimensions (shape {array.shape}), expected 1, or 2 for several labels per row. "
            "Give one row per embedding."
        )
    if not len(array):
        raise UnreadableSource(f"{what}: holds no rows. Give one value for each embedding.")
    if array.dtype.kind == "O" and array.ndim == 1 and any(isinstance(row, _LISTS) for row in array):
        return _of_lists(array.tolist(), what)
    per_row = (*array.shape, 1)[1]
    if not per_row:
        return Column(np.full(len(array), -1, np.int64))
    return Column(_values(array.reshape(-1), what, np.arange(array.size) // per_row), per_row)


def _of_lists(rows: Sequence[Any], what: str) -> Column:
    """Rows of several values, of different numbers perhaps; None is a row without any."""
    for number, row in enumerate(rows):
        if not isinstance(row, _LISTS) and not _is_missing(row):
            raise BadLabels(f"{what}, row {number}: found {row!r}, expected a list as in other rows. Give a list for each row.")
    lists = [list(row) if isinstance(row, _LISTS) else [] for row in rows]
    lengths = np.array([len(row) for row in lists])
    flat = np.empty(int(lengths.sum()), object)
    flat[:] = [value for row in lists for value in row]
    return Column.of_lists(_values(flat, what, np.repeat(np.arange(len(lists)), lengths)), lengths, what)


def _values(flat: NDArray[Any], what: str, row_of: NDArray[np.int64]) -> NDArray[np.int64] | Strings:
    """The values of a flat array, of which entry i belongs to row `row_of[i]`."""
    match flat.dtype.kind:
        case "b":
            return flat.astype(np.int64)
        case "i" | "u":
            return int64_or_strings(flat)
        case "f":
            return whole_numbers(flat, what)
        case "S" | "U":
            native = flat.astype(flat.dtype.newbyteorder("="), copy=False)
            texts = fixed_width_strings(lambda start, stop: native[start:stop], native.shape, native.dtype, what)
            return integers_or_strings(texts)
        case "O":
            return _objects(flat.tolist(), what, row_of)
    raise UnreadableSource(f"{what}: holds values of type {flat.dtype}, expected integers or strings. Convert them.")


def _objects(values: Sequence[Any], what: str, row_of: NDArray[np.int64]) -> NDArray[np.int64] | Strings:
    given = [(at, value) for at, value in enumerate(values) if not _is_missing(value)]
    for at, value in given:
        if not isinstance(value, str | int | float | np.integer | np.floating | np.bool_):
            raise BadLabels(f"{what}, row {row_of[at]}: found {value!r}, expected an integer or a string. Convert it.")
    texts = [value for _, value in given if isinstance(value, str)]
    if texts and len(texts) < len(given):
        first = isinstance(given[0][1], str)
        at, value = next((at, value) for at, value in given if isinstance(value, str) != first)
        raise BadLabels(
            f"{what}, row {row_of[at]}: found {value!r} among {'names' if first else 'numbers'}. Give all values as numbers or "
            "all as names, and None where there is none."
        )
    if texts:
        filled = [""] * len(values)
        for at, value in given:
            filled[at] = value
        try:
            return integers_or_strings(Strings.of(filled))
        except UnicodeEncodeError as error:
            raise UnreadableSource(f"{what}: {error.object!r} is not valid Unicode. Correct the text.") from error
    return _numbers(given, len(values), what, row_of)


def _numbers(given: Sequence[tuple[int, Any]], count: int, what: str, row_of: NDArray[np.int64]) -> NDArray[np.int64] | Strings:
    """Integers; strings where one of them does not fit in 64 bits, as in files."""
    whole: dict[int, int] = {}
    for at, value in given:
        if isinstance(value, float | np.floating):
            whole_numbers(np.array([value]), f"{what}, row {row_of[at]}")
        whole[at] = int(value)
        if whole[at].bit_length() > _MOST_BITS:
            raise BadLabels(
                f"{what}, row {row_of[at]}: a number of {whole[at].bit_length():,} bits, expected at most {_MOST_BITS}. Use "
                "smaller numbers, or names."
            )
    if all(-(1 << 63) <= value < 1 << 63 for value in whole.values()):
        numbers = np.full(count, -1, np.int64)
        numbers[list(whole)] = list(whole.values())
        return numbers
    return Strings.of(str(whole[at]) if at in whole else "" for at in range(count))


def _is_missing(value: Any) -> bool:
    if value is None or (isinstance(value, str) and value == ""):
        return True
    if isinstance(value, float | np.floating):
        return bool(np.isnan(value))
    return type(value).__name__ in _MISSING_TYPES

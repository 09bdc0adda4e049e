"""Rows of any magnitude are checked and normalised like the naive twin does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from mmdiff.formats.errors import BadRow
from mmdiff.importing.rows import GOOD, as_float32, examine, refuse_bad
from tests.support.naive import naive_examine, naive_unit_rows

shapes = st.tuples(st.integers(1, 6), st.integers(1, 70))
values = st.one_of(
    st.floats(width=32),
    st.sampled_from([0.0, -0.0, 1e-30, -1e30, 1e-45, 3e38, float("nan"), float("inf"), float("-inf")]),
)
matrices = hnp.arrays(np.float32, shapes, elements=values, fill=st.just(0.0))


@given(rows=matrices)
@example(rows=np.full((1, 1), 1e-45, np.float32))
@example(rows=np.full((2, 2048), 3e38, np.float32))
@example(rows=np.zeros((0, 3), np.float32))
def test_condition_of_each_row_is_that_of_the_naive_twin(rows: NDArray[np.float32]) -> None:
    before = rows.copy()
    assert examine(rows, False).tolist() == naive_examine(rows)
    np.testing.assert_array_equal(rows, before)


@given(rows=matrices)
@example(rows=np.full((1, 1), 1e-45, np.float32))
@example(rows=np.full((2, 2048), -3e38, np.float32))
@example(rows=np.array([[1e-30, 1e30]], np.float32))
def test_good_rows_get_unit_length_and_others_are_left_alone(rows: NDArray[np.float32]) -> None:
    scaled = rows.copy()
    good = examine(scaled, True) == GOOD
    np.testing.assert_array_equal(scaled[~good], rows[~good])
    if good.any():
        np.testing.assert_allclose(scaled[good], naive_unit_rows(rows[good]), rtol=1e-6, atol=1e-44)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "int8"])
def test_rows_of_any_dtype_are_taken_to_float32(dtype: str) -> None:
    rows = np.array([[1, 2], [3, 4]], dtype)
    assert as_float32(rows).dtype == np.float32
    np.testing.assert_array_equal(as_float32(rows), [[1, 2], [3, 4]])


def test_what_is_too_large_for_float32_counts_as_not_finite() -> None:
    rows = as_float32(np.array([[1e300, 1.0], [1.0, 1.0]]))
    assert examine(rows, False).tolist() == naive_examine(rows)
    assert examine(rows, False)[0] != GOOD


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([np.nan, 1, np.nan], "NaN in 2 of 3 values"),
        ([np.inf, 1, -np.inf], "Inf in 2 of 3 values"),
        ([np.nan, 1, np.inf], "NaN in 1 of 3 values and Inf in 1 of 3 values"),
        ([1e300, 1, 1], "Inf in 1 of 3 values"),
        ([0, 0, 0], "all 3 values are zero"),
    ],
)
def test_refusal_names_the_first_bad_row_and_what_is_wrong_with_it(row: list[float], words: str) -> None:
    rows: NDArray[Any] = np.array([[1, 2, 3], row, [np.nan] * 3])
    with pytest.raises(BadRow, match=rf"^x\.npy, row 1: {words}\. Fix the row, or skip such rows with on_bad='drop'\.$"):
        refuse_bad(rows, examine(as_float32(rows), False), lambda number: f"x.npy, row {number}")

"""The PCA equals the textbook one at any magnitude of the rows, and is the same each time it is trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mmdiff.formats.errors import BadOption, BadRow
from mmdiff.formats.sources.base import Column
from mmdiff.importing import space as pca
from mmdiff.importing.rows import Kept, drop_bad_rows
from mmdiff.importing.space import Reduction, Space, train
from mmdiff.runtime.progress import silent
from tests.support.naive import naive_examine, naive_pca, naive_unit_rows


@dataclass(frozen=True)
class Rows:
    """A source in memory."""

    values: NDArray[Any]
    most: int | None = None
    name: str = "x.npy"
    files: tuple[Path, ...] = ()

    @property
    def rows(self) -> int:
        return len(self.values)

    @property
    def width(self) -> int:
        return int(self.values.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    def read(self, start: int, stop: int) -> NDArray[Any]:
        assert self.most is None or stop - start <= self.most, f"{stop - start} rows read at once"
        return self.values[start:stop].copy()

    def locate(self, row: int) -> str:
        return f"x.npy, row {row}"

    def ids(self) -> Column | None:
        return None


def spread(rows: int, width: int, seed: int, magnitude: float = 1.0, shift: float = 0.0) -> NDArray[np.float32]:
    """Rows with well separated principal directions that are not the axes."""
    draw = np.random.default_rng(seed)
    turned, _ = np.linalg.qr(draw.standard_normal((width, width)))
    values = draw.standard_normal((rows, width)) * 0.7 ** np.arange(width) @ turned
    return np.asarray((values + shift) * magnitude, np.float32)


def trained(values: NDArray[Any], dims: int) -> Reduction:
    return train(Rows(values), dims, silent)


@settings(max_examples=22)
@given(
    rows=st.integers(30, 300),
    width=st.integers(1, 12),
    seed=st.integers(0, 1000),
    magnitude=st.sampled_from([1e-30, 1e-3, 1.0, 1e6, 1e30]),
    shift=st.sampled_from([0.0, 30.0]),
    data=st.data(),
)
def test_reduction_is_the_singular_value_decomposition_up_to_sign(
    rows: int, width: int, seed: int, magnitude: float, shift: float, data: st.DataObject
) -> None:
    dims = data.draw(st.integers(1, width))
    values = spread(rows, width, seed, magnitude, shift)
    found = trained(values, dims)
    mean, directions, shares = naive_pca(values)
    assert found.components.shape == (dims, width)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-4, atol=1e-4 * magnitude)
    np.testing.assert_allclose(found.explained_variance, shares[:dims], rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(found.components @ found.components.T, np.eye(dims), atol=1e-5)
    overlaps = np.abs((found.components * directions[:dims]).sum(axis=1))
    gaps = shares[:dims] - np.append(shares[1:], 0)[:dims]
    clear = (gaps > 0.02 * shares[:dims]) & np.append(True, gaps[:-1] > 0.02 * shares[1:dims])
    np.testing.assert_allclose(overlaps[clear], 1, atol=1e-3)
    projected = found.apply(values)
    assert projected.dtype == np.float32
    expected = (values.astype(np.float64) - mean) @ found.components.T.astype(np.float64)
    np.testing.assert_allclose(projected, expected, rtol=1e-3, atol=2e-4 * magnitude)


@pytest.mark.parametrize("dtype", ["float16", "float64", "uint8", "int8"])
def test_rows_of_any_dtype_are_reduced(dtype: str) -> None:
    values = (spread(200, 6, 1) * 20 + 60).clip(0, 120).astype(dtype)
    _, _, shares = naive_pca(values)
    np.testing.assert_allclose(trained(values, 3).explained_variance, shares[:3], rtol=1e-3)


def test_components_have_their_largest_entry_positive() -> None:
    components = trained(spread(300, 9, 5), 9).components
    largest = components[np.arange(9), np.abs(components).argmax(axis=1)]
    assert (largest > 0).all()


@pytest.mark.parametrize("rows", [200, 5000])
def test_training_twice_gives_the_same_bytes(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pca, "SAMPLE_ROWS", 1024)
    values = spread(rows, 16, 3)
    first, second = (trained(values, 8) for _ in range(2))
    for name, array in vars(first).items():
        assert array.tobytes() == vars(second)[name].tobytes()


def test_sample_of_a_large_source_has_bounded_size_and_sees_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pca, "SAMPLE_ROWS", 2048)
    values = spread(20_000, 5, 2)
    values[10_000:] += 50
    found = train(Rows(values, most=64), 2, silent)
    mean, directions, shares = naive_pca(values)
    assert abs(float(found.components[0] @ directions[0])) > 0.999
    np.testing.assert_allclose(found.explained_variance, shares[:2], rtol=0.05, atol=1e-3)
    np.testing.assert_allclose(found.mean, mean, atol=2)


def test_descriptors_far_from_zero_lose_no_digits() -> None:
    values = spread(2000, 6, 4)
    moved = values + np.float32(1000)
    np.testing.assert_allclose(trained(moved, 3).explained_variance, naive_pca(moved.astype(np.float64))[2][:3], rtol=1e-3)


@pytest.mark.parametrize("values", [np.ones((5, 3), np.float32), np.ones((3, 3), np.float32) * 1e30])
def test_rows_that_are_all_alike_have_no_variance_and_no_nan(values: NDArray[np.float32]) -> None:
    found = trained(values, 2)
    assert np.isfinite(found.components).all()
    assert (found.explained_variance == 0).all()
    with pytest.raises(BadRow, match="mean of all rows"):
        Space(3, 2, True, found).project(values, lambda row: f"row {row}")


def test_fewer_rows_than_dimensions_are_refused() -> None:
    with pytest.raises(BadOption, match="at most dims=4"):
        trained(np.eye(4, 9, dtype=np.float32), 5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_row_is_refused_by_its_place_in_the_source(bad: float) -> None:
    values = spread(100, 4, 0)
    values[71, 2] = bad
    with pytest.raises(BadRow, match="row 71"):
        trained(values, 2)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("dims", [3, 6])
def test_space_reduces_and_normalises_as_the_naive_twin_does(dims: int, normalize: bool) -> None:
    values = spread(200, 6, 8)
    space = Space.make(Rows(values), dims, normalize, silent)
    found = space.project(values.copy(), str)
    expected = values.astype(np.float64)
    if dims < 6:
        mean, directions, _ = naive_pca(values)
        expected = (expected - mean) @ directions[:dims].T
    if normalize:
        expected = naive_unit_rows(expected)
    np.testing.assert_allclose(found, expected, atol=2e-4)


@given(bad=st.sets(st.integers(0, 59)), cut=st.tuples(st.integers(0, 60), st.integers(0, 60)))
@example(bad=set(range(1, 59)), cut=(0, 2))
def test_dropping_bad_rows_leaves_the_good_ones_in_order(bad: set[int], cut: tuple[int, int]) -> None:
    values = spread(60, 3, 0)
    for row in bad:
        values[row] = 0 if row % 2 else np.nan
    source = Rows(values)
    if len(bad) == 60:
        with pytest.raises(BadRow, match="none of its 60 rows"):
            drop_bad_rows(source, silent)
        return
    kept = drop_bad_rows(source, silent)
    good = np.flatnonzero(np.array(naive_examine(values)) == 0)
    assert kept.rows == len(good)
    assert kept.dropped.tolist() == sorted(bad)
    assert sum(kept.reasons.values()) == len(bad)
    start, stop = min(cut), max(cut)
    np.testing.assert_array_equal(kept.read(start, min(stop, kept.rows)), values[good][start:stop])
    for row, number in enumerate(good):
        assert kept.locate(row) == f"x.npy, row {number}"


def test_gap_of_bad_rows_is_not_read_to_get_at_the_good_rows_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmdiff.importing.rows._BLOCK_BYTES", 100 * 12)
    values = np.zeros((100_000, 3), np.float32)
    good = np.array([0, 5, 250, 50_000, 50_001, 99_999])
    values[good] = np.arange(1, 19).reshape(6, 3)
    kept = Kept(Rows(values, most=100), good)
    np.testing.assert_array_equal(kept.read(0, 6), values[good])

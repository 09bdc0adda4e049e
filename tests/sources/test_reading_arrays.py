"""Arrays in memory give the same sources and columns as files of the same values."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mmdiff.formats.errors import BadLabels, InputError, UnreadableSource
from mmdiff.formats.sources.base import Column
from mmdiff.formats.sources.columns.in_memory import column_of
from mmdiff.formats.sources.columns.reading import read_column
from mmdiff.formats.sources.in_memory import ArraySource, source_of
from mmdiff.formats.sources.npy import NpySource
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store import fingerprint as fingerprints
from mmdiff.formats.store.fingerprint import fingerprint_of_array, state
from tests.sources.test_reading_columns import INTEGERS, WORDS, values
from tests.sources.test_reading_npy import DTYPES, matrix

OTHER_DTYPES = ("<i4", "<i8", "?", "<c8", "U3", "O", "<M8[s]")


def same(column: Column, expected: Column) -> None:
    assert column.per_row == expected.per_row
    assert type(column.values) is type(expected.values)
    assert values(column) == values(expected)
    if isinstance(column.values, np.ndarray):
        assert column.values.dtype == np.int64


# Embeddings.


@settings(deadline=None, max_examples=30)
@given(
    rows=st.integers(1, 40),
    width=st.integers(1, 20),
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(["C", "F", "strided", "reversed"]),
    data=st.data(),
)
def test_rows_of_an_array_are_those_of_its_file(
    tmp_path_factory: pytest.TempPathFactory, rows: int, width: int, dtype: str, layout: str, data: st.DataObject
) -> None:
    array = matrix(rows, width, dtype)
    path = tmp_path_factory.mktemp("array") / "x.npy"
    np.save(path, array)
    stored = {
        "C": array,
        "F": np.asfortranarray(array),
        "strided": np.repeat(array, 2, axis=0)[::2],
        "reversed": array[::-1].copy()[::-1],
    }[layout]
    source, file = ArraySource(stored), NpySource(path)
    assert (source.rows, source.width, source.dtype) == (file.rows, file.width, file.dtype)
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))
    read = source.read(start, stop)
    assert read.flags.c_contiguous
    assert read.flags.owndata
    assert read.dtype.isnative
    np.testing.assert_array_equal(read, file.read(start, stop))


def test_an_array_has_no_files_and_names_its_rows() -> None:
    source = ArraySource(matrix(20, 3))
    assert (source.name, source.files, source.ids()) == ("array", (), None)
    assert source.locate(17) == "row 17 of the array"
    with pytest.raises(IndexError):
        source.read(0, 21)


@pytest.mark.parametrize("dtype", OTHER_DTYPES)
def test_an_array_of_another_dtype_is_refused_as_in_files(dtype: str) -> None:
    with pytest.raises(UnreadableSource, match=r"array: holds values of type .*Convert it to float32"):
        ArraySource(np.zeros((3, 2)).astype(dtype))


@pytest.mark.parametrize("shape", [(), (4,), (2, 2, 2), (0, 3), (3, 0)])
def test_an_array_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UnreadableSource, match=r"array: (has . dimension|holds )"):
        ArraySource(np.zeros(shape, np.float32))


# Memory maps.


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", matrix(30, 30))
    return tmp_path / "x.npy"


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_the_map_of_a_whole_file_is_that_file(tmp_path: Path, mode: Any, order: Any) -> None:
    np.save(tmp_path / "x.npy", np.asarray(matrix(30, 20), order=order))
    for path in (tmp_path / "x.npy", str(tmp_path / "x.npy")):
        source = source_of(np.load(path, mmap_mode=mode))
        assert isinstance(source, NpySource)
        assert source.files == (tmp_path / "x.npy",)


@pytest.mark.parametrize(
    "part",
    [
        lambda x: x[:29],
        lambda x: x[1:],
        lambda x: x[::-1],
        lambda x: x.T,
        lambda x: x[:, ::-1],
        lambda x: x.copy(),
        lambda x: x * 1,
        lambda x: x.view(np.uint8),
        lambda x: x.view(np.ndarray),
    ],
)
def test_what_is_not_the_whole_map_is_an_array(saved: Path, part: Any) -> None:
    mapped = part(np.load(saved, mmap_mode="r"))
    source = source_of(mapped)
    assert isinstance(source, ArraySource)
    np.testing.assert_array_equal(source.read(0, source.rows), mapped)


def test_changes_to_a_copy_on_write_map_are_kept(saved: Path) -> None:
    mapped = np.load(saved, mmap_mode="c")
    mapped[3, 4] = -1
    assert source_of(mapped).read(3, 4)[0, 4] == -1


def test_the_map_of_a_file_that_is_gone_is_an_array(saved: Path) -> None:
    mapped = np.load(saved, mmap_mode="r")
    saved.unlink()
    np.testing.assert_array_equal(source_of(mapped).read(0, 30), matrix(30, 30))


def test_the_map_of_a_raw_file_is_an_array(tmp_path: Path) -> None:
    matrix(6, 4).tofile(tmp_path / "x.bin")
    source = source_of(np.memmap(tmp_path / "x.bin", np.float32, "r", shape=(6, 4)))
    assert isinstance(source, ArraySource)
    np.testing.assert_array_equal(source.read(0, 6), matrix(6, 4))


# Fingerprints.


def test_fingerprint_covers_every_byte_the_shape_and_the_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprints, "_BLOCK_BYTES", 64)
    array = matrix(50, 6)
    given = fingerprint_of_array("array", array)
    assert given.keys() == {"source", "bytes", "files", "digest"}
    assert (given["source"], given["bytes"], given["files"]) == ("array", array.nbytes, 0)
    changed = array.copy()
    changed[49, 5] += 1
    others = [changed, array.reshape(6, 50), array.view(np.int32), array[:49]]
    digests = {fingerprint_of_array("array", other)["digest"] for other in (array, *others)}
    assert len(digests) == 5


def test_fingerprint_does_not_depend_on_the_memory_layout(saved: Path) -> None:
    array = matrix(30, 30)
    expected = fingerprint_of_array("array", array)
    for other in (np.asfortranarray(array), array.astype(">f4"), array[::-1].copy()[::-1], np.load(saved, mmap_mode="r")):
        assert fingerprint_of_array("array", other) == expected


def test_several_arrays_have_one_fingerprint() -> None:
    texts, others = Strings.of(["a", "bc"]), Strings.of(["ab", "c"])
    prints = [fingerprint_of_array("labels", column.offsets, column.utf8) for column in (texts, others)]
    assert prints[0]["bytes"] == texts.offsets.nbytes + 3
    assert prints[0] != prints[1]
    with pytest.raises(TypeError):
        fingerprint_of_array("labels", np.array(["a", None], object))


def test_an_input_without_files_never_changes() -> None:
    assert state([]) == "same"


# Labels and ids.


class Series:
    """Stands for a pandas Series or Categorical: anything that numpy can convert."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.array, dtype, copy=copy)


class NAType:
    """Stands for pandas.NA, whose comparisons have no truth value."""

    def __eq__(self, other: object) -> bool:
        raise TypeError("boolean value of NA is ambiguous")

    __hash__ = object.__hash__


def saved_column(folder: Path, array: NDArray[Any]) -> Column:
    np.save(folder / "x.npy", array)
    return read_column(str(folder / "x.npy"))


texts = st.one_of(st.lists(INTEGERS | st.just(""), min_size=1), st.lists(WORDS, min_size=1))


@settings(deadline=None, max_examples=30)
@given(given_texts=texts)
def test_strings_give_the_column_of_a_text_file(tmp_path_factory: pytest.TempPathFactory, given_texts: list[str]) -> None:
    file = tmp_path_factory.mktemp("column") / "x.txt"
    file.write_text("".join(f"{text}\n" for text in given_texts))
    expected = read_column(str(file))
    with_none = [text or None for text in given_texts]
    with_nan = np.array([text or math.nan for text in given_texts], object)
    for each in (given_texts, tuple(given_texts), with_none, with_nan, np.array(given_texts), Series(with_nan)):
        same(column_of(each, "labels"), expected)
    same(column_of(np.array([text.encode() for text in given_texts]), "labels"), expected)
    same(column_of(np.array(given_texts, np.dtypes.StringDType()), "labels"), expected)


@settings(deadline=None, max_examples=30)
@given(
    numbers=st.lists(st.integers(-1000, 1000), min_size=1),
    dtype=st.sampled_from(["i2", ">i2", "i4", "i8", "f4", ">f8"]),
    per_row=st.integers(1, 3),
)
def test_numbers_give_the_column_of_a_npy_file(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int], dtype: str, per_row: int
) -> None:
    array = np.array(numbers * per_row, dtype)
    array = array if per_row == 1 else array.reshape(-1, per_row)
    expected = saved_column(tmp_path_factory.mktemp("column"), array)
    for each in (array, array.tolist(), array.astype(object), Series(array)):
        same(column_of(each, "labels"), expected)


@settings(deadline=None, max_examples=22)
@given(numbers=st.lists(st.none() | st.integers(0, 1000), min_size=1))
def test_none_and_nan_are_no_value(tmp_path_factory: pytest.TempPathFactory, numbers: list[int | None]) -> None:
    floats = np.array([math.nan if number is None else number for number in numbers])
    expected = saved_column(tmp_path_factory.mktemp("column"), floats)
    missing = [None, math.nan, np.float32(math.nan), "", NAType()]
    mixed = [missing[at % len(missing)] if number is None else number for at, number in enumerate(numbers)]
    for each in (floats, numbers, mixed, Series(np.array(mixed, object))):
        same(column_of(each, "labels"), expected)


@settings(deadline=None, max_examples=22)
@given(
    rows=st.one_of(
        st.lists(st.lists(st.integers(0, 99), max_size=4), min_size=1),
        st.lists(st.lists(st.sampled_from(["a", "ä", "10", "c d"]), max_size=4), min_size=1),
    )
)
def test_lists_of_different_lengths_are_padded(rows: list[list[Any]]) -> None:
    per_row = max(1, *(len(row) for row in rows), 1)
    column = column_of(rows, "labels")
    assert column.per_row == per_row
    none: Any = "" if isinstance(column.values, Strings) else -1
    strings = isinstance(column.values, Strings)
    padded = [[*(value if strings else int(value) for value in row), *[none] * (per_row - len(row))] for row in rows]
    assert values(column) == (padded if per_row > 1 else [row[0] for row in padded])
    of_tuples = np.empty(len(rows), object)
    of_tuples[:] = [tuple(row) or None for row in rows]
    if any(rows):
        same(column_of(of_tuples, "labels"), column)


def test_bools_are_zero_and_one() -> None:
    for each in ([True, False, None], [np.True_, np.False_, None]):
        assert values(column_of(each, "labels")) == [1, 0, -1]
    assert values(column_of(np.array([True, False]), "labels")) == [1, 0]


def test_integers_beyond_64_bits_are_kept_as_strings() -> None:
    expected = [str(2**64 - 1), "3"]
    assert values(column_of(np.array([2**64 - 1, 3], np.uint64), "ids")) == expected
    assert values(column_of([2**64 - 1, 3], "ids")) == expected
    assert values(column_of([2**64 - 1, None], "ids")) == [str(2**64 - 1), ""]


@pytest.mark.parametrize(
    ("given_values", "message"),
    [
        (["a", None, 3], r"labels, row 2: found 3 among names\. .*None where"),
        ([4, "", 3, "b"], r"labels, row 3: found 'b' among numbers"),
        ([["a"], ["b", 3]], r"labels, row 1: found 3 among names"),
        ([[1, 2], [3, "x"]], r"labels, row 1: found 'x' among numbers"),
        ([[1, 2], 3], r"labels, row 1: found 3, expected a list"),
        ([1.0, 2.5], r"labels, row 1, value 0: found 2\.5, expected a whole number"),
        (np.array([1.0, 2.5]), r"labels, value 1: found 2\.5, expected a whole number"),
        (np.array([math.inf]), r"labels, value 0: found inf, expected a whole number"),
        ([1, 2j], r"labels, row 1: found 2j, expected an integer or a string"),
        ([1, b"2"], r"labels, row 1: found b'2', expected an integer or a string"),
    ],
)
def test_values_that_contradict_each_other_are_refused_with_their_row(given_values: Any, message: str) -> None:
    with pytest.raises(BadLabels, match=message):
        column_of(given_values, "labels")


@pytest.mark.parametrize(
    ("given_values", "message"),
    [
        ([], "holds no rows"),
        (np.zeros((0, 2)), "holds no rows"),
        (5, r"has 0 dimensions"),
        ("cat", r"has 0 dimensions"),
        (np.zeros((2, 2, 2), int), r"has 3 dimensions \(shape \(2, 2, 2\)\)"),
        (np.zeros(2, "M8[s]"), "values of type datetime64"),
        (np.zeros(2, complex), "values of type complex128"),
        (["a", "\ud800"], "not valid Unicode"),
    ],
)
def test_what_is_no_column_is_refused(given_values: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"labels: .*{message}"):
        column_of(given_values, "labels")


def test_rows_without_any_value_are_unlabelled() -> None:
    empty: list[Any] = [[None, None], [math.nan, None], [[], []], np.zeros((2, 0)), ["", ""], [None, []]]
    for each in empty:
        assert values(column_of(each, "labels")) == [-1, -1]

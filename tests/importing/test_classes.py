"""Labels as indices into a table of classes, and back: numbers, names, several per row, none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mmdiff.formats.errors import BadLabels
from mmdiff.formats.sources.base import Column
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.publish import Publication
from mmdiff.labels.classes import UNLABELLED, Classes, encode
from tests.support.stores import recipe

per_row = st.integers(1, 3)
numbers = st.one_of(st.just(-1), st.integers(0, 6), st.integers(0, 2**62))
names = st.one_of(st.just(""), st.sampled_from(["a", "b", "é", "a b"]), st.text(st.characters(codec="utf-8"), max_size=3))


def rows_of(values: list[int], width: int) -> NDArray[np.int64]:
    return np.array(values[: len(values) // width * width], np.int64)


def decoded_numbers(indices: NDArray[np.int32], classes: Classes) -> list[int]:
    assert classes.numbers is not None
    return [-1 if index == UNLABELLED else int(classes.numbers[index]) for index in indices.reshape(-1)]


def decoded_names(indices: NDArray[np.int32], classes: Classes) -> list[str]:
    return ["" if index == UNLABELLED else classes.title(int(index)) for index in indices.reshape(-1)]


@given(values=st.lists(numbers, max_size=30), width=per_row)
def test_numbers_are_what_they_were_and_the_table_has_those_that_occur(values: list[int], width: int) -> None:
    column = Column(rows_of(values, width), width)
    indices, classes = encode(column, None, numbered=True, where="labels.npy")
    assert indices.dtype == np.int32
    assert indices.shape == ((len(column),) if width == 1 else (len(column), width))
    assert decoded_numbers(indices, classes) == column.values.tolist()  # type: ignore[union-attr]
    assert classes.numbers is not None
    assert classes.numbers.tolist() == sorted(set(rows_of(values, width).tolist()) - {-1})
    assert len(classes) == len(classes.numbers)


@given(values=st.lists(names, max_size=30), width=per_row, numbered=st.booleans())
def test_names_are_what_they_were_and_get_numbers_where_asked_for(values: list[str], width: int, numbered: bool) -> None:
    values = values[: len(values) // width * width]
    indices, classes = encode(Column(Strings.of(values), width), None, numbered, "labels.txt")
    assert decoded_names(indices, classes) == values
    assert classes.names == tuple(sorted(set(values) - {""}))
    assert (classes.numbers is None) != numbered
    assert classes.numbers is None or classes.numbers.tolist() == list(range(len(classes)))


def test_classes_with_only_names_are_numbered_from_0_and_others_keep_their_numbers() -> None:
    named = Classes(None, ("ant", "bee"))
    assert named.numbered().numbers.tolist() == [0, 1]  # type: ignore[union-attr]
    assert named.numbered().names == named.names
    both = Classes(np.array([4, 7]), ("ant", "bee"))
    assert both.numbered() is both


@given(values=st.lists(st.integers(-1, 4), max_size=20), by_name=st.booleans())
def test_class_names_fix_the_table_however_labels_are_given(values: list[int], by_name: bool) -> None:
    table = {number: f"class {number}" for number in (3, 0, 4, 1, 2)}
    column = Column(Strings.of(table.get(value, "") for value in values) if by_name else np.array(values, np.int64))
    indices, classes = encode(column, table, numbered=False, where="labels")
    assert decoded_numbers(indices, classes) == values
    assert decoded_names(indices, classes) == [table.get(value, "") for value in values]
    assert len(classes) == 5


@pytest.mark.parametrize(
    ("column", "table", "message"),
    [
        (Column(np.array([0, 1, -2])), None, "l.npy, row 2: label -2"),
        (Column(np.array([0, 1, -5, 2]), 2), None, "l.npy, row 1: label -5"),
        (Column(np.array([0, 1, 7])), {0: "a", 1: "b"}, "l.npy, row 2: class 7, which has no class name"),
        (Column(np.array([0])), {}, "l.npy, row 0: class 0"),
        (Column(Strings.of(["a", "", "x"])), {0: "a"}, "l.npy, row 2: class 'x' is not among the class names"),
        (Column(Strings.of(["a", "a", "", "x"]), 2), {0: "a"}, "l.npy, row 1: class 'x'"),
    ],
)
def test_label_that_cannot_be_is_refused_by_its_row(column: Column, table: Mapping[int, str] | None, message: str) -> None:
    with pytest.raises(BadLabels, match=message):
        encode(column, table, numbered=True, where="l.npy")


def test_rows_without_any_label_make_an_empty_table() -> None:
    for column in (Column(np.array([-1, -1])), Column(Strings.of(["", ""]))):
        indices, classes = encode(column, None, numbered=True, where="labels")
        assert indices.tolist() == [-1, -1]
        assert len(classes) == 0


def table(of_numbers: list[int] | None, of_names: list[str] | None) -> Classes:
    return Classes(
        None if of_numbers is None else np.array(of_numbers, np.int64), None if of_names is None else tuple(of_names)
    )


@pytest.mark.parametrize(
    ("here", "seeds", "columns"),
    [
        (table([1, 5, 9], None), table([5, 9, 10], None), [-1, 0, 1]),
        (table([1, 5], ["a", "b"]), table([5], None), [-1, 0]),
        (table([1, 5], None), table([5, 1], ["b", "a"]), [1, 0]),
        (table([1, 5], ["a", "b"]), table([5, 1], ["b", "a"]), [1, 0]),
        (table(None, ["x", "b", "a"]), table([0, 1], ["a", "b"]), [-1, 1, 0]),
        (table(None, []), table([0, 1], ["a", "b"]), []),
        (table([7], None), table([], None), [-1]),
    ],
)
def test_labels_are_brought_to_the_classes_of_the_seeds(here: Classes, seeds: Classes, columns: list[int]) -> None:
    assert here.columns_in(seeds).tolist() == columns


@pytest.mark.parametrize(
    ("here", "seeds", "message"),
    [
        (table([1], ["cat"]), table([1], ["dog"]), "class 'dog' of the seeds is called 'cat' here"),
        (table(None, ["cat"]), table([1], None), "classes of the seeds have numbers only"),
    ],
)
def test_tables_that_contradict_each_other_are_refused(here: Classes, seeds: Classes, message: str) -> None:
    with pytest.raises(BadLabels, match=message):
        here.columns_in(seeds)


@given(own=st.sets(st.integers(0, 20)), seeds=st.sets(st.integers(0, 20)))
def test_columns_lead_to_the_same_number(own: set[int], seeds: set[int]) -> None:
    here, there = table(sorted(own), None), table(sorted(seeds), None)
    for number, column in zip(sorted(own), here.columns_in(there), strict=True):
        assert (column == UNLABELLED) == (number not in seeds)
        assert column == UNLABELLED or sorted(seeds)[column] == number


@pytest.mark.parametrize("classes", [table([3, 1 << 40], None), table([0, 1], ["é", "b"]), table(None, ["x"]), table([], [])])
def test_table_is_read_from_an_artifact_as_it_was_written(quick_folder: Path, classes: Classes) -> None:
    with Publication(quick_folder / "store", ["models/x"], "a test") as publication:
        draft = publication.draft("models/x", recipe())
        classes.write(draft)
        found = Classes.of(publication.publish(draft, {}, {}))
        assert found.names == classes.names
        assert (found.numbers is None) == (classes.numbers is None)
        assert found.numbers is None or found.numbers.tolist() == classes.numbers.tolist()  # type: ignore[union-attr]
        assert [found.title(index) for index in range(len(found))] == [classes.title(index) for index in range(len(classes))]

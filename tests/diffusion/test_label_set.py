"""The labels of a store as one set: tables of classes joined, and labels of seeds and of the collection spread together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from numpy.typing import NDArray

import mmdiff
from mmdiff.formats.errors import BadLabels
from mmdiff.labels.classes import UNLABELLED, Classes

names = some.lists(some.sampled_from("abcdefgh"), unique=True)
numbers = some.lists(some.integers(0, 12), unique=True)


def numbered(values: list[int]) -> Classes:
    return Classes(np.array(values, np.int64), None)


@given(numbers, numbers)
def test_joined_tables_hold_every_number_once_and_the_first_ones_where_they_were(first: list[int], second: list[int]) -> None:
    joined, columns = numbered(first).extended_by(numbered(second))
    assert joined.numbers is not None
    assert joined.numbers[: len(first)].tolist() == first
    assert joined.numbers[columns].tolist() == second
    assert sorted(joined.numbers.tolist()) == sorted({*first, *second})


@given(names, names)
def test_joined_tables_hold_every_name_once_with_a_number_of_its_own(first: list[str], second: list[str]) -> None:
    joined, columns = Classes(None, tuple(first)).numbered().extended_by(Classes(None, tuple(second)))
    assert joined.names is not None
    assert joined.numbers is not None
    assert [joined.names[column] for column in columns.tolist()] == second
    assert joined.names[: len(first)] == tuple(first)
    assert sorted(joined.names) == sorted({*first, *second})
    assert joined.numbers.tolist() == list(range(len(joined)))


def test_a_class_without_a_name_is_called_by_its_number_among_classes_with_names() -> None:
    joined, _ = Classes(np.array([4, 7]), ("cat", "dog")).extended_by(numbered([7, 9]))
    assert joined.names == ("cat", "dog", "9")


def test_names_cannot_join_classes_that_have_only_numbers() -> None:
    with pytest.raises(BadLabels, match="names, but the classes of the seeds have numbers only"):
        numbered([1]).extended_by(Classes(None, ("cat",)))


ROWS, SEEDS, TESTS, DIMS = 200, 12, 30, 8


def rows(count: int, seed: int) -> NDArray[Any]:
    return np.random.default_rng(seed).normal(size=(count, DIMS)) + 4 * np.eye(DIMS)[np.arange(count) % 4]


def store_with(path: Path, collection: NDArray[np.int64] | None, seeds: NDArray[np.int64]) -> mmdiff.Store:
    store = mmdiff.open(path, create=True)
    store.add(rows(ROWS, 0), labels=collection)
    store.add(rows(SEEDS, 1), role="seeds", labels=seeds)
    store.add(rows(TESTS, 2), role="test")
    store.build_graph(k=6)
    return store


def test_labels_of_the_collection_and_of_the_seeds_spread_together(tmp_path: Path) -> None:
    collection = np.where(np.arange(ROWS) % 9, UNLABELLED, np.arange(ROWS) % 4 + 20)
    seeds = np.arange(SEEDS) % 4 + 18
    together = store_with(tmp_path / "together", collection, seeds)
    apart = store_with(tmp_path / "apart", None, seeds)
    np.save(tmp_path / "all.npy", np.concatenate([collection, seeds]))
    expected = apart.diffuse(iterations=3, labels=str(tmp_path / "all.npy"))
    found = together.diffuse(iterations=3)
    assert found.classes.tolist() == [18, 19, 20, 21, 22, 23]
    np.testing.assert_array_equal(found.scores, expected.scores)


def test_an_evaluation_knows_classes_that_only_the_collection_has_labels_of(tmp_path: Path) -> None:
    store = mmdiff.open(tmp_path / "store", create=True)
    store.add(rows(ROWS, 0), labels=np.where(np.arange(ROWS) % 4 == 3, 3, UNLABELLED))
    store.add(rows(9, 1), role="seeds", labels=np.arange(9) % 3)
    store.add(rows(TESTS, 2), role="test", labels=np.arange(TESTS) % 4)
    store.build_graph(k=6)
    store.diffuse(iterations=3)
    evaluation = store.evaluate()["scores"][0]
    assert evaluation["test"]["of_classes_without_seeds"] == 0
    assert evaluation["test"]["classes_without_seeds"] == 0

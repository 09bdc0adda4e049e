"""Naive twins: ids found by a dict, and the journal replayed batch by batch."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as some

from mmdiff.formats.storage.strings import Strings
from mmdiff.labels import ids as lookup
from mmdiff.labels.classes import UNLABELLED, Classes
from mmdiff.labels.ids import Ids, find_rows
from mmdiff.labels.journal import Journal

texts = some.lists(some.text("ab01-é", min_size=1, max_size=3), unique=True, max_size=30)
numbers = some.lists(some.integers(0, 40), unique=True, max_size=30)


def column(values: list[Any]) -> Ids:
    return Strings.of(values) if values and isinstance(values[0], str) else np.array(values, np.int64)


@given(texts | numbers, texts | numbers, some.integers(1, 9))
def test_ids_are_found_as_a_dict_finds_them(ids: list[Any], wanted: list[Any], block: int) -> None:
    before, lookup._BLOCK = lookup._BLOCK, block
    try:
        found = find_rows(column(ids), column(wanted))
    finally:
        lookup._BLOCK = before
    place = {str(value): row for row, value in enumerate(ids)}
    assert found.tolist() == [place.get(str(value), -1) for value in wanted]


@given(numbers, some.integers(0, 20))
def test_rows_without_ids_are_found_by_number(wanted: list[int], rows: int) -> None:
    assert find_rows(range(5, 5 + rows), column(wanted)).tolist() == [n - 5 if 5 <= n < 5 + rows else -1 for n in wanted]


names = ("cat", "dog", "fox")
batches = some.lists(
    some.dictionaries(some.integers(0, 6), some.lists(some.integers(0, 2), unique=True, max_size=2), min_size=1), max_size=5
)


def journal_of(given_batches: list[dict[int, list[int]]], as_text: bool) -> Journal:
    journal = Journal.EMPTY
    for number, batch in enumerate(given_batches):
        labels = np.full((len(batch), 2), UNLABELLED, np.int32)
        for row, own in enumerate(batch.values()):
            labels[row, : len(own)] = own
        keys = Strings.of(f"r{key}" for key in batch) if as_text else np.array(list(batch), np.int64)
        journal = journal.followed_by(keys, labels, Classes(None, names), f"batch {number}", number)
    return journal


def replayed(given_batches: list[dict[int, list[int]]]) -> dict[int, set[int]]:
    state: dict[int, set[int]] = {}
    for batch in given_batches:
        state |= {key: set(own) for key, own in batch.items()}
    return state


@given(batches, some.booleans())
def test_the_labels_that_hold_are_those_of_the_last_batch_that_names_a_row(
    given_batches: list[dict[int, list[int]]], as_text: bool
) -> None:
    current = journal_of(given_batches, as_text).current()
    found = {
        int(str(current.ids[row]).removeprefix("r")): {label for label in current.labels[row].tolist() if label != UNLABELLED}
        for row in range(len(current.labels))
    }
    assert found == replayed(given_batches)


@given(batches.filter(bool), some.booleans())
def test_a_journal_without_its_last_batch_is_the_one_before(given_batches: list[dict[int, list[int]]], as_text: bool) -> None:
    found, before = journal_of(given_batches, as_text).without_last(), journal_of(given_batches[:-1], as_text)
    assert found.sources == before.sources
    titles = [
        [classes.title(label) if label >= 0 else "" for label in journal.labels.tolist()]
        for journal in (found, before)
        for classes in [journal.classes]
    ]
    assert titles[0] == titles[1]
    assert [str(found.ids[i]) for i in range(len(found))] == [str(before.ids[i]) for i in range(len(before))]

"""Stratified folds: each class spreads over them, alone labels stay, and the order in which labels come does not matter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmdiff.formats.errors import BadLabels, BadOption
from mmdiff.labels.classes import Classes
from mmdiff.validation.folds import NEVER, checked_folds, kept_out, stratified

CLASSES = Classes(np.arange(6), tuple("fedcba"))

labels_of_rows = st.lists(st.integers(0, 5), min_size=4, max_size=60).filter(lambda given: len(set(given)) < len(given) - 3)


@given(labels_of_rows, st.integers(2, 5), st.integers(0, 2**31 - 1))
def test_classes_spread_over_folds_whatever_the_order_of_the_labels(labels: list[int], folds: int, seed: int) -> None:
    rows, first = np.arange(len(labels)) * 3, np.array(labels, np.int32)
    counts = np.bincount(first, minlength=6)
    if folds > counts[counts > 1].sum():
        return
    found = stratified(rows, first[:, None], CLASSES, folds, seed)
    for label in range(6):
        own = found.fold[first == label]
        if counts[label] == 1:
            assert own.tolist() == [NEVER]
        else:
            assert len(np.unique(own)) == min(counts[label], folds)
            assert (own >= 0).all()
            assert np.ptp(np.bincount(own, minlength=folds)) <= 1
    assert np.ptp(np.bincount(found.fold[found.held_out], minlength=folds)) <= 1
    assert (found.count, found.singletons) == (folds, int((counts == 1).sum()))
    order = np.random.default_rng(seed).permutation(len(rows))
    np.testing.assert_array_equal(stratified(rows[order], first[order, None], CLASSES, folds, seed).fold, found.fold[order])
    # The same classes in another order of the table.
    table = Classes(np.arange(6)[::-1], tuple("abcdef"))
    np.testing.assert_array_equal(stratified(rows, 5 - first[:, None], table, folds, seed).fold, found.fold)


def test_another_seed_gives_other_folds() -> None:
    rows, labels = np.arange(40), np.zeros((40, 1), np.int32)
    folds = [stratified(rows, labels, CLASSES, 4, seed).fold for seed in (0, 1)]
    assert (folds[0] != folds[1]).any()


def test_rows_with_several_labels_count_for_their_first() -> None:
    labels = np.array([[0, 1], [0, -1], [-1, 1], [1, 0]], np.int32)
    found = stratified(np.arange(4), labels, CLASSES, 2, 0)
    assert set(found.fold[:2].tolist()) == set(found.fold[2:].tolist()) == {0, 1}


def test_too_few_labels_are_refused_with_what_would_do() -> None:
    with pytest.raises(BadLabels, match=r"each of the 3 classes has one label.*Label at least two rows of a class\."):
        stratified(np.arange(3), np.arange(3, dtype=np.int32)[:, None], CLASSES, 2, 0)
    labels = np.array([[0], [0], [1], [2]], np.int32)
    with pytest.raises(BadOption, match=r"folds=3: more folds than labels that can be held out.*are 2\. Use at most folds=2"):
        stratified(np.arange(4), labels, CLASSES, 3, 0)
    bad: tuple[Any, ...] = (1, 0, -3, 2.5, True)
    for folds in bad:
        with pytest.raises(BadOption, match=r"folds=.*: expected a whole number from 2 to .*\. For example 5\."):
            checked_folds(folds)


def test_labels_that_are_kept_out_are_the_one_fold() -> None:
    labels = np.array([[0], [0], [1], [2]], np.int32)
    found = kept_out(labels, np.array([True, False, True, False]))
    assert (found.fold.tolist(), found.count, found.singletons) == ([0, NEVER, 0, NEVER], 1, 1)
    with pytest.raises(BadLabels, match="all labels are held out"):
        kept_out(labels, np.ones(4, bool))

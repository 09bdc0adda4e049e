"""Held-out rows are weighted to stand for the rows to predict, where classes have very different numbers of labels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mmdiff.prediction.class_shift import BINS, ROUNDS, Evidence, HeldOutPredictions, PredictionCounts, group_shares
from tests.support.naive_calibration import naive_group_shares

COUNTS = np.array([3, 2, 5, 40, 70], np.int64)


def held_out(labels: list[int], predicted: list[int], counts: NDArray[np.int64] = COUNTS) -> HeldOutPredictions:
    own, found = np.array(labels, np.int32), np.array(predicted, np.int32)
    margins = np.linspace(0, 1, len(own)).astype(np.float32)
    return HeldOutPredictions(margins, found, own, own == found, counts)


def counted(predicted: list[int], margins: list[float], classes: int = len(COUNTS)) -> PredictionCounts:
    counts = PredictionCounts(classes)
    counts.add(np.array(predicted, np.int32), np.array(margins, np.float32))
    return counts


def test_classes_are_grouped_by_their_number_of_labels() -> None:
    counts = np.array([0, 1, 3, 4, 15, 16, 63, 64, 10**9], np.int64)
    assert held_out([], [], counts).groups.tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 14]


def test_classes_with_similar_numbers_of_labels_need_no_weights() -> None:
    one = held_out([0, 1], [0, 0], np.array([5, 7, 15, 0]))
    assert one.alike
    assert one.unweighted().weights.tolist() == [1, 1]
    assert not held_out([0, 1], [0, 0], np.array([5, 7, 16])).alike


@given(st.data())
def test_group_shares_equal_their_naive_twin(data: st.DataObject) -> None:
    groups = data.draw(st.integers(1, 4))
    whole = st.lists(st.integers(0, 9), min_size=groups, max_size=groups)
    confusion = np.array([data.draw(whole) for _ in range(groups)], np.float64)
    predicted, start = np.array(data.draw(whole)), np.array(data.draw(whole), np.float64) + 1
    predicted[0] += 1
    found = group_shares(confusion, predicted, start)
    expected = naive_group_shares(confusion.tolist(), predicted.tolist(), start.tolist(), ROUNDS)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert found.sum() == pytest.approx(1)


def test_shares_of_groups_are_found_from_predictions() -> None:
    """Nine tenths of the rows are of the rarely labelled group, which is often taken for the other."""
    confusion = np.array([[30.0, 20.0], [20.0, 980.0]])
    truth = np.array([0.9, 0.1])
    predicted = (10_000 * confusion / confusion.sum(axis=0) @ truth).astype(np.int64)
    found = group_shares(confusion, predicted, np.array([50.0, 1000.0]))
    np.testing.assert_allclose(found, truth, atol=0.1)


def test_weights_give_each_group_its_share_and_are_one_on_average() -> None:
    rows = held_out([0, 0, 2, 3, 3, 3, 4], [0, 2, 2, 3, 3, 0, 4])
    evidence = rows.weighted(counted([0] * 50 + [2] * 20 + [3] * 20 + [4] * 10, [0.5] * 100))
    assert evidence.rows == len(rows)
    assert evidence.weights.sum() == pytest.approx(len(rows))
    by_group = np.bincount(rows.groups[rows.labels], evidence.weights[: len(rows)])
    assert by_group[0] > 7 * 2 / 7


def test_a_group_without_held_out_rows_counts_as_wrong_at_its_margins() -> None:
    counts = np.array([1, 1, 80], np.int64)
    rows = held_out([2] * 40, [2] * 40, counts)
    evidence = rows.weighted(counted([0, 1, 2, 2], [0.25, 0.25, 0.8, 0.9], classes=3))
    extra = slice(len(rows), None)
    assert not evidence.right[extra].any()
    assert evidence.margins[extra].tolist() == [(0.25 * BINS + 0.5) / BINS]
    assert evidence.weights[extra].sum() == pytest.approx(20, rel=0.05)
    assert (
        evidence.calibration(3).confidence(np.array([0.1]))[0] < rows.unweighted().calibration(3).confidence(np.array([0.1]))[0]
    )


def test_counts_of_predictions_do_not_depend_on_blocks() -> None:
    draw = np.random.default_rng(0)
    predicted, margins = draw.integers(0, 5, 100).astype(np.int32), draw.random(100).astype(np.float32)
    margins[:2] = 0, 1
    whole, parts = counted(predicted.tolist(), margins.tolist()), PredictionCounts(5)
    for start in range(0, 100, 30):
        parts.add(predicted[start : start + 30], margins[start : start + 30])
    assert (whole.counts == parts.counts).all()
    assert (whole.by_class == np.bincount(predicted, minlength=5)).all()


def test_confidences_of_held_out_rows_come_from_other_rows() -> None:
    draw = np.random.default_rng(0)
    margins = draw.random(80)
    right = draw.random(80) < margins
    own = np.arange(80) % 5 == 2
    one, other = (Evidence(margins, hits, np.ones(80), 80).confidences(9) for hits in (right, np.where(own, ~right, right)))
    assert (one[own] == other[own]).all()
    assert (one[~own] != other[~own]).any()


def test_promises_hold_where_labels_are_of_other_classes_than_the_rows() -> None:
    """Held-out rows are mostly of two classes with many labels and high accuracy; the rows are mostly of the other two."""
    accuracy, per_class = np.array([0.9, 0.9, 0.3, 0.3]), np.array([400, 400, 30, 30], np.int64)
    missed = []
    for seed in range(20):
        draw = np.random.default_rng(seed)

        def drawn(own: NDArray[np.int64], draw: np.random.Generator = draw) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
            right = draw.random(len(own)) < accuracy[own]
            found = np.where(right, own, draw.integers(0, 4, len(own)))
            margins = np.where(right, draw.beta(2, 1, len(own)), draw.beta(1, 1, len(own)))
            return found.astype(np.int32), margins.astype(np.float32)

        labels = np.arange(4).repeat(per_class)
        found, margins = drawn(labels)
        rows = HeldOutPredictions(margins, found, labels.astype(np.int32), found == labels, per_class)
        truth = draw.choice(4, 5_000, p=[0.1, 0.1, 0.4, 0.4])
        predicted, at = drawn(truth)
        counts = PredictionCounts(4)
        counts.add(predicted, at)
        kept = (predicted == truth).mean()
        evidences = rows.unweighted(), rows.weighted(counts)
        missed.append([abs(evidence.calibration(4).confidence(at).mean() - kept) for evidence in evidences])
    unweighted, weighted = np.mean(missed, axis=0)
    assert unweighted > 0.25
    assert weighted < 0.08

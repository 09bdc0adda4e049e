"""Confidences are probabilities: monotone, supported by the held-out rows, and shrunk where there are few."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from mmdiff.prediction.calibration import PRIOR, calibrate, pooled, rows_by_margin
from tests.support.naive_calibration import naive_calibration

CLASSES = 10

# Weights that are exact, so that sums are the same in any order.
rows = st.lists(
    st.tuples(st.integers(0, 12).map(lambda i: i / 12), st.booleans(), st.sampled_from([0.25, 1.0, 3.0])),
    min_size=1,
    max_size=60,
)
Drawn = list[tuple[float, bool, float]]


def arrays(drawn: Drawn) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64]]:
    return np.array([row[0] for row in drawn]), np.array([row[1] for row in drawn]), np.array([row[2] for row in drawn])


@given(rows)
def test_calibration_equals_its_naive_twin(drawn: Drawn) -> None:
    margins, right, weights = arrays(drawn)
    wanted = np.linspace(-0.1, 1.1, 61)
    found = calibrate(margins, right, CLASSES, weights, 3.0).confidence(wanted)
    expected = naive_calibration(margins.tolist(), right.tolist(), weights.tolist(), PRIOR, 3.0, wanted.tolist())
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@given(rows)
def test_blocks_before_shrinking_are_those_of_scikit_learn(drawn: Drawn) -> None:
    margins, right, weights = arrays(drawn)
    blocks = pooled(rows_by_margin(margins, right, weights), lambda block: block.right / block.rows)
    found = [block.right / block.rows for block in blocks for margin in margins if block.low <= margin <= block.high]
    expected = IsotonicRegression(y_min=0, y_max=1).fit(margins, right.astype(float), weights).predict(margins)
    np.testing.assert_allclose(sorted(found), sorted(expected), atol=1e-9)


@given(rows)
def test_confidences_are_monotone_and_within_bounds(drawn: Drawn) -> None:
    margins, right, weights = arrays(drawn)
    found = calibrate(margins, right, CLASSES, weights, weights.max()).confidence(np.linspace(0, 1, 101))
    assert (np.diff(found) >= 0).all()
    assert found.min() > 0
    most = weights.sum() / weights.max()
    assert found.max() <= np.float32((most + 1) / (most + 2))


@given(rows)
def test_the_order_of_held_out_rows_does_not_matter(drawn: Drawn) -> None:
    margins, right, weights = arrays(drawn)
    weights = weights / 7
    order = np.random.default_rng(len(drawn)).permutation(len(drawn))
    one = calibrate(margins, right, CLASSES, weights)
    other = calibrate(margins[order], right[order], CLASSES, weights[order])
    assert one.margins.tobytes() == other.margins.tobytes()
    np.testing.assert_allclose(one.confidences, other.confidences, rtol=1e-12)


@given(rows, st.integers(1, 4))
def test_a_weight_counts_like_so_many_rows(drawn: Drawn, times: int) -> None:
    margins, right, _ = arrays(drawn)
    one = calibrate(margins, right, CLASSES, np.full(len(right), float(times)))
    other = calibrate(margins.repeat(times), right.repeat(times), CLASSES)
    assert (one.margins == other.margins).all()
    assert (one.confidences == other.confidences).all()


@given(st.integers(1, 200))
def test_rows_that_are_all_right_support_no_more_than_their_number(count: int) -> None:
    found = calibrate(np.ones(count), np.ones(count, bool), CLASSES).confidence(np.ones(1))
    assert found[0] <= np.float32((count + 1) / (count + 2))


def test_without_held_out_rows_confidence_is_that_of_a_guess() -> None:
    found = calibrate(np.empty(0), np.empty(0, bool), 40)
    assert found.confidence(np.array([0.0, 0.5, 1.0])).tolist() == [np.float32(1 / 40)] * 3
    assert found.highest == 1 / 40


Curve = Callable[[NDArray[np.float64]], NDArray[np.float64]]
CURVES: dict[str, Curve] = {
    "steep": lambda margin: 1 / (1 + np.exp(3 - 8 * margin)),
    "mild": lambda margin: 0.4 + 0.5 * margin,
    "late": lambda margin: 0.2 + 0.75 * margin**3,
    "high": lambda margin: 0.85 + 0.14 * margin,
    "flat": lambda margin: 0.6 + 0 * margin,
    "step": lambda margin: np.where(margin < 0.15, 0.3, 0.95),
}


def simulated(count: int, method: Callable[[NDArray[np.float64], NDArray[np.bool_]], Curve]) -> tuple[float, float]:
    """The mean distance from the true probability, and by how much a promise of at least 0.9 is missed, on average."""
    draw = np.random.default_rng(count)
    distances, missed = [], []
    for curve in CURVES.values():
        for _ in range(30):
            margins = draw.beta(0.8, 1.5, count)
            confidence = method(margins, draw.random(count) < curve(margins))
            asked = draw.beta(0.8, 1.5, 1000)
            found, truth = confidence(asked), curve(asked)
            distances.append(np.abs(found - truth).mean())
            sure = found >= 0.9
            missed.append((found[sure] - truth[sure]).mean() if sure.any() else 0.0)
    return float(np.mean(distances)), float(np.mean(missed))


def ours(margins: NDArray[np.float64], right: NDArray[np.bool_]) -> Curve:
    return lambda asked: calibrate(margins, right, CLASSES).confidence(asked).astype(np.float64)


def isotonic(margins: NDArray[np.float64], right: NDArray[np.bool_]) -> Curve:
    fitted = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(margins, right)
    return lambda asked: np.asarray(fitted.predict(asked))


def constant(_: NDArray[np.float64], right: NDArray[np.bool_]) -> Curve:
    return lambda asked: np.full(len(asked), (right.sum() + 1) / (len(right) + 2))


def platt(margins: NDArray[np.float64], right: NDArray[np.bool_]) -> Curve:
    fitted = LogisticRegression().fit(margins[:, None], right)
    return lambda asked: np.asarray(fitted.predict_proba(asked[:, None])[:, 1])


@pytest.mark.parametrize("count", [3, 10, 30, 100, 1000])
def test_shrinking_keeps_promises_that_the_isotonic_regression_alone_breaks(count: int) -> None:
    distance, missed = simulated(count, ours)
    assert missed < 0.01
    assert simulated(count, isotonic)[1] > 0.05
    # Few rows fall back to the constant by themselves; more rows do much better than it.
    assert distance <= simulated(count, constant)[0] * (1.01 if count < 10 else 0.85)


@pytest.mark.parametrize("count", [300, 1000])
def test_it_is_nearer_to_the_truth_than_a_logistic_curve(count: int) -> None:
    assert simulated(count, ours)[0] < simulated(count, platt)[0]

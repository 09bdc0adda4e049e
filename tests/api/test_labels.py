"""Labels as Python users have them: numbers, names, nothing, several a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse

import mmdiff
from mmdiff.errors import BadLabels, BadOption, CountMismatch


@pytest.fixture(scope="module")
def chain() -> mmdiff.Graph:
    """Six rows in a line."""
    return mmdiff.Graph.from_scipy(scipy.sparse.diags_array([np.ones(5), np.ones(6), np.ones(5)], offsets=[-1, 0, 1]))


@pytest.mark.parametrize(
    ("y", "classes", "first_and_last"),
    [
        ([3, -1, -1, -1, -1, 8], [3, 8], [3, 8]),
        (np.array([3, -1, -1, -1, -1, 8], np.int8), [3, 8], [3, 8]),
        ([3.0, np.nan, np.nan, np.nan, np.nan, 8.0], [3, 8], [3, 8]),
        (["cat", None, None, None, None, "dog"], ["cat", "dog"], ["cat", "dog"]),
        (["cat", "", "", "", "", "dog"], ["cat", "dog"], ["cat", "dog"]),
        (np.array(["cat", None, np.nan, None, None, "dog"], object), ["cat", "dog"], ["cat", "dog"]),
        ([["cat"], [], [], [], [], ["dog"]], ["cat", "dog"], ["cat", "dog"]),
        ([[3, -1], [-1, -1], [-1, -1], [-1, -1], [-1, -1], [8, 8]], [3, 8], [3, 8]),
    ],
)
def test_labels_of_every_form_spread(chain: mmdiff.Graph, y: Any, classes: list[Any], first_and_last: list[Any]) -> None:
    result = mmdiff.diffuse(chain, y, iterations=1)
    assert result.classes.tolist() == classes
    predicted = result.predict().tolist()
    assert [predicted[0], predicted[-1]] == first_and_last
    assert predicted[2] in (-1, None)


def test_names_and_numbers_give_the_same_scores(chain: mmdiff.Graph) -> None:
    numbers = mmdiff.diffuse(chain, [0, -1, 1, -1, -1, 1])
    names = mmdiff.diffuse(chain, ["a", None, "b", None, None, "b"])
    np.testing.assert_array_equal(numbers.scores, names.scores)


def test_a_row_may_have_several_labels(chain: mmdiff.Graph) -> None:
    result = mmdiff.diffuse(chain, [["bird", "red"], [], [], [], [], ["fish"]], iterations=0)
    np.testing.assert_array_equal(result.scores[0], [1, 0, 1])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda g: mmdiff.diffuse(g, [0, 1]), CountMismatch, r"y: 2 labels for 6 rows"),
        (lambda g: mmdiff.diffuse(g, [-1] * 6), BadLabels, r"y: no row has a label"),
        (lambda g: mmdiff.diffuse(g, [-2, 0, 0, 0, 0, 0]), BadLabels, r"y, row 0: label -2"),
        (lambda g: mmdiff.diffuse(g, ["a", 1, None, None, None, None]), BadLabels, r"row 1"),
        (lambda g: mmdiff.diffuse(g, [0.5, 1, 1, 1, 1, 1]), BadLabels, r"row 0"),
        (lambda g: mmdiff.diffuse(g, [0] * 6, eta="colum"), BadOption, r"eta='colum'.*Did you mean column\?"),
        (lambda g: mmdiff.diffuse(g, [0] * 6, alpha=float("nan")), BadOption, r"alpha=nan"),
        (lambda g: mmdiff.diffuse(g, [0] * 6, iterations=-1), BadOption, r"iterations=-1"),
        (lambda g: mmdiff.diffuse(g, [0] * 6, neighbors=[[6]]), CountMismatch, r"neighbors, row 0"),
        (lambda _: mmdiff.evaluate(np.eye(2), ["a", "b"]), BadLabels, r"classes"),
        (lambda _: mmdiff.evaluate(np.eye(2), [0]), CountMismatch, r"y: 1 label"),
    ],
)
def test_what_cannot_be_is_refused_by_parameter(chain: mmdiff.Graph, call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        call(chain)
    assert "--" not in str(caught.value)


def test_an_unknown_option_is_refused_with_the_nearest(chain: mmdiff.Graph) -> None:
    with pytest.raises(BadOption, match=r"itertions: no such option. Did you mean iterations\?"):
        mmdiff.diffuse(chain, [0] * 6, itertions=3)


def test_evaluation_knows_the_columns_of_a_result(chain: mmdiff.Graph) -> None:
    """Class 5 has no labelled row: without the classes of the result, y would be compared with the wrong columns."""
    truth = np.array([3, 3, 3, 8, 8, 5])
    result = mmdiff.diffuse(chain, [3, -1, -1, -1, 8, -1], iterations=2)
    found = mmdiff.evaluate(result.scores, truth, top=(1,))
    assert found["points"] == 6
    assert found["top1"]["accuracy"] == pytest.approx((result.predict() == truth).mean())
    some = np.array([0, 1])
    assert mmdiff.evaluate(result.scores[some], truth[some], top=(1,))["top1"]["accuracy"] == 1
    np.testing.assert_array_equal(result.scores[some].classes, [3, 8])
    assert mmdiff.evaluate(np.asarray(result.scores), truth, top=(1,), classes=[3, 8])["top1"] == found["top1"]

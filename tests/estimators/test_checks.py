"""scikit-learn's own checks of estimators."""

from __future__ import annotations

from typing import Any

from sklearn.utils.estimator_checks import parametrize_with_checks

import mmdiff


def expected_failures(estimator: Any) -> dict[str, str]:
    """Checks that contradict what an estimator is for, each with the reason."""
    zeros = "its whole numbers have rows of zeros, which have no direction; they are refused"
    unknown = "it has a class -1, which stands for rows without a label, as in LabelSpreading, which this check exempts by name"
    if isinstance(estimator, mmdiff.KNNTransformer):
        return {"check_estimators_dtypes": zeros}
    of_rows = {"check_estimators_dtypes": zeros} if estimator.metric == "cosine" else {}
    return of_rows | {"check_classifiers_classes": unknown}


@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [mmdiff.LabelDiffusion(), mmdiff.LabelDiffusion(metric="precomputed"), mmdiff.KNNTransformer()],
    expected_failed_checks=expected_failures,
)
def test_scikit_learns_checks_pass(estimator: Any, check: Any) -> None:
    check(estimator)

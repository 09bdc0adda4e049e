"""Audits whose content cannot be are found by `verify`, whatever their digests say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmdiff.formats.store.manifest import Recipe
from mmdiff.formats.store.store import Store
from tests.support.stores import problems, publish

OF = {"background": 6, "appended": 0, "seeds": 0, "test": 2}
GIVEN: dict[str, dict[str, Any]] = {
    "labels": {
        "rows": np.array([4, 1]),
        "labels": np.array([0, 1], np.int32),
        "predicted": np.array([1, 1], np.int32),
        "confidence": np.array([0.1, 0.5], np.float32),
        "predicted_confidence": np.array([0.9, 0.5], np.float32),
        "doubt": np.array([1, -1], np.float32),
        "class_numbers": np.array([3, 5]),
    },
    "duplicates": {
        "rows": np.array([1, 4, 0, 2]),
        "group": np.array([0, 0, 1, 1]),
        "representative": np.array([1, 0, 1, 0], np.uint8),
        "similarity": np.ones(4, np.float32),
    },
    "leaks": {"rows": np.array([7]), "matches": np.array([0]), "similarity": np.ones(1, np.float32)},
    "outliers": {
        "rows": np.array([2]),
        "similarity": np.zeros(1, np.float32),
        "named": np.array([0]),
        "reasons": np.array([2], np.uint8),
    },
}


def published(path: Path, part: str, **changed: Any) -> list[str]:
    arrays = GIVEN[part] | changed
    facts = {"rows": len(arrays["rows"]), "of": OF, "estimated": {}}
    publish(path, f"audit/{part}", arrays, Recipe("audit", 1, {"part": part}, {}), facts, {"command": "a test"})
    return [str(problem) for problem in problems(Store.open(path))]


@pytest.mark.parametrize("part", GIVEN)
def test_sound_audits_have_no_problems(tmp_path: Path, part: str) -> None:
    assert published(tmp_path / "store", part) == []


@pytest.mark.parametrize(
    ("part", "changed", "told"),
    [
        ("labels", {"rows": np.array([4, 4])}, "a row that occurs twice"),
        ("labels", {"rows": np.array([4, 8])}, "8 is outside 0..7"),
        ("labels", {"predicted": np.array([1, 2], np.int32)}, "2 is outside 0..1"),
        ("labels", {"doubt": np.array([-1, 1], np.float32)}, "not ordered by their doubt"),
        ("labels", {"confidence": np.array([0.1, np.nan], np.float32)}, "not finite"),
        ("labels", {"similarity": np.ones(2, np.float32)}, "not part of an audit of labels"),
        ("duplicates", {"group": np.array([0, 0, 2, 2])}, "groups that are not numbered"),
        ("duplicates", {"representative": np.array([1, 0, 0, 1], np.uint8)}, "first row does not represent"),
        ("leaks", {"matches": np.array([-1])}, "-1 is outside 0..7"),
        ("outliers", {"reasons": np.array([4], np.uint8)}, "4 is outside 1..3"),
        ("outliers", {"named": np.array([9])}, "9 is outside 0..8"),
    ],
)
def test_content_that_cannot_be_is_found(tmp_path: Path, part: str, changed: dict[str, Any], told: str) -> None:
    assert any(told in problem for problem in published(tmp_path / "store", part, **changed))

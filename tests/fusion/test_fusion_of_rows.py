"""Fusion in a store of one table: best classes of all rows of the collection, and a weight chosen on held-out labels."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import mmdiff
from mmdiff.formats.store.store import Store
from mmdiff.fusion import late
from mmdiff.fusion.late import WEIGHTS
from tests.support.stores import SMALL_CHUNKS, chunks_of, problems

ROWS, DIMS, CLASSES, T = 1500, 8, 7, 3


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A store of one table with a diffusion and a regression of its rows."""
    draw = np.random.default_rng(0)
    own = draw.integers(CLASSES, size=ROWS)
    store = mmdiff.open(tmp_path / "store", create=True)
    labels = np.where(np.arange(ROWS) % 20 == 0, own, -1)
    with chunks_of(SMALL_CHUNKS):
        store.add(draw.normal(size=(ROWS, DIMS)) + 3 * np.eye(DIMS)[own], labels=labels)
        store.build_graph(k=8)
        store.diffuse(iterations=T), store.logreg(iterations=60)
    np.save(tmp_path / "own.npy", own)
    return tmp_path / "store"


def naive(path: Path, weight: float, row: int) -> dict[int, float]:
    """The fused probability of each class for one row, class by class."""
    store, logs = Store.open(path), []
    for name in ("scores/logreg", "scores/diffusion"):
        artifact = store.open_artifact(name)
        kept = dict(zip(artifact.array("top_classes")[row].tolist(), artifact.array("top_scores")[row].tolist(), strict=True))
        positive = {label: score for label, score in kept.items() if label != -1 and score > 0}
        floor = min(positive.values()) / 2 if positive else 1.0
        values = [positive.get(label, floor) for label in range(CLASSES)]
        logs.append([math.log(value / sum(values)) for value in values])
    fused = [math.exp(weight * p + (1 - weight) * q) for p, q in zip(*logs, strict=True)]
    return {label: value / sum(fused) for label, value in enumerate(fused)}


def test_the_best_classes_of_a_row_are_those_of_the_definition(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late, "_BLOCK_VALUES", 100)
    with chunks_of(SMALL_CHUNKS):
        mmdiff.open(table).fuse(weight=0.3)
    fused = Store.open(table).open_artifact("scores/fusion")
    assert fused.spec("top_classes").chunks > 1
    for row in range(0, ROWS, 97):
        expected = naive(table, 0.3, row)
        best = sorted(expected, key=lambda label: -expected[label])[:5]
        np.testing.assert_allclose(fused.array("top_scores")[row], [expected[label] for label in best], rtol=1e-5)
        assert expected[int(fused.array("top_classes")[row, 0])] == pytest.approx(expected[best[0]], rel=1e-5)
    assert fused.manifest.facts == {"tests": 0, "classes": CLASSES, "planes": [], "weight": 0.3}
    assert problems(Store.open(table)) == []


def test_the_weight_is_chosen_on_held_out_labels(table: Path) -> None:
    facts = mmdiff.open(table).fuse(tune=True).summary["facts"]
    assert [point["weight"] for point in facts["curve"]] == list(WEIGHTS)
    assert (facts["curve_points"], facts["weight_chosen_on"]) == (ROWS // 20, "held-out labels")
    best = max(facts["curve"], key=lambda point: (point["top5"], point["top1"], -point["weight"]))
    assert facts["weight"] == best["weight"]
    assert {"folds/diffusion", "folds/logreg"} <= set(mmdiff.open(table).names())


def test_predictions_of_a_fusion_come_with_confidences(table: Path) -> None:
    store = mmdiff.open(table)
    fused = store.fuse(weight=0.5)
    own = np.load(table.parent / "own.npy")
    answers = store.predict(scores="fusion")
    labels, confidence = np.array(answers["label"].to_pylist()), np.array(answers["confidence"].to_pylist())
    assert (fused.predict_background() == own).mean() > 0.8
    assert abs(confidence.mean() - (labels == own).mean()) < 0.15


def test_scores_of_other_classes_cannot_be_fused(table: Path) -> None:
    store = mmdiff.open(table)
    store.diffuse(iterations=T, classes="0,1,2")
    with pytest.raises(mmdiff.errors.MmdiffError, match="different rows or classes"):
        store.fuse()

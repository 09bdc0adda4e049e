"""Logistic regression in a store of one table: it learns from labelled rows of the collection, and classifies all rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import mmdiff
from mmdiff.diffusion.engine import top_classes
from mmdiff.formats.store.store import Store
from mmdiff.logreg import stage
from mmdiff.logreg.model import from_safetensors
from tests.support.stores import SMALL_CHUNKS, chunks_of, problems

ROWS, DIMS, NAMES = 2100, 8, np.array(["cat", "dog", "owl", "elk", "hen", "fox"])


def rows(count: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    draw = np.random.default_rng(seed)
    own = draw.integers(len(NAMES), size=count)
    return draw.normal(size=(count, DIMS)) + 5 * np.eye(DIMS)[own], own


def table(path: Path, every: int = 10) -> mmdiff.Store:
    """A store of one table; every tenth row has a label."""
    store = mmdiff.open(path, create=True)
    vectors, own = rows(ROWS, 0)
    store.add(vectors, labels=[NAMES[label] if row % every == 0 else None for row, label in enumerate(own)])
    return store


def expected(path: Path) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The best classes of every row by the stored model, and their probabilities, without blocks."""
    store = Store.open(path)
    model, vectors = from_safetensors(store.open_artifact("models/logreg")), store.open_artifact("descriptors/background")
    logits = np.asarray(vectors.array("vectors"), np.float64) @ model.weight.T.astype(np.float64) + model.bias
    probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    best = np.argsort(-probabilities, axis=1, kind="stable")[:, : top_classes.TOP]
    return best, np.take_along_axis(probabilities, best, axis=1)


def test_every_row_of_the_collection_has_its_best_classes_and_their_probabilities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "_BLOCK_ROWS", 7)
    with chunks_of(SMALL_CHUNKS):
        table(tmp_path / "store").logreg(iterations=100)
    scores, (best, probabilities) = Store.open(tmp_path / "store").open_artifact("scores/logreg"), expected(tmp_path / "store")
    assert scores.spec("top_classes").chunks > 1
    np.testing.assert_allclose(scores.array("top_scores"), probabilities, atol=1e-5)
    decided = np.flatnonzero(probabilities[:, 0] - probabilities[:, 1] > 1e-4)
    np.testing.assert_array_equal(scores.array("top_classes")[decided, 0], best[decided, 0])
    assert scores.manifest.facts == {"tests": 0, "classes": len(NAMES), "planes": []}
    assert problems(Store.open(tmp_path / "store")) == []


def test_it_learns_from_seeds_labelled_rows_and_recorded_labels_together(tmp_path: Path) -> None:
    store = table(tmp_path / "store")
    vectors, own = rows(20, 1)
    store.add(vectors, role="seeds", labels=NAMES[own].tolist())
    store.label({3: "cat", 0: None})
    store.logreg(iterations=50)
    model = Store.open(tmp_path / "store").open_artifact("models/logreg").manifest
    assert model.facts["samples"] == ROWS // 10 + 20
    assert set(model.inputs) == {"background", "seeds", "labels"}


def test_test_points_are_scored_beside_the_collection(tmp_path: Path) -> None:
    store = table(tmp_path / "store")
    vectors, own = rows(40, 2)
    store.add(vectors, role="test", labels=NAMES[own].tolist())
    found = store.logreg(iterations=200)
    assert (found.predict() == NAMES[own]).mean() > 0.9
    assert (found.predict_background() == NAMES[rows(ROWS, 0)[1]]).mean() > 0.9


def test_predictions_of_all_rows_come_with_confidences(tmp_path: Path) -> None:
    store = table(tmp_path / "store")
    store.build_graph(k=8)
    store.logreg(iterations=200)
    answers = store.predict(scores="logreg")
    labels, own = np.array(answers["label"].to_pylist()), NAMES[rows(ROWS, 0)[1]]
    assert (labels == own).mean() > 0.9
    confidence = np.array(answers["confidence"].to_pylist())
    assert abs(confidence.mean() - (labels == own).mean()) < 0.15


def test_new_labels_make_the_model_and_its_scores_stale(tmp_path: Path) -> None:
    store = table(tmp_path / "store")
    first = store.logreg(iterations=50).summary
    assert [artifact["reused"] for artifact in store.logreg(iterations=50).summary["artifacts"]] == [True, True]
    store.label({1: "cat"})
    assert store.inspect("models/logreg")["stale"]
    again = store.logreg(iterations=50).summary
    assert [artifact["reused"] for artifact in again["artifacts"]] == [False, False]
    assert again["artifacts"][0]["facts"]["samples"] == first["artifacts"][0]["facts"]["samples"] + 1


def test_a_store_without_labels_says_how_to_give_some(tmp_path: Path) -> None:
    store = mmdiff.open(tmp_path / "store", create=True)
    store.add(rows(ROWS, 0)[0])
    with pytest.raises(mmdiff.errors.MmdiffError, match="no row has a label"):
        store.logreg()

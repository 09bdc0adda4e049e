"""HTML in notebooks: names are text, nothing is loaded, and every object has one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import scipy.sparse

import mmdiff
from mmdiff.results import Evaluation, Scores, Summary

HOSTILE = ["<script>alert(1)</script>", "a & b", "\" onload='x'", "\u202eleft\x07", "x" * 500]


def page(value: Any) -> ElementTree.Element:
    """The HTML of a value, which is well-formed and needs nothing else."""
    html = value._repr_html_()
    assert not re.search(r"<script|<style|<img|<link|<iframe|(?:src|href|on\w+)=\"|url\(|https?:|@import", html)
    # Colours of its own would be lost on one of the themes.
    assert not re.search(r"(?<![-\w])color\s*:|#[0-9a-f]{3,6}\b|background:(?!none|currentColor|rgba\(128,128,128)", html)
    return ElementTree.fromstring(html)


def words(value: Any) -> str:
    return " ".join(" ".join(page(value).itertext()).split())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> mmdiff.Store:
    """A small store in a folder whose name is markup, with class names that are."""
    rng = np.random.default_rng(0)
    y = np.arange(200) % 5
    X = 4 * np.eye(8)[y] + rng.normal(size=(200, 8))
    store = mmdiff.open(tmp_path_factory.mktemp("notebook") / "<b>faces", create=True)
    store.add(X[:120])
    store.add(X[120:160], role="seeds", labels=[HOSTILE[c] for c in y[120:160]])
    store.add(X[160:], role="test", labels=[HOSTILE[c] for c in y[160:]])
    store.build_graph(k=6)
    store.diffuse(iterations=2)
    return store


def test_store_lists_its_artifacts(store: mmdiff.Store) -> None:
    text = words(store)
    for name in store:
        assert name in text
    assert "<b>faces" in text
    assert "180 nodes" in text or "160 nodes" in text
    rows = page(store).findall(".//tbody/tr")
    assert len(rows) == len(store.names())


def test_store_without_artifacts_and_a_damaged_one_say_so(tmp_path: Path) -> None:
    assert "no artifacts yet" in words(mmdiff.open(tmp_path / "none", create=True))
    damaged = mmdiff.open(tmp_path / "damaged", create=True)
    damaged.add(np.eye(4))
    manifest = damaged["descriptors/background"].folder / "zarr.json"
    manifest.chmod(0o644)
    manifest.write_text("{")
    assert "descriptors/background" in words(damaged)


def test_graph_says_its_size_and_weights(store: mmdiff.Store) -> None:
    assert f"edges {store.graph.edges:,}" in words(store.graph)
    assert "1 or 2, none stored" in words(store.graph)
    weighted = mmdiff.Graph.from_scipy(scipy.sparse.csr_array([[0, 0.25], [0.25, 0]]))
    assert "float32" in words(weighted)
    assert "nodes 1" in words(mmdiff.Graph.from_scipy(scipy.sparse.csr_array((1, 1))))


def test_scores_show_the_best_classes_of_the_first_rows(store: mmdiff.Store) -> None:
    scores = store.diffuse(iterations=2)
    text = words(scores)
    assert "scores/diffusion 40" not in text
    assert "40 rows, 5 classes, iterations kept: 0, 1, 2; 35 more rows" in text
    assert "alert(1)" in text
    assert "\x07" not in text
    assert "\u202e" not in text
    rows = page(scores).findall(".//tbody/tr")
    for row, predicted in zip(rows, scores.predict(), strict=False):
        assert mmdiff.text.printable(predicted)[:30] in "".join(row[1].itertext())


def test_scores_of_rows_that_no_label_reaches_and_of_none() -> None:
    values = np.array([[0, 0], [0.5, 0.25]], np.float32)
    for classes in (np.array([3, 7]), np.array(["cat", "dog"])):
        text = words(Scores(values, classes))
        assert text.count("no label has arrived") == 1
        assert str(classes[0]) in text
    assert "0 rows, 2 classes" in words(Scores(values[:0], np.arange(2)))
    # Log-probabilities of a classifier are negative, and have no bars.
    assert "-0.1" in words(Scores(-values - np.float32(0.1), np.arange(2), _zero_is_unreached=False))


def test_evaluation_shows_accuracies_with_intervals(store: mmdiff.Store) -> None:
    found = store.evaluate()
    figure = found["scores"][0]["iterations"][-1]["all"]["top1"]
    text = words(found)
    assert f"{100 * figure['accuracy']:.1f} % {100 * figure['low']:.1f} to {100 * figure['high']:.1f}" in text
    assert len(page(found).findall(".//tbody/tr")) == 3
    alone = mmdiff.evaluate(np.eye(3), [0, 1, 1])
    assert isinstance(alone, Evaluation)
    assert "66.7 %" in words(alone)


def test_plans_and_inspections_are_tables_in_words(store: mmdiff.Store) -> None:
    plan = words(store.plan("diffuse", iterations=2))
    assert "cols per batch" in plan
    assert re.search(r"disk free [\d.]+ [GT]iB", plan)
    detail = words(store.inspect("graph/W"))
    assert re.search(r"indices [\d,]+ uint32", detail)
    assert "descriptors/seeds" in words(store.inspect())
    assert "alert(1)" in words(Summary(name=HOSTILE[0], nested={HOSTILE[0]: [{"class": HOSTILE[0], "points": 3}]}))


def test_ids_are_no_counts_and_parts_of_a_kind_share_a_table() -> None:
    assert "1457 2,048" in words(Summary(worst=[{"id": 1457, "degree": 2048}]))
    parts = page(Summary(first={"bytes": 2048, "made": 1}, second={"bytes": 5, "note": "a sentence"}))
    assert ["".join(cell.itertext()) for cell in parts.findall(".//th")] == ["", "bytes", "made", "note"]
    assert [cell.text for cell in parts.findall(".//tbody/tr/td")][1] == "2.0 KiB"


def test_long_lists_are_cut() -> None:
    text = words(Summary(items=[{"row": i} for i in range(1000)], numbers=list(range(1000)), empty=[], nothing=None, flag=True))
    assert "and 980 more" in text
    assert len(text) < 2000


def test_scores_of_any_number_of_rows_are_a_short_table() -> None:
    assert len(Scores(np.ones((100_000, 300), np.float32), np.arange(300))._repr_html_()) < 10_000

"""A recall target is reached, or it is said plainly that it was not; exact search is chosen where it is the better way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

import mmdiff
from mmdiff.cli import app
from mmdiff.knn.choice import possible_searches
from mmdiff.knn.targets import reached, with_reached
from tests.support.stores import tree


def noise(rows: int, width: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(size=(rows, width)).astype(np.float32)


def stored(folder: Path, rows: NDArray[Any]) -> mmdiff.Store:
    store = mmdiff.open(folder / "store", create=True)
    store.add(rows)
    return store


def run(store: mmdiff.Store, *words: str) -> Any:
    return CliRunner().invoke(app, [*words, "--store", str(store.path)])


@pytest.fixture
def missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> mmdiff.Store:
    """A store of noise whose neighbours were searched in few cells and without passes."""
    monkeypatch.setattr("mmdiff.knn.choice._VISITS", (2,))
    monkeypatch.setattr("mmdiff.knn.background.MOST_PASSES", 0)
    store = stored(tmp_path, noise(3000, 64))
    store.build_graph(k=10, index="cells")
    return store


def test_exact_search_is_chosen_for_noise_and_reaches_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmdiff.building.stage.FLAT", 0)
    made = stored(tmp_path, noise(3000, 64)).build_graph(k=10)
    facts = made["knn/BB"]["facts"]
    assert facts["tuning"]["exact"]
    assert (facts["exact"], facts["recall"], facts["reached"]) == (True, 1.0, True)
    assert made["knn/BB"]["warnings"] == []


def test_cells_are_chosen_where_they_are_cheaper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmdiff.building.stage.FLAT", 0)
    draw = np.random.default_rng(1)
    rows = draw.normal(size=(60, 12))[draw.integers(0, 60, 16_000)] + 0.2 * draw.normal(size=(16_000, 12))
    made = stored(tmp_path, rows.astype(np.float32)).build_graph(k=5, recall=0.9)
    facts = made["knn/BB"]["facts"]
    assert not facts["tuning"]["exact"]
    assert (facts["exact"], facts["reached"]) == (False, True)


def test_choice_is_the_same_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmdiff.building.stage.FLAT", 0)
    objects = []
    for number, threads in enumerate((1, 2)):
        store = mmdiff.open(tmp_path / str(number), create=True, threads=threads)
        store.add(noise(2000, 16))
        store.build_graph(k=5)
        objects.append({name: found for name, found in tree(store.path, with_runs=False).items() if "knn" in name})
    assert objects[0] == objects[1]
    assert objects[0]


def test_missed_target_is_told_on_stderr_and_in_json(missed: mmdiff.Store) -> None:
    again = run(missed, "build-graph", "--k", "10", "--index", "cells", "--json")
    assert again.exit_code == 0
    assert "warning: knn/BB: a recall of 0." in again.stderr
    assert "but 0.950 was asked for. Search exactly (index flat), or ask for less recall." in again.stderr
    stage = json.loads(again.stdout)["knn/BB"]
    assert stage["facts"]["reached"] is False
    assert stage["warnings"][0].startswith("knn/BB: a recall of 0.")


def test_missed_target_is_in_the_manifest_and_in_inspect(missed: mmdiff.Store) -> None:
    assert missed["knn/BB"].manifest.facts["reached"] is False
    assert "recall below the target" in run(missed, "inspect").stdout
    shown = run(missed, "inspect", "knn/BB").stdout
    assert "recall below the target" in shown
    assert any(line.split() == ["reached", "no"] for line in shown.splitlines())


def test_missed_target_is_in_the_report(missed: mmdiff.Store, tmp_path: Path) -> None:
    missed.report(tmp_path / "report.html")
    assert "knn/BB: a recall of 0." in (tmp_path / "report.html").read_text()


def test_missed_target_of_arrays_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmdiff.knn.choice._VISITS", (2,))
    monkeypatch.setattr("mmdiff.knn.background.MOST_PASSES", 0)
    with pytest.warns(RuntimeWarning, match=r"a recall of 0\.\d+ was reached, but 0\.950 was asked for"):
        mmdiff.knn_graph(noise(3000, 64), k=10, index="cells")


def test_completion_says_whether_it_reached_the_target(tmp_path: Path) -> None:
    store = stored(tmp_path, noise(300, 8))
    store.add(noise(20, 8), role="seeds", labels=np.arange(20) % 2)
    store.add(noise(10, 8), role="test")
    made = store.build_graph(k=5)
    assert made["knn/W0"]["facts"]["W_LB"]["reached"]
    assert made["knn/W0"]["facts"]["W_BL"]["reached"]
    assert made["knn/W0"]["facts"]["reached"]
    assert made["knn/test"]["facts"]["W_test"]["reached"]
    assert made["knn/test"]["facts"]["reached"]


def test_target_within_the_interval_of_the_measurement_is_reached() -> None:
    assert with_reached({"recall": 0.949, "high": 0.952}, 0.95)["reached"]
    assert not with_reached({"recall": 0.9, "high": 0.91}, 0.95)["reached"]
    assert not reached({"recall": 0.9}, 0.95)
    assert not reached({"recall": 1.0, "reached": False}, 0.95)


def test_searches_that_may_be_chosen_depend_on_the_number_of_rows() -> None:
    found = {rows: possible_searches(rows) for rows in (400, 100_000, 10**8)}
    assert found == {400: ("flat",), 100_000: ("cells", "flat"), 10**8: ("cells",)}

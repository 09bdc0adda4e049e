"""`docs/results.md` is generated from the committed results, which are small."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

from tests.support.paths import DOCS

RESULTS = DOCS / "experiments" / "results"


@pytest.fixture
def results_page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    # Modules of docs/ import each other, as programs there do.
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("results_page")


def test_the_page_is_that_of_the_results(results_page: ModuleType) -> None:
    assert (DOCS / "results.md").read_text() == results_page.page(RESULTS), "run `.venv/bin/python docs/results.py`"


def test_every_ready_made_config_has_results() -> None:
    configs = {path.stem for path in (DOCS / "experiments").glob("*.toml")}
    measured_otherwise = {"check", "calibration", "held_out", "audit", "suggesting", "images", "sklearn"}
    assert {path.stem for path in RESULTS.glob("*.json")} - measured_otherwise == configs


def test_results_are_small() -> None:
    assert sum(path.stat().st_size for path in RESULTS.glob("*.json")) < 200_000

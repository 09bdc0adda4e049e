"""`docs/results.md` is generated from the committed results, which are small."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from tests.support.paths import DOCS

RESULTS = DOCS / "experiments" / "results"


@pytest.fixture(scope="module")
def results_page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results_page", DOCS / "results_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_that_of_the_results(results_page: ModuleType) -> None:
    assert (DOCS / "results.md").read_text() == results_page.page(RESULTS), "run `.venv/bin/python docs/results.py`"


def test_every_ready_made_config_has_results() -> None:
    configs = {path.stem for path in (DOCS / "experiments").glob("*.toml")}
    assert {path.stem for path in RESULTS.glob("*.json")} - {"check"} == configs


def test_results_are_small() -> None:
    assert sum(path.stat().st_size for path in RESULTS.glob("*.json")) < 200_000

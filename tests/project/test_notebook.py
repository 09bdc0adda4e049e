"""The example notebook shows what its cells show now, and is a notebook that Jupyter opens."""

from __future__ import annotations

import copy
import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import DOCS

NOTEBOOK = DOCS / "example.ipynb"


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(DOCS)
    yield importlib.import_module("example_notebook")
    sys.modules.pop("example_notebook")


def shown() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(NOTEBOOK.read_text())
    return found


def test_the_notebook_shows_what_its_cells_show_now(runner: Any) -> None:
    before = Path.cwd()
    assert runner.is_current(shown(), runner.executed(shown())), "run `make docs`"
    assert Path.cwd() == before


def test_another_word_or_figure_is_seen(runner: Any) -> None:
    known = shown()
    for was, now, current in (("edges", "lines", False), ("36,776", "46,776", False), ("36,776", "36,770", True)):
        other = json.loads(json.dumps(known).replace(was, now))
        assert other != known
        assert runner.is_current(known, other) is current, (was, now)


def test_the_notebook_is_small_valid_and_loads_nothing() -> None:
    """The parts of nbformat 4.5 that its schema requires."""
    assert NOTEBOOK.stat().st_size < 300_000
    notebook = shown()
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook.keys() == {"cells", "metadata", "nbformat", "nbformat_minor"}
    identities = [cell["id"] for cell in notebook["cells"]]
    assert len(set(identities)) == len(identities)
    assert all(re.fullmatch(r"[\w-]{1,64}", identity) for identity in identities)
    for cell in notebook["cells"]:
        expected = {"cell_type", "id", "metadata", "source"}
        if cell["cell_type"] == "code":
            expected |= {"execution_count", "outputs"}
        assert cell.keys() == expected
        for output in cell.get("outputs", ()):
            kind = output["output_type"]
            fields = {"stream": {"name", "text"}, "execute_result": {"data", "execution_count", "metadata"}}[kind]
            assert output.keys() == fields | {"output_type"}
    counts = [cell["execution_count"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))
    html = "".join(
        "".join(output.get("data", {}).get("text/html", ())) for cell in notebook["cells"] for output in cell.get("outputs", ())
    )
    assert html
    assert not re.search(r"<script|<style|src=|href=|url\(|https?:", html)


def test_a_failing_cell_fails_the_run(runner: Any) -> None:
    broken = copy.deepcopy(shown())
    broken["cells"][1]["source"] = ["import tempfile\n", "raise RuntimeError('a cell that fails')"]
    with pytest.raises(RuntimeError, match="a cell that fails"):
        runner.executed(broken)

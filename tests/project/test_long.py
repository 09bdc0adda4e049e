"""The runner of the long campaigns finds all of them and keeps the figures of those that did not run."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tests.long.__main__ import Finished, campaigns, longest_first, main, record
from tests.support.paths import ROOT


@pytest.mark.parametrize("name", campaigns())
def test_campaign_says_what_it_does_and_runs_at_any_scale(name: str) -> None:
    module = ast.parse((ROOT / "tests" / "long" / f"{name}.py").read_text())
    assert ast.get_docstring(module)
    runs = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == "run"]
    assert [[argument.arg for argument in run.args.args[:2]] for run in runs] == [["scale", "seed"]]


def test_figures_of_other_campaigns_are_kept(tmp_path: Path) -> None:
    results = tmp_path / "testing.json"
    record(results, Finished("kills", {"kills": 3}, 60.0, tmp_path), scale=0.5, seed=1)
    record(results, Finished("fuzz", {"cases": 9}, 20.0, tmp_path), scale=1.0, seed=2)
    known = json.loads(results.read_text())
    assert list(known) == ["fuzz", "kills"]
    assert known["kills"]["figures"] == {"kills": 3}
    assert (known["kills"]["scale"], known["kills"]["seed"]) == (0.5, 1)
    assert set(known["fuzz"]) >= {"seconds", "commit", "processor", "date"}


def test_campaigns_that_took_longest_start_first(tmp_path: Path) -> None:
    results = tmp_path / "testing.json"
    record(results, Finished("short", {}, 10.0, tmp_path), scale=1.0, seed=0)
    record(results, Finished("long", {}, 15.0, tmp_path), scale=0.1, seed=0)
    assert longest_first(["short", "long", "new"], results) == ["new", "long", "short"]


def test_unknown_campaign_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["no-such-campaign"])
    assert "there is no campaign no-such-campaign" in capsys.readouterr().err

"""All stages agree on what is stale, however far back the change lies, and the commands they list make it current again."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from mmdiff.cli import app
from mmdiff.formats.store.store import Store
from mmdiff.runtime.staleness import commands, reasons_stale, stale_artifacts
from tests.support.scored import WIDTH, descriptors

CLASSES = 4


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with everything, made by commands as a user types them."""
    monkeypatch.chdir(tmp_path)
    for role, rows, seed in (("background", 120, 1), ("seeds", 24, 2), ("test", 30, 3), ("others", 100, 4)):
        np.save(f"{role}.npy", descriptors(np.arange(rows) % CLASSES, seed))
        np.save(f"{role}-labels.npy", np.arange(rows) % CLASSES)
    for command in (
        "import background.npy --role background --dims 6",
        "import seeds.npy --labels seeds-labels.npy --role seeds",
        "import test.npy --labels test-labels.npy --role test",
        "build-graph --k 5",
        "diffuse --iterations 2",
        "logreg --iterations 30",
        "fuse --weight 0.4",
    ):
        run_command(command, monkeypatch)
    return tmp_path


def run_command(command: str, monkeypatch: pytest.MonkeyPatch) -> Result:
    """Runs a command and lets it record what was typed."""
    words = shlex.split(command.removeprefix("mmdiff "))
    monkeypatch.setattr(sys, "argv", ["mmdiff", *words])
    outcome = CliRunner().invoke(app, words)
    assert outcome.exit_code == 0, outcome.output
    return outcome


def stale_lines() -> dict[str, list[str]]:
    found = json.loads(CliRunner().invoke(app, ["inspect", "--json"]).stdout)["artifacts"]
    return {line["artifact"]: line["stale"] for line in found if line["stale"]}


def refused(command: str) -> str:
    outcome = CliRunner().invoke(app, command.split())
    assert (outcome.exit_code, outcome.stdout) == (2, ""), outcome.output
    return str(outcome.stderr)


def test_a_new_background_makes_everything_behind_it_stale(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stale_lines() == {}
    run_command("import others.npy --role background --dims 6", monkeypatch)
    stale = stale_lines()
    everything = set(Store.open(folder / "mmdiff-store").names())
    assert set(stale) == everything - {"descriptors/background", "models/pca"}
    assert stale["models/cells"] == ["descriptors/background has changed since"]
    of_the_graph = "descriptors/background has changed since models/cells was made from it"
    assert stale["graph/W"] == [of_the_graph]
    assert set(stale["scores/diffusion"]) == {of_the_graph, "models/pca has changed since descriptors/seeds was made from it"}
    # The others agree.
    assert "has changed since" in refused("evaluate")
    assert "has changed since" in refused("fuse")
    assert "has changed since" in refused("explain --test 0")
    assert "has changed since" in refused("diffuse --iterations 3")
    exported = CliRunner().invoke(app, ["export", "graph/W", "W.npz"])
    assert exported.exit_code == 0
    assert "graph/W is stale: " in exported.stderr
    reported = CliRunner().invoke(app, ["report"])
    assert "left out scores/diffusion" in reported.stderr


@pytest.mark.parametrize("artifact", ["scores/fusion", "scores/diffusion", "scores/logreg", "graph/W"])
def test_the_commands_that_are_listed_work_in_that_order(folder: Path, artifact: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run_command("import others.npy --role background --dims 6", monkeypatch)
    store = Store.open(folder / "mmdiff-store")
    listed = commands(store, stale_artifacts(store, store.open_artifact(artifact)))
    assert len(listed) == len(set(listed))
    for command in listed:
        run_command(command, monkeypatch)
    assert reasons_stale(store, store.open_artifact(artifact)) == []
    if artifact == "scores/fusion":
        assert stale_lines() == {}
        assert json.loads(CliRunner().invoke(app, ["evaluate", "--json"]).stdout)["notes"] == [
            "top 5 says little: there are only 4 classes."
        ]


def test_evaluate_lists_the_commands_that_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder.is_dir()
    run_command("import others.npy --role background --dims 6", monkeypatch)
    for command in refused("evaluate scores/diffusion").strip().partition("Run again: ")[2].split("; then "):
        run_command(command, monkeypatch)
    assert CliRunner().invoke(app, ["evaluate", "scores/diffusion"]).exit_code == 0


def test_a_changed_file_makes_only_the_artifact_imported_from_it_stale(folder: Path) -> None:
    values: Any = np.load(folder / "test.npy")
    np.save(folder / "test.npy", values + np.ones(WIDTH, np.float32))
    assert stale_lines() == {"descriptors/test": ["test.npy has changed since"]}
    assert CliRunner().invoke(app, ["evaluate"]).exit_code == 0


def test_names_that_lead_in_a_circle_are_stale_and_end(folder: Path) -> None:
    """A name with the object of another name: what it was made from is made from it."""
    store = folder / "mmdiff-store"
    (store / "knn" / "BB").unlink()
    (store / "knn" / "BB").symlink_to((store / "knn" / "test").readlink())
    opened = Store.open(store)
    for name in opened.names():
        if name != "models/pca":
            assert all("has changed" in reason for reason in reasons_stale(opened, opened.open_artifact(name)))
    assert reasons_stale(opened, opened.open_artifact("graph/W"))

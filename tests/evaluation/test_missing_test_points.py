"""Without scores of test points, every command names the one cause and the steps that lead to them, in an order that works."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from mmdiff.cli import app
from tests.support.scored import descriptors

CLASSES = 4
COMMANDS = ["evaluate", "fuse", "explain --test 0", "export scores/diffusion x.npy", "export scores/diffusion x.csv"]
BUILT = "mmdiff build-graph --k 5"
NODES = "mmdiff diffuse --predict-nodes nodes.parquet"


@pytest.fixture(autouse=True)
def _inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for role, rows, seed in (("background", 80, 1), ("seeds", 24, 2), ("test", 30, 3)):
        np.save(f"{role}.npy", descriptors(np.arange(rows) % CLASSES, seed))
        np.save(f"{role}-labels.npy", np.arange(rows) % CLASSES)
    done(monkeypatch, "mmdiff import background.npy --role background")
    done(monkeypatch, "mmdiff import seeds.npy --labels seeds-labels.npy --role seeds")


def done(monkeypatch: pytest.MonkeyPatch, *commands: str) -> None:
    for command in commands:
        words = shlex.split(command)[1:]
        monkeypatch.setattr(sys, "argv", ["mmdiff", *words])
        outcome = CliRunner().invoke(app, words)
        assert outcome.exit_code == 0, outcome.output


def refused(command: str) -> tuple[str, list[str]]:
    """The cause that a command names, and the steps that it lists."""
    outcome = CliRunner().invoke(app, command.split())
    assert (outcome.exit_code, outcome.stdout) == (2, ""), outcome.output
    cause, steps = outcome.stderr.strip().removeprefix("mmdiff: ").split(". Run: ")
    return cause, steps.split("; then ")


def follow(monkeypatch: pytest.MonkeyPatch, steps: list[str]) -> None:
    """Does as advised, with the user's files in place of FILE."""
    done(monkeypatch, *(step.replace("FILE --labels FILE", "test.npy --labels test-labels.npy") for step in steps))


def importing(*steps: str) -> list[str]:
    return ["mmdiff import FILE --labels FILE --role test", *steps]


@pytest.mark.parametrize("command", COMMANDS[1:])
def test_without_test_points_all_commands_say_so(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done(monkeypatch, BUILT, NODES)
    cause, steps = refused(command)
    assert "no test points were imported" in cause
    if command == "fuse":
        # The diffusion exists, for nodes only; the regression would have no scores either.
        assert steps == importing("mmdiff logreg")
    else:
        assert steps == importing(BUILT, NODES)
    follow(monkeypatch, steps)
    if command == "fuse":
        _, steps = refused("fuse")
        follow(monkeypatch, steps)
    done(monkeypatch, f"mmdiff {command}")


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "fuse"])
def test_test_points_that_come_after_the_graph_need_a_new_one(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done(monkeypatch, BUILT, NODES, "mmdiff import test.npy --labels test-labels.npy --role test")
    cause, steps = refused(command)
    assert cause.endswith("the test points were imported after the graph was built, so they have no scores")
    assert steps == [BUILT, "mmdiff diffuse" if command == "evaluate" else NODES]
    follow(monkeypatch, steps)
    done(monkeypatch, f"mmdiff {command}")


def test_nothing_but_descriptors_needs_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    cause, steps = refused("explain --test 0")
    assert "no test points were imported" in cause
    assert steps == importing("mmdiff build-graph", "mmdiff diffuse")
    _, steps = refused("fuse")
    assert steps == importing("mmdiff build-graph", "mmdiff logreg", "mmdiff diffuse")
    follow(monkeypatch, steps)
    done(monkeypatch, "mmdiff fuse", "mmdiff evaluate", "mmdiff explain --test 0")


@pytest.mark.parametrize("command", ["evaluate", "explain --test 0", "export scores/diffusion x.csv"])
def test_a_graph_that_was_imported_without_the_test_points(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done(monkeypatch, "mmdiff import test.npy --labels test-labels.npy --role test")
    draw = np.random.default_rng(0)
    np.save("lists.npy", draw.integers(0, 104, (104, 4)))
    done(monkeypatch, "mmdiff import-graph lists.npy", NODES)
    cause, steps = refused(command)
    assert "graph/W was imported without the test points, which would be its last nodes" in cause
    assert steps[0] == "mmdiff import-graph FILE"
    np.save("lists.npy", draw.integers(0, 134, (134, 4)))
    done(monkeypatch, "mmdiff import-graph lists.npy", *steps[1:], f"mmdiff {command}")


def test_a_report_without_test_points_says_why_it_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    done(monkeypatch, BUILT, NODES)
    outcome = CliRunner().invoke(app, ["report"])
    assert outcome.exit_code == 0
    assert "no test points were imported, so there are no scores of any" in outcome.stderr
    assert "diffuse" not in outcome.stderr

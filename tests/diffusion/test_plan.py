"""`mmdiff plan` shows memory, disk and time of a run, and refuses a run that does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import mmdiff
from mmdiff.building.estimate import plan_build_graph
from mmdiff.building.stage import Request as BuildRequest
from mmdiff.building.stage import build_graph
from mmdiff.cli import app
from mmdiff.diffusion.planning.estimate import plan_diffuse
from mmdiff.diffusion.stage import Request, diffuse
from mmdiff.formats.errors import BadOption, Missing
from mmdiff.importing.stage import Request as ImportRequest
from mmdiff.importing.stage import import_descriptors
from tests.support.paths import SAMPLE

LEFT_BY_OTHER_TESTS = 16 << 20


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample of real descriptors, with its graph."""
    path = tmp_path_factory.mktemp("plan") / "store"
    import_descriptors(path, ImportRequest([str(SAMPLE / "background.npy")], "background"))
    import_descriptors(path, ImportRequest([str(SAMPLE / "seeds.npy")], "seeds", labels=str(SAMPLE / "seed_labels.npy")))
    import_descriptors(path, ImportRequest([str(SAMPLE / "test.npy")], "test", labels=str(SAMPLE / "test_labels.npy")))
    build_graph(path, BuildRequest(k=10))
    return path


@pytest.mark.parametrize(
    "request_",
    [
        Request(),
        Request(plain=True, cols_per_batch=7),
        Request(eta="sinkhorn", cols_per_batch=8),
        Request(gamma=0.5, dtype="bfloat16", keep_scores="last"),
        Request(iterations=0),
    ],
    ids=["default", "plain", "sinkhorn", "gamma", "no iterations"],
)
def test_plan_of_a_diffusion_has_the_batches_and_the_scores_of_the_run(store: Path, request_: Request) -> None:
    plan = plan_diffuse(store, request_)
    outcome = diffuse(store, request_)
    assert (plan.cols_per_batch, plan.batches) == (outcome.needs.width, outcome.needs.batches)
    assert len(plan.steps) == request_.iterations
    assert plan.seconds > 0
    assert plan.memory < plan.memory_limit
    # Tests before this one leave memory in the process; test_diffuse_memory holds the bound in a process of its own.
    assert outcome.artifact.run["peak_memory"] <= plan.memory + LEFT_BY_OTHER_TESTS
    scores = outcome.artifact.manifest.arrays["scores"].spec.bytes_on_disk
    assert scores <= plan.artifact <= outcome.artifact.manifest.bytes_on_disk


def test_plan_leaves_the_store_as_it_was(store: Path) -> None:
    before = sorted(path for path in store.rglob("*"))
    plan_diffuse(store, Request(iterations=2, eta="row"))
    plan_build_graph(store, BuildRequest(k=10))
    assert sorted(path for path in store.rglob("*")) == before


def test_run_that_does_not_fit_is_refused_by_its_plan_with_what_would(store: Path) -> None:
    with pytest.raises(BadOption, match=r"memory='1M': .* At least memory='\d+M' is needed"):
        plan_diffuse(store, Request(memory=1 << 20))


def test_plan_of_a_graph_knows_the_index_and_the_nodes(store: Path, tmp_path: Path) -> None:
    plan = plan_build_graph(store, BuildRequest(k=10))
    assert (plan.index, plan.nodes) == ("flat", 1750)
    assert plan.seconds > 0
    assert plan.disk > 1500 * 256 * 4
    with pytest.raises(BadOption, match="only auto and flat can be planned"):
        plan_build_graph(store, BuildRequest(index="IVF16,Flat"))
    with pytest.raises(Missing, match="no store here"):
        plan_build_graph(tmp_path, BuildRequest())


def test_plan_of_a_graph_names_all_searches_that_the_run_may_choose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmdiff.building.estimate.FLAT", 0)
    store = mmdiff.open(tmp_path / "store", create=True)
    store.add(np.random.default_rng(0).normal(size=(12_000, 4)))
    open_, flat = store.plan("build_graph", k=2), store.plan("build_graph", k=2, index="flat")
    assert (open_["index"], flat["index"]) == ("cells or flat", "flat")
    assert open_["disk"] > flat["disk"]


@pytest.mark.parametrize("command", ["diffuse", "build-graph"])
def test_plans_are_shown_as_a_table_and_as_json(store: Path, command: str) -> None:
    text = CliRunner().invoke(app, ["plan", command, "--store", str(store)])
    assert text.exit_code == 0, text.output
    assert "memory" in text.stdout
    assert "time" in text.stdout
    told = CliRunner().invoke(app, ["plan", command, "--store", str(store), "--json"])
    assert {"memory", "seconds", "disk_free"} <= json.loads(told.stdout).keys()

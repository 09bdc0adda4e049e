"""Experiments: shared lists, checkpoints, choices and results, compared with an independent computation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from mmdiff.cli import app
from mmdiff.experiment.cells import Cell, hits
from mmdiff.experiment.computing import CellComputer
from mmdiff.experiment.config import Background, read_config
from mmdiff.experiment.protocol import Data, Protocol
from mmdiff.experiment.shared_lists import SharedLists, nearest
from mmdiff.formats.errors import BadOption
from mmdiff.formats.store.manifest import Recipe
from mmdiff.formats.store.store import Store
from mmdiff.formats.store.verify import verify
from mmdiff.graph.graph import CsrGraph
from mmdiff.graph.in_memory import graph_of
from mmdiff.graph.lists import ArrayLists
from mmdiff.graph.weights import Weighting
from mmdiff.kinds import KINDS
from mmdiff.labels.classes import UNLABELLED
from tests.support.graphs import make_graph, some_lists
from tests.support.naive_protocol import NaiveProtocol
from tests.support.small_experiments import (
    DIFFUSION,
    DIMS,
    FUSION,
    ITERATIONS,
    LOGREG,
    K,
    interrupted_after,
    run,
    small_config,
    splits,
    write_config,
)
from tests.support.stores import problems, publish, tree

BACKGROUNDS = [Background("none"), Background("in-domain"), Background("out-of-domain", 40), Background("out-of-domain")]


@pytest.fixture
def protocol(tmp_path: Path) -> Protocol:
    config = read_config(write_config(tmp_path, small_config()))
    return Protocol.of(Data.read(config), config, "validation")


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """The cells that a run computes, in order."""
    seen: list[Cell] = []
    result = CellComputer.result

    def spy(self: CellComputer, cell: Cell) -> Any:
        seen.append(cell)
        return result(self, cell)

    monkeypatch.setattr(CellComputer, "result", spy)
    return seen


def test_accuracies_are_those_of_an_independent_computation(quick_folder: Path) -> None:
    artifact = run(quick_folder, small_config()).artifact
    data = {role: np.load(small_config()["data"][role]) for role in ("train", "train_labels", "test", "test_labels")}
    own, planes, offsets = splits(), artifact.array("planes"), artifact.array("offsets")
    points = artifact.manifest.facts["tests"]
    for line in artifact.manifest.facts["lines"]:
        number = 1 if line["group"] == "validation" else 2
        base, novel = own[f"base_{number}"], own[f"novel_{number}"]
        naive = NaiveProtocol(**data, base=base, novel=novel, out_of_domain=own["others"], seed=0, dims=DIMS)
        counts = [points[line["group"]][which] for which in ("all", "all", "novel", "novel")]
        for draw in range(2):
            expected = naive.accuracies(line["background"], line["n"], draw, K, ITERATIONS)
            cell = line["first_cell"] + draw
            found = planes[offsets[cell] : offsets[cell + 1], :4] / counts
            np.testing.assert_allclose(found, expected, atol=0.002, err_msg=f"{line['background']}, n = {line['n']}")


@pytest.mark.parametrize("background", BACKGROUNDS, ids=str)
def test_seeds_that_enter_shared_lists_give_those_of_all_nodes_at_once(protocol: Protocol, background: Background) -> None:
    shared = SharedLists.make(protocol, background, DIMS, K)
    for n, draw in ((1, 0), (3, 1), (5, 0)):
        nodes = shared.with_draw(protocol.drawn(n, draw))
        new_rows = protocol.data.train[nodes.rows[len(shared.vectors) :]]
        vectors = np.concatenate([shared.vectors, shared.space.project(new_rows.astype(np.float32), str)])
        for lists, queries in ((nodes.lists, vectors), (nodes.test_lists, shared.test)):
            for found, expected in zip(lists, nearest(queries, vectors, K), strict=True):
                np.testing.assert_array_equal(found, expected)


def test_lists_of_fewer_neighbours_are_the_beginning_of_longer_ones(protocol: Protocol) -> None:
    long, short = (SharedLists.make(protocol, BACKGROUNDS[2], DIMS, k) for k in (K, 3))
    drawn = protocol.drawn(2, 0)
    np.testing.assert_array_equal(long.with_draw(drawn).lists[0][:, :3], short.with_draw(drawn).lists[0])


@pytest.mark.parametrize("weighting", [None, Weighting("gaussian", 0.5), Weighting("meaningful", 20.0)])
def test_graph_in_memory_is_that_of_the_store(quick_folder: Path, weighting: Weighting | None) -> None:
    lists = some_lists(70, 6)
    expected = CsrGraph.from_artifact(make_graph(quick_folder / "store", lists.lists, weighting))
    found = graph_of(lists.neighbors, lists.similarities, weighting)
    for name in ("indptr", "indices", "scale", "weights"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize("weighting", [Weighting("gaussian", 1e-3), Weighting("meaningful", 5.0)])
def test_graph_in_memory_whose_weights_vanish_is_refused_as_in_the_store(quick_folder: Path, weighting: Weighting) -> None:
    neighbors = np.array([[0, 1], [1, 2], [2, 0]], np.uint32)
    similarities = np.array([[1, 0.5], [1, 0.5], [1, 0.5]], np.float32)
    with pytest.raises(BadOption, match="all weights between different nodes vanish") as refused:
        make_graph(quick_folder / "store", ArrayLists(neighbors, similarities), weighting)
    with pytest.raises(BadOption) as also_refused:
        graph_of(neighbors, similarities, weighting)
    assert also_refused.value.parts == refused.value.parts


def test_experiment_whose_weights_vanish_is_refused_by_the_key_of_its_config(quick_folder: Path) -> None:
    method = {**DIFFUSION, "edge_weights": "gaussian", "sigma": 1e-3}
    with pytest.raises(BadOption, match=r"background none, n = 1: sigma = 0.001: all weights between different nodes vanish"):
        run(quick_folder, small_config(methods=[method]))
    lambda_of_two = {**DIFFUSION, "edge_weights": "meaningful", "lambda": 20.0, "k": 2}
    with pytest.raises(BadOption, match=r"n = 1: lambda = 20.0: .* Use a larger one, or more neighbours"):
        run(quick_folder, small_config(methods=[lambda_of_two]))


def test_in_domain_only_labels_depend_on_the_draw(protocol: Protocol) -> None:
    computer = CellComputer(protocol, DIMS, K)
    shared = computer.shared_lists(Background("in-domain"))
    one, other = protocol.drawn(3, 0), protocol.drawn(3, 1)
    assert shared.with_draw(one) is shared.with_draw(other)
    labels = computer.labels(shared.nodes, one)
    seeds = shared.nodes.rows[labels != UNLABELLED]
    assert set(seeds) == {*protocol.base, *one}
    np.testing.assert_array_equal(protocol.classes[labels[labels != UNLABELLED]], protocol.data.train_labels[seeds])


def test_draws_take_n_of_each_novel_class_and_fewer_are_the_first_of_more(protocol: Protocol) -> None:
    few, many = protocol.drawn(2, 1), protocol.drawn(5, 1)
    labels = protocol.data.train_labels
    assert np.unique(labels[many], return_counts=True)[1].tolist() == [5] * 4
    assert set(few) < set(many)
    assert set(protocol.drawn(5, 0)) != set(many)


def test_smaller_backgrounds_are_subsets_of_larger_ones(protocol: Protocol) -> None:
    small, large = (set(protocol.background(background)) for background in BACKGROUNDS[2:])
    assert len(small) == 40
    assert small < large


def test_ties_are_misses() -> None:
    truth, novel = np.array([0, 1]), np.array([False, True])
    assert hits(np.zeros((2, 6), np.float32), truth, novel) == [0, 0, 0, 0]
    assert hits(np.array([[1, 1, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]], np.float32), truth, novel) == [1, 2, 1, 1]


def test_interrupted_run_continues_without_repeating_cells(quick_folder: Path, computed: list[Cell]) -> None:
    whole = run(quick_folder, small_config(), "whole")
    everything = list(computed)
    computed.clear()
    with pytest.raises(KeyboardInterrupt):
        run(quick_folder, small_config(), "other", interrupted_after(7))
    assert len(computed) == 7
    assert not (quick_folder / "other" / "reports").exists()
    outcome = run(quick_folder, small_config(), "other")
    assert computed == everything
    assert outcome.found == 7
    assert outcome.artifact.id == whole.artifact.id
    whole_tree, other_tree = (tree(quick_folder / store, with_runs=False) for store in ("whole", "other"))
    assert other_tree == whole_tree
    assert not problems(Store.open(quick_folder / "other"))


def test_killed_run_continues_to_identical_bytes(quick_folder: Path) -> None:
    whole = run(quick_folder, small_config(), "whole")
    program: list[Any] = [Path(sys.executable).parent / "mmdiff", "experiment", "run", quick_folder / "config.toml"]
    with subprocess.Popen([*program, "--store", quick_folder / "killed"]) as process:
        while len(list(quick_folder.glob("killed/work/*/object/*.json"))) < 5 and process.poll() is None:
            pass
        process.kill()
    outcome = run(quick_folder, small_config(), "killed")
    assert outcome.found >= 5
    assert outcome.artifact.id == whole.artifact.id
    assert not problems(Store.open(quick_folder / "killed"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, []),
        ({"line": {"planes": [0]}}, ["line 0: not a line of experiment results"]),
        ({"line": {"mean": 5}}, ["line 0: not a line of experiment results"]),
        ({"line": {"plane": 2}}, ["line 0: not a line of experiment results"]),
        ({"line": {"first_cell": -1}}, ["line 0: not a line of experiment results"]),
        ({"line": {"first_cell": 10**30}}, [f"line 0: not 3 cells of 2 planes from cell {10**30} on"]),
        ({"line": {"planes": [0, "1"]}}, ["line 0: not a line of experiment results"]),
        (
            {"line": {"std": {key: [0.0, "x"] for key in ("top1", "top5", "novel_top1", "novel_top5")}}},
            ["line 0: not a line of experiment results"],
        ),
        ({"planes": np.zeros((6, 5), np.int64)}, ["5 columns; expected 6"]),
        ({"offsets": np.array([0, 4, 3, 6])}, ["offsets go backwards at row 1"]),
        ({"offsets": np.array([0, 2, 4, 5])}, ["offsets do not run from 0 to 6"]),
        ({"offsets": np.array([0, 1, 4, 6])}, ["line 0: not 3 cells of 2 planes from cell 0 on"]),
        ({"keys": np.zeros((2, 12), np.uint8)}, ["2 keys for 3 cells"]),
    ],
)
def test_verify_finds_results_that_contradict_themselves(quick_folder: Path, change: dict[str, Any], told: list[str]) -> None:
    forged, change = change.get("line", {}), {name: values for name, values in change.items() if name != "line"}
    planes, keys = np.zeros((6, 6), np.int64), np.zeros((3, 12), np.uint8)
    arrays: dict[str, Any] = {"planes": planes, "offsets": np.array([0, 2, 4, 6]), "keys": keys}
    accuracies = {name: [0.0, 0.0] for name in ("top1", "top5", "novel_top1", "novel_top5")}
    line = {"group": "test", "n": 1, "method": "m", "kind": "diffusion", "variant": {}, "options": {}, "chosen": True}
    line |= {"planes": [0, 1], "plane": 0, "mean": accuracies, "std": accuracies, "first_cell": 0}
    parameters = {"draws": 3, "n": [1], "methods": []}
    facts = {"lines": [line | forged], "tests": {}}
    publish(quick_folder / "store", "reports/x", arrays | change, Recipe("report", 1, parameters, {}), facts)
    store = Store.open(quick_folder / "store")
    assert [problem.what for problem in verify(store, store.names(), KINDS)] == told


def test_another_config_reuses_the_cells_of_published_results(quick_folder: Path, computed: list[Cell]) -> None:
    first = run(quick_folder, small_config())
    computed.clear()
    methods = [DIFFUSION | {"eta": ["column", "none"]}]
    wider = small_config(name="wider", n=[3, 1], backgrounds=["in-domain", "none"], methods=methods)
    outcome = run(quick_folder, wider)
    assert {cell.options["eta"] for cell in computed} == {"none"}
    assert outcome.found == len(computed)
    lines = {_place(line): line["mean"] for line in first.artifact.manifest.facts["lines"]}
    for line in outcome.artifact.manifest.facts["lines"]:
        if line["options"]["eta"] == "column":
            assert line["mean"] == lines[_place(line)]


def _place(line: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(line[key] for key in ("group", "n", "background"))


def test_other_data_are_not_taken_for_the_same(quick_folder: Path, computed: list[Cell]) -> None:
    run(quick_folder, small_config())
    count = len(computed)
    labels = np.load(small_config()["data"]["test_labels"])
    np.save(quick_folder / "shuffled.npy", labels[::-1])
    changed = small_config()
    changed["data"]["test_labels"] = "shuffled.npy"
    assert run(quick_folder, changed).found == 0
    assert len(computed) == 2 * count


def test_repeated_run_finds_its_results(quick_folder: Path, computed: list[Cell]) -> None:
    run(quick_folder, small_config())
    computed.clear()
    outcome = run(quick_folder, small_config())
    assert outcome.reused
    assert not computed


@pytest.mark.parametrize(("eta", "applied"), [("column", None), ("row", "once"), ("sinkhorn", "once")])
def test_results_of_operators_that_changed_are_not_taken_for_new_ones(tmp_path: Path, eta: str, applied: str | None) -> None:
    """Row and sinkhorn were applied a second time when they were reported; other recipes are as they were."""
    method = {"name": "diffusion", "kind": "diffusion", "k": 5, "eta": eta}
    config = read_config(write_config(tmp_path, small_config(methods=[method])))
    assert config.parameters().get("eta_applied") == applied


def test_choices_of_the_validation_group_hold_for_the_test_group(quick_folder: Path) -> None:
    methods = [DIFFUSION | {"tune": {"gamma": [0.5, 1.5]}}]
    lines = run(quick_folder, small_config(methods=methods)).artifact.manifest.facts["lines"]
    for background in map(str, BACKGROUNDS):
        for n in (1, 3):
            own = [line for line in lines if (line["background"], line["n"]) == (background, n)]
            tried = [line for line in own if line["group"] == "validation"]
            (frozen,) = [line for line in own if line["group"] == "test"]
            (chosen,) = [line for line in tried if line["chosen"]]
            assert len(tried) == 2
            best = max(top5 for line in tried for top5 in line["mean"]["top5"])
            assert chosen["mean"]["top5"][chosen["plane"]] == best
            assert (frozen["options"], frozen["plane"], frozen["chosen"]) == (chosen["options"], chosen["plane"], True)


def test_means_and_deviations_are_those_of_the_draws(quick_folder: Path) -> None:
    artifact = run(quick_folder, small_config(draws=3)).artifact
    planes, offsets = artifact.array("planes"), artifact.array("offsets")
    for line in artifact.manifest.facts["lines"]:
        cells = range(line["first_cell"], line["first_cell"] + 3)
        shares = np.array([planes[offsets[cell] : offsets[cell + 1], 3] for cell in cells])
        shares = shares / artifact.manifest.facts["tests"][line["group"]]["novel"]
        np.testing.assert_allclose(line["mean"]["novel_top5"], shares.mean(axis=0), atol=1e-6)
        np.testing.assert_allclose(line["std"]["novel_top5"], shares.std(axis=0, ddof=1), atol=1e-6)
        reached = np.array([planes[offsets[cell] : offsets[cell + 1], 4:] for cell in cells])
        np.testing.assert_allclose(line["nonzero"], (reached[..., 0] / reached[..., 1]).mean(axis=0), atol=1e-6)
        assert line["nonzero"] == sorted(line["nonzero"])


@pytest.mark.parametrize(
    "options",
    [
        {"edge_weights": "gaussian", "sigma": 0.5},
        {"edge_weights": "meaningful", "lambda": 20.0},
        {"eta": ["none", "row", "sinkhorn", "prior"]},
        {"eta": "prior", "prior": "seeds", "prior_power": [0.5, 1.0]},
        {"gamma": 0.8},
        {"alpha": 0.8},
        {"reset_seeds": True, "normalize_graph": "symmetric"},
    ],
    ids=lambda options: "+".join(options),
)
def test_every_variant_of_the_diffusion_runs(quick_folder: Path, options: dict[str, Any]) -> None:
    config = small_config(n=[2], draws=1, backgrounds=["in-domain"], methods=[DIFFUSION | options])
    del config["groups"]["test"]
    outcome = run(quick_folder, config)
    store = Store.open(quick_folder / "store")
    assert not list(verify(store, store.names(), KINDS))
    assert all(max(line["mean"]["top5"]) > 0.5 for line in outcome.artifact.manifest.facts["lines"])


def test_fusion_at_its_ends_is_the_regression_and_the_diffusion(quick_folder: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    outcome = run(quick_folder, small_config(methods=[DIFFUSION, LOGREG, FUSION]))
    artifact = outcome.artifact
    planes, offsets = artifact.array("planes"), artifact.array("offsets")
    lines = [line for line in artifact.manifest.facts["lines"] if line["chosen"]]
    found = {(line["group"], line["n"], line["background"], line["kind"]): line for line in lines}

    def counts(line: dict[str, Any], draw: int, plane: int) -> list[int]:
        return list(planes[offsets[line["first_cell"] + draw] + plane, :4])

    fusions = [line for line in lines if line["kind"] == "fusion"]
    assert len(fusions) == 2 * 2 * 4
    for fusion in fusions:
        where = (fusion["group"], fusion["n"])
        regression, diffusion = found[(*where, None, "logreg")], found[(*where, fusion["background"], "diffusion")]
        assert fusion["options"]["iteration"] == diffusion["plane"]
        for draw in range(2):
            assert counts(fusion, draw, 20) == counts(regression, draw, 0)
            assert counts(fusion, draw, 0) == counts(diffusion, draw, diffusion["plane"])


def test_runs_with_a_regression_come_out_the_same(quick_folder: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    config = small_config(backgrounds=["none"], methods=[DIFFUSION, LOGREG, FUSION])
    one, other = (run(quick_folder, config, store) for store in ("one", "other"))
    assert one.artifact.id == other.artifact.id


def test_prior_of_a_regression(quick_folder: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    methods = [DIFFUSION | {"eta": "prior", "prior": "logreg", "prior_power": [0.0, 1.0]}, DIFFUSION | {"name": "plain"}]
    lines = run(quick_folder, small_config(n=[2], backgrounds=["in-domain"], methods=methods)).artifact.manifest.facts["lines"]
    flat, peaked, plain = (line["mean"] for line in lines if line["group"] == "validation")
    assert flat == plain
    assert peaked != plain


def test_command_shows_tables_and_json(quick_folder: Path) -> None:
    config = write_config(quick_folder, small_config())
    command = ["experiment", "run", str(config), "--store", str(quick_folder / "store")]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0
    assert "top-5 accuracy on novel classes, test group" in shown.stdout
    assert "out-of-domain:40" in shown.stdout
    document = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert document["reused"]
    assert document["cells"] == 2 * 2 * 2 * 4

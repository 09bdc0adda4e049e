"""`mmdiff explain` follows the largest terms of every variant, and names nodes by the user's ids."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from mmdiff.building.stage import Request as GraphRequest
from mmdiff.building.stage import build_graph
from mmdiff.cli import app
from mmdiff.diffusion import stage
from mmdiff.diffusion.seeds import Seeds
from mmdiff.diffusion.stage import Request as DiffuseRequest
from mmdiff.diffusion.stage import diffuse
from mmdiff.diffusion.variant import Variant
from mmdiff.explain import paths
from mmdiff.explain.nodes import Images, Name
from mmdiff.explain.paths import Question, Spreading, find_paths
from mmdiff.formats.errors import BadOption
from mmdiff.formats.store.manifest import Recipe
from mmdiff.formats.store.store import Store
from mmdiff.graph.graph import CsrGraph
from mmdiff.importing.stage import Request, import_descriptors
from mmdiff.knn.cells import partition
from tests.diffusion.test_diffusion import graphs, some_labels, some_neighbors, variants
from tests.support.naive_paths import check_path
from tests.support.worlds import CLASSES, make_world


@settings(max_examples=70)
@given(
    graph=graphs,
    variant=variants,
    classes=st.integers(1, 5),
    per_row=st.integers(1, 2),
    iterations=st.integers(0, 4),
    seed=st.integers(0, 1000),
)
def test_path_follows_the_largest_terms(
    graph: CsrGraph, variant: Variant, classes: int, per_row: int, iterations: int, seed: int
) -> None:
    labels, neighbors = some_labels(graph.nodes, classes, per_row, seed), some_neighbors(graph.nodes, seed)
    prior = np.random.default_rng(seed).random(classes) + 0.1 if variant.takes_prior else np.ones(classes)
    prior /= prior.sum()
    seeds = Seeds.of(np.arange(graph.nodes), labels, classes)
    questions = [Question(point, column) for point in range(len(neighbors)) for column in range(classes)]
    found = find_paths(Spreading(graph, seeds, variant, prior, iterations, neighbors), questions)
    assert set(found) == set(questions)
    for question, path in found.items():
        own = neighbors[question.point]
        check_path(path, graph, labels, classes, variant, prior, iterations, own, question.column)


def test_classes_that_do_not_fit_into_memory_together_give_the_same_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    matrix = (draw.random((60, 60)) < 0.1).astype(float)
    graph = CsrGraph.from_scipy(scipy.sparse.csr_array(matrix))
    labels, neighbors = some_labels(60, 4, 1, 3), some_neighbors(60, 3)
    spreading = Spreading(
        graph, Seeds.of(np.arange(60), labels, 4), Variant(), np.full(4, 0.25), 3, neighbors.astype(np.uint32)
    )
    questions = [Question(point, column) for point in range(6) for column in range(4)]
    together = find_paths(spreading, questions)
    monkeypatch.setattr(paths, "STATE_BYTES", 1)
    assert find_paths(spreading, questions) == together
    coupled = Spreading(graph, spreading.seeds, Variant(eta="row"), spreading.prior, 3, spreading.neighbors)
    with pytest.raises(BadOption, match="eta='row' couples the classes"):
        find_paths(coupled, questions)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"))


def run(world: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["explain", *arguments, "--store", str(world / "store")])


def test_path_leads_from_a_seed_of_the_class_to_the_point_in_ids_of_the_user(world: Path) -> None:
    for row in range(0, 30, 7):
        found = json.loads(run(world, "--test", f"t{row}", "--json").stdout)
        assert found["test"]["id"] == f"t{row}"
        assert found["test"]["labels"] == [CLASSES[row % 3]]
        assert [path["class"] for path in found["paths"] if path["true"]] == [CLASSES[row % 3]]
        for path in found["paths"]:
            steps = path["steps"]
            assert steps[0]["role"] == "seed"
            assert CLASSES[int(steps[0]["id"][1:]) % 3] == path["class"]
            assert all(step["id"][0] == step["role"][0] for step in steps)
            assert [step["iteration"] for step in steps] == [0, 1, 2, 3]
            assert all(0 < step["share"] <= 1 for step in steps)


def test_nodes_of_the_background_are_those_of_the_users_rows(world: Path) -> None:
    """The last node of a path is one of the point's nearest by the descriptors as they were imported."""
    store = Store.open(world / "store")
    vectors = {role: store.open_artifact(f"descriptors/{role}").array("vectors") for role in ("background", "seeds", "test")}
    nodes = np.concatenate([vectors["background"], vectors["seeds"]])
    for row in range(30):
        near = np.argsort(-(nodes @ vectors["test"][row]))[:4]
        names = [f"b{node}" if node < 90 else f"s{node - 90}" for node in near]
        found = json.loads(run(world, "--test", f"t{row}", "--json").stdout)
        assert all(path["steps"][-1]["id"] in names for path in found["paths"])


def test_class_can_be_asked_for_by_name_or_number(world: Path) -> None:
    by_name = json.loads(run(world, "--test", "t0", "--class", "owl", "--json").stdout)
    by_number = json.loads(run(world, "--test", "t0", "--class", "2", "--json").stdout)
    assert by_name == by_number
    assert [path["class"] for path in by_name["paths"]] == ["owl"]


def test_paths_are_shown_as_text(world: Path) -> None:
    outcome = run(world, "--test", "t0", "--images", str(world / "images"))
    assert outcome.exit_code == 0
    assert "test point t0: <b>cat</b>" in outcome.stdout
    assert "test t0" in outcome.stdout
    assert "(no image)" in outcome.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--test", "t99"], "--test t99: no test point has this id. There are 30: t0, t1, t2, ..."),
        (["--test", "t1", "--class", "owll"], "--class owll: scores/diffusion has no such class. Did you mean 'owl'?"),
        (["--test", "t1", "--scores", "nothing"], "scores/nothing: no such scores in the store"),
        (["--test", "t1", "--images", "/no/where"], "--images /no/where: no such folder."),
        (["--test", "t1", "--images", "https://x.org/a.jpg"], "no {id} in it"),
        (["--test", "t1", "--labels", "x.npy"], "was made with the labels of the store. Leave it out."),
    ],
)
def test_bad_questions_are_answered_with_a_sentence(world: Path, arguments: list[str], message: str) -> None:
    outcome = run(world, *arguments)
    assert outcome.exit_code == 2
    assert message in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_diffusion_of_some_classes_and_of_other_labels_is_explained_too(world: Path, tmp_path: Path) -> None:
    diffuse(world / "store", DiffuseRequest(iterations=2, classes="owl,dog & wolf", reset_seeds=True, name="some"))
    found = json.loads(run(world, "--test", "t2", "--scores", "some", "--json").stdout)
    assert found["paths"][0]["class"] == "owl"
    cat = json.loads(run(world, "--test", "t0", "--scores", "some", "--json").stdout)
    assert "the point's true class (<b>cat</b>) has no seed" in cat["notes"][0]
    labels = np.full(99, -1)
    labels[:3] = 7
    np.save(tmp_path / "labels.npy", labels)
    diffuse(world / "store", DiffuseRequest(labels=str(tmp_path / "labels.npy"), alpha=0.5, name="other"))
    refused = run(world, "--test", "t0", "--scores", "other")
    assert refused.exit_code == 2
    assert "Name that file here too" in refused.stderr
    asked = ["--test", "t0", "--scores", "other", "--class", "7", "--labels", str(tmp_path / "labels.npy"), "--json"]
    answer = json.loads(run(world, *asked).stdout)
    assert "the labels are names, but the classes of the seeds have numbers only" in answer["notes"][0]
    assert answer["paths"][0]["steps"][0]["id"] in ("b0", "b1", "b2")
    assert 0 < answer["paths"][0]["own_label"] <= 1
    np.save(tmp_path / "labels.npy", labels[::-1])
    changed = run(world, *asked)
    assert changed.exit_code == 2
    assert "not what scores/other was made with" in changed.stderr


def test_states_of_bfloat16_lead_to_the_same_paths() -> None:
    """S of the last iteration has needed rows only: paths start from their values, and not from their bits."""
    draw = np.random.default_rng(0)
    graph = CsrGraph.from_scipy(scipy.sparse.csr_array((draw.random((60, 60)) < 0.1).astype(float)))
    seeds, neighbors = Seeds.of(np.arange(60), some_labels(60, 4, 1, 3), 4), some_neighbors(60, 3)[:2]
    questions = [Question(point, column) for point in range(2) for column in range(4)]
    exact, short = (
        find_paths(Spreading(graph, seeds, Variant(dtype=dtype), np.full(4, 0.25), 2, neighbors), questions)
        for dtype in ("float32", "bfloat16")
    )
    for question, path in exact.items():
        other = short[question]
        assert (path is None) == (other is None)
        if path is not None and other is not None:
            np.testing.assert_allclose([s.share for s in other.steps], [s.share for s in path.steps], rtol=0.02)


def test_scores_of_a_version_that_applied_eta_twice_have_no_paths(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe_now = stage._recipe

    def recipe_then(prepared: stage.Prepared) -> Recipe:
        recipe = recipe_now(prepared)
        parameters = {key: value for key, value in recipe.parameters.items() if key != "eta_applied"}
        return replace(recipe, parameters=parameters)

    monkeypatch.setattr(stage, "_recipe", recipe_then)
    diffuse(world / "store", DiffuseRequest(eta="row", name="old"))
    outcome = run(world, "--test", "t0", "--scores", "old")
    assert outcome.exit_code == 2
    assert "applied eta a second time" in " ".join(outcome.stderr.split())


def test_test_points_that_are_nodes_of_an_imported_graph_are_explained(world: Path, tmp_path: Path) -> None:
    """A chain from the only seed over the background to a test point, which is its own list."""
    store = str(tmp_path / "store")
    edges = [(0, 1), (1, 2), (3, 0), (2, 4)]
    matrix = np.zeros((6, 6))
    for one, other in edges:
        matrix[one, other] = matrix[other, one] = 1
    scipy.sparse.save_npz(tmp_path / "graph.npz", scipy.sparse.csr_array(matrix))
    for role, rows in (("background", 3), ("seeds", 1), ("test", 2)):
        np.save(tmp_path / f"{role}.npy", np.load(world / f"{role}.npy")[:rows])
        (tmp_path / f"{role}.txt").write_text("owl\n" * rows)
        labels = [] if role == "background" else ["--labels", str(tmp_path / f"{role}.txt")]
        given = ["import", str(tmp_path / f"{role}.npy"), "--role", role, "--dims", "3", *labels, "--store", store]
        assert CliRunner().invoke(app, given).exit_code == 0
    for command in (["import-graph", str(tmp_path / "graph.npz")], ["diffuse", "--iterations", "4"]):
        outcome = CliRunner().invoke(app, [*command, "--store", store])
        assert outcome.exit_code == 0, outcome.output
    found = json.loads(CliRunner().invoke(app, ["explain", "--test", "0", "--store", store, "--json"]).stdout)
    names = [f"{step['role']} {step['id']}" for step in found["paths"][0]["steps"]]
    assert names == ["seed 0", "background 0", "background 1", "background 2", "test 0"]
    assert found["paths"][0]["steps"][-1]["share"] == 1
    alone = json.loads(CliRunner().invoke(app, ["explain", "--test", "1", "--store", store, "--json"]).stdout)
    assert alone["paths"][0]["steps"] == []


def test_images_are_found_by_role_and_ending_and_made_small(world: Path) -> None:
    images = Images.of(str(world / "images"))
    assert images.find(Name("seed", "s2")) == str(world / "images" / "seed" / "s2.png")
    assert images.find(Name("background", "b7")) == str(world / "images" / "b7.JPEG")
    small = images.thumbnail(Name("seed", "s2"))
    assert small is not None
    assert small.startswith("data:image/jpeg;base64,")
    assert len(small) < 4000


def test_image_that_is_missing_or_broken_is_none_and_no_crash(world: Path) -> None:
    images = Images.of(str(world / "images"))
    assert images.thumbnail(Name("background", "b77")) is None
    assert images.thumbnail(Name("background", "b60")) is None
    assert images.find(Name("background", "b60")) is not None


@pytest.mark.parametrize("identity", ["../secret", "/etc/hosts", "a/../../b", "a\0b"])
def test_id_cannot_lead_out_of_the_folder(identity: str, world: Path) -> None:
    (world / "secret").write_text("x")
    assert Images.of(str(world / "images")).find(Name("seed", identity)) is None


def test_templates_name_files_and_addresses(world: Path) -> None:
    files = Images.of(f"{world}/images/{{role}}/{{id}}.png")
    assert files.find(Name("seed", "s4")) == f"{world}/images/seed/s4.png"
    urls = Images.of("https://example.org/{role}/{id}.jpg")
    assert urls.thumbnail(Name("test", "a b/c")) == "https://example.org/test/a%20b%2Fc.jpg"


@pytest.mark.parametrize("variant", [{}, {"alpha": 0.8, "normalize_graph": "symmetric"}])
def test_permuting_the_background_permutes_nothing_but_its_row_numbers(
    world: Path, tmp_path: Path, variant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids, shares and classes of all paths stay the same, on graphs whose nodes are in another order than the user's rows."""
    monkeypatch.setattr(partition, "CELL_ROWS", 20)
    permutation = np.random.default_rng(1).permutation(90)
    found = []
    for order in (np.arange(90), permutation):
        folder = tmp_path / f"{int(order[0])}"
        folder.mkdir()
        np.save(folder / "background.npy", np.load(world / "background.npy")[order])
        (folder / "background-ids.txt").write_text("".join(f"b{row}\n" for row in order))
        for role, source in (("background", folder), ("seeds", world), ("test", world)):
            options: Any = {"role": role, "dims": 12, "ids": str(source / f"{role}-ids.txt")}
            if role != "background":
                options["labels"] = str(world / f"{role}-labels.txt")
            import_descriptors(folder / "store", Request([str(source / f"{role}.npy")], **options))
        # With constant weights many terms are equal, and any of them is a largest one.
        build_graph(folder / "store", GraphRequest(k=4, index="flat", edge_weights="gaussian", sigma=0.5))
        diffuse(folder / "store", DiffuseRequest(iterations=3, **variant))
        nodes = CsrGraph.open(folder / "store")
        assert nodes.order is not None
        assert (nodes.order != np.arange(90)).any()
        found.append([json.loads(run(folder, "--test", f"t{row}", "--json").stdout) for row in range(30)])
    background = 0
    for one, other in zip(*found, strict=True):
        for path, twin in zip(one["paths"], other["paths"], strict=True):
            assert (path["class"], path["rank"]) == (twin["class"], twin["rank"])
            assert [(step["role"], step["id"]) for step in path["steps"]] == [(s["role"], s["id"]) for s in twin["steps"]]
            shares = [[step["share"] for step in steps] for steps in (path["steps"], twin["steps"])]
            np.testing.assert_allclose(shares[0], shares[1], atol=2e-5)
            background += sum(step["role"] == "background" for step in path["steps"])
    assert background > 30

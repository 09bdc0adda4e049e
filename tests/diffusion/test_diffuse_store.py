"""`mmdiff diffuse`: scores that follow the specification, equal the definition, and are made once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from typer.testing import CliRunner

from mmdiff.building.stage import Request as Build
from mmdiff.building.stage import build_graph
from mmdiff.cli import app
from mmdiff.diffusion.options import ETAS
from mmdiff.diffusion.stage import Outcome, Request, diffuse
from mmdiff.diffusion.variant import Variant
from mmdiff.formats.store.store import Store
from mmdiff.graph.graph import CsrGraph
from mmdiff.importing.stage import Request as Import
from mmdiff.importing.stage import import_descriptors
from tests.diffusion.test_diffusion import assert_close
from tests.knn.test_knn import clustered
from tests.support.naive_diffusion import naive_diffusion, naive_scores, naive_Y
from tests.support.stores import SMALL_CHUNKS, chunks_of, problems, tree

BACKGROUND, SEEDS, TESTS, CLASSES, K, T = 300, 24, 50, 7, 6, 3
NAMES = [f"class {number}" for number in range(CLASSES)]


def import_rows(folder: Path, role: Any, values: NDArray[Any], **more: Any) -> None:
    np.save(folder / f"{role}.npy", values)
    import_descriptors(folder / "store", Import([str(folder / f"{role}.npy")], role, **more))


def import_seeds(folder: Path, labels: NDArray[Any], seed: int = 1, **more: Any) -> None:
    np.save(folder / "labels.npy", labels)
    import_rows(folder, "seeds", clustered(len(labels), 16, 10, seed), labels=str(folder / "labels.npy"), **more)


def make(folder: Path, roles: str = "background seeds test", transductive: bool = False, **seeds: Any) -> Path:
    """A store with a graph; the background has strings for ids, and the seeds' classes have names."""
    folder.mkdir(exist_ok=True)
    (folder / "ids.txt").write_text("".join(f"image {row * 7 % BACKGROUND}\n" for row in range(BACKGROUND)))
    (folder / "names.txt").write_text("".join(f"{name}\n" for name in NAMES))
    if "background" in roles:
        import_rows(folder, "background", clustered(BACKGROUND, 16, 10), ids=str(folder / "ids.txt"))
    if "seeds" in roles:
        labels = seeds.pop("labels", np.arange(SEEDS) % CLASSES)
        import_seeds(folder, labels, class_names=str(folder / "names.txt"), no_background="background" not in roles, **seeds)
    if "test" in roles:
        import_rows(folder, "test", clustered(TESTS, 16, 10, 2))
    build_graph(folder / "store", Build(k=K, index="flat", transductive=transductive))
    return folder


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("made") / "folder")


@pytest.fixture
def made(original: Path, tmp_path: Path) -> Path:
    """A folder with a user's files and a store with a graph."""
    return Path(shutil.copytree(original, tmp_path / "folder", symlinks=True))


def spread(folder: Path, **options: Any) -> Outcome:
    return diffuse(folder / "store", Request(**({"iterations": T} | options)))


def run(folder: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["diffuse", *arguments, "--store", str(folder / "store")])


def labels_of_nodes(folder: Path) -> NDArray[np.int32]:
    store = Store.open(folder / "store")
    facts, own = store.open_artifact("graph/W").manifest.facts, store.open_artifact("descriptors/seeds").array("labels")
    labels = np.full((facts["nodes"], own.reshape(len(own), -1).shape[1]), -1, np.int32)
    labels[facts["background"] : facts["background"] + len(own)] = own.reshape(len(own), -1)
    return labels


def expected_L(folder: Path, variant: Variant | None = None, iterations: int = T) -> list[NDArray[np.float64]]:
    graph, labels = CsrGraph.open(folder / "store"), labels_of_nodes(folder)
    return naive_diffusion(graph, labels, CLASSES, variant or Variant(), np.full(CLASSES, 1 / CLASSES), iterations)


def expected_scores(folder: Path, variant: Variant | None = None, iterations: int = T) -> NDArray[np.float64]:
    lists = Store.open(folder / "store").open_artifact("knn/test").array("neighbors")
    return np.stack([naive_scores(L, lists) for L in expected_L(folder, variant, iterations)])


def stock(folder: Path, array: str, name: str = "diffusion") -> NDArray[Any]:
    """An array of the scores, read with stock zarr."""
    found = zarr.open_group(folder / "store", mode="r")[f"scores/{name}/{array}"]
    assert isinstance(found, zarr.Array)
    return np.asarray(found[:])


def test_scores_are_those_of_the_definition_and_open_with_stock_zarr(made: Path) -> None:
    with chunks_of(SMALL_CHUNKS):
        outcome = spread(made, cols_per_batch=3)
    scores = stock(made, "scores")
    assert scores.dtype == np.float32
    assert_close(scores, expected_scores(made))
    S = expected_L(made, Variant("none"))
    assert_close(stock(made, "column_sums"), np.stack([each.sum(axis=0) for each in S]))
    assert stock(made, "class_numbers").tolist() == list(range(CLASSES))
    manifest = outcome.artifact.manifest
    assert (manifest.kind, manifest.schema, manifest.parameters["method"]) == ("scores", 1, "diffusion")
    assert (manifest.facts["tests"], manifest.facts["classes"], manifest.facts["planes"]) == (TESTS, CLASSES, [0, 1, 2, 3])
    assert problems(Store.open(made / "store")) == []


def test_share_of_entries_that_labels_have_reached_is_recorded_for_each_iteration(made: Path) -> None:
    facts = spread(made, plain=True).artifact.manifest.facts
    S = expected_L(made, Variant("none"))
    assert [step["rows"] for step in facts["steps"]] == [len(S[0])] * (T + 1)
    found = [step["nonzero"] for step in facts["steps"]]
    np.testing.assert_allclose(found, [np.count_nonzero(each) / each.size for each in S], atol=1e-8)
    record = spread(made).artifact.run["steps"]
    assert [step["iteration"] for step in record] == list(range(T + 1))
    assert all(step["seconds"] >= 0 and step["bytes"] >= 0 for step in record)
    assert sum(step["bytes"] for step in record) > 0


@pytest.mark.parametrize("eta", ETAS)
def test_only_coupled_operators_tell_in_the_recipe_that_they_are_applied_once(made: Path, eta: Any) -> None:
    parameters = spread(made, eta=eta).artifact.manifest.parameters
    assert parameters.get("eta_applied") == ("once" if eta in ("row", "sinkhorn") else None)


@pytest.mark.parametrize("eta", ["column", "sinkhorn"])
def test_without_iterations_scores_are_those_of_the_seeds(made: Path, eta: Any) -> None:
    spread(made, iterations=0, eta=eta)
    assert_close(stock(made, "scores"), expected_scores(made, Variant(eta), 0))


def test_only_the_last_scores_are_kept_when_asked_for(made: Path) -> None:
    spread(made)
    outcome = spread(made, keep_scores="last", name="last")
    np.testing.assert_array_equal(stock(made, "scores", "last"), stock(made, "scores")[-1:])
    assert outcome.artifact.manifest.facts["planes"] == [T]
    assert stock(made, "column_sums", "last").shape == (T + 1, CLASSES)


LONG = ",".join(["class 5", "1", *["class 3"] * 60])


@pytest.mark.parametrize("chosen", ["5,1,3", "class 5, class 1,class 3", "chosen.txt", "1,class 5,3,3", LONG])
def test_classes_are_chosen_by_number_name_list_and_file(made: Path, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (made / "chosen.txt").write_text("class 3\n5\n\n1\n")
    monkeypatch.chdir(made)
    whole, some = spread(made), spread(made, classes=chosen, name="some")
    np.testing.assert_array_equal(stock(made, "scores", "some"), stock(made, "scores")[:, :, [1, 3, 5]])
    assert stock(made, "class_numbers", "some").tolist() == [1, 3, 5]
    assert list(some.artifact.strings("class_names")) == ["class 1", "class 3", "class 5"]
    assert whole.artifact.id != some.artifact.id


def test_labels_of_a_file_go_to_the_rows_of_the_background_that_the_user_knows(made: Path) -> None:
    labels = np.full(BACKGROUND + SEEDS, -1)
    labels[[4, 250, BACKGROUND + 2]] = [10, 20, 10]
    np.save(made / "node_labels.npy", labels)
    spread(made, labels=str(made / "node_labels.npy"), predict_nodes=made / "p.parquet", iterations=0)
    top = stock(made, "top_classes")[:, 0]
    assert {row: top[row] for row in np.flatnonzero(top >= 0)} == {4: 0, 250: 1}
    assert stock(made, "class_numbers").tolist() == [10, 20]


def test_imported_graph_takes_its_labels_from_a_file(tmp_path: Path) -> None:
    lists = np.array([[1], [2], [3], [0], [5], [4], [-1]])
    np.save(tmp_path / "lists.npy", lists)
    (tmp_path / "labels.txt").write_text("cat\n\n\n\ndog\n\n\n")
    store = ["--store", str(tmp_path / "store")]
    assert CliRunner().invoke(app, ["import-graph", str(tmp_path / "lists.npy"), *store]).exit_code == 0
    file = tmp_path / "p.parquet"
    options = ["--labels", str(tmp_path / "labels.txt"), "--predict-nodes", str(file), "--iterations", "2"]
    outcome = run(tmp_path, *options)
    assert outcome.exit_code == 0, outcome.output
    table = read_parquet(file)
    assert table["id"] == list(range(7))
    assert table["name"] == ["cat", None, "cat", None, "dog", None, None]
    assert table["label"] == [0, -1, 0, -1, 1, -1, -1]


def test_seeds_may_have_several_labels(tmp_path: Path) -> None:
    labels = np.random.default_rng(0).integers(-1, CLASSES, (SEEDS, 3))
    labels[0], labels[1] = -1, 2
    folder = make(tmp_path / "folder", labels=labels)
    spread(folder)
    assert_close(stock(folder, "scores"), expected_scores(folder))


def test_transductive_test_points_are_scored_by_what_reaches_their_neighbours(tmp_path: Path) -> None:
    folder = make(tmp_path / "folder", transductive=True)
    spread(folder)
    assert len(expected_L(folder)[0]) == BACKGROUND + SEEDS + TESTS
    assert_close(stock(folder, "scores"), expected_scores(folder))


def test_seeds_alone_are_a_graph_to_spread_over(tmp_path: Path) -> None:
    folder = make(tmp_path / "folder", "seeds test")
    spread(folder)
    assert_close(stock(folder, "scores"), expected_scores(folder))


def read_parquet(file: Path) -> dict[str, list[Any]]:
    from pyarrow import parquet

    found: dict[str, list[Any]] = parquet.read_table(file).to_pydict()
    return found


def expected_predictions(folder: Path, variant: Variant | None = None, iterations: int = T) -> NDArray[np.float64]:
    """L of the background, in the user's row order."""
    order = Store.open(folder / "store").open_artifact("graph/W").array("order")
    L = expected_L(folder, variant, iterations)[-1][: len(order)]
    mine = np.empty_like(L)
    mine[order] = L
    return mine


@pytest.mark.parametrize("eta", ["column", "row"])
def test_predictions_are_the_best_classes_of_every_row_under_the_users_ids(tmp_path: Path, eta: Any) -> None:
    # Two seeds that are near each other leave most of the background without a label after one step.
    folder = make(tmp_path / "folder", "background seeds", labels=np.array([5] * 2 + [-1] * 22))
    outcome = diffuse(
        folder / "store", Request(iterations=1, eta=eta, predict_nodes=folder / "p.parquet", classes="2,5,class 6")
    )
    table, L = read_parquet(folder / "p.parquet"), expected_predictions(folder, Variant(eta), 1)
    assert table["id"] == [f"image {row * 7 % BACKGROUND}" for row in range(BACKGROUND)]
    reached = L[:, 5] > 0
    assert 0 < reached.sum() < BACKGROUND
    assert table["label"] == np.where(reached, 5, -1).tolist()
    assert table["name"] == ["class 5" if yes else None for yes in reached]
    assert table["classes"] == [[5] if yes else [] for yes in reached]
    np.testing.assert_allclose([scores[0] for scores in table["scores"] if scores], L[reached, 5], rtol=1e-5)
    assert outcome.predictions == {"file": str(folder / "p.parquet"), "rows": BACKGROUND, "reached": int(reached.sum())}
    assert outcome.artifact.manifest.facts["planes"] == []
    assert any("no seed" in warning for warning in outcome.warnings)
    assert problems(Store.open(folder / "store")) == []


def test_predictions_have_up_to_five_classes_best_first_and_numbers_for_ids(made: Path) -> None:
    import_rows(made, "background", clustered(BACKGROUND, 16, 10))
    import_seeds(made, np.arange(SEEDS) % CLASSES * 10)
    import_rows(made, "test", clustered(TESTS, 16, 10, 2))
    build_graph(made / "store", Build(k=K, index="flat"))
    spread(made, predict_nodes=made / "p.parquet", cols_per_batch=2)
    table, L = read_parquet(made / "p.parquet"), expected_predictions(made)
    assert table["id"] == list(range(BACKGROUND))
    assert "name" not in table
    for row in range(BACKGROUND):
        best = [c for c in np.argsort(-L[row], kind="stable")[:5] if L[row, c] > 0]
        np.testing.assert_allclose(table["scores"][row], L[row, best], rtol=1e-5)
        assert table["classes"][row] == [10 * c for c in best]
        assert table["label"][row] == (10 * best[0] if best else -1)
    assert_close(stock(made, "scores"), expected_scores(made))


def test_second_run_finds_what_is_there_and_writes_the_predictions_again(made: Path) -> None:
    file = made / "p.parquet"
    first = run(made, "--iterations", "2", "--predict-nodes", str(file))
    assert first.exit_code == 0, first.output
    before, content = tree(made / "store"), file.read_bytes()
    file.unlink()
    again = run(made, "--iterations", "2", "--predict-nodes", str(file), "--cols-per-batch", "2", "--memory", "6G")
    assert again.exit_code == 0, again.output
    assert "unchanged" in again.stdout
    assert "unchanged" not in first.stdout
    assert tree(made / "store") == before
    assert file.read_bytes() == content


@pytest.mark.parametrize(
    "changed",
    [
        {"iterations": 2},
        {"eta": "none"},
        {"eta": "prior", "prior": "seeds"},
        {"eta": "prior", "prior": "seeds", "prior_power": 0.5},
        {"gamma": 1.5},
        {"alpha": 0.8},
        {"reset_seeds": True},
        {"normalize_graph": "symmetric"},
        {"dtype": "bfloat16"},
        {"keep_scores": "last"},
        {"classes": "1,2"},
    ],
    ids=str,
)
def test_other_options_make_other_scores_and_leave_the_old_ones_to_their_readers(made: Path, changed: dict[str, Any]) -> None:
    first = spread(made)
    kept = first.artifact.array("scores").copy()
    second = spread(made, **changed)
    assert not second.reused
    assert second.artifact.id != first.artifact.id
    np.testing.assert_array_equal(first.artifact.array("scores"), kept)
    assert spread(made, **changed).reused
    assert spread(made).reused


def test_prior_is_that_of_the_seeds_or_of_a_file(made: Path) -> None:
    counts = np.bincount(np.arange(SEEDS) % CLASSES, minlength=CLASSES)
    (made / "prior.txt").write_text("".join(f"{count / 7}\n" for count in counts))
    np.save(made / "prior.npy", counts.astype(np.int16))
    ids = {spread(made, eta="prior", prior=prior).artifact.id for prior in ("seeds", str(made / "prior.npy"))}
    assert len(ids) == 1
    columns, p = stock_after(made, "column"), counts / counts.sum()
    for prior, power in (("seeds", None), (str(made / "prior.txt"), 2.0), ("uniform", 3.0)):
        spread(made, eta="prior", prior=prior, prior_power=power)
        own = np.ones(CLASSES) if prior == "uniform" else p ** (power or 1)
        np.testing.assert_allclose(stock(made, "scores"), columns * own / own.sum(), rtol=1e-5)


def stock_after(folder: Path, eta: Any) -> NDArray[Any]:
    spread(folder, eta=eta)
    return stock(folder, "scores")


@pytest.mark.parametrize("array", ["scores", "column_sums", "top_classes", "top_scores", "class_numbers"])
def test_verify_finds_a_flipped_bit_in_any_array(made: Path, array: str) -> None:
    spread(made, predict_nodes=made / "p.parquet")
    file = next((made / "store" / "scores" / "diffusion" / array).glob("c.*"))
    damaged = bytearray(file.read_bytes())
    damaged[5] ^= 1
    file.write_bytes(damaged)
    outcome = CliRunner().invoke(app, ["verify", "--json", "--store", str(made / "store")])
    assert outcome.exit_code == 1
    assert [(found["artifact"], found["array"]) for found in json.loads(outcome.stdout)["problems"]] == [
        ("scores/diffusion", array)
    ]
    assert not spread(made, predict_nodes=made / "p.parquet").reused
    assert problems(Store.open(made / "store")) == []


def test_indicator_of_several_labels_has_a_one_for_each() -> None:
    assert naive_Y(2, np.array([[0, 0], [1, 2]]), 3).tolist() == [[1, 0, 0], [0, 1, 1]]

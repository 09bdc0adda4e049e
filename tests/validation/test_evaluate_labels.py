"""`mmdiff evaluate` without test points and `--iterations auto`: accuracies of held-out labels, said plainly, and bad input."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import mmdiff
from mmdiff.cli import app
from mmdiff.diffusion.api import diffuse
from mmdiff.formats.store.store import Store
from mmdiff.graph.graph import CsrGraph
from mmdiff.labels.label_set import read_label_set
from mmdiff.logreg.training import Options, Samples, train
from mmdiff.validation.held_out import HeldOut
from tests.knn.test_knn import clustered
from tests.support.naive_evaluation import naive_ranks
from tests.support.stores import problems, tree
from tests.validation.test_held_out_scores import CLASSES, ROWS, labels_of_rows

NAMES = ["ant", "bee", "cat", "dog"]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection with some labels, and no other role."""
    path = tmp_path_factory.mktemp("made") / "store"
    store = mmdiff.open(path, create=True, memory="2G")
    labels = labels_of_rows()
    store.add(clustered(ROWS, 16, 6), labels=[None if label < 0 else NAMES[label] for label in labels])
    store.build_graph(k=6)
    return path


@pytest.fixture
def path(original: Path, quick_folder: Path) -> Path:
    return Path(shutil.copytree(original, quick_folder / "store", symlinks=True))


@pytest.fixture
def store(path: Path) -> mmdiff.Store:
    return mmdiff.open(path, memory="2G")


def run(path: Path, *words: str) -> Any:
    return CliRunner().invoke(app, [*words, "--store", str(path)])


def test_accuracies_are_those_of_rows_that_did_not_see_their_own_labels(store: mmdiff.Store, path: Path) -> None:
    found = store.evaluate(top=(1, 2), per_class=True)["scores"]
    assert [one["artifact"] for one in found] == ["folds/diffusion"]
    held_out = HeldOut.open(Store.open(path), "diffusion")
    labels = labels_of_rows()[held_out.rows]
    for plane, step in enumerate(found[0]["iterations"]):
        ranks = naive_ranks(held_out.scores[plane], labels[:, None], 99)
        for k in (1, 2):
            assert step["all"][f"top{k}"]["accuracy"] == pytest.approx((np.array(ranks) <= k).mean(), abs=1e-6)
    by_class = {entry["class"]: entry for entry in found[0]["per_class"]}
    assert [by_class[name]["points"] for name in NAMES] == [*np.bincount(labels, minlength=3).tolist(), 0]
    assert by_class["dog"]["top1"] is None
    assert found[0]["held_out"]["classes_never_held_out"] == 1
    assert problems(Store.open(path)) == []


def test_text_says_what_was_held_out_and_that_it_is_an_estimate(path: Path) -> None:
    outcome = run(path, "evaluate", "--folds", "3", "--seed", "4")
    assert outcome.exit_code == 0, outcome.output
    assert "40 labelled rows held out in 3 folds, 4 classes" in outcome.stdout
    for told in (
        "40 labelled rows were held out in 3 folds",
        "1 of 4 classes never had a label held out, mostly because they have only one",
        "an estimate on rows that were chosen to be labelled",
    ):
        assert told in outcome.stderr
    found = json.loads(run(path, "evaluate", "--folds", "3", "--seed", "4", "--json").stdout)
    assert (
        found["scores"][0]["held_out"] | {"folds": 3, "seed": 4, "points": 40, "scheme": "folds"}
        == found["scores"][0]["held_out"]
    )


def test_options_are_those_of_the_scores(store: mmdiff.Store, path: Path) -> None:
    store.diffuse(iterations=2, eta="row", classes="bee,ant", predict_nodes=True)
    store.diffuse(iterations=1, eta="prior", prior="seeds", predict_nodes=True, name="other")
    found = store.evaluate(folds=3)["scores"]
    assert [(one["artifact"], len(one["iterations"])) for one in found] == [("folds/diffusion", 3), ("folds/other", 2)]
    parameters = Store.open(path).open_artifact("folds/diffusion").manifest.parameters
    assert (parameters["eta"], parameters["classes"]) == ("row", ["ant", "bee"])
    assert [one["artifact"] for one in store.evaluate("other", folds=3)["scores"]] == ["folds/other"]


def test_folds_are_forced_where_there_are_test_points(store: mmdiff.Store) -> None:
    store.add(clustered(20, 16, 6, 3), role="test", labels=[NAMES[row % 3] for row in range(20)])
    store.build_graph(k=6)
    store.diffuse(iterations=2)
    assert "test" in store.evaluate()["scores"][0]
    assert store.evaluate(folds=4)["scores"][0]["held_out"]["folds"] == 4


def test_without_a_number_few_labels_give_fewer_folds(tmp_path: Path) -> None:
    store = mmdiff.open(tmp_path / "store", create=True)
    labels = np.full(ROWS, -1)
    labels[:5] = [0, 0, 1, 1, 2]
    store.add(clustered(ROWS, 16, 6), labels=labels)
    store.build_graph(k=6)
    assert store.evaluate()["scores"][0]["held_out"]["folds"] == 4
    with pytest.raises(mmdiff.errors.InputError, match=r"folds=5: more folds than labels.*there are 4"):
        store.evaluate(folds=5)


@pytest.mark.parametrize("options", [{}, {"eta": "sinkhorn"}], ids=str)
def test_auto_takes_the_best_number_of_iterations_and_gives_its_scores_to_the_bit(
    store: mmdiff.Store, path: Path, options: dict[str, Any]
) -> None:
    scores = store.diffuse(iterations="auto", predict_nodes=True, **options)
    chosen = scores.summary["iterations_chosen"]
    held_out = HeldOut.open(Store.open(path), "diffusion")
    labels = labels_of_rows()[held_out.rows]
    assert [point["iteration"] for point in chosen["curve"]] == list(range(1, 11))
    ranks = [np.array(naive_ranks(plane, labels[:, None], 99)) for plane in held_out.scores]
    best = max(range(1, 11), key=lambda t: ((ranks[t] <= 1).mean(), (ranks[t] <= 5).mean(), -t))
    assert chosen["iterations"] == best
    made = Store.open(path).open_artifact("scores/diffusion")
    assert made.manifest.parameters["iterations"] == best
    assert made.manifest.facts["iterations_chosen"] == chosen
    again = store.diffuse(iterations=best, predict_nodes=True, name="again", **options)
    assert again.summary["reused"]
    plain = mmdiff.open(path.parent / "plain", create=True, memory="2G")
    shutil.copytree(path, path.parent / "plain", symlinks=True)
    shutil.rmtree(next((path.parent / "plain" / "objects").glob("scores-*")))
    (path.parent / "plain" / "scores" / "diffusion").unlink()
    (path.parent / "plain" / "scores" / "again").unlink()
    plain.diffuse(iterations=best, predict_nodes=True, **options)
    other = Store.open(path.parent / "plain").open_artifact("scores/diffusion")
    assert other.manifest.arrays == made.manifest.arrays


def test_auto_says_what_it_chose(path: Path) -> None:
    outcome = run(path, "diffuse", "--iterations", "auto", "--predict-nodes", str(path.parent / "p.parquet"))
    assert outcome.exit_code == 0, outcome.output
    assert "chosen on 40 labelled rows held out in 5 folds\n" in outcome.stdout
    assert "top-1 accuracy on them after iterations 1 to 10: " in outcome.stdout


def test_folds_of_a_regression_are_trained_without_their_labels(store: mmdiff.Store, path: Path) -> None:
    found = store.evaluate("logreg", folds=3)["scores"][0]
    assert [step["iteration"] for step in found["iterations"]] == [None]
    held_out = HeldOut.open(Store.open(path), "logreg")
    vectors, labels = Store.open(path).open_artifact("descriptors/background").array("vectors"), labels_of_rows()
    rows = np.flatnonzero(labels >= 0)
    for fold in range(3):
        mine = held_out.rows[held_out.fold == fold]
        samples = Samples.of(np.where(np.isin(rows, mine), -1, labels[rows]))
        model = train(vectors[rows], samples, CLASSES, Options(device="cpu"))
        np.testing.assert_array_equal(held_out.scores[0][held_out.fold == fold], model.log_probabilities(vectors[mine]))
    assert problems(Store.open(path)) == []


def refused(path: Path, *words: str) -> str:
    before = tree(path)
    outcome = run(path, *words)
    assert outcome.exit_code == 2, outcome.output
    assert tree(path) == before
    return str(outcome.stderr)


def test_bad_folds_are_refused_and_nothing_changes(path: Path) -> None:
    assert "--folds 1: expected a whole number from 2" in refused(path, "evaluate", "--folds", "1")
    assert "--folds 41: more folds than labels that can be held out, of which there are 40" in refused(
        path, "evaluate", "--folds", "41"
    )
    assert "--seed -1: expected a whole number" in refused(path, "evaluate", "--seed", "-1")
    np.save(path.parent / "l.npy", np.zeros(ROWS, int))
    file = str(path.parent / "l.npy")
    assert "labels of a file cannot be held out" in refused(
        path, "diffuse", "--iterations", "auto", "--labels", file, "--predict-nodes", str(path.parent / "p.parquet")
    )
    assert "a plan is for a number of iterations" in refused(path, "plan", "diffuse", "--iterations", "auto")


def test_stores_without_labels_to_hold_out_are_refused(tmp_path: Path) -> None:
    X = clustered(ROWS, 16, 6)
    none, single = tmp_path / "none", tmp_path / "single"
    mmdiff.open(none, create=True).add(X)
    assert "no graph to spread labels over. Run first: mmdiff build-graph" in refused(none, "evaluate")
    mmdiff.open(none).build_graph(k=6)
    assert "no labels to spread" in refused(none, "evaluate")
    mmdiff.open(single, create=True).add(X, labels=np.where(np.arange(ROWS) < 3, np.arange(ROWS), -1))
    mmdiff.open(single).build_graph(k=6)
    told = "each of the 3 classes has one label, so that none can be held out"
    assert told in refused(single, "evaluate")
    file = str(tmp_path / "p.parquet")
    assert told in refused(single, "diffuse", "--iterations", "auto", "--predict-nodes", file)


def test_scores_that_cannot_be_validated_are_left_out_or_refused(store: mmdiff.Store, path: Path) -> None:
    np.save(path.parent / "l.npy", np.where(np.arange(ROWS) < 9, np.arange(ROWS) % 3, -1))
    store.diffuse(iterations=1, labels=str(path.parent / "l.npy"), predict_nodes=True, name="file")
    found = store.evaluate()
    assert [one["artifact"] for one in found["scores"]] == ["folds/diffusion"]
    assert "left out scores/file: made from labels of a file, which are not in the store to be held out." in found["notes"]
    assert "scores/file: made from labels of a file" in refused(path, "evaluate", "file")


def test_labels_that_are_kept_out_take_the_place_of_folds(store: mmdiff.Store, path: Path) -> None:
    store.hold_out(0.3, seed=2)
    found = store.evaluate()
    held_out = HeldOut.open(Store.open(path), "diffusion")
    files = Store.open(path)
    labels = read_label_set(files, files.open_artifact("graph/W"))
    np.testing.assert_array_equal(held_out.rows, labels.rows[labels.held_out])
    assert found["scores"][0]["held_out"]["scheme"] == "holdout"
    assert f"{len(held_out.rows)} labelled rows whose labels are kept out were scored by the other labels." in found["notes"]
    reduced = labels_of_rows()
    reduced[held_out.rows] = -1
    expected = diffuse(CsrGraph.open(path), reduced, classes=CLASSES, neighbors=held_out.rows[:, None])
    np.testing.assert_array_equal(held_out.scores, expected)
    outcome = run(path, "evaluate")
    assert f"{len(held_out.rows)} rows kept out, 4 classes" in outcome.stdout
    # Nothing is chosen on labels that are kept out, and folds are of the others.
    store.diffuse(iterations="auto", predict_nodes=True)
    folds = HeldOut.open(Store.open(path), "diffusion")
    assert not np.isin(folds.rows, held_out.rows).any()
    assert store.evaluate(folds=3)["scores"][0]["held_out"]["points"] == len(folds.rows)


def test_an_array_of_iterations_is_refused_by_name(path: Path) -> None:
    store = mmdiff.open(path)
    for call in (store.diffuse, lambda **options: store.plan("diffuse", **options)):
        with pytest.raises(mmdiff.errors.BadOption, match=r"iterations=array\(\[1, 2\]\): expected a whole number"):
            call(iterations=np.array([1, 2]))

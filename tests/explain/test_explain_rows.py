"""Explanations of rows of the collection, in a store of one table without test points."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import mmdiff
from mmdiff.cli import app

ROWS, CLASSES, DIMS, EVERY, T = 120, 3, 8, 10, 3
NAMES = ("cat", "dog", "owl")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of rows in clusters, every tenth of which has a label."""
    path = tmp_path_factory.mktemp("table") / "store"
    own = np.arange(ROWS) % CLASSES
    vectors = np.random.default_rng(1).normal(size=(ROWS, DIMS)) + 5 * np.eye(DIMS)[own]
    labels = [NAMES[label] if row % EVERY == 0 else "" for row, label in enumerate(own)]
    store = mmdiff.open(path, create=True)
    store.add(vectors, ids=[f"row {row}" for row in range(ROWS)], labels=labels)
    store.build_graph(k=6, index="flat")
    store.diffuse(iterations=T, predict_nodes=True)
    return path


def test_a_path_leads_from_a_labelled_row_of_the_class_to_the_row(table: Path) -> None:
    store = mmdiff.open(table)
    predicted = store.diffuse(iterations=T, predict_nodes=True).predict_background()
    for row in (1, 14, 27, 53, 66, 79, 119):
        found = store.explain(id_=f"row {row}")
        assert found["row"] == {"role": "background", "id": f"row {row}", "labels": [], "predicted": predicted[row]}
        (path,) = found["paths"]
        assert (path["class"], path["predicted"], path["true"], path["rank"]) == (predicted[row], True, False, 1)
        first, last = path["steps"][0], path["steps"][-1]
        origin = int(str(first["id"]).removeprefix("row "))
        assert origin % EVERY == 0
        assert NAMES[origin % CLASSES] == path["class"]
        assert last["id"] == f"row {row}"
        assert [step["iteration"] for step in path["steps"]] == list(range(T + 1))


def test_the_last_step_is_the_row_itself_with_all_of_its_score(table: Path) -> None:
    found = mmdiff.open(table).explain(id_="row 7")
    assert found["paths"][0]["steps"][-1] == {"role": "background", "id": "row 7", "iteration": T, "share": 1.0}


def test_a_row_with_a_label_of_its_own_is_explained_with_a_note(table: Path) -> None:
    found = mmdiff.open(table).explain(id_="row 10", class_="owl")
    assert found["row"]["labels"] == [NAMES[10 % CLASSES]]
    assert "the row has a label of its own, which is part of its scores." in found["notes"]
    assert [path["class"] for path in found["paths"]] == ["owl"]


def test_the_command_shows_the_path_and_its_json_is_that_of_the_call(table: Path) -> None:
    def run(*more: str) -> str:
        outcome = CliRunner().invoke(app, ["explain", "--id", "row 7", "--store", str(table), *more])
        assert outcome.exit_code == 0, outcome.stderr
        return outcome.stdout

    shown = run()
    assert "row row 7: not labelled" in shown
    assert "background row 7" in shown
    assert json.loads(run("--json")) == json.loads(json.dumps(mmdiff.open(table).explain(id_="row 7")))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Give either --test, the id of a test point, or --id, the id of a row of the collection."),
        (["--id", "row 1", "--test", "t1"], "Give either --test"),
        (["--id", "row 999"], "--id 'row 999': no row of the collection has this id. There are 120: row 0, row 1, row 2, ..."),
        (["--id", "row 1", "--class", "olw"], "Did you mean 'owl'?"),
    ],
)
def test_bad_questions_are_answered_with_a_sentence(table: Path, arguments: list[str], message: str) -> None:
    outcome = CliRunner().invoke(app, ["explain", *arguments, "--store", str(table)])
    assert outcome.exit_code == 2
    assert message in outcome.stderr


def test_a_diffusion_without_predictions_of_rows_says_how_to_get_them(tmp_path: Path) -> None:
    store = mmdiff.open(tmp_path / "store", create=True)
    store.add(np.random.default_rng(0).normal(size=(40, 4)), labels=np.where(np.arange(40) < 4, np.arange(40) % 2, -1))
    store.add(np.random.default_rng(1).normal(size=(5, 4)), role="test")
    store.build_graph(k=4)
    store.diffuse()
    with pytest.raises(mmdiff.errors.MmdiffError, match="without predictions for the rows of the collection"):
        store.explain(id_=3)


def test_the_report_of_such_a_store_shows_paths_to_rows(table: Path, tmp_path: Path) -> None:
    mmdiff.open(table).report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "Paths of labels to some rows in diffusion" in page
    assert "Row row " in page


def test_the_report_of_such_a_store_shows_the_accuracy_on_held_out_labels(table: Path, tmp_path: Path) -> None:
    store = mmdiff.open(table)
    assert store.report(tmp_path / "before.html")["notes"] == [
        "nothing is evaluated: no test points were imported, so there are no scores of any."
    ]
    expected = store.evaluate()["scores"][0]["iterations"][-1]["all"]["top1"]["accuracy"]
    found = store.report(tmp_path / "after.html")
    assert (found["notes"], found["sections"][0]) == ([], "accuracy")
    page = (tmp_path / "after.html").read_text()
    assert "12 held-out rows of 3 classes" in page
    assert f"{100 * expected:.1f}" in page

"""`predict` gives every row a class and a confidence, in one schema for the command line, Python and every file."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

import mmdiff
from mmdiff.prediction import rows as prediction_rows
from mmdiff.prediction.writing import COLUMNS
from tests.support.naive_calibration import naive_calibration, naive_predictions
from tests.support.scored import descriptors, refused, run, run_json

CLASSES = ("ant", "bee, wild", "dog", 'the "cat"')
ROWS, LABELLED = 240, 48
PROGRAM = Path(sys.executable).parent / "mmdiff"


def truth() -> NDArray[np.int64]:
    return np.arange(ROWS) % len(CLASSES)


def make_store(folder: Path, **more: Any) -> mmdiff.Store:
    """A table with names, ids and a label in every fifth row."""
    labels = [CLASSES[own] if row % 5 == 0 else None for row, own in enumerate(truth().tolist())]
    store = mmdiff.open(folder / "store", create=True)
    given: dict[str, Any] = {"labels": labels, "ids": [f"row-{row}" for row in range(ROWS)], "dims": 8} | more
    store.add(descriptors(truth(), 1), **given)
    store.build_graph(k=8)
    return store


@pytest.fixture
def made(quick_folder: Path) -> Path:
    make_store(quick_folder).diffuse(iterations=3)
    return quick_folder


def summary_of(table: pa.Table) -> dict[str, Any]:
    found = json.loads(table.schema.metadata[b"mmdiff"])
    assert isinstance(found, dict)
    return found


def test_every_row_has_a_class_with_a_confidence(made: Path) -> None:
    table = mmdiff.open(made / "store").predict()
    assert tuple(table.column_names) == COLUMNS
    rows = table.to_pylist()
    assert [row["id"] for row in rows] == [f"row-{row}" for row in range(ROWS)]
    for number, row in enumerate(rows):
        assert row["source"] == ("given" if number % 5 == 0 else "predicted")
        assert 0 <= row["second_confidence"] <= row["confidence"] <= 1
        assert row["confidence"] + row["second_confidence"] <= 1 + 1e-6
        if row["source"] == "given":
            assert row["label"] == CLASSES[truth()[number]]
            assert (row["confidence"], row["margin"], row["second"], row["iteration"]) == (1, 1, None, None)
        else:
            assert row["iteration"] == 3
    right = np.mean([row["label"] == CLASSES[own] for row, own in zip(rows, truth(), strict=True)])
    assert right > 0.8
    summary = summary_of(table)
    assert (summary["rows"], summary["given"], summary["held_out"]["rows"]) == (ROWS, LABELLED, LABELLED)
    predicted = [row for row in rows if row["source"] == "predicted"]
    assert summary["expected_precision"] == pytest.approx(np.mean([row["confidence"] for row in predicted]), abs=1e-6)


def test_predictions_equal_their_naive_twin(made: Path) -> None:
    """Labels of one group of classes, so that held-out rows have no weights."""
    store = mmdiff.open(made / "store")
    table = store.predict()
    scores, folds = store["scores/diffusion"], store["folds/diffusion"]
    held_out = naive_predictions(np.asarray(folds["scores"])[3].tolist(), 5)
    labels = np.asarray(folds["labels"])[:, 0].tolist()
    expected = list(zip(scores["top_classes"][:].tolist(), shares_of(scores), strict=True))
    margins = [shares[0] - shares[1] for _, shares in expected]
    confidences = naive_calibration(
        [row.margin for row in held_out],
        [row.label == label for row, label in zip(held_out, labels, strict=True)],
        [1.0] * len(held_out),
        5.0,
        1.0,
        margins,
    )
    for row, margin, confidence, (classes, shares) in zip(table.to_pylist(), margins, confidences, expected, strict=True):
        if row["source"] == "predicted":
            assert row["label"] == CLASSES[classes[0]]
            assert row["second"] == (None if classes[1] == -1 else CLASSES[classes[1]])
            assert row["margin"] == pytest.approx(margin, abs=1e-6)
            assert row["confidence"] == pytest.approx(confidence, abs=1e-5)
            rest = sum(shares[1:])
            second = min((1 - confidence) * shares[1] / rest, confidence) if rest else 0
            assert row["second_confidence"] == pytest.approx(second, abs=1e-5)


def shares_of(scores: Any) -> list[list[float]]:
    return [[score / sum(row) for score in row] for row in scores["top_scores"][:].astype(np.float64).tolist()]


def test_files_hold_the_same_as_the_table(made: Path) -> None:
    store = mmdiff.open(made / "store")
    rows = store.predict(min_confidence=0.7).to_pylist()
    for ending in (".parquet", ".csv", ".jsonl"):
        summary = store.predict(made / f"out{ending}", min_confidence=0.7)
        assert summary["bytes"] == (made / f"out{ending}").stat().st_size
    assert pq.read_table(made / "out.parquet").to_pylist() == rows
    assert pq.read_schema(made / "out.parquet").equals(store.predict().schema)
    lines = [json.loads(line) for line in (made / "out.jsonl").read_text().splitlines()]
    assert as_float32(lines) == rows
    with (made / "out.csv").open(newline="") as file:
        texts = list(csv.DictReader(file))
    assert [tuple(text) for text in texts] == [COLUMNS] * ROWS
    assert as_float32([{key: read_text(key, value) for key, value in text.items()} for text in texts]) == rows


def as_float32(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {key: float(np.float32(value)) if isinstance(value, float) else value for key, value in row.items()} for row in rows
    ]


def read_text(column: str, value: str) -> Any:
    if value == "":
        return None
    if column == "iteration":
        return int(value)
    return float(value) if "confidence" in column or column == "margin" else value


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".jsonl"])
def test_blocks_of_rows_give_the_same_values(made: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = mmdiff.open(made / "store")
    store.predict(made / f"whole{ending}")
    monkeypatch.setattr(prediction_rows, "BLOCK_ROWS", 37)
    store.predict(made / f"parts{ending}")
    whole, parts = ((made / f"{name}{ending}") for name in ("whole", "parts"))
    if ending == ".parquet":
        assert pq.read_table(whole).equals(pq.read_table(parts))
    else:
        assert whole.read_bytes() == parts.read_bytes()


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".jsonl"])
def test_the_command_writes_the_bytes_of_the_call(made: Path, ending: str) -> None:
    found = run_json(made, f"predict {made}/command{ending} --min-confidence 0.5")
    summary = mmdiff.open(made / "store").predict(made / f"call{ending}", min_confidence=0.5)
    assert (made / f"command{ending}").read_bytes() == (made / f"call{ending}").read_bytes()
    same = found.keys() - {"file", "seconds"}
    assert {key: found[key] for key in same} == {key: summary[key] for key in same}


def test_predictions_go_to_stdout_as_csv_and_what_is_said_to_stderr(made: Path) -> None:
    mmdiff.open(made / "store").predict(made / "out.csv")
    outcome = run(made, "predict -")
    assert outcome.exit_code == 0
    assert outcome.stdout_bytes == (made / "out.csv").read_bytes()
    assert "240 rows, 48 given, 192 predicted" in outcome.stderr
    assert "expected precision" in outcome.stderr


def test_a_stream_gets_csv(made: Path) -> None:
    store, stream = mmdiff.open(made / "store"), io.BytesIO()
    summary = store.predict(stream)
    store.predict(made / "out.csv")
    assert stream.getvalue() == (made / "out.csv").read_bytes()
    assert summary["file"] is None


def test_a_smallest_confidence_leaves_the_rest_unlabelled(made: Path) -> None:
    store = mmdiff.open(made / "store")
    everything, sure = store.predict(), store.predict(min_confidence=0.8)
    for before, after in zip(everything.to_pylist(), sure.to_pylist(), strict=True):
        keeps = before["source"] == "given" or before["confidence"] >= 0.8
        assert after == before | {"label": before["label"] if keeps else None}
    summary = summary_of(sure)
    labelled = [row for row in sure.to_pylist() if row["label"] is not None and row["source"] == "predicted"]
    assert summary["labelled"] == len(labelled) > 0
    assert summary["labelled_share"] == pytest.approx(len(labelled) / (ROWS - LABELLED), abs=1e-6)
    assert summary["unlabelled"] == ROWS - LABELLED - len(labelled)
    assert summary["expected_precision"] >= 0.8
    assert 0 < summary["held_out"]["labelled"] <= LABELLED
    said = run(made, f"predict {made}/out.csv --min-confidence 0.8").stdout
    assert "of the rows without a given label are labelled; expected precision" in said
    assert "held-out labels" in said


def test_a_confidence_that_nothing_supports_labels_no_row_and_says_so(made: Path) -> None:
    found = run_json(made, f"predict {made}/out.csv --min-confidence 1")
    assert (found["labelled"], found["expected_precision"]) == (0, None)
    assert found["notes"][-1].startswith("no prediction reaches a confidence of 1: the held-out labels support at most 0.")


def test_without_held_out_labels_confidence_is_that_of_a_guess_and_it_is_said(quick_folder: Path) -> None:
    labels = [CLASSES[row] if row < len(CLASSES) else None for row in range(ROWS)]
    store = make_store(quick_folder, labels=labels)
    store.diffuse(iterations=3)
    table = store.predict()
    assert "folds/diffusion" not in store
    assert {row["confidence"] for row in table.to_pylist() if row["source"] == "predicted"} == {0.25}
    summary = summary_of(table)
    assert summary["held_out"] == {"rows": 0, "accuracy": None, "labelled": 0, "precision": None}
    assert summary["notes"] == [
        "no label could be held out, so that every confidence is that of a guess among 4 classes, 0.25. Label at least two "
        "rows of a class."
    ]


def test_few_held_out_labels_are_said(quick_folder: Path) -> None:
    labels = [CLASSES[row % 4] if row in (0, 1, 4, 5) else None for row in range(ROWS)]
    store = make_store(quick_folder, labels=labels)
    store.diffuse(iterations=3)
    assert summary_of(store.predict())["notes"][0].startswith("confidences rest on 4 held-out labels")


def test_classes_without_held_out_labels_beside_classes_with_many_are_said(quick_folder: Path) -> None:
    labels = [CLASSES[own] if own or row == 0 else None for row, own in enumerate(truth().tolist())]
    store = make_store(quick_folder, labels=labels)
    store.diffuse(iterations=3)
    table = store.predict()
    assert summary_of(table)["notes"] == [
        "no label can be held out of 1 class with far fewer labels than the others: predictions of such classes count as wrong "
        "in the confidences. Label at least two rows of each."
    ]
    assert max(row["confidence"] for row in table.to_pylist() if row["source"] == "predicted") < 0.5


def test_rows_that_no_label_reaches_have_no_class(made: Path) -> None:
    store = mmdiff.open(made / "store")
    store.diffuse(iterations=0, name="start")
    table = store.predict(scores="start")
    for row in table.to_pylist():
        if row["source"] == "predicted":
            assert (row["label"], row["confidence"], row["margin"], row["second"]) == (None, 0, 0, None)
    assert summary_of(table)["unreached"] == ROWS - LABELLED


def test_the_first_two_of_several_given_labels_are_written(quick_folder: Path) -> None:
    labels = [[CLASSES[own], CLASSES[0]] if row % 5 == 0 else [] for row, own in enumerate(truth().tolist())]
    store = make_store(quick_folder, labels=None)
    store.label({f"row-{row}": given for row, given in enumerate(labels) if given})
    store.diffuse(iterations=3)
    rows = store.predict().to_pylist()
    assert (rows[5]["label"], rows[5]["second"], rows[5]["second_confidence"]) == (CLASSES[0], CLASSES[1], 1)
    assert (rows[0]["label"], rows[0]["second"], rows[0]["second_confidence"]) == (CLASSES[0], None, 0)


def test_numbers_stay_numbers(quick_folder: Path) -> None:
    numbers = np.where(np.arange(ROWS) % 5 == 0, 10 * truth(), -1)
    store = make_store(quick_folder, labels=numbers, ids=None)
    store.diffuse(iterations=3)
    table = store.predict()
    assert table.schema.field("id").type == table.schema.field("label").type == table.schema.field("second").type == pa.int64()
    assert table["id"].to_pylist() == list(range(ROWS))
    assert set(table["label"].to_pylist()) <= {0, 10, 20, 30}
    store.predict(quick_folder / "out.jsonl")
    assert json.loads((quick_folder / "out.jsonl").read_text().splitlines()[0])["label"] == 0


def test_test_points_follow_the_collection(quick_folder: Path) -> None:
    store = make_store(quick_folder)
    store.add(descriptors(truth()[:40], 2), role="test", ids=np.arange(40))
    store.build_graph(k=8)
    store.diffuse(iterations=3, predict_nodes=True)
    everything = store.predict().to_pylist()
    assert [row["id"] for row in everything[ROWS:]] == [str(row) for row in range(40)]
    assert [row["label"] for row in everything[ROWS:]] == store.diffuse(iterations=3, predict_nodes=True).predict().tolist()
    assert {row["source"] for row in everything[ROWS:]} == {"predicted"}
    assert len(store.predict(rows="collection")) == ROWS
    test = store.predict(rows="test")
    assert test["id"].to_pylist() == list(range(40))
    assert len(test) == 40


def test_held_out_scores_are_made_once_and_again_when_labels_change(made: Path) -> None:
    store = mmdiff.open(made / "store")
    store.predict()
    first = store["folds/diffusion"].id
    store.predict(min_confidence=0.5)
    assert store["folds/diffusion"].id == first
    store.label({"row-1": CLASSES[1]})
    with pytest.raises(mmdiff.errors.Stale, match=r"scores/diffusion: labels/current has changed since"):
        store.predict()
    store.diffuse(iterations=3)
    table = store.predict()
    assert store["folds/diffusion"].id != first
    assert table["source"][1].as_py() == "given"
    store.diffuse(iterations=2)
    second = store["folds/diffusion"].id
    assert set(store.predict()["iteration"].to_pylist()) == {2, None}
    assert store["folds/diffusion"].id == second, "held-out scores of more iterations hold those of fewer"


def test_chosen_classes_alone_are_predicted_but_all_given_labels_are_written(quick_folder: Path) -> None:
    store = make_store(quick_folder)
    file = quick_folder / "chosen.txt"
    file.write_text(f"{CLASSES[0]}\n{CLASSES[1]}\n")
    store.diffuse(iterations=3, classes=str(file))
    rows = store.predict().to_pylist()
    assert {row["label"] for row in rows if row["source"] == "predicted" and row["confidence"]} == set(CLASSES[:2])
    assert {row["label"] for row in rows if row["source"] == "given"} == set(CLASSES)


@pytest.mark.parametrize("eta", ["row", "prior", "sinkhorn", "none"])
def test_every_operator_is_calibrated(quick_folder: Path, eta: str) -> None:
    store = make_store(quick_folder)
    prior = {"prior": "seeds"} if eta in ("prior", "sinkhorn") else {}
    store.diffuse(iterations=2, eta=eta, **prior)  # type: ignore[arg-type]
    summary = summary_of(store.predict())
    assert summary["held_out"]["rows"] == LABELLED
    assert summary["expected_precision"] > 0.6


def test_four_commands_lead_from_a_table_to_answers(tmp_path: Path) -> None:
    labels = [CLASSES[own] if row % 5 == 0 else None for row, own in enumerate(truth().tolist())]
    vectors = descriptors(truth(), 1)
    table = pa.table({"id": [f"row-{row}" for row in range(ROWS)], "label": labels, "embedding": list(vectors)})
    file = tmp_path / "photos.parquet"
    pq.write_table(table, file)
    for command in (
        f"import {file}::embedding --ids {file}::id --labels {file}::label --role background",
        "build-graph --k 8",
        "diffuse --iterations 3",
        f"predict {tmp_path}/answers.csv",
    ):
        outcome = run(tmp_path, command)
        assert outcome.exit_code == 0, outcome.output
    with (tmp_path / "answers.csv").open(newline="") as answers:
        assert len(list(csv.DictReader(answers))) == ROWS


BAD = {
    "out.xlsx": "out.xlsx: predictions are written to .csv, .jsonl, .parquet. Name a file with such an ending.",
    "out.csv --min-confidence 1.5": "--min-confidence 1.5: expected a number from 0 to 1. For example 0.9.",
    "out.csv --min-confidence nan": "--min-confidence nan: expected a number from 0 to 1. For example 0.9.",
    "nowhere/out.csv": "nowhere/out.csv: there is no folder nowhere. Make it first, or choose another.",
    "out.csv --rows some": "--rows some: not one of the choices. Choose from all, collection, test.",
    "out.csv --rows test": "--rows test: scores/diffusion has no scores of test points. Leave it out to predict the rows of "
    "the collection.",
    "- --json": "--json: the predictions go to stdout. Name a file for them, or leave it out.",
}


@pytest.mark.parametrize("command", BAD)
def test_bad_input_gets_a_sentence_and_changes_nothing(made: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)
    before = sorted(made.rglob("*"))
    assert refused(made, f"predict {command}") == BAD[command]
    assert sorted(made.rglob("*")) == before


def test_a_folder_is_no_place_for_predictions(made: Path) -> None:
    (made / "out.csv").mkdir()
    assert "a folder, which cannot be replaced by a file" in refused(made, f"predict {made}/out.csv")


def test_missing_scores_are_refused_with_the_commands_in_their_order(tmp_path: Path) -> None:
    store = mmdiff.open(tmp_path / "store", create=True)
    store.add(descriptors(truth(), 1), role="background")
    expected = f"{store.path}: no scores/diffusion to predict from. Run first: mmdiff build-graph; then mmdiff diffuse"
    assert refused(tmp_path, f"predict {tmp_path}/out.csv") == expected
    store.build_graph(k=8)
    expected = f"{store.path}: no scores/mine to predict from. Run first: mmdiff diffuse --name mine"
    assert refused(tmp_path, f"predict {tmp_path}/out.csv --scores mine") == expected


def test_scores_of_test_points_alone_are_refused_for_the_collection(quick_folder: Path) -> None:
    store = make_store(quick_folder)
    store.add(descriptors(truth()[:40], 2), role="test")
    store.build_graph(k=8)
    store.diffuse(iterations=3)
    assert refused(quick_folder, f"predict {quick_folder}/out.csv") == (
        "scores/diffusion: made without predictions of the rows of the collection. Make them with mmdiff diffuse "
        "--predict-nodes FILE.parquet, or predict the test points alone, with --rows test."
    )
    assert len(store.predict(rows="test")) == 40


def test_labels_of_a_file_are_refused(made: Path) -> None:
    np.save(made / "labels.npy", np.where(np.arange(ROWS) % 5 == 0, truth(), -1))
    mmdiff.open(made / "store").diffuse(iterations=2, labels=str(made / "labels.npy"), name="file")
    message = refused(made, f"predict {made}/out.csv --scores file")
    assert message.startswith("scores/file: made with labels from labels.npy, which are not in the store")


def test_a_table_that_exceeds_the_memory_is_refused(made: Path) -> None:
    mmdiff.open(made / "store").predict()
    with pytest.raises(mmdiff.errors.BadOption, match=r"a table of 240 rows takes about .* bytes. Allow more, or write it"):
        mmdiff.open(made / "store", memory=10_000).predict()


def test_a_reader_that_has_seen_enough_ends_the_command_quietly(made: Path) -> None:
    shell = f"{PROGRAM} predict - --store {made}/store | head -1; echo ${{PIPESTATUS[0]}}"
    outcome = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert outcome.stdout.splitlines() == [",".join(COLUMNS), "0"]
    assert "Traceback" not in outcome.stderr


def test_interrupted_predictions_leave_the_file_as_it_was(made: Path) -> None:
    @contextmanager
    def interrupted(what: str, _total: int, _unit: str) -> Iterator[Callable[[int], None]]:
        def advance(_: int) -> None:
            if what == "predicting":
                raise KeyboardInterrupt

        yield advance

    (made / "out.csv").write_text("before")
    with pytest.raises(KeyboardInterrupt):
        mmdiff.open(made / "store", progress=interrupted).predict(made / "out.csv")
    assert (made / "out.csv").read_text() == "before"
    assert not list(made.glob("*.part"))


def test_regressions_and_fusions_are_calibrated_on_their_own_held_out_scores(quick_folder: Path) -> None:
    own = truth()
    store = mmdiff.open(quick_folder / "store", create=True)
    store.add(descriptors(own, 3), role="seeds", labels=[CLASSES[label] for label in own], dims=8, no_background=True)
    store.add(descriptors(own, 4), role="test")
    store.build_graph(k=8)
    store.diffuse(iterations=2)
    store.logreg(iterations=60)
    store.fuse(weight=0.3, iteration=1)
    for name in ("diffusion", "logreg", "fusion"):
        table = store.predict(scores=name, rows="test")
        summary = summary_of(table)
        right = np.mean([row["label"] == CLASSES[label] for row, label in zip(table.to_pylist(), own, strict=True)])
        assert summary["held_out"]["rows"] == ROWS
        assert summary["expected_precision"] == pytest.approx(right, abs=0.1)
        assert set(table["iteration"].to_pylist()) == ({2} if name == "diffusion" else {None})
    assert {"folds/diffusion", "folds/logreg"} <= set(store)


def test_a_regression_that_learned_from_seeds_alone_does_not_predict_the_collection(quick_folder: Path) -> None:
    store = mmdiff.open(quick_folder / "store", create=True)
    store.add(descriptors(truth(), 1))
    store.add(descriptors(truth(), 3), role="seeds", labels=[CLASSES[label] for label in truth()])
    store.add(descriptors(truth(), 4), role="test")
    store.build_graph(k=8)
    store.logreg(iterations=20)
    assert refused(quick_folder, f"predict {quick_folder}/out.csv --scores logreg") == (
        "scores/logreg: made without predictions of the rows of the collection. Predict the test points alone, with --rows "
        "test."
    )


def test_labels_that_are_kept_out_for_good_are_given_but_not_learned_from(made: Path) -> None:
    store = mmdiff.open(made / "store")
    store.hold_out(0.25)
    store.diffuse(iterations=3)
    store.evaluate()
    assert store["folds/diffusion"].manifest.parameters["scheme"] == "holdout"
    table = store.predict()
    summary = summary_of(table)
    assert summary["given"] == LABELLED
    assert 0 < summary["held_out"]["rows"] < LABELLED
    assert store["folds/diffusion"].manifest.parameters["scheme"] == "folds"

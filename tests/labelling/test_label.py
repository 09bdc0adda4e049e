"""Labels that come and go: recorded by id, replaced, removed, taken back, held out; bad ones are refused and change nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import mmdiff
from mmdiff.cli import app
from mmdiff.errors import BadLabels, BadOption, CountMismatch, DuplicateIds, Missing, MmdiffError, UnreadableSource
from tests.support.stores import tree

IDS = [f"im{row}" for row in range(6)]


def a_store(folder: Path, **given: Any) -> mmdiff.Store:
    store = mmdiff.open(folder / "store", create=True)
    store.add(np.eye(6, 8), ids=given.pop("ids", IDS), **given)
    return store


def held(store: mmdiff.Store) -> dict[Any, list[str]]:
    return {row["id"]: row["labels"] for row in store.labels()["labels"]}


def test_a_later_label_replaces_an_earlier_one_and_undo_brings_it_back(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    store.label({"im0": "cat", "im1": ["cat", "dog"]})
    store.label({"im0": "dog", "im2": None})
    assert held(store) == {"im1": ["cat", "dog"], "im0": ["dog"], "im2": []}
    row = next(row for row in store.labels()["labels"] if row["id"] == "im0")
    assert (row["batch"], row["source"], row["replaced"]) == (1, "python", [{"labels": ["cat"], "batch": 0}])
    assert [batch["removed"] for batch in store.labels()["batches"]] == [0, 1]
    store.undo_label()
    assert held(store) == {"im0": ["cat"], "im1": ["cat", "dog"]}
    store.undo_label()
    assert held(store) == {}
    assert store.verify()["ok"]
    with pytest.raises(Missing, match="nothing to undo"):
        store.undo_label()


def test_labels_that_hold_already_are_no_new_batch(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    assert store.label({"im0": ["cat", "dog"]})["changed"]
    before = store["labels/current"].id
    assert not store.label({"im0": ["dog", "cat"]})["changed"]
    assert store["labels/current"].id == before


def write_csv(path: Path) -> None:
    path.write_text("id,label\nim1,cat;dog\n\nim2,\nim4,dog\n")


def write_jsonl(path: Path) -> None:
    rows = [{"id": "im1", "label": ["cat", "dog"]}, {"id": "im2", "label": None}, {"id": "im4", "label": "dog"}]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def write_parquet(path: Path) -> None:
    pq.write_table(pa.table({"id": ["im1", "im2", "im4"], "label": [["cat", "dog"], [], ["dog"]]}), path)


@pytest.mark.parametrize(
    ("name", "write", "options"),
    [("l.csv", write_csv, {"separator": ";"}), ("l.jsonl", write_jsonl, {}), ("l.parquet", write_parquet, {})],
)
def test_files_of_every_format_say_the_same(tmp_path: Path, name: str, write: Any, options: dict[str, str]) -> None:
    store = a_store(tmp_path)
    write(tmp_path / name)
    summary = store.label(tmp_path / name, **options)
    assert (summary["rows"], summary["removed"]) == (2, 1)
    assert held(store) == {"im1": ["cat", "dog"], "im2": [], "im4": ["dog"]}
    assert {row["source"] for row in store.labels()["labels"]} == {name}


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    (tmp_path / "l.csv").write_text("key,kind,label\nim3,cat,x\n")
    store.label(tmp_path / "l.csv", ids="key", labels="kind")
    assert held(store) == {"im3": ["cat"]}


def test_rows_without_ids_are_labelled_by_number(tmp_path: Path) -> None:
    store = a_store(tmp_path, ids=None)
    store.label({3: 7})
    assert held(store) == {3: ["7"]}
    with pytest.raises(BadLabels, match=r"id 6.*0 to 5"):
        store.label({6: 7})


@pytest.mark.parametrize(
    ("text", "error", "sentence"),
    [
        ("id,label\nim1,cat\nim2,dog\nim1,dog\n", DuplicateIds, "l.csv: lines 2 and 4 have the same id im1"),
        (
            "id,label\nim1,cat\nother,dog\nmore,dog\n",
            BadLabels,
            "line 3: no row of the collection has the id other. There are 1",
        ),
        ("id,label\n,cat\n", CountMismatch, "line 2: no id"),
        ("id,label\nim1\n", UnreadableSource, "line 2: 1 cells, expected 2"),
        ("id,label\nim1,5\n", BadLabels, "line 2: label '5' is a number, but the classes of the store have names"),
        ("name,label\nim1,cat\n", UnreadableSource, "no column id or ids among name, label"),
        ("id,label\n", UnreadableSource, "holds no rows"),
    ],
)
def test_bad_files_are_refused_with_their_line_and_change_nothing(
    tmp_path: Path, text: str, error: type[MmdiffError], sentence: str
) -> None:
    store = a_store(tmp_path, labels=["cat", *[None] * 5])
    store.label({"im5": "cat"})
    before = tree(store.path)
    (tmp_path / "l.csv").write_text(text)
    with pytest.raises(error, match=sentence):
        store.label(tmp_path / "l.csv")
    assert tree(store.path) == before


def test_names_among_classes_of_numbers_are_refused(tmp_path: Path) -> None:
    store = a_store(tmp_path, labels=[4, *[None] * 5])
    with pytest.raises(BadLabels, match="'cat' is a name, but the classes of the store have numbers only"):
        store.label({"im1": "cat"})
    with pytest.raises(BadLabels, match="Classes are numbered from 0"):
        store.label({"im1": -3})


def test_a_number_finds_the_class_of_its_name(tmp_path: Path) -> None:
    store = a_store(tmp_path, labels=[4, *[None] * 5], class_names={4: "cat", 5: "dog"})
    store.label({"im1": 5})
    assert held(store) == {"im1": ["dog"]}


def test_a_label_for_a_row_that_was_dropped_says_so(tmp_path: Path) -> None:
    store = mmdiff.open(tmp_path / "store", create=True)
    store.add(np.diag([1.0, 0, 1, 1]), ids=["a", "b", "c", "d"], on_bad="drop")
    with pytest.raises(BadLabels, match="the row with id b was left out when the collection was imported"):
        store.label({"a": "cat", "b": "dog"})
    assert "labels/current" not in store


def test_the_id_of_a_seed_is_named_as_one(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    store.add(np.eye(2, 8), role="seeds", ids=["s0", "s1"], labels=["cat", "dog"])
    with pytest.raises(BadLabels, match="the id of a seed"):
        store.label({"s0": "dog"})


def test_a_store_without_rows_has_nothing_to_label(tmp_path: Path) -> None:
    store = mmdiff.open(tmp_path / "store", create=True)
    store.add(np.eye(4), role="seeds", labels=[0, 0, 1, 1], no_background=True)
    with pytest.raises(Missing, match="no collection"):
        store.label({0: 1})


def test_held_out_rows_stay_held_out_as_labels_come_and_go(tmp_path: Path) -> None:
    from mmdiff.labels.journal import Holdout

    ids = np.arange(20_000)
    chosen = Holdout(0.2, 3).chosen(ids)
    assert abs(chosen.mean() - 0.2) < 0.01
    np.testing.assert_array_equal(Holdout(0.2, 3).chosen(ids[::7]), chosen[::7])
    assert (Holdout(0.4, 3).chosen(ids) >= chosen).all()
    assert not Holdout(0, 3).chosen(ids).any()
    store = a_store(tmp_path)
    assert store.hold_out(0.25, seed=4)["holdout"] == 0.25
    store.label({"im0": "cat"})
    store.undo_label()
    assert store.labels()["holdout"] == 0.25
    with pytest.raises(BadOption, match=r"expected a number from 0 to 0\.9"):
        store.hold_out(1)


def test_processes_that_label_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    code = "import sys, mmdiff; store = mmdiff.open(sys.argv[1])\nfor n in range(5): store.label({sys.argv[2]: f'c{n}'})"
    processes = [subprocess.Popen([sys.executable, "-c", code, str(store.path), each]) for each in IDS[:3]]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert len(store.labels()["batches"]) == 15
    assert held(store) == {each: ["c4"] for each in IDS[:3]}
    assert all(len(row["replaced"]) == 4 for row in store.labels()["labels"])


def run(folder: Path, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["label", *words, "--store", str(folder / "store")])
    return result.exit_code, result.output


def test_the_command_labels_rows_one_by_one(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    assert run(tmp_path, "--id", "im0", "--as", "cat", "--as", "dog")[0] == 0
    assert run(tmp_path, "--id", "im1", "--id", "im2", "--as", "dog")[0] == 0
    assert run(tmp_path, "--id", "im3", "--id", "im4", "--as", "cat", "--as", "dog")[0] == 0
    assert run(tmp_path, "--id", "im1", "--remove")[0] == 0
    assert held(store) == {"im0": ["cat", "dog"], "im2": ["dog"], "im3": ["cat"], "im4": ["dog"], "im1": []}
    code, shown = run(tmp_path, "--list", "--json")
    assert (code, json.loads(shown)["labels"][0]["source"]) == (0, "command line")
    assert "(removed)" in run(tmp_path, "--list")[1]
    assert run(tmp_path, "--undo")[0] == 0
    assert held(store)["im1"] == ["dog"]
    assert run(tmp_path, "--holdout", "0.5")[0] == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "give one of FILE, --id, --undo, --list, --holdout"),
        (["--undo", "--list"], "--undo with --list"),
        (["--id", "im0"], "no label. Give --as"),
        (["--id", "im0", "--as", "cat", "--remove"], "both a label and its removal"),
        (["--id", "im0", "--id", "im0", "--as", "cat"], "given twice"),
        (["--id", "im0", "--id", "im1", "--id", "im2", "--as", "cat", "--as", "dog"], "2 labels for 3 rows"),
        (["l.csv", "--as", "cat"], "--as cat goes with --id, not with a file"),
        (["l.jsonl", "--separator", ";"], "is not a CSV file"),
        (["--holdout", "3"], "--holdout 3: expected a number from 0 to 0.9"),
        (["l.txt"], "labels by id are read from .csv"),
    ],
)
def test_bad_command_lines_are_refused_in_a_sentence(tmp_path: Path, words: list[str], sentence: str) -> None:
    a_store(tmp_path)
    code, shown = run(tmp_path, *words)
    assert code == 2
    assert sentence in shown.replace("\n", " ")

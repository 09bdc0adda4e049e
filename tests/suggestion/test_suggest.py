"""`suggest` names the rows to label next, with reasons, from a store with or without labels."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

import mmdiff
from mmdiff.errors import BadLabels, BadOption, Damaged, DuplicateIds, Missing, Stale
from mmdiff.formats.storage.strings import Strings
from mmdiff.labels.journal import Holdout
from tests.support.naive_suggestion import coverage_of, gains
from tests.support.scored import descriptors, refused, run, run_json
from tests.support.stores import MEMORY, tree

CLASSES = ("ant", "bee, wild", "dog", 'the "cat"')
ROWS, APPENDED = 200, 40
LABELLED = (0, 1, 5)


def truth() -> NDArray[np.int64]:
    return np.arange(ROWS + APPENDED) % len(CLASSES)


def make_store(folder: Path, **more: Any) -> mmdiff.Store:
    """A table with ids of which the last rows came later; three rows have labels, of classes 0 and 1."""
    rows = descriptors(truth(), 1)
    ids = [f"row-{row}" for row in range(len(rows))]
    labels = [CLASSES[own] if row in LABELLED else None for row, own in enumerate(truth()[:ROWS].tolist())]
    store = mmdiff.open(folder / "store", create=True)
    store.add(rows[:ROWS], labels=labels, ids=ids[:ROWS], dims=8)
    store.add(rows[ROWS:], ids=ids[ROWS:], append=True)
    store.build_graph(k=8, **more)
    store.diffuse(iterations=3, predict_nodes=True)
    return store


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """A folder with a store that no test changes."""
    with TemporaryDirectory(dir=MEMORY) as folder:
        make_store(Path(folder))
        yield Path(folder)


@pytest.fixture
def own(quick_folder: Path) -> mmdiff.Store:
    return make_store(quick_folder)


def opened(folder: Path, **more: Any) -> mmdiff.Store:
    return mmdiff.open(folder / "store", **more)


def summary_of(table: pa.Table) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(table.schema.metadata[b"mmdiff"])
    return found


def rows_of(table: pa.Table) -> list[int]:
    return [int(each.removeprefix("row-")) for each in table["id"].to_pylist()]


def kernel_of(store: mmdiff.Store) -> NDArray[np.float64]:
    """W^2 in the user's rows."""
    W = store.graph.to_scipy().toarray().astype(np.float64)
    return np.asarray(W @ W)


@pytest.mark.parametrize("weights", [{}, {"edge_weights": "gaussian", "sigma": 0.5}], ids=["constant", "gaussian"])
def test_suggestions_are_the_greedy_choice_in_the_rows_of_the_user(quick_folder: Path, weights: dict[str, Any]) -> None:
    store = make_store(quick_folder, **weights)
    kernel, chosen = kernel_of(store), list(LABELLED)
    table = store.suggest(12)
    assert table["rank"].to_pylist() == list(range(1, 13))
    for row, gain, reaches in zip(rows_of(table), table["gain"].to_pylist(), table["reaches"].to_pylist(), strict=True):
        coverage = coverage_of(kernel, chosen)
        possible = gains(kernel, coverage, np.ones(len(kernel)))
        assert gain == pytest.approx(possible[row], rel=1e-5)
        assert gain >= np.delete(possible, chosen).max() - 1e-5
        assert reaches == ((coverage == 0) & (kernel[:, row] > 0)).sum()
        chosen.append(row)
    found = summary_of(table)
    assert found["reached"] == (coverage_of(kernel, LABELLED) > 0).sum()
    assert found["reached_with"] == (coverage_of(kernel, chosen) > 0).sum()
    assert (found["suggestions"], found["rows"], found["labelled"]) == (12, ROWS + APPENDED, 3)


def test_each_suggestion_names_the_most_similar_labelled_row_and_the_present_prediction(made: Path) -> None:
    store = opened(made)
    table, predicted = store.suggest(9), store.predict(rows="collection").to_pylist()
    vectors = np.concatenate([np.asarray(store[f"descriptors/{role}"]["vectors"]) for role in ("background", "appended")])
    for entry, row in zip(table.to_pylist(), rows_of(table), strict=True):
        similar = vectors[list(LABELLED)] @ vectors[row]
        nearest = LABELLED[int(np.argmax(similar))]
        assert (entry["nearest"], entry["nearest_label"]) == (f"row-{nearest}", CLASSES[truth()[nearest]])
        assert entry["similarity"] == pytest.approx(similar.max(), rel=1e-5)
        now = predicted[row]["label"]
        assert (entry["label"], entry["margin"]) == (now, None if now is None else predicted[row]["margin"])


def test_after_labelling_suggestions_go_on(own: mmdiff.Store) -> None:
    first = own.suggest(5)
    own.label({f"row-{row}": CLASSES[truth()[row]] for row in rows_of(first)})
    after = own.suggest(4)
    assert after["label"].null_count == 4, "predictions without these labels are stale"
    assert summary_of(after)["reached"] == summary_of(first)["reached_with"]
    own.undo_label()
    assert own.suggest(9)["id"].to_pylist() == [*first["id"].to_pylist(), *after["id"].to_pylist()]


def test_rows_held_out_are_not_suggested_and_cover_nothing(own: mmdiff.Store) -> None:
    own.hold_out(0.5)
    held_out = Holdout(0.5).chosen(Strings.of(f"row-{row}" for row in LABELLED))
    assert 0 < held_out.sum() < len(LABELLED)
    table = own.suggest(ROWS + APPENDED)
    assert not set(rows_of(table)) & set(LABELLED)
    used = np.array(LABELLED)[~held_out]
    assert summary_of(table)["reached"] == (coverage_of(kernel_of(own), used.tolist()) > 0).sum()
    assert set(table["nearest"].to_pylist()) <= {f"row-{row}" for row in used}


def test_without_any_label_there_are_suggestions(quick_folder: Path) -> None:
    store = mmdiff.open(quick_folder / "store", create=True)
    store.add(descriptors(truth(), 1))
    store.build_graph(k=8)
    table = store.suggest(3)
    assert table.schema.field("id").type == pa.int64()
    assert summary_of(table)["reached"] == 0
    assert {table[name].null_count for name in ("nearest", "nearest_label", "similarity", "label", "margin")} == {3}
    with pytest.raises(Missing, match=r"no scores/diffusion .* Run first: store.diffuse\(\)"):
        store.suggest(3, by="uncertainty")


def test_a_graph_from_elsewhere_is_enough(tmp_path: Path) -> None:
    np.save(tmp_path / "lists.npy", np.random.default_rng(0).integers(0, 50, (50, 4)))
    store = mmdiff.open(tmp_path / "store", create=True)
    store.import_graph(tmp_path / "lists.npy")
    assert store.suggest(3)["nearest"].null_count == 3


def test_threads_and_memory_change_nothing(made: Path) -> None:
    found = []
    for threads, memory in ((1, "2M"), (2, "8G"), (5, "8G")):
        stream = io.BytesIO()
        opened(made, threads=threads, memory=memory).suggest(20, stream, by="mixed")
        found.append(stream.getvalue())
    assert found[0] == found[1] == found[2]


def test_the_store_stays_as_it_is(made: Path) -> None:
    before = tree(made / "store")
    opened(made).suggest(3, by="mixed")
    assert tree(made / "store") == before


def test_by_uncertainty_the_least_sure_rows_come_and_no_look_alikes(quick_folder: Path) -> None:
    """The least sure row has nine twins: one of them is asked, then others come first."""
    rows = descriptors(truth()[:ROWS], 1)
    rows[10:20] = rows[[0, 1]].mean(axis=0)
    store = mmdiff.open(quick_folder / "store", create=True)
    store.add(rows, labels=[CLASSES[own] if row < 4 else None for row, own in enumerate(truth()[:ROWS].tolist())], dims=8)
    store.build_graph(k=12)
    store.diffuse(iterations=3, predict_nodes=True)
    table = store.suggest(8, by="uncertainty")
    margins = np.array(store.predict(rows="collection")["margin"])
    assert table["margin"][0].as_py() == pytest.approx(margins.min())
    assert len(set(table["id"].to_pylist()) & set(range(10, 20))) <= 1
    assert np.array(table["margin"]).mean() < np.median(margins)


def test_mixed_weights_what_is_covered_by_how_unsure_it_is(made: Path) -> None:
    store = opened(made)
    predicted = store.predict(rows="collection")
    weight = np.where(np.array(predicted["label"].to_pylist()) == None, 1, 1 - np.array(predicted["margin"]))  # noqa: E711
    weight[list(LABELLED)] = 0
    kernel, chosen = kernel_of(store), list(LABELLED)
    for row in rows_of(store.suggest(6, by="mixed")):
        possible = gains(kernel, coverage_of(kernel, chosen), weight)
        assert possible[row] >= np.delete(possible, chosen).max() - 1e-5
        chosen.append(row)


@pytest.mark.parametrize("by", ["coverage", "uncertainty"])
def test_per_class_every_predicted_class_gets_as_many(made: Path, by: str) -> None:
    table = opened(made).suggest(3, by=by, per_class=True)
    assert sorted(table["label"].to_pylist()) == [CLASSES[0]] * 3 + [CLASSES[1]] * 3
    assert summary_of(table)["notes"] == []


def test_per_class_a_class_with_fewer_candidates_gets_fewer(made: Path) -> None:
    store = opened(made)
    predicted = store.predict(rows="collection").to_pylist()
    of_each = [[row["id"] for row in predicted if row["label"] == own and row["source"] == "predicted"] for own in CLASSES[:2]]
    table = store.suggest(4, per_class=True, candidates=[*of_each[0][:1], *of_each[1][:9]])
    assert sorted(table["label"].to_pylist()) == [CLASSES[0]] + [CLASSES[1]] * 4
    assert summary_of(table)["notes"] == ["5 suggestions instead of 8: there are no more candidates."]


def test_candidates_come_from_a_file_or_a_list(made: Path, tmp_path: Path) -> None:
    file = tmp_path / "some.csv"
    file.write_text("id\n" + "".join(f"row-{row}\n" for row in (0, 7, 210, 33)))
    store = opened(made)
    table = store.suggest(9, candidates=file)
    assert sorted(rows_of(table)) == [7, 33, 210]
    assert summary_of(table)["notes"] == [
        "1 candidate of 4 left out: labelled already.",
        "3 suggestions instead of 9: there are no more candidates.",
    ]
    assert store.suggest(9, candidates=["row-7", "row-33", "row-210"])["id"] == table["id"]


@pytest.mark.parametrize(
    ("parameters", "error", "says"),
    [
        ({"n": 0}, BadOption, "n=0: expected a whole number"),
        ({"by": "coverag"}, BadOption, "Did you mean coverage"),
        ({"per_class": 2}, BadOption, "per_class=2: expected true or false"),
        ({"candidates": ["row-1000"]}, BadLabels, "candidates, place 0: no row of the collection has the id row-1000"),
        ({"candidates": ["row-7", "row-7"]}, DuplicateIds, "have the same id row-7"),
        ({"candidates": ["row-0", "row-5"]}, Missing, "all 2 candidates are labelled already"),
        ({"file": "rows.txt"}, BadOption, "suggestions are written to .csv, .jsonl, .parquet"),
        ({"file": 5}, BadOption, "expected the path of a file"),
    ],
)
def test_what_cannot_be_is_refused(made: Path, parameters: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        opened(made).suggest(**({"n": 3} | parameters))


def test_too_little_memory_is_refused(made: Path) -> None:
    with pytest.raises(BadOption, match="to suggest among 240 rows takes about"):
        opened(made, memory=2000).suggest(3)


def test_predictions_must_be_current_where_they_are_needed(own: mmdiff.Store) -> None:
    own.label({"row-9": CLASSES[1]})
    with pytest.raises(Stale, match=r"scores/diffusion: .*Run again"):
        own.suggest(3, by="mixed")
    own.add(descriptors(truth()[:20], 5), role="test")
    own.build_graph(k=8)
    own.diffuse(iterations=2)
    with pytest.raises(Missing, match="without predictions of the rows of the collection"):
        own.suggest(3, per_class=True)


def test_a_damaged_graph_is_found_before_it_is_followed(own: mmdiff.Store) -> None:
    chunk = sorted((own["graph/W"].folder / "indices").glob("c*"))[0]
    content = bytearray(chunk.read_bytes())
    content[100] ^= 1
    chunk.write_bytes(content)
    with pytest.raises(Damaged, match=r"array indices: chunk c\.0 does not match its checksum"):
        own.suggest(3)


def test_files_of_every_kind_hold_the_same(made: Path, tmp_path: Path) -> None:
    store = opened(made)
    table = store.suggest(6)
    for ending in ("csv", "jsonl", "parquet"):
        found = store.suggest(6, tmp_path / f"rows.{ending}")
        assert (found["file"], found["suggestions"]) == (str(tmp_path / f"rows.{ending}"), 6)
    assert pq.read_table(tmp_path / "rows.parquet").equals(table)
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    with (tmp_path / "rows.csv").open(newline="") as stream:
        texts = list(csv.DictReader(stream))
    for entry, line, fields in zip(table.to_pylist(), lines, texts, strict=True):
        assert list(line) == list(fields) == list(entry)
        for name, value in entry.items():
            assert line[name] == (pytest.approx(value) if isinstance(value, float) else value)
            assert fields[name] == ("" if value is None else str(np.float32(value)) if isinstance(value, float) else str(value))


def test_the_command_shows_suggestions_with_a_summary(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # In a narrow terminal each row is a block of lines.
    monkeypatch.setenv("COLUMNS", "200")
    outcome = run(made, "suggest 4 --by mixed")
    assert outcome.exit_code == 0, outcome.output
    header, *rows, last = outcome.stdout.splitlines()
    assert header.split()[:4] == ["rank", "id", "reaches", "gain"]
    assert len(rows) == 4
    assert last.startswith("4 suggestions by mixed: ")
    found = run_json(made, "suggest 4 --by mixed")
    assert [row["id"] for row in found["suggested"]] == opened(made).suggest(4, by="mixed")["id"].to_pylist()


def test_the_command_writes_csv_to_stdout_and_the_summary_to_stderr(made: Path) -> None:
    outcome = run(made, "suggest 2 --out -")
    assert outcome.exit_code == 0, outcome.output
    assert [row["rank"] for row in csv.DictReader(io.StringIO(outcome.stdout))] == ["1", "2"]
    assert "2 suggestions by coverage" in outcome.stderr
    assert refused(made, "suggest 2 --out - --json").startswith("--json: the suggestions go to stdout")
    assert refused(made, "suggest 2 --from nowhere.csv").startswith("nowhere.csv: ")

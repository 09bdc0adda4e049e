"""Labels of the collection, of seeds and of labels/current as one set: what a diffusion reads, and when it must run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mmdiff
from mmdiff.errors import BadLabels, DuplicateIds, Missing, Stale
from mmdiff.formats.store.store import Store as Files
from mmdiff.labels.label_set import LabelSet, read_label_set

ROWS, TESTS, DIMS = 200, 30, 8
IDS = [f"im{row}" for row in range(ROWS)]


def rows(count: int, seed: int) -> NDArray[Any]:
    return np.random.default_rng(seed).normal(size=(count, DIMS)) + 4 * np.eye(DIMS)[np.arange(count) % 4]


def a_store(path: Path, labels: Any = None, seeds: dict[str, str] | None = None) -> mmdiff.Store:
    store = mmdiff.open(path, create=True)
    store.add(rows(ROWS, 0), labels=labels, ids=IDS)
    if seeds is not None:
        store.add(rows(len(seeds), 1), role="seeds", labels=list(seeds.values()), ids=list(seeds))
    store.add(rows(TESTS, 2), role="test")
    store.build_graph(k=6)
    return store


def label_set(store: mmdiff.Store) -> LabelSet:
    files = Files.open(store.path)
    return read_label_set(files, files.open_artifact("graph/W"))


def titles(found: LabelSet) -> dict[int, list[str]]:
    return {
        row: [found.classes.title(label) for label in own if label >= 0]
        for row, own in zip(found.rows.tolist(), found.labels.tolist(), strict=True)
    }


def given_names(names: dict[int, str]) -> list[str | None]:
    return [names.get(row) for row in range(ROWS)]


def test_recorded_labels_replace_imported_ones_and_are_said(tmp_path: Path) -> None:
    store = a_store(tmp_path / "store", given_names({0: "cat", 1: "dog", 2: "dog"}), {"s0": "dog", "s1": "ant"})
    store.label({"im0": "dog", "im1": None, "im9": ["cat", "fox"]})
    found = label_set(store)
    assert titles(found) == {0: ["dog"], 2: ["dog"], 9: ["cat", "fox"], ROWS: ["dog"], ROWS + 1: ["ant"]}
    assert found.classes.names == ("ant", "dog", "cat", "fox")
    assert sorted(found.inputs) == ["background", "labels", "seeds"]
    assert found.notes == ["labels/current replaces imported labels: 1 row has another label there (im0: dog instead of cat)."]
    assert found.notes[0] in store.diffuse(iterations=2).summary["warnings"]


def test_names_of_the_collection_join_those_of_the_seeds_by_name(tmp_path: Path) -> None:
    store = a_store(tmp_path / "store", given_names({0: "ant", 1: "cat"}), {"s0": "cat", "s1": "dog"})
    assert titles(label_set(store)) == {0: ["ant"], 1: ["cat"], ROWS: ["cat"], ROWS + 1: ["dog"]}


def test_a_diffusion_of_recorded_labels_is_that_of_imported_ones(tmp_path: Path) -> None:
    names = {row: f"class {row % 4}" for row in range(0, ROWS, 11)}
    imported, recorded = a_store(tmp_path / "imported", given_names(names)), a_store(tmp_path / "recorded")
    recorded.label({f"im{row}": name for row, name in names.items()})
    expected, found = imported.diffuse(iterations=3), recorded.diffuse(iterations=3)
    assert found.classes.tolist() == expected.classes.tolist()
    np.testing.assert_array_equal(found.scores, expected.scores)


def test_labels_make_scores_stale_and_nothing_else(tmp_path: Path) -> None:
    store = a_store(tmp_path / "store", given_names({0: "cat", 1: "dog"}))
    store.diffuse(iterations=2)

    def stale() -> dict[str, list[str]]:
        return {line["artifact"]: line["stale"] for line in store.inspect()["artifacts"] if line["stale"]}

    assert stale() == {}
    store.label({"im5": "dog"})
    assert stale() == {"scores/diffusion": ["labels/current has changed since"]}
    with pytest.raises(Stale, match=r"labels/current has changed since.*Run again: store.diffuse\(iterations=2\)"):
        store.evaluate()
    store.undo_label()
    assert stale() == {}
    store.label({"im5": "dog"})
    store.diffuse(iterations=2)
    assert stale() == {}
    store.label({"im6": "dog"})
    assert stale() == {"scores/diffusion": ["labels/current has changed since"]}
    store.undo_label()
    assert stale() == {}


def test_labels_make_held_out_scores_stale_too(tmp_path: Path) -> None:
    store = mmdiff.open(tmp_path / "store", create=True)
    store.add(rows(ROWS, 0), ids=IDS, labels=np.where(np.arange(ROWS) < 40, np.arange(ROWS) % 4, -1))
    store.build_graph(k=6)
    store.diffuse(iterations=2, predict_nodes=True)
    store.evaluate(folds=3)
    store.label({"im50": 2})
    stale = {line["artifact"] for line in store.inspect()["artifacts"] if line["stale"]}
    assert stale == {"folds/diffusion", "scores/diffusion"}


def test_held_out_labels_are_not_spread(tmp_path: Path) -> None:
    names = {row: f"class {row % 4}" for row in range(0, ROWS, 3)}
    store = a_store(tmp_path / "store", given_names(names), {f"s{row}": f"class {row % 4}" for row in range(20)})
    store.hold_out(0.3, seed=1)
    found = label_set(store)
    assert 0 < found.held_out.sum() < len(found.rows)
    assert found.held_out[found.rows >= ROWS].any()
    used = found.used()
    assert len(used.rows) == (~found.held_out).sum()
    file = tmp_path / "used.npy"
    every = np.full(ROWS + 20, -1)
    every[used.rows] = used.labels[:, 0]
    np.save(file, every)
    np.testing.assert_array_equal(
        store.diffuse(iterations=3).scores, store.diffuse(iterations=3, labels=str(file), name="other").scores
    )


def test_classes_whose_labels_were_all_replaced_count_as_errors(tmp_path: Path) -> None:
    store = a_store(tmp_path / "store", np.where(np.arange(ROWS) < 8, np.arange(ROWS) % 4, -1))
    store.add(rows(TESTS, 2), role="test", labels=np.arange(TESTS) % 4)
    store.label({"im3": 0, "im7": None})
    store.build_graph(k=6)
    store.diffuse(iterations=3)
    assert store.evaluate()["scores"][0]["test"]["classes_without_seeds"] == 1


def test_a_store_whose_labels_were_all_removed_says_how_to_label(tmp_path: Path) -> None:
    store = a_store(tmp_path / "store", given_names({0: "cat"}))
    store.label({"im0": None})
    with pytest.raises(Missing, match=r"no labels to spread.*store.label\(FILE\).*store.add\(FILE, labels=FILE\)"):
        store.diffuse()
    store.undo_label()
    store.hold_out(0.9)
    with pytest.raises(BadLabels, match=r"all 1 labelled rows are held out.*store.hold_out\(0\)"):
        store.diffuse()


def test_labels_of_rows_that_are_gone_are_not_used_and_said(tmp_path: Path) -> None:
    store = a_store(tmp_path / "store", given_names({0: "cat"}))
    store.label({"im0": "dog", "im7": "cat"})
    store.add(rows(ROWS, 5), ids=["im7", *(f"new{row}" for row in range(1, ROWS))])
    store.add(rows(TESTS, 2), role="test")
    store.build_graph(k=6)
    found = label_set(store)
    assert titles(found) == {0: ["cat"]}
    assert found.notes == ["labels/current names 1 row that is not in the collection (im0); these labels are not used."]


def test_seeds_whose_ids_stand_in_the_collection_are_refused_or_used_for_their_labels(tmp_path: Path) -> None:
    store = a_store(tmp_path / "store")
    names, ids = ["cat", "dog", "cat"], ["im3", "new", "im5"]
    with pytest.raises(DuplicateIds, match=r"row 0: 2 rows have the ids of rows of the collection \(im3, im5\).*same_ids=True"):
        store.add(rows(3, 1), role="seeds", labels=names, ids=ids)
    assert "descriptors/seeds" not in store
    summary = store.add(rows(3, 1), role="seeds", labels=names, ids=ids, same_ids=True)
    assert (summary["shape"][0], summary["dropped"]) == (1, {"in_the_collection": 2})
    assert store.add(rows(3, 1), role="seeds", labels=names, ids=ids, same_ids=True)["reused"]
    store.build_graph(k=6)
    assert titles(label_set(store)) == {3: ["cat"], 5: ["cat"], ROWS: ["dog"]}
    assert len(store.labels()["batches"]) == 1
    assert store.verify()["ok"]


def test_seeds_that_all_stand_in_the_collection_only_give_labels(tmp_path: Path) -> None:
    store = a_store(tmp_path / "store")
    summary = store.add(rows(2, 1), role="seeds", labels=["cat", "dog"], ids=["im3", "im5"], same_ids=True)
    assert summary["artifact"] == "labels/current"
    assert "descriptors/seeds" not in store
    assert titles(label_set(store)) == {3: ["cat"], 5: ["dog"]}


def test_test_points_whose_ids_stand_in_the_collection_are_refused(tmp_path: Path) -> None:
    store = a_store(tmp_path / "store")
    with pytest.raises(DuplicateIds, match=r"1 row has the id of a row of the collection \(im3\).*cannot test anything"):
        store.add(rows(2, 1), role="test", ids=["im3", "t"])


def test_seeds_that_contradict_the_collection_are_said(tmp_path: Path) -> None:
    store = mmdiff.open(tmp_path / "store", create=True)
    store.add(rows(ROWS, 0), ids=[f"old{row}" for row in range(ROWS)])
    store.add(rows(2, 1), role="seeds", labels=["cat", "dog"], ids=["im0", "im1"])
    store.add(rows(ROWS, 0), ids=IDS, labels=given_names({0: "dog", 1: "dog"}))
    store.add(rows(TESTS, 2), role="test")
    store.build_graph(k=6)
    assert label_set(store).notes == [
        "1 seed has the id of a row of the collection with another label (im0: cat, in the collection dog); both are used."
    ]


def test_labelled_rows_as_nodes_give_what_seeds_beside_the_rest_give(tmp_path: Path) -> None:
    """The same nodes and the same W; scores of test points differ by the order of float32 sums only."""
    labelled, points = np.arange(0, ROWS, 9), rows(ROWS, 0)
    names = [f"class {row % 4}" for row in labelled]
    one = mmdiff.open(tmp_path / "one", create=True)
    one.add(points, labels=given_names(dict(zip(labelled.tolist(), names, strict=True))))
    two = mmdiff.open(tmp_path / "two", create=True)
    rest = np.setdiff1d(np.arange(ROWS), labelled)
    two.add(points[rest])
    two.add(points[labelled], role="seeds", labels=names)
    for store in (one, two):
        store.add(rows(TESTS, 2), role="test")
        store.build_graph(k=6, index="flat")
    order = np.concatenate([rest, labelled])
    expected, found = one.graph.to_scipy()[order][:, order], two.graph.to_scipy()
    np.testing.assert_array_equal(expected.toarray(), found.toarray())
    nodes, seeds = one.diffuse(iterations=4), two.diffuse(iterations=4)
    assert nodes.classes.tolist() == seeds.classes.tolist()
    np.testing.assert_allclose(nodes.scores, seeds.scores, rtol=2e-6)
    assert (nodes.predict() == seeds.predict()).all()
    np.testing.assert_array_equal(np.argsort(-nodes.scores, axis=1), np.argsort(-seeds.scores, axis=1))

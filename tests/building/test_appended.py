"""Graphs with appended rows: those of all rows at once, made without searching the background again, and merged when due."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

import mmdiff
from mmdiff.building.appended import reason_to_merge
from mmdiff.building.stage import Outcome
from mmdiff.cli import app
from mmdiff.formats.errors import Stale
from mmdiff.formats.store.store import Store
from mmdiff.graph.graph import CsrGraph
from mmdiff.importing.appending import append_descriptors
from mmdiff.importing.stage import Request as Import
from mmdiff.knn.search import outside
from mmdiff.labels.collection import Collection
from mmdiff.runtime.staleness import stale_artifacts
from mmdiff.runtime.threads import limit_cores
from tests.building.test_build_graph import K, build, import_rows, make, nodes_of, seeds_of, small
from tests.knn.test_knn import clustered
from tests.support.graphs import completed_lists
from tests.support.naive_knn import naive_neighbors, naive_W
from tests.support.remotes import upload
from tests.support.stores import SMALL_CHUNKS, chunks_of, problems, tree

__all__ = ["small"]


def append(path: Path, values: NDArray[Any], **more: Any) -> None:
    file = path / f"more-{abs(hash(values.tobytes())) % 10**9}.npy"
    np.save(file, values)
    append_descriptors(path / "store", Import([str(file)], "background", **more))


def rows(count: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((count, 16)).astype(np.float32)


def store_of(path: Path) -> Store:
    return Store.open(path / "store")


def in_user_rows(path: Path) -> Any:
    """W with the rows and columns of the user."""
    return mmdiff.open(path / "store").graph.to_scipy()


def same_edges(first: Any, second: Any) -> None:
    for matrix in (first, second):
        matrix.sort_indices()
    np.testing.assert_array_equal(first.indptr, second.indptr)
    np.testing.assert_array_equal(first.indices, second.indices)
    np.testing.assert_allclose(first.data, second.data, rtol=1e-6)


@pytest.mark.parametrize("transductive", [False, True])
@pytest.mark.parametrize("seeds", [0, 70])
def test_graph_with_appended_rows_is_that_of_all_rows_at_once(tmp_path: Path, seeds: int, transductive: bool) -> None:
    """With exact search everywhere the edges are the same, in the user's order: background, appended rows, seeds, test."""
    values = rows(400)
    for place, first in (("one", 400), ("two", 340)):
        (tmp_path / place).mkdir()
        import_rows(tmp_path / place, "background", values[:first])
        if seeds:
            seeds_of(tmp_path / place, rows(seeds, 1))
        import_rows(tmp_path / place, "test", rows(40, 2))
    build(tmp_path / "one", index="flat", transductive=transductive)
    build(tmp_path / "two", index="flat", transductive=transductive)
    append(tmp_path / "two", values[340:380])
    append(tmp_path / "two", values[380:])
    outcome = build(tmp_path / "two", index="flat", transductive=transductive)
    assert {*outcome.seconds} == {"knn/W0", "knn/test", "graph/W"}
    same_edges(in_user_rows(tmp_path / "two"), in_user_rows(tmp_path / "one"))
    facts = outcome.artifacts["graph/W"].facts
    tests = 40 if transductive else 0
    assert [facts[role] for role in ("background", "appended", "seeds", "test")] == [340, 60, seeds, tests]
    assert problems(store_of(tmp_path / "two")) == []


def test_lists_are_those_of_a_search_of_all_nodes(tmp_path: Path) -> None:
    make(tmp_path)
    build(tmp_path)
    append(tmp_path, clustered(90, 16, 10, 5))
    build(tmp_path)
    nodes = nodes_of(tmp_path, "background", "appended", "seeds")
    np.testing.assert_array_equal(completed_lists(store_of(tmp_path)).neighbors, naive_neighbors(nodes, nodes, K))
    test = store_of(tmp_path).open_artifact("descriptors/test").array("vectors")
    lists = store_of(tmp_path).open_artifact("knn/test").array("neighbors")
    np.testing.assert_array_equal(lists, naive_neighbors(test, nodes, K))
    found = CsrGraph.open(tmp_path / "store").to_scipy()
    same_edges(found, naive_W(nodes, K).astype(np.float32))


def test_background_is_not_searched_again(tmp_path: Path) -> None:
    make(tmp_path)
    before = build(tmp_path)
    append(tmp_path, rows(20, 3))
    after = build(tmp_path)
    for name in ("models/cells", "knn/BB"):
        assert after.artifacts[name].id == before.artifacts[name].id
        assert name not in after.seconds
    assert not build(tmp_path).seconds


def test_recall_is_measured_on_old_and_new_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit of exhaustive search, cells are visited: the facts hold the recall of both blocks of lists."""
    monkeypatch.setattr(outside, "EXHAUSTIVE", 0)
    monkeypatch.setattr(outside, "_FEWEST_VISITS", 2)
    make(tmp_path)
    append(tmp_path, clustered(90, 16, 10, 5))
    facts = build(tmp_path, recall=0.9).artifacts["knn/W0"].facts
    for block in ("W_LB", "W_BL"):
        assert not facts[block]["exhaustive"]
        assert facts[block]["recall"] >= 0.85


def warnings_of(outcome: Outcome) -> list[str]:
    return [warning for stage in outcome.summary().values() for warning in stage["warnings"]]


def test_command_says_when_appended_rows_should_be_merged(tmp_path: Path) -> None:
    make(tmp_path, 400)
    append(tmp_path, rows(50, 3))
    assert warnings_of(build(tmp_path)) == []
    append(tmp_path, rows(1, 4))
    remedy = "Merge them into the background and build the graph anew (merge_appended)."
    due = f"descriptors/appended: 51 rows, more than an eighth of the 400 of the background. {remedy}"
    assert warnings_of(build(tmp_path)) == [due]
    assert warnings_of(build(tmp_path)) == [due]
    assert warnings_of(build(tmp_path, merge_appended=True)) == []


def test_merging_is_due_where_it_is_cheaper_or_recall_is_missed() -> None:
    assert reason_to_merge(1000, 125, 1000.0, True) is None
    assert reason_to_merge(1000, 126, 1000.0, True) == "126 rows, more than an eighth of the 1,000 of the background"
    assert reason_to_merge(10**7, 240_000, 6000.0, True) is None
    dear = reason_to_merge(10**7, 250_000, 6000.0, True)
    assert dear == "comparing 250,000 rows with each other takes longer than a search of the background"
    missed = reason_to_merge(1000, 1, 1000.0, False)
    assert missed == "the neighbours of appended rows were found with less recall than was asked for"


def test_missed_recall_names_the_appended_rows_and_makes_merging_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "EXHAUSTIVE", 0)
    monkeypatch.setattr(outside, "tune", lambda measure, points, *_: (1, measure(1, min(64, points))))
    make(tmp_path, random=True)
    append(tmp_path, rows(60, 5))
    found = warnings_of(build(tmp_path, recall=1.0))
    assert any("for appended rows and seeds, but 1.000 was asked for" in warning for warning in found)
    assert any("found with less recall than was asked for. Merge them" in warning for warning in found)


@pytest.mark.parametrize("seeds", [0, 70])
def test_merged_background_is_that_of_one_import(tmp_path: Path, seeds: int) -> None:
    values = rows(400)
    labels = tmp_path / "l.npy"
    for place, first in (("one", 400), ("two", 300)):
        (tmp_path / place).mkdir()
        np.save(labels, np.arange(first) % 3)
        import_rows(tmp_path / place, "background", values[:first], labels=str(labels))
        if seeds:
            seeds_of(tmp_path / place, rows(seeds, 1))
    np.save(labels, np.arange(300, 400) % 3)
    append(tmp_path / "two", values[300:], labels=str(labels))
    build(tmp_path / "two", index="flat")
    merged = build(tmp_path / "two", index="flat", merge_appended=True)
    build(tmp_path / "one", index="flat")
    found, expected = (store_of(tmp_path / place).open_artifact("descriptors/background") for place in ("two", "one"))
    for array in ("vectors", "labels", "class_numbers"):
        np.testing.assert_array_equal(found.array(array), expected.array(array))
    assert found.keys() == expected.keys()
    assert found.facts == expected.facts
    same_edges(in_user_rows(tmp_path / "two"), in_user_rows(tmp_path / "one"))
    assert store_of(tmp_path / "two").names() == store_of(tmp_path / "one").names()
    assert {"descriptors/background", "models/cells", "knn/BB", "graph/W"} <= {*merged.seconds}
    assert stale_artifacts(store_of(tmp_path / "two"), merged.artifacts["graph/W"]) == []
    assert problems(store_of(tmp_path / "two")) == []
    mmdiff.open(tmp_path / "two" / "store").gc()
    assert problems(store_of(tmp_path / "two")) == []
    again = build(tmp_path / "two", index="flat", merge_appended=True)
    assert not again.seconds


def test_merged_background_shares_full_chunks(tmp_path: Path) -> None:
    with chunks_of(SMALL_CHUNKS):
        make(tmp_path, 300)
        append(tmp_path, rows(40, 3))
        before = store_of(tmp_path).open_artifact("descriptors/background")
        merged = build(tmp_path, merge_appended=True).artifacts["descriptors/background"]
    chunks = sorted((merged.folder / "vectors").glob("c.*"), key=lambda file: int(file.name.split(".")[1]))
    full = 300 // before.spec("vectors").rows_per_chunk
    assert full > 1
    assert [file.stat().st_nlink for file in chunks] == [2] * full + [1] * (len(chunks) - full)


def test_ids_and_rows_stay_when_appended_rows_are_merged_and_more_follow(tmp_path: Path) -> None:
    def ids(first: int, count: int) -> str:
        file = tmp_path / f"ids-{first}.txt"
        file.write_text("".join(f"photo {i}\n" for i in range(first, first + count)))
        return str(file)

    import_rows(tmp_path, "background", rows(100), ids=ids(0, 100))
    append(tmp_path, rows(20, 1), ids=ids(100, 20))
    before = Collection.of(store_of(tmp_path)).ids(0, 120)
    build(tmp_path, merge_appended=True)
    after = Collection.of(store_of(tmp_path))
    assert (len(after.parts), [*after.ids(0, 120)]) == (1, [*before])
    append(tmp_path, rows(5, 2), ids=ids(120, 5))
    build(tmp_path)
    assert [*Collection.of(store_of(tmp_path)).ids(118, 122)] == [f"photo {i}" for i in range(118, 122)]
    build(tmp_path, merge_appended=True)
    assert [*Collection.of(store_of(tmp_path)).ids(0, 125)] == [f"photo {i}" for i in range(125)]
    assert problems(store_of(tmp_path)) == []


def test_imports_of_merged_files_are_recognised(tmp_path: Path) -> None:
    first, more = rows(100), rows(20, 1)
    store = mmdiff.open(tmp_path / "store", create=True)
    store.add(first)
    store.add(more, append=True)
    store.build_graph(k=K, merge_appended=True)
    before = tree(tmp_path / "store")
    again, appended = store.add(first), store.add(more, append=True)
    assert again["reused"]
    assert again["notes"] == [
        "descriptors/background holds the rows of array and others that were merged into it, 120 in all. It stays as it is."
    ]
    assert (appended["reused"], appended["artifact"]) == (True, "descriptors/background")
    assert tree(tmp_path / "store") == before
    replaced = store.add(first, dims=8)
    assert not replaced["reused"]
    assert replaced["shape"] == [100, 8]


def test_killed_between_both_names_of_a_merge_leaves_out_the_appended_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, 300)
    append(tmp_path, rows(40, 3))
    build(tmp_path)
    shutil.copytree(tmp_path / "store", tmp_path / "other" / "store", symlinks=True)
    expected = build(tmp_path / "other", merge_appended=True)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("mmdiff.importing.merging.remove_leftover", killed)
        with pytest.raises(KeyboardInterrupt):
            build(tmp_path, merge_appended=True)
    assert store_of(tmp_path).id("descriptors/appended") is not None
    assert Collection.of(store_of(tmp_path)).rows == 340
    assert problems(store_of(tmp_path)) == []
    found = build(tmp_path)
    assert store_of(tmp_path).id("descriptors/appended") is None
    assert found.artifacts["graph/W"].id == expected.artifacts["graph/W"].id


def test_lost_name_of_appended_rows_is_found(tmp_path: Path) -> None:
    """Their name goes with the background; while that is the same, a missing name is a loss."""
    make(tmp_path, 300)
    append(tmp_path, rows(40, 3))
    build(tmp_path)
    (tmp_path / "store" / "descriptors/appended").unlink()
    assert [problem.artifact for problem in problems(store_of(tmp_path))] == ["descriptors/appended"]


def test_same_bytes_for_any_number_of_threads(tmp_path: Path) -> None:
    trees = []
    for threads in (1, 2):
        folder = tmp_path / str(threads)
        folder.mkdir()
        limit_cores(threads)
        try:
            make(folder, 300)
            append(folder, rows(60, 3))
            build(folder)
            build(folder, merge_appended=True)
        finally:
            limit_cores(None)
        trees.append({key: value for key, value in tree(folder / "store", with_runs=False).items() if "/run" not in key})
    assert {key for key in trees[0] if "graph-" in key} == {key for key in trees[1] if "graph-" in key}


def labelled_store(path: Path) -> mmdiff.Store:
    """Two tight classes: names for the background, a new class among the appended rows, and seeds of their own."""
    store = mmdiff.open(path / "store", create=True)
    centres = 8 * np.eye(16)
    names = np.array(["cat", "dog", "emu"])
    y = np.arange(240) % 2
    store.add(rows(240) + centres[y], labels=np.where(np.arange(240) % 10 < 2, names[y], ""), ids=[f"b{i}" for i in range(240)])
    z = np.arange(60) % 3
    labels = np.where(np.arange(60) < 6, names[z], "")
    store.add(rows(60, 1) + centres[z], labels=labels, ids=[f"a{i}" for i in range(60)], append=True)
    store.add(rows(10, 2) + centres[np.arange(10) % 2], role="seeds", labels=names[np.arange(10) % 2])
    store.add(rows(30, 3) + centres[z[:30]], role="test", labels=names[z[:30]])
    return store


def test_labels_of_appended_rows_spread_and_all_rows_are_predicted(tmp_path: Path) -> None:
    store = labelled_store(tmp_path)
    store.build_graph(k=10)
    scores = store.diffuse(iterations=4, predict_nodes=str(tmp_path / "p.parquet"))
    assert store.evaluate()["scores"][0]["iterations"][-1]["all"]["top1"]["accuracy"] == 1
    table = pq.read_table(tmp_path / "p.parquet").to_pydict()
    assert table["id"] == [*(f"b{i}" for i in range(240)), *(f"a{i}" for i in range(60))]
    expected = [*("cat", "dog")] * 120 + ["cat", "dog", "emu"] * 20
    assert np.mean(np.array(table["name"]) == expected) > 0.99
    assert len(scores.predict_background()) == 300
    explained = store.explain(2)
    assert explained["test"]["predicted"] == "emu"
    origins = [path["steps"][0] for path in explained["paths"] if path["class"] == "emu"]
    assert all(step["role"] == "background" and str(step["id"]).startswith("a") for step in origins)
    row = store.explain(id_="a2")
    assert (row["row"]["id"], row["row"]["predicted"]) == ("a2", "emu")
    before = table["name"]
    store.build_graph(k=10, merge_appended=True)
    store.diffuse(iterations=4, predict_nodes=str(tmp_path / "q.parquet"))
    after = pq.read_table(tmp_path / "q.parquet").to_pydict()
    assert after["id"] == table["id"]
    assert np.mean(np.array(after["name"]) == before) > 0.99


def test_diffusion_before_the_graph_has_the_appended_rows_is_refused(tmp_path: Path) -> None:
    store = mmdiff.open(tmp_path / "store", create=True)
    store.add(rows(100), labels=np.arange(100) % 2)
    store.build_graph(k=K)
    store.add(rows(20, 1), append=True)
    with pytest.raises(Stale, match=r"graph/W: made with 0 appended rows, but descriptors/appended has 20\. Run again"):
        store.diffuse(predict_nodes=True)


def test_graph_from_elsewhere_covers_appended_rows(tmp_path: Path) -> None:
    store = mmdiff.open(tmp_path / "store", create=True)
    values = rows(60)
    store.add(values[:50], labels=np.where(np.arange(50) < 10, np.arange(50) % 2, -1))
    store.add(values[50:], labels=np.full(10, 2), append=True)
    np.save(tmp_path / "lists.npy", naive_neighbors(values, values, 5).astype(np.int64))
    facts = store.import_graph(tmp_path / "lists.npy")
    assert [facts[role] for role in ("background", "appended", "seeds", "test")] == [50, 10, 0, 0]
    scores = store.diffuse(iterations=0, predict_nodes=True)
    np.testing.assert_array_equal(scores.predict_background()[50:], np.full(10, 2))


def test_store_with_appended_rows_is_fetched_whole(tmp_path: Path) -> None:
    make(tmp_path, 200)
    append(tmp_path, rows(20, 3))
    build(tmp_path)
    url = upload(tmp_path / "store", "memory://appended")
    here = mmdiff.open(tmp_path / "here", create=True)
    here.fetch(url)
    assert here.names() == store_of(tmp_path).names()
    assert Collection.of(Store.open(tmp_path / "here")).rows == 220
    assert here.verify()["ok"]


def test_plan_counts_appended_rows(tmp_path: Path) -> None:
    store = mmdiff.open(tmp_path / "store", create=True)
    store.add(rows(100))
    store.add(rows(20, 1), append=True)
    assert store.plan("build_graph", k=5)["nodes"] == 120
    assert store.plan("build_graph", k=5, merge_appended=True)["nodes"] == 120


def test_command_line_merges(tmp_path: Path) -> None:
    make(tmp_path, 200)
    append(tmp_path, rows(40, 3))
    place = ("--store", str(tmp_path / "store"))
    built = CliRunner().invoke(app, ["build-graph", "--k", "5", *place])
    assert built.exit_code == 0
    assert "more than an eighth" in built.output
    merged = CliRunner().invoke(app, ["build-graph", "--k", "5", "--merge-appended", *place])
    assert merged.exit_code == 0
    assert "descriptors/background: 240 rows, appended ones among them" in merged.output

"""The way from arrays to labels and back, in memory, on disk and through commands: the same numbers to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

import mmdiff
from mmdiff.cli import app

Arrays = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.bool_]]


@pytest.fixture(scope="module")
def blobs() -> Arrays:
    """Rows of six classes in a random order, their classes, and which of them are labelled."""
    rng = np.random.default_rng(0)
    y = rng.permutation(np.arange(6).repeat(150))
    X = (rng.normal(size=(6, 24))[y] + rng.normal(scale=0.8, size=(900, 24))).astype(np.float32)
    return X, y, rng.random(900) < 0.05


def command(*words: str) -> Any:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def test_arrays_become_labels(blobs: Arrays) -> None:
    X, truth, labelled = blobs
    y, test = np.where(labelled, truth, -1), ~labelled
    graph = mmdiff.knn_graph(X, k=10, recall=0.95, seed=0)
    result = mmdiff.diffuse(graph, y, iterations=5)
    assert result.scores.shape == (900, 6)
    assert result.scores.dtype == np.float32
    np.testing.assert_array_equal(result.classes, np.arange(6))
    assert (result.predict()[test] == truth[test]).mean() > 0.8
    found = mmdiff.evaluate(result.scores[test], truth[test], top=(1, 5))
    assert found["top1"]["accuracy"] == pytest.approx((result.predict()[test] == truth[test]).mean(), abs=0.01)
    assert found["points"] == test.sum()
    S = np.random.default_rng(1).random((900, 3), np.float32)
    np.testing.assert_allclose(graph @ S, graph.to_scipy() @ S, rtol=1e-5)
    same = mmdiff.Graph.from_scipy(graph.to_scipy(normalized=False))
    np.testing.assert_allclose(mmdiff.diffuse(same, y, iterations=5).scores, result.scores, rtol=1e-4, atol=1e-9)


def test_the_sketch_on_disk_agrees_with_memory_and_commands(blobs: Arrays, tmp_path: Path, monkeypatch: Any) -> None:
    X, truth, labelled = blobs
    y = np.where(labelled, truth, -1)
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    np.save("y.npy", y)
    np.save("test.npy", X[:200] + np.float32(0.01))
    np.save("test_labels.npy", truth[:200])

    store = mmdiff.open("faces", create=True, memory="4G", progress=True)
    urls = [f"https://example.org/{row}.jpg" for row in range(len(X))]
    store.add(np.load("x.npy", mmap_mode="r"), ids=urls, labels=y)
    store.add("test.npy", role="test", labels="test_labels.npy")
    store.build_graph(k=10, recall=0.95)
    assert "memory" in str(store.plan("diffuse", iterations=5))
    scores = store.diffuse(iterations=5)
    assert "scores/diffusion, iteration 5, 200 test points: top-1" in str(store.evaluate())
    assert store["descriptors/background"]["vectors"].shape == (900, 24)
    assert not store["descriptors/background"]["vectors"].flags.writeable
    assert store.verify()["ok"]
    assert {line["artifact"] for line in store.inspect()["artifacts"]} == set(store.names())
    assert store.gc(dry_run=True)["items"] == []

    # Memory and disk.
    graph = mmdiff.knn_graph(X, k=10, recall=0.95)
    for mine, stored in ((graph, store.graph), (graph, mmdiff.Graph.open("faces"))):
        assert (mine.to_scipy() != stored.to_scipy()).nnz == 0
    neighbors = store.graph.internal.rows_of(np.asarray(store["knn/test"]["neighbors"]))
    in_memory = mmdiff.diffuse(graph, y, neighbors=neighbors, iterations=5)
    np.testing.assert_array_equal(in_memory.scores, scores.scores)
    rows = store.diffuse(iterations=5, predict_nodes=True, name="rows")
    np.testing.assert_array_equal(rows.predict_background(), mmdiff.diffuse(store.graph, y, iterations=5).predict())

    # Disk and commands.
    command("import", "x.npy", "--role", "background", "--labels", "y.npy", "--store", "cli")
    command("import", "test.npy", "--role", "test", "--labels", "test_labels.npy", "--store", "cli")
    command("build-graph", "--k", "10", "--store", "cli")
    command("diffuse", "--iterations", "5", "--store", "cli")
    other = mmdiff.open("cli")
    assert other["descriptors/test"].id == store["descriptors/test"].id
    for name, arrays in {
        "graph/W": ("indptr", "indices", "scale", "order"),
        "scores/diffusion": ("scores", "column_sums"),
    }.items():
        for array in arrays:
            np.testing.assert_array_equal(other[name][array], store[name][array])


def test_a_store_made_from_paths_is_the_one_that_commands_make(blobs: Arrays, tmp_path: Path, monkeypatch: Any) -> None:
    """Object ids are digests of everything that an artifact is: equal ids are equal bytes."""
    X, truth, labelled = blobs
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X[~labelled])
    np.save("seeds.npy", X[labelled])
    np.save("labels.npy", truth[labelled])
    command("import", "x.npy", "--role", "background", "--store", "cli")
    command("import", "seeds.npy", "--role", "seeds", "--labels", "labels.npy", "--store", "cli")
    command("import", "x.npy", "--role", "test", "--store", "cli")
    command("build-graph", "--k", "8", "--store", "cli")
    command("diffuse", "--eta", "sinkhorn", "--iterations", "2", "--store", "cli")
    store = mmdiff.open("python", create=True)
    store.add("x.npy")
    store.add(Path("seeds.npy"), role="seeds", labels="labels.npy")
    store.add(np.load("x.npy", mmap_mode="r"), role="test")
    store.build_graph(k=8)
    store.diffuse(eta="sinkhorn", iterations=2)
    other = mmdiff.open("cli")
    assert {name: store[name].id for name in store} == {name: other[name].id for name in other}


def test_no_folder_is_left_behind(blobs: Arrays, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    shared = Path("/dev/shm")
    before = set(shared.glob("mmdiff*"))
    mmdiff.diffuse(mmdiff.knn_graph(blobs[0][:200], k=5), np.where(np.arange(200) < 5, 0, -1))
    assert list(tmp_path.iterdir()) == []
    after = set(shared.glob("mmdiff*"))
    assert after <= before


def test_arrays_and_files_of_the_same_rows_give_the_same_descriptors(blobs: Arrays, tmp_path: Path) -> None:
    X, truth, _ = blobs
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", truth)
    from_file, from_array = mmdiff.open(tmp_path / "a", create=True), mmdiff.open(tmp_path / "b", create=True)
    from_file.add(tmp_path / "x.npy", labels=str(tmp_path / "y.npy"))
    from_array.add(X, labels=truth)
    for array in ("vectors", "labels", "class_numbers"):
        np.testing.assert_array_equal(from_file["descriptors/background"][array], from_array["descriptors/background"][array])
    assert from_array.add(X, labels=truth)["reused"]
    X[0, 0] += 1
    try:
        assert not from_array.add(X, labels=truth)["reused"]
    finally:
        X[0, 0] -= 1
    assert "array" in from_array.inspect("descriptors/background")["run"]["command"]

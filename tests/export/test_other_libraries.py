"""Graphs and lists of neighbours are read by the libraries that they are exported for, in the user's rows."""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
import scipy.sparse
from numpy.typing import NDArray

import mmdiff
from mmdiff.errors import BadOption, BadRow, CountMismatch, Stale
from mmdiff.export import reading, stage
from mmdiff.formats.store.store import Store
from mmdiff.kinds import KINDS
from tests.export.conftest import NAMES, ROWS, K
from tests.support.naive_knn import naive_neighbors

export = partial(stage.export, kinds=KINDS)

RUN = "store.diffuse(predict_nodes=True, iterations=1)"


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BLOCK_BYTES", 5000)


def vectors(store: Store, *roles: str) -> NDArray[Any]:
    return np.concatenate([store.open_artifact(f"descriptors/{role}").array("vectors") for role in roles])


def ids(store: Store, *roles: str) -> list[str]:
    return [text for role in roles for text in store.open_artifact(f"descriptors/{role}").strings("ids")]


LISTS = {
    "knn/BB": (("background",), ("background",)),
    "knn/W0": (("background", "seeds"), ("background", "seeds")),
    "knn/test": (("test",), ("background", "seeds")),
}


@pytest.mark.parametrize("name", LISTS)
def test_scipy_reads_the_distances_of_the_nearest_neighbours(store: Store, tmp_path: Path, name: str) -> None:
    outcome = export(store, name, tmp_path / "knn.npz", format_="csr")
    matrix = scipy.sparse.load_npz(tmp_path / "knn.npz")
    rows, among = (vectors(store, *roles) for roles in LISTS[name])
    assert (matrix.shape, outcome.rows, outcome.format) == ((len(rows), len(among)), len(rows), "csr")
    expected = naive_neighbors(rows, among, K)
    np.testing.assert_array_equal(matrix.indices.reshape(-1, K), expected)
    distances = np.linalg.norm(rows[:, None] - among[expected], axis=2)
    np.testing.assert_allclose(matrix.data.reshape(-1, K), distances, atol=1e-3)
    matrix.check_format(full_check=True)


def test_scikit_learn_gives_the_same_matrix_and_takes_ours(store: Store, tmp_path: Path) -> None:
    neighbors = pytest.importorskip("sklearn.neighbors", reason="scikit-learn is not installed")
    export(store, "knn/W0", tmp_path / "knn.npz", format_="csr")
    export(store, "knn/test", tmp_path / "test.npz", format_="csr")
    X, labels = vectors(store, "background", "seeds"), np.arange(170) % 3
    matrix, tests = (scipy.sparse.load_npz(tmp_path / f"{name}.npz") for name in ("knn", "test"))
    expected = neighbors.KNeighborsTransformer(mode="distance", n_neighbors=K - 1, algorithm="brute").fit_transform(X)
    np.testing.assert_array_equal(matrix.indices, expected.indices)
    np.testing.assert_array_equal(matrix.indptr, expected.indptr)
    theirs = neighbors.KNeighborsClassifier(3).fit(X, labels).predict(vectors(store, "test"))
    ours = neighbors.KNeighborsClassifier(3, metric="precomputed").fit(matrix, labels).predict(tests)
    np.testing.assert_array_equal(ours, theirs)


def test_rows_are_left_out_of_their_own_lists_where_asked(store: Store, tmp_path: Path) -> None:
    whole, without = tmp_path / "whole.npz", tmp_path / "without.npz"
    export(store, "knn/W0", whole, format_="csr")
    export(store, "knn/W0", without, format_="csr", self_loops=False)
    expected = scipy.sparse.load_npz(whole).indices.reshape(-1, K)
    assert (expected[:, 0] == np.arange(170)).all()
    np.testing.assert_array_equal(scipy.sparse.load_npz(without).indices.reshape(-1, K - 1), expected[:, 1:])


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
@pytest.mark.parametrize("self_loops", [True, False])
def test_a_sum_over_the_edge_index_of_the_graph_is_a_product_with_W(
    store: Store, tmp_path: Path, ending: str, self_loops: bool
) -> None:
    file = tmp_path / f"edges.{ending}"
    export(store, "graph/W", file, format_="edge-index", self_loops=self_loops)
    if ending == "npz":
        read = dict(np.load(file, allow_pickle=False))
    else:
        read = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed").load_file(file)
    (source, target), weight, nodes = read["edge_index"], read["edge_weight"], int(read["num_nodes"])
    assert (read["edge_index"].dtype, weight.dtype, nodes) == (np.int64, np.float32, 170)
    signal = np.random.default_rng(0).normal(size=(nodes, 3))
    summed = np.zeros((nodes, 3))
    np.add.at(summed, target, weight[:, None] * signal[source])
    W = mmdiff.open(store.path).graph.to_scipy().toarray()
    np.testing.assert_allclose(summed, (W if self_loops else W - np.diag(W.diagonal())) @ signal, atol=1e-6)


def test_the_edge_index_of_lists_leads_from_neighbours_to_rows(store: Store, tmp_path: Path) -> None:
    export(store, "knn/W0", tmp_path / "knn.safetensors")
    read = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed").load_file(
        tmp_path / "knn.safetensors"
    )
    X = vectors(store, "background", "seeds")
    expected = naive_neighbors(X, X, K)
    np.testing.assert_array_equal(read["edge_index"], [expected.reshape(-1), np.arange(170).repeat(K)])
    np.testing.assert_allclose(read["edge_weight"].reshape(-1, K), np.einsum("rd,rkd->rk", X, X[expected]), atol=1e-5)
    with pytest.raises(BadOption, match="its rows are test points, which are no nodes"):
        export(store, "knn/test", tmp_path / "test.safetensors")
    assert not (tmp_path / "test.safetensors").exists()


def edges_in(file: Path) -> list[tuple[str, str, float]]:
    if file.suffix == ".parquet":
        table = pq.read_table(file)
        assert table.column_names == ["source", "target", "weight"]
        return list(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))
    with file.open(newline="", encoding="utf-8") as stream:
        header, *lines = csv.reader(stream)
    assert header == ["source", "target", "weight"]
    return [(source, target, float(np.float32(weight))) for source, target, weight in lines]


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_edge_lists_have_the_users_ids(store: Store, tmp_path: Path, ending: str) -> None:
    for name, roles in {**LISTS, "graph/W": LISTS["knn/W0"]}.items():
        export(store, name, tmp_path / f"edges.{ending}")
        sources, targets = (ids(store, *each) for each in roles)
        found = edges_in(tmp_path / f"edges.{ending}")
        if name == "graph/W":
            W = mmdiff.open(store.path).graph.to_scipy().tocoo()
            expected = zip(W.row.tolist(), W.col.tolist(), W.data.tolist(), strict=True)
        else:
            rows, among = (vectors(store, *each) for each in roles)
            near = naive_neighbors(rows, among, K)
            similarities = np.einsum("rd,rkd->rk", rows, among[near]).reshape(-1).tolist()
            expected = zip(np.arange(len(rows)).repeat(K).tolist(), near.reshape(-1).tolist(), similarities, strict=True)
        edges = [(sources[source], targets[target], weight) for source, target, weight in expected]
        assert [edge[:2] for edge in found] == [edge[:2] for edge in edges]
        np.testing.assert_allclose([edge[2] for edge in found], [edge[2] for edge in edges], atol=1e-5)


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("self_loops", [True, False])
def test_hdf5_has_what_the_sisap_challenge_asks_for(store: Store, tmp_path: Path, name: str, self_loops: bool) -> None:
    export(store, name, tmp_path / "result.h5", self_loops=self_loops)
    rows, among = (vectors(store, *roles) for roles in LISTS[name])
    expected = naive_neighbors(rows, among, K)
    if not self_loops and name != "knn/test":
        expected = expected[:, 1:]
    with h5py.File(tmp_path / "result.h5") as file:
        knns, dists = file["knns"][:], file["dists"][:]
        assert (file.attrs["algo"], file.attrs["querytime"]) == ("mmdiff", 0)
        assert file.attrs["buildtime"] > 0
    np.testing.assert_array_equal(knns, expected + 1)
    np.testing.assert_allclose(dists, 1 - np.einsum("rd,rkd->rk", rows, among[expected]), atol=1e-5)
    assert (dists >= 0).all()
    assert (np.diff(dists, axis=1) >= 0).all()


@pytest.mark.parametrize("role", ROWS)
def test_faiss_finds_the_neighbours_in_a_flat_index(store: Store, tmp_path: Path, role: str) -> None:
    outcome = export(store, f"descriptors/{role}", tmp_path / "flat.faiss")
    index, X = faiss.read_index(str(tmp_path / "flat.faiss")), vectors(store, role)
    assert (index.ntotal, index.d, index.is_trained, index.metric_type) == (len(X), 8, True, faiss.METRIC_INNER_PRODUCT)
    assert outcome.rows == len(X)
    np.testing.assert_array_equal(index.reconstruct_n(0, len(X)), X)
    np.testing.assert_array_equal(index.search(X, K)[1], naive_neighbors(X, X, K))
    same = faiss.IndexFlatIP(8)
    same.add(X)
    assert faiss.serialize_index(same).tobytes() == (tmp_path / "flat.faiss").read_bytes()


def test_faiss_finds_the_users_rows_in_an_inverted_file_over_the_cells(store: Store, tmp_path: Path) -> None:
    export(store, "models/cells", tmp_path / "cells.faiss")
    index: Any = faiss.read_index(str(tmp_path / "cells.faiss"))
    X = vectors(store, "background")
    assert (index.ntotal, index.d, index.nlist) == (150, 8, store.open_artifact("models/cells").facts["cells"])
    index.nprobe = index.nlist
    np.testing.assert_array_equal(index.search(X, K)[1], naive_neighbors(X, X, K))
    index.nprobe = 1
    np.testing.assert_array_equal(index.search(X, 1)[1][:, 0], np.arange(150))
    # It is an index like any other: rows can be added.
    index.add(vectors(store, "seeds"))
    assert index.ntotal == 170


@pytest.mark.parametrize("name", ["descriptors/background", "models/cells"])
def test_faiss_has_ids_that_are_numbers(tmp_path: Path, name: str) -> None:
    store = small_store(tmp_path, ids=np.arange(30) * 10 + 500)
    store.export(name, tmp_path / "x.index", format_="faiss")
    index: Any = faiss.read_index(str(tmp_path / "x.index"))
    X = store["descriptors/background"].array("vectors")
    if name == "models/cells":
        index.nprobe = index.nlist
    np.testing.assert_array_equal(index.search(X, 3)[1], naive_neighbors(X, X, 3) * 10 + 500)


def test_descriptors_in_half_precision_are_single_in_faiss(tmp_path: Path) -> None:
    store = small_store(tmp_path, dtype="float16")
    store.export("descriptors/background", tmp_path / "x.faiss")
    X = store["descriptors/background"].array("vectors")
    np.testing.assert_array_equal(faiss.read_index(str(tmp_path / "x.faiss")).reconstruct_n(0, 30), X.astype(np.float32))


def test_embedding_atlas_gets_ids_labels_predictions_a_projection_and_neighbours(store: Store, tmp_path: Path) -> None:
    xy = np.random.default_rng(0).normal(size=(170, 2))
    np.save(tmp_path / "xy.npy", xy)
    export(store, "knn/W0", tmp_path / "atlas.parquet", format_="embedding-atlas", projection=tmp_path / "xy.npy")
    table = pq.read_table(tmp_path / "atlas.parquet")
    assert table.column_names == ["id", "label", "predicted", "score", "projection_x", "projection_y", "neighbors"]
    assert table["id"].to_pylist() == ids(store, "background", "seeds")
    given = [NAMES[row % 3] if row % 9 == 0 else None for row in range(150)] + [NAMES[row % 3] for row in range(20)]
    assert table["label"].to_pylist() == given
    scores = store.open_artifact("scores/diffusion")
    best, titles = scores.array("top_classes")[:, 0], list(scores.strings("class_names"))
    assert table["predicted"].to_pylist() == [None if each < 0 else titles[each] for each in best] + [None] * 20
    score = np.where(best < 0, np.nan, scores.array("top_scores")[:, 0])
    np.testing.assert_array_equal(table["score"].to_numpy()[:150], score)
    np.testing.assert_array_equal(np.stack([table[f"projection_{axis}"] for axis in "xy"], axis=1), xy)
    X = vectors(store, "background", "seeds")
    expected = naive_neighbors(X, X, K)
    neighbors = table["neighbors"].to_pylist()
    assert [each["ids"] for each in neighbors] == expected.tolist()
    distances = np.array([each["distances"] for each in neighbors])
    np.testing.assert_allclose(distances, 1 - np.einsum("rd,rkd->rk", X, X[expected]), atol=1e-5)


def test_embedding_atlas_gets_what_there_is(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    store.export("knn/BB", tmp_path / "atlas.parquet", format_="embedding-atlas", self_loops=False)
    table = pq.read_table(tmp_path / "atlas.parquet")
    assert table.column_names == ["id", "neighbors"]
    assert table["id"].to_pylist() == list(range(30))
    assert not any(row in each["ids"] for row, each in enumerate(table["neighbors"].to_pylist()))
    with pytest.raises(CountMismatch, match=r"projection: array is of shape \(29, 2\), but knn/BB has 30 rows"):
        store.export("knn/BB", tmp_path / "no.parquet", format_="embedding-atlas", projection=np.ones((29, 2)))
    xy = np.where(np.arange(60).reshape(30, 2) == 15, np.nan, 1)
    with pytest.raises(BadRow, match=r"projection: row 7 of the array: NaN or Inf"):
        store.export("knn/BB", tmp_path / "no.parquet", format_="embedding-atlas", projection=xy)
    assert not list(tmp_path.glob("no*"))


def test_stale_predictions_are_left_out_with_a_note(tmp_path: Path) -> None:
    store = small_store(tmp_path, labels=np.where(np.arange(30) < 6, np.arange(30) % 2, -1))
    store.diffuse(iterations=1, predict_nodes=True)
    store.export("knn/BB", tmp_path / "atlas.parquet", format_="embedding-atlas")
    assert pq.read_schema(tmp_path / "atlas.parquet").names == ["id", "label", "predicted", "score", "neighbors"]
    store.build_graph(k=6)
    notes = store.export("knn/BB", tmp_path / "atlas.parquet", format_="embedding-atlas")["notes"]
    assert notes == ["scores/diffusion is stale, so its predictions are left out. To make it anew, run: " + RUN]
    assert pq.read_schema(tmp_path / "atlas.parquet").names == ["id", "label", "neighbors"]


def small_store(folder: Path, **background: Any) -> mmdiff.Store:
    store = mmdiff.open(folder / "small", create=True)
    X = np.random.default_rng(1).normal(size=(30, 6))
    store.add(X, **background)
    store.build_graph(k=4)
    return store


def test_edges_have_row_numbers_unless_all_rows_have_ids(tmp_path: Path) -> None:
    store = small_store(tmp_path, ids=np.arange(30) + 500)
    store.export("graph/W", tmp_path / "edges.parquet")
    assert set(pq.read_table(tmp_path / "edges.parquet")["source"].to_pylist()) == set(range(500, 530))
    store.add(np.eye(6)[:3], role="seeds", labels=[0, 1, 2])
    store.build_graph(k=4)
    store.export("graph/W", tmp_path / "edges.parquet")
    assert set(pq.read_table(tmp_path / "edges.parquet")["source"].to_pylist()) == set(range(33))


def test_edges_are_not_given_the_ids_of_other_rows(tmp_path: Path) -> None:
    store = small_store(tmp_path, ids=np.arange(30) + 500)
    store.add(np.random.default_rng(2).normal(size=(30, 6)), ids=np.arange(30) + 900)
    with pytest.raises(Stale, match="descriptors/background has changed since"):
        store.export("knn/BB", tmp_path / "edges.csv")
    assert not list(tmp_path.glob("edges*"))
    # Without ids, the lists can be exported as they are, with a note.
    assert "is stale" in store.export("knn/BB", tmp_path / "knn.npz", format_="csr")["notes"][0]


def test_edges_of_a_row_without_neighbours_and_of_an_imported_graph(tmp_path: Path) -> None:
    np.save(tmp_path / "lists.npy", np.array([[1, 2], [0, -1], [2, 0], [-1, -1]]))
    store = mmdiff.open(tmp_path / "imported", create=True)
    store.import_graph(tmp_path / "lists.npy")
    store.export("graph/W", tmp_path / "edges.csv", self_loops=False)
    edges = edges_in(tmp_path / "edges.csv")
    assert [edge[:2] for edge in edges] == [("0", "1"), ("0", "2"), ("1", "0"), ("2", "0")]
    store.export("graph/W", tmp_path / "edges.npz", format_="edge-index")
    assert int(np.load(tmp_path / "edges.npz")["num_nodes"]) == 4


def test_lists_of_rows_that_are_not_of_unit_length_have_no_distances(tmp_path: Path) -> None:
    store = small_store(tmp_path, normalize=False)
    with pytest.raises(BadOption, match=r"not scaled to unit length.* normalize=True, or export format_='edges'"):
        store.export("knn/BB", tmp_path / "knn.npz", format_="csr")
    store.export("knn/BB", tmp_path / "edges.parquet")
    assert len(pq.read_table(tmp_path / "edges.parquet")) == 30 * 4

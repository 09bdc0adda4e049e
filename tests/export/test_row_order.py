"""Exports of graphs and lists are in the user's row order, and come back through `mmdiff import-graph` as the same graph."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import scipy.sparse
from numpy.typing import NDArray
from typer.testing import CliRunner

from mmdiff.building.stage import Request as GraphRequest
from mmdiff.building.stage import build_graph
from mmdiff.cli import app
from mmdiff.diffusion.stage import Request as DiffuseRequest
from mmdiff.diffusion.stage import diffuse
from mmdiff.export import reading, stage
from mmdiff.formats.errors import BadOption, Corrupt, Stale
from mmdiff.formats.store.gc import collect
from mmdiff.formats.store.store import Store
from mmdiff.graph.graph import CsrGraph
from mmdiff.graph.import_graph import Request as ImportGraphRequest
from mmdiff.graph.import_graph import import_graph
from mmdiff.importing.stage import Request, import_descriptors
from mmdiff.kernels.constants import COLUMN
from mmdiff.kinds import KINDS
from mmdiff.knn.cells import partition
from tests.support.naive_knn import naive_neighbors, naive_W
from tests.support.stores import SMALL_CHUNKS, chunks_of

export = partial(stage.export, kinds=KINDS)

K = 6
ROWS = {"background": 500, "seeds": 40, "test": 30}


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several cells, and several blocks in each export."""
    monkeypatch.setattr(partition, "CELL_ROWS", 40)
    monkeypatch.setattr(reading, "BLOCK_BYTES", 5000)


def import_all(folder: Path) -> Path:
    draw = np.random.default_rng(3)
    folder.mkdir(exist_ok=True)
    for role, rows in ROWS.items():
        np.save(folder / f"{role}.npy", draw.standard_normal((rows, 8)).astype(np.float32))
        np.save(folder / f"{role}-labels.npy", np.arange(rows) % 4)
        options: Any = {"role": role}
        if role != "background":
            options["labels"] = str(folder / f"{role}-labels.npy")
        import_descriptors(folder / "store", Request([str(folder / f"{role}.npy")], **options))
    return folder / "store"


@pytest.fixture
def built(tmp_path: Path) -> Store:
    """A graph whose nodes are in another order than the background's rows."""
    with chunks_of(SMALL_CHUNKS):
        path = import_all(tmp_path)
        build_graph(path, GraphRequest(k=K, index="flat"))
    order = Store.open(path).open_artifact("graph/W").array("order")
    assert (order != np.arange(len(order))).any()
    return Store.open(path)


def vectors(store: Store, *roles: str) -> NDArray[Any]:
    return np.concatenate([store.open_artifact(f"descriptors/{role}").array("vectors") for role in roles])


def test_exported_W_is_the_naive_W_of_the_users_rows(built: Store, tmp_path: Path) -> None:
    outcome = export(built, "graph/W", tmp_path / "W.npz")
    assert outcome.rows == ROWS["background"] + ROWS["seeds"]
    exported = scipy.sparse.load_npz(tmp_path / "W.npz")
    expected = naive_W(vectors(built, "background", "seeds"), K)
    np.testing.assert_array_equal(exported.indptr, expected.indptr)
    np.testing.assert_array_equal(exported.indices, expected.indices)
    np.testing.assert_allclose(exported.data, expected.data, rtol=1e-6)


@pytest.mark.parametrize("weights", ["constant", "gaussian"])
def test_each_array_of_the_graph_is_that_of_the_users_rows(built: Store, tmp_path: Path, weights: Any) -> None:
    sigma: Any = {} if weights == "constant" else {"sigma": 0.7}
    build_graph(built.path, GraphRequest(k=K, index="flat", edge_weights=weights, **sigma))
    graph = CsrGraph.from_artifact(built.open_artifact("graph/W"))
    arrays: dict[str, NDArray[Any]] = {}
    for name in ("indptr", "indices", "scale", *(["weights"] if graph.weights is not None else [])):
        export(built, "graph/W", tmp_path / "one.npy", name)
        arrays[name] = np.load(tmp_path / "one.npy")
        assert arrays[name].dtype == built.open_artifact("graph/W").array(name).dtype
    mine = CsrGraph(arrays["indptr"], arrays["indices"], arrays["scale"], arrays.get("weights"))
    node = graph.node_of_row
    for normalized in (True, False):
        expected = graph.to_scipy(normalized).toarray()[np.ix_(node, node)]
        np.testing.assert_array_equal(mine.to_scipy(normalized).toarray(), expected)
    assert (mine.indices > COLUMN).sum() == (graph.indices > COLUMN).sum()


@pytest.mark.parametrize("transductive", [False, True])
def test_exported_lists_have_the_users_rows_and_neighbours(built: Store, tmp_path: Path, transductive: bool) -> None:
    build_graph(built.path, GraphRequest(k=K, index="flat", transductive=transductive))
    nodes = vectors(built, "background", "seeds", *(["test"] if transductive else []))
    queries = {"BB": vectors(built, "background"), "W0": nodes, "test": vectors(built, "test")}
    for name, rows in queries.items():
        among = rows if name == "BB" else nodes
        expected = naive_neighbors(rows, among, K)
        export(built, f"knn/{name}", tmp_path / "lists.npy")
        np.testing.assert_array_equal(np.load(tmp_path / "lists.npy"), expected)
        export(built, f"knn/{name}", tmp_path / "lists.npz")
        with np.load(tmp_path / "lists.npz") as read:
            np.testing.assert_array_equal(read["neighbors"], expected)
            similarities = np.einsum("rd,rkd->rk", rows, among[expected])
            np.testing.assert_allclose(read["similarities"], similarities, atol=1e-5)


def test_the_internal_order_is_what_is_stored(built: Store, tmp_path: Path) -> None:
    for name, array in (("knn/BB", "neighbors"), ("graph/W", "indices"), ("graph/W", "scale"), ("graph/W", "order")):
        export(built, name, tmp_path / "out.npy", array, order="internal")
        np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), built.open_artifact(name).array(array))
    command = ["export", "knn/BB", str(tmp_path / "cli.npy"), "--order", "internal", "--store", str(built.path)]
    assert CliRunner().invoke(app, command).exit_code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "cli.npy"), built.open_artifact("knn/BB").array("neighbors"))
    with pytest.raises(BadOption, match="Did you mean internal"):
        export(built, "knn/BB", tmp_path / "out.npy", order="intern")  # type: ignore[arg-type]


@pytest.mark.parametrize("transductive", [False, True])
@pytest.mark.parametrize("weights", ["constant", "gaussian"])
def test_an_exported_graph_comes_back_and_predicts_the_same(tmp_path: Path, weights: Any, transductive: bool) -> None:
    options: Any = {"k": K, "transductive": transductive, "edge_weights": weights}
    first = import_all(tmp_path / "first")
    build_graph(first, GraphRequest(**options | ({} if weights == "constant" else {"sigma": 0.7})))
    export(Store.open(first), "graph/W", tmp_path / "W.npz")
    second = import_all(tmp_path / "second")
    import_graph(second, ImportGraphRequest(tmp_path / "W.npz"))
    tables = []
    for number, store in enumerate((first, second)):
        diffuse(store, DiffuseRequest(iterations=3, predict_nodes=tmp_path / f"{number}.parquet"))
        tables.append(pq.read_table(tmp_path / f"{number}.parquet"))
    assert tables[0]["id"].to_pylist() == tables[1]["id"].to_pylist()
    assert tables[0]["label"].to_pylist() == tables[1]["label"].to_pylist()
    scores = [np.concatenate(table["scores"].to_pylist()) for table in tables]
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-5, atol=1e-7)


def test_lists_whose_cells_are_gone_are_exported_in_the_internal_order_only(built: Store, tmp_path: Path) -> None:
    draw = np.random.default_rng(9)
    np.save(tmp_path / "other.npy", draw.standard_normal((300, 8)).astype(np.float32))
    import_descriptors(built.path, Request([str(tmp_path / "other.npy")], "background"))
    export(built, "knn/BB", tmp_path / "before.npy")
    W0 = built.open_artifact("knn/W0")
    roles: Any = ("seeds", "test")
    for role in roles:
        request = Request([str(tmp_path / f"{role}.npy")], role, labels=str(tmp_path / f"{role}-labels.npy"))
        import_descriptors(built.path, request)
    build_graph(built.path, GraphRequest(k=K))
    # As a run leaves it that is killed before it publishes the new lists: new cells, old lists.
    link = built.path / "knn/W0"
    link.unlink()
    link.symlink_to(f"../objects/{W0.object_name}")
    export(built, "knn/W0", tmp_path / "with-cells.npy")
    collect(built)
    with pytest.raises(Stale, match=r"a models/cells that is no longer in the store\. Run first: store\.build_graph\(\)"):
        export(built, "knn/W0", tmp_path / "without.npy")
    assert export(built, "knn/W0", tmp_path / "internal.npy", order="internal").rows == len(W0.array("neighbors"))


def test_damaged_chunks_are_found_before_rows_are_gathered(built: Store, tmp_path: Path) -> None:
    chunk = sorted((built.open_artifact("graph/W").folder / "indices").glob("c.*"))[-1]
    content = bytearray(chunk.read_bytes())
    content[8] ^= 1
    chunk.write_bytes(content)
    for order in reading.ORDERS:
        with pytest.raises(Corrupt, match="does not match its checksum"):
            export(built, "graph/W", tmp_path / "W.npz", order=order)
    assert not (tmp_path / "W.npz").exists()

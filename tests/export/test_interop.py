"""Libraries that are too large for every run of the tests read our exports: `make test-interop` installs them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import scipy.sparse

import mmdiff
from tests.support.blocks import blocks_of
from tests.support.paths import DOCS, ROOT

PAGE = (DOCS / "other-tools.md").read_text()
REASONS = {(block.reason or "").removeprefix("with "): block for block in blocks_of(PAGE) if block.language == "python"}
BLOCKS = {library: block.code for library, block in REASONS.items() if library}
ROWS, K = 300, 15

# Warnings of these libraries are theirs.
pytestmark = pytest.mark.filterwarnings("ignore")


def needs(*libraries: str) -> pytest.MarkDecorator:
    """Skips a test before its store is made."""
    absent = [name for name in libraries if find_spec(name) is None]
    return pytest.mark.skipif(bool(absent), reason=f"{', '.join(absent)} not installed; `make test-interop` installs it")


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a reader of the page."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "page.md").write_text(PAGE.split("## scikit-learn")[0])
    run(["-m", "tests.support.blocks", "page.md"], folder)
    return folder


def run(arguments: list[str], folder: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", *arguments]
    outcome = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs(name, *(["datasets"] * (name == "cleanlab")))) for name in BLOCKS]
)
def test_the_blocks_of_the_page_run(name: str, example: Path) -> None:
    run(["-c", BLOCKS[name]], example)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> mmdiff.Store:
    """Three groups of rows."""
    store = mmdiff.open(tmp_path_factory.mktemp("groups") / "store", create=True)
    X = np.random.default_rng(0).normal(size=(ROWS, 16)) + 4 * np.eye(16)[np.arange(ROWS) % 3]
    store.add(X, labels=np.where(np.arange(ROWS) % 10, -1, np.arange(ROWS) % 3))
    store.build_graph(k=K)
    return store


def lists_of(store: mmdiff.Store, folder: Path, **options: Any) -> Any:
    store.export("knn/BB", folder / "knn.npz", format_="csr", **options)
    return scipy.sparse.load_npz(folder / "knn.npz")


@needs("umap")
def test_umap_projects_with_our_neighbours_as_with_its_own(store: mmdiff.Store, tmp_path: Path) -> None:
    umap = import_module("umap")
    lists = lists_of(store, tmp_path)
    X = store["descriptors/background"].array("vectors")
    known = lists.indices.reshape(-1, K), lists.data.reshape(-1, K)
    ours = umap.UMAP(n_neighbors=K, precomputed_knn=known, random_state=0, n_epochs=20).fit(X)
    theirs = umap.UMAP(n_neighbors=K, random_state=0, n_epochs=20).fit(X)
    assert abs(ours.graph_ - theirs.graph_).max() < 1e-2
    assert ours.embedding_.shape == (ROWS, 2)


@needs("hdbscan")
def test_hdbscan_finds_the_groups_in_our_neighbours(store: mmdiff.Store, tmp_path: Path) -> None:
    hdbscan, lists = import_module("hdbscan"), lists_of(store, tmp_path)
    found = hdbscan.HDBSCAN(metric="precomputed", min_samples=5).fit_predict(lists.maximum(lists.T))
    for cluster in range(3):
        assert len(set((np.flatnonzero(found == cluster) % 3).tolist())) == 1
    assert found.max() == 2


@needs("cleanlab", "datasets")
def test_cleanlab_finds_the_wrong_labels_and_outliers_with_our_neighbours(tmp_path: Path) -> None:
    cleanlab = import_module("cleanlab")
    draw = np.random.default_rng(0)
    X = draw.normal(size=(ROWS, 16)) + 4 * np.eye(16)[np.arange(ROWS) % 3]
    X[7] = -20 * np.ones(16)
    store = mmdiff.open(tmp_path / "store", create=True)
    store.add(X)
    store.build_graph(k=K)
    lab = cleanlab.Datalab({"label": np.arange(ROWS) % 3}, label_name="label", verbosity=0)
    lab.find_issues(knn_graph=lists_of(store, tmp_path, self_loops=False), issue_types={"outlier": {}})
    assert lab.get_issues("outlier")["outlier_score"].to_numpy().argmin() == 7


@pytest.fixture
def edges(store: mmdiff.Store, tmp_path: Path) -> dict[str, Any]:
    store.export("graph/W", tmp_path / "edges.safetensors", format_="edge-index")
    read: dict[str, Any] = import_module("safetensors.torch").load_file(tmp_path / "edges.safetensors")
    return read


@needs("torch_geometric")
def test_a_sum_of_messages_in_pytorch_geometric_is_a_product_with_W(store: mmdiff.Store, edges: dict[str, Any]) -> None:
    data, nn, torch = map(import_module, ("torch_geometric.data", "torch_geometric.nn", "torch"))
    graph = data.Data(edge_index=edges["edge_index"], edge_weight=edges["edge_weight"], num_nodes=int(edges["num_nodes"]))
    assert graph.validate()
    assert graph.is_undirected()
    signal = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)
    summed = nn.SimpleConv(aggr="sum")(torch.from_numpy(signal), graph.edge_index, graph.edge_weight)
    np.testing.assert_allclose(summed.numpy(), store.graph @ signal, atol=1e-5)


@needs("dgl")
def test_a_sum_of_messages_in_dgl_is_a_product_with_W(store: mmdiff.Store, edges: dict[str, Any]) -> None:
    dgl, torch = import_module("dgl"), import_module("torch")
    functions = import_module("dgl.function")
    graph = dgl.graph(tuple(edges["edge_index"]), num_nodes=int(edges["num_nodes"]))
    signal = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)
    graph.edata["w"], graph.ndata["h"] = edges["edge_weight"], torch.from_numpy(signal)
    graph.update_all(functions.u_mul_e("h", "w", "m"), functions.sum("m", "h"))
    np.testing.assert_allclose(graph.ndata["h"].numpy(), store.graph @ signal, atol=1e-5)


@needs("embedding_atlas", "pandas", "umap")
def test_embedding_atlas_computes_its_metrics_from_our_neighbours(store: mmdiff.Store, tmp_path: Path) -> None:
    metrics, pandas = import_module("embedding_atlas.graph_metrics"), import_module("pandas")
    store.export("knn/BB", tmp_path / "atlas.parquet", format_="embedding-atlas")
    table = pandas.read_parquet(tmp_path / "atlas.parquet")
    inward, outward, _ = metrics.compute_degree_columns(table, neighbors="neighbors")
    lists = np.array([each["ids"] for each in pq.read_table(tmp_path / "atlas.parquet")["neighbors"].to_pylist()])
    np.testing.assert_array_equal(inward, np.bincount(lists.reshape(-1), minlength=ROWS) - 1)
    assert (outward == K - 1).all()
    ranks = metrics.compute_pagerank_column(table, neighbors="neighbors")
    assert ranks.shape == (ROWS,)
    np.testing.assert_allclose(ranks.sum(), 1, atol=1e-3)

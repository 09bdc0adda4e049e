"""`mmdiff build-graph`: the graph equals that of all nodes at once, and no stage is made twice."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from mmdiff.building.stage import Outcome, Request, build_graph
from mmdiff.cli import app
from mmdiff.formats.store import array_writer
from mmdiff.formats.store.publish import Draft
from mmdiff.formats.store.store import Store
from mmdiff.graph.graph import CsrGraph
from mmdiff.importing.stage import Request as Import
from mmdiff.importing.stage import import_descriptors
from mmdiff.knn import background
from mmdiff.knn.cells import partition
from mmdiff.knn.choice import Choice
from tests.knn.test_knn import clustered
from tests.support.graphs import completed_lists
from tests.support.naive_knn import naive_neighbors, naive_W
from tests.support.stores import problems, tree

K = 8
STAGES = ["models/cells", "knn/BB", "knn/W0", "knn/test", "graph/W"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells and blocks small enough that a few hundred rows have several."""
    monkeypatch.setattr(partition, "CELL_ROWS", 60)
    monkeypatch.setattr(background, "BLOCK_ROWS", 512)


def import_rows(path: Path, role: Any, values: NDArray[Any], **more: Any) -> None:
    file = path / f"{role}-{abs(hash(values.tobytes())) % 10**9}.npy"
    np.save(file, values)
    import_descriptors(path / "store", Import([str(file)], role, **more))


def seeds_of(path: Path, values: NDArray[Any], **more: Any) -> None:
    np.save(path / "labels.npy", np.arange(len(values)) % 4)
    import_rows(path, "seeds", values, labels=str(path / "labels.npy"), **more)


def make(path: Path, count: int = 900, random: bool = False, dtype: str = "float32") -> None:
    def draw(rows: int, seed: int) -> NDArray[np.float32]:
        if random:
            return np.random.default_rng(seed).standard_normal((rows, 16)).astype(np.float32)
        return clustered(rows, 16, 10, seed)

    import_rows(path, "background", draw(count, 0), dtype=dtype)
    seeds_of(path, draw(70, 1), dtype=dtype)
    import_rows(path, "test", draw(40, 2), dtype=dtype)


def build(path: Path, **more: Any) -> Outcome:
    return build_graph(path / "store", Request(**({"k": K} | more)))


def nodes_of(path: Path, *roles: str) -> NDArray[Any]:
    store = Store.open(path / "store")
    parts = [store.open_artifact(f"descriptors/{role}").array("vectors") for role in roles]
    if "background" in roles:
        parts[0] = parts[0][store.open_artifact("models/cells").array("order")]
    return np.concatenate(parts)


def array(path: Path, name: str, which: str = "neighbors") -> NDArray[Any]:
    store = Store.open(path / "store")
    return completed_lists(store).neighbors if name == "knn/W0" else store.open_artifact(name).array(which)


@pytest.mark.parametrize("random", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_exact_blocks_merged_are_the_graph_of_all_nodes_at_once(tmp_path: Path, random: bool, dtype: str) -> None:
    make(tmp_path, random=random, dtype=dtype)
    build(tmp_path, index="flat")
    nodes = nodes_of(tmp_path, "background", "seeds")
    np.testing.assert_array_equal(array(tmp_path, "knn/W0"), naive_neighbors(nodes, nodes, K))
    test = Store.open(tmp_path / "store").open_artifact("descriptors/test").array("vectors")
    np.testing.assert_array_equal(array(tmp_path, "knn/test"), naive_neighbors(test, nodes, K))
    W = CsrGraph.open(tmp_path / "store").to_scipy()
    expected = naive_W(nodes, K)
    np.testing.assert_array_equal(W.indptr, expected.indptr)
    np.testing.assert_array_equal(W.indices, expected.indices)
    np.testing.assert_allclose(W.data, expected.data, rtol=1e-6)
    assert problems(Store.open(tmp_path / "store")) == []


def test_every_list_has_k_neighbours_or_all_nodes(tmp_path: Path) -> None:
    import_rows(tmp_path, "background", clustered(5, 16))
    seeds_of(tmp_path, clustered(6, 16, seed=1))
    build(tmp_path, k=11)
    assert (np.sort(array(tmp_path, "knn/W0"), axis=1) == np.arange(11)).all()


def test_cells_reach_the_recall_that_is_asked_for_and_record_it(tmp_path: Path) -> None:
    make(tmp_path, 3000)
    build(tmp_path, index="cells", recall=0.97)
    facts = Store.open(tmp_path / "store").open_artifact("knn/BB").manifest.facts
    nodes = nodes_of(tmp_path, "background")
    truth = naive_neighbors(nodes, nodes, K)
    shares = [len(np.intersect1d(a, b)) / K for a, b in zip(array(tmp_path, "knn/BB"), truth, strict=True)]
    assert facts["recall"] >= 0.97
    assert facts["low"] - 0.01 <= np.mean(shares) <= facts["high"] + 0.01
    assert facts["queries"] == 1024


def test_a_factory_string_makes_the_same_graph_when_it_searches_everything(tmp_path: Path) -> None:
    make(tmp_path)
    build(tmp_path, index="Flat", recall=1.0)
    nodes = nodes_of(tmp_path, "background")
    np.testing.assert_array_equal(array(tmp_path, "knn/BB"), naive_neighbors(nodes, nodes, K))


def test_new_seeds_do_not_search_the_background_again(tmp_path: Path) -> None:
    make(tmp_path)
    assert list(build(tmp_path).seconds) == STAGES
    before = Store.open(tmp_path / "store").id("knn/BB")
    seeds_of(tmp_path, clustered(50, 16, 10, 7))
    assert list(build(tmp_path).seconds) == ["knn/W0", "knn/test", "graph/W"]
    assert Store.open(tmp_path / "store").id("knn/BB") == before
    nodes = nodes_of(tmp_path, "background", "seeds")
    np.testing.assert_array_equal(array(tmp_path, "knn/W0"), naive_neighbors(nodes, nodes, K))
    assert build(tmp_path).seconds == {}


def test_other_weights_only_make_another_graph(tmp_path: Path) -> None:
    make(tmp_path)
    build(tmp_path)
    assert list(build(tmp_path, edge_weights="gaussian", sigma=0.5).seconds) == ["graph/W"]
    nodes = nodes_of(tmp_path, "background", "seeds").astype(np.float64)
    weighted = CsrGraph.open(tmp_path / "store").to_scipy(normalized=False).toarray()
    structure = naive_W(nodes.astype(np.float32), K).toarray() > 0
    neighbors = naive_neighbors(nodes, nodes, K)
    expected = np.zeros_like(weighted)
    for row, near in enumerate(neighbors):
        expected[row, near] = np.exp(-(2 - 2 * nodes[row] @ nodes[near].T).clip(0) / 0.25)
    np.testing.assert_allclose(weighted, expected + expected.T, atol=1e-5)
    assert ((weighted > 0) == structure).all()


def test_without_a_background_the_seeds_are_the_graph(tmp_path: Path) -> None:
    seeds_of(tmp_path, clustered(300, 16), no_background=True)
    import_rows(tmp_path, "test", clustered(30, 16, seed=2))
    assert list(build(tmp_path).artifacts) == ["knn/W0", "knn/test", "graph/W"]
    nodes = nodes_of(tmp_path, "seeds")
    np.testing.assert_array_equal(array(tmp_path, "knn/W0"), naive_neighbors(nodes, nodes, K))


def test_without_seeds_the_background_is_the_graph(tmp_path: Path) -> None:
    import_rows(tmp_path, "background", clustered(300, 16))
    assert list(build(tmp_path).artifacts) == ["models/cells", "knn/BB", "graph/W"]
    assert CsrGraph.open(tmp_path / "store").nodes == 300


def test_transductive_test_points_are_nodes(tmp_path: Path) -> None:
    make(tmp_path)
    build(tmp_path, transductive=True)
    nodes = nodes_of(tmp_path, "background", "seeds", "test")
    np.testing.assert_array_equal(array(tmp_path, "knn/W0"), naive_neighbors(nodes, nodes, K))
    np.testing.assert_array_equal(array(tmp_path, "knn/test"), array(tmp_path, "knn/W0")[970:])
    facts = Store.open(tmp_path / "store").open_artifact("graph/W").manifest.facts
    assert (facts["background"], facts["seeds"], facts["test"]) == (900, 70, 40)


def test_equal_rows_are_ordered_by_their_numbers(tmp_path: Path) -> None:
    import_rows(tmp_path, "background", np.repeat(clustered(60, 16), 4, axis=0))
    build(tmp_path, index="flat")
    nodes = nodes_of(tmp_path, "background")
    np.testing.assert_array_equal(array(tmp_path, "knn/BB"), naive_neighbors(nodes, nodes, K))


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    make(tmp_path, 2000)
    build(tmp_path, index="cells")
    first = {name: Store.open(tmp_path / "store").id(name) for name in STAGES}
    for entry in ("knn", "graph", "objects"):
        for path in (tmp_path / "store" / entry).glob("*"):
            if path.is_symlink():
                path.unlink()
    (tmp_path / "store" / "models" / "cells").unlink()
    assert CliRunner().invoke(app, ["gc", "--store", str(tmp_path / "store")]).exit_code == 0
    assert list(build(tmp_path, index="cells").seconds) == STAGES
    assert {name: Store.open(tmp_path / "store").id(name) for name in STAGES} == first


BAD = {
    "no neighbours": ("--k 0", ("--k 0", "whole number from 1")),
    "more neighbours than nodes": ("--k 971", ("--k 971", "970 nodes", "--k 970")),
    "no recall": ("--recall 0", ("--recall 0", "0.95")),
    "too much recall": ("--recall 1.2", ("--recall 1.2", "from 0.001 to 1")),
    "a factory string that faiss rejects": ("--k 8 --index IVFxyz", ("--index IVFxyz", "faiss", "auto")),
    "an index file": ("--index labels.npy", ("--index labels.npy", "a file", "auto")),
    "a GPU that is not there": ("--device gpu", ("--device gpu",)),
    "no amount of memory": ("--memory lots", ("--memory lots", "4G")),
    "sigma without gaussian": ("--sigma 1", ("--sigma", "--edge-weights constant")),
    "gaussian without sigma": ("--edge-weights gaussian", ("--sigma",)),
    "too little memory": ("--k 8 --memory 1K", ("--memory", "memory")),
}


@pytest.mark.parametrize(("options", "told"), BAD.values(), ids=BAD.keys())
def test_bad_options_are_told_and_nothing_is_published(
    options: str, told: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path)
    monkeypatch.chdir(tmp_path)
    outcome = CliRunner().invoke(app, ["build-graph", *options.split(), "--store", "store"])
    assert outcome.exit_code == 2, outcome.output
    for part in told:
        assert part in outcome.stderr
    assert "graph/W" not in Store.open(tmp_path / "store").names()
    assert problems(Store.open(tmp_path / "store")) == []


def test_an_empty_store_and_stale_roles_are_refused(tmp_path: Path) -> None:
    make(tmp_path)
    import_rows(tmp_path, "background", clustered(400, 16, 10, 5), dims=12)
    before = tree(tmp_path / "store")
    outcome = CliRunner().invoke(app, ["build-graph", "--store", str(tmp_path / "store")])
    assert outcome.exit_code == 2
    assert "descriptors/seeds was made with another models/pca" in outcome.stderr
    assert tree(tmp_path / "store") == before


def test_transductive_needs_test_points(tmp_path: Path) -> None:
    import_rows(tmp_path, "background", clustered(300, 16))
    outcome = CliRunner().invoke(app, ["build-graph", "--transductive", "--store", str(tmp_path / "store")])
    assert outcome.exit_code == 2
    assert "--role test" in outcome.stderr


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("at", range(7))
def test_a_search_that_is_interrupted_between_its_passes_continues_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, lost: bool
) -> None:
    """The lists before a pass are dropped when it is complete. Where a power cut has `lost` a chunk, the search starts over."""
    monkeypatch.setattr(background, "choose", lambda *_, **__: Choice(2, 2, 0.9, 100.0))
    import_rows(tmp_path, "background", clustered(2000, 16, 10))
    expected = build(tmp_path, recall=0.1, index="cells").artifacts["knn/BB"].id
    left = at

    def interrupting(method: Any) -> Any:
        def run(*arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            return method(*arguments)

        return run

    store, other = tmp_path / "store", tmp_path / "other"
    shutil.copytree(store, other, symlinks=True)
    for name in ("knn/BB", "graph/W"):
        shutil.rmtree((other / name).resolve())
        (other / name).unlink()
    with monkeypatch.context() as patched:
        for name in ("note", "drop", "adopt"):
            patched.setattr(Draft, name, interrupting(getattr(Draft, name)))
        with pytest.raises(KeyboardInterrupt):
            build_graph(other, Request(k=K, recall=0.1, index="cells"))
    if lost:
        for chunk in (other / "work").rglob("*similarities/c.0.0"):
            chunk.unlink()
    outcome = build_graph(other, Request(k=K, recall=0.1, index="cells"))
    assert outcome.artifacts["knn/BB"].id == expected
    assert len(outcome.artifacts["knn/BB"].manifest.facts["recall_by_pass"]) == 3
    assert problems(Store.open(other)) == []


def test_a_search_does_not_depend_on_reading_again_the_chunks_that_it_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk that cannot be read counts as missing when a run continues; a run that has written it knows better."""
    monkeypatch.setattr(background, "choose", lambda *_, **__: Choice(2, 2, 0.9, 100.0))
    import_rows(tmp_path, "background", clustered(2000, 16, 10))
    shutil.copytree(tmp_path / "store", tmp_path / "other", symlinks=True)
    expected = build(tmp_path, recall=0.1, index="cells").artifacts["knn/BB"].id
    monkeypatch.setattr(array_writer, "crc_of_complete_chunk", lambda *_: None)
    outcome = build_graph(tmp_path / "other", Request(k=K, recall=0.1, index="cells"))
    assert outcome.artifacts["knn/BB"].id == expected

"""Dtypes, shapes and facts that cannot be, with right digests everywhere, are refused when an artifact is opened."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

import mmdiff
from mmdiff.formats.errors import Corrupt
from mmdiff.formats.store.manifest import Manifest, encode, object_id
from mmdiff.formats.store.shapes import shapes_of_partitions, shapes_of_pca, shapes_of_scores
from mmdiff.formats.store.store import Store
from mmdiff.validation.held_out import HeldOut
from tests.support.stores import MEMORY


@pytest.fixture(scope="module")
def intact() -> Iterator[Path]:
    with TemporaryDirectory(dir=MEMORY) as folder:
        draw, path = np.random.default_rng(0), Path(folder) / "store"
        store = mmdiff.open(path, create=True, memory="2G")
        store.add(draw.normal(size=(200, 8)).astype(np.float32))
        for role, rows in (("seeds", 20), ("test", 30)):
            store.add(draw.normal(size=(rows, 8)).astype(np.float32), role=role, labels=np.arange(rows) % 4)
        store.build_graph(k=4)
        store.diffuse(iterations=2)
        store.evaluate(folds=2)
        store.audit("duplicates", above=0.5)
        yield path


@pytest.fixture
def store(intact: Path, quick_folder: Path) -> Store:
    shutil.copytree(intact, quick_folder / "store", symlinks=True)
    return Store.open(quick_folder / "store")


def forge(store: Store, name: str, arrays: dict[str, dict[str, Any]], facts: dict[str, Any]) -> None:
    """Changes arrays and facts in all metadata, and makes every digest fit."""
    artifact = store.open_artifact(name)
    document = json.loads((artifact.folder / "zarr.json").read_bytes())
    manifest = document["attributes"]["mmdiff"]
    manifest["facts"] |= facts
    for array, change in arrays.items():
        spec = replace(artifact.spec(array), **change)
        (artifact.folder / array / "zarr.json").write_bytes(encode(spec.zarr_json()))
        manifest["arrays"][array] |= spec.to_json()
    text = encode(document)
    identity = object_id(manifest["kind"], text)
    (artifact.folder / "zarr.json").write_bytes(text)
    artifact.folder.rename(store.objects / identity)
    (store.path / name).unlink()
    (store.path / name).symlink_to(f"../objects/{identity}")


def diffuse(path: Path) -> None:
    mmdiff.open(path, memory="2G").diffuse(iterations=1, eta="row", name="y")


def logreg(path: Path) -> None:
    mmdiff.open(path).logreg(iterations=3)


def product(path: Path) -> None:
    _ = mmdiff.Graph.open(path) @ np.ones((220, 2), np.float32)


def export(name: str, suffix: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        mmdiff.open(path).export(name, path.parent / f"file{suffix}")

    return write


def evaluate(path: Path) -> None:
    HeldOut.open(Store.open(path), "diffusion")


def audit_table(path: Path) -> None:
    mmdiff.open(path).audit_table("duplicates")


W, SEEDS, FOLDS, AUDIT = "graph/W", "descriptors/seeds", "folds/diffusion", "audit/duplicates"
FORGERIES: list[tuple[str, dict[str, dict[str, Any]], dict[str, Any], Callable[[Path], None], str]] = [
    (W, {}, {"background": 201}, diffuse, "220 nodes, where the manifest says 201 . 0 . 20 . 0"),
    (W, {}, {"background": 10**9}, diffuse, "220 nodes, where the manifest says"),
    (W, {}, {"background": -300, "seeds": 520}, diffuse, "220 nodes, where the manifest says"),
    (W, {}, {"background": "x"}, diffuse, "lacks the fact 'background', or it is not of type int"),
    (W, {}, {"background": 180, "seeds": 40}, diffuse, "array order: 200 entries for 180 rows of the background"),
    (W, {"order": {"shape": (199,)}}, {"background": 199, "test": 1}, diffuse, "descriptors/background, which has 200"),
    (W, {"indices": {"dtype": "float32"}}, {}, diffuse, r"array indices: float32 of shape \(\d+,\); expected uint32"),
    (W, {"indices": {"dtype": "int32"}}, {}, product, "array indices: int32"),
    (W, {"scale": {"dtype": "int32"}}, {}, product, "array scale: int32"),
    ("knn/test", {"neighbors": {"dtype": "float32"}}, {}, diffuse, "array neighbors: float32"),
    (
        "knn/test",
        {"neighbors": {"shape": (29, 4)}, "similarities": {"shape": (29, 4)}},
        {"rows": 29},
        diffuse,
        r"neighbors: of shape \(29, 4\); expected \(30, 4\)",
    ),
    ("knn/W0", {"neighbors": {"shape": (240, 4)}}, {}, export("knn/W0", ".npz"), "array similarities: of shape"),
    (
        "knn/BB",
        {"neighbors": {"shape": (100, 4)}, "similarities": {"shape": (100, 4)}},
        {"rows": 100, "nodes": 100},
        export("knn/BB", ".npz"),
        "100 rows, but there are 200 of the background",
    ),
    (SEEDS, {"labels": {"shape": (40,)}}, {}, logreg, "array labels: 40 rows for 20 vectors"),
    (SEEDS, {"labels": {"shape": (10,)}}, {}, logreg, "array labels: 10 rows for 20 vectors"),
    (SEEDS, {"labels": {"shape": (10,)}}, {}, export(SEEDS, ".csv"), "array labels: 10 rows for 20 vectors"),
    (FOLDS, {"rows": {"shape": (19,)}}, {"rows": 19}, evaluate, "array fold: 20 rows for 19 rows"),
    (FOLDS, {"scores": {"shape": (3, 19, 4)}}, {}, evaluate, r"array scores: of shape \(3, 19, 4\); expected \(3, 20, 4\)"),
    (FOLDS, {}, {"planes": [0, 1, "x"]}, evaluate, "does not say which iterations there are"),
    (FOLDS, {}, {"folds": 21}, evaluate, "array fold: 20 rows in 21 folds"),
    (AUDIT, {"group": {"shape": (3,)}}, {}, audit_table, r"array group: 3 rows for \d+ rows"),
    (AUDIT, {}, {"of": {"background": 200}}, audit_table, "does not say how many rows of each role there are"),
    (AUDIT, {}, {"of": {"background": 200, "appended": 0, "seeds": 20, "test": -1}}, audit_table, "how many rows of each role"),
    ("models/cells", {"centroids": {"shape": (40, 8)}}, {"cells": 40}, export("models/cells", ".npz"), r"expected \(41,\)"),
]


@pytest.mark.parametrize(("name", "arrays", "facts", "read", "told"), FORGERIES)
def test_what_cannot_be_is_refused_by_every_reader_and_found_by_verify(
    store: Store, name: str, arrays: Any, facts: Any, read: Callable[[Path], None], told: str
) -> None:
    forge(store, name, arrays, facts)
    with pytest.raises(mmdiff.errors.StoreError, match=rf"{name}.*{told}.*Run again: store\."):
        read(store.path)


def test_lists_of_fewer_rows_are_not_built_upon(store: Store) -> None:
    shapes = {array: {"shape": (100, 4)} for array in ("neighbors", "similarities")}
    forge(store, "knn/BB", shapes, {"rows": 100, "nodes": 100})
    with pytest.raises(Corrupt, match=r"knn/BB, array neighbors: of shape \(100, 4\); expected .*Run again"):
        mmdiff.open(store.path, memory="2G").build_graph(k=4, edge_weights="gaussian", sigma=1.0)


@pytest.mark.parametrize(
    ("nodes", "background", "told"),
    [
        (219, 200, "knn/W0: lists of 219 nodes; expected 220"),
        (220, 201, "knn/BB, array neighbors: of shape .200, 4.; expected .201, 4."),
        (230, 200, "knn/W0, array rows: the last nodes are not 200 to 229"),
    ],
)
def test_patch_of_other_nodes_is_not_built_upon(store: Store, nodes: int, background: int, told: str) -> None:
    lists = store.open_artifact("knn/W0").spec("rows").shape[0] - (220 - nodes if nodes < 220 else 0)
    shapes: dict[str, Any] = {array: {"shape": (lists, 4)} for array in ("neighbors", "similarities")}
    shapes["rows"] = {"shape": (lists,)}
    forge(store, "knn/W0", shapes, {"rows": lists, "nodes": nodes, "background": background})
    with pytest.raises(Corrupt, match=rf"{told}.*Run again"):
        mmdiff.open(store.path, memory="2G").build_graph(k=4, edge_weights="gaussian", sigma=1.0)


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"nodes": 10}, "the manifest says 10 nodes, 200 of them in the background"),
        ({"background": 220}, "the manifest says 220 nodes, 220 of them in the background"),
        ({"background": 1}, r"\d+ lists for 219 nodes that join 1 of the background"),
        ({"background": "x"}, "lacks the fact 'background'"),
    ],
)
def test_patch_that_cannot_be_is_refused(store: Store, facts: dict[str, Any], told: str) -> None:
    forge(store, "knn/W0", {}, facts)
    with pytest.raises(Corrupt, match=rf"knn/W0.*{told}"):
        store.open_artifact("knn/W0")


def test_an_artifact_of_an_unknown_schema_is_not_opened(store: Store) -> None:
    artifact = store.open_artifact(W)
    document = json.loads((artifact.folder / "zarr.json").read_bytes())
    document["attributes"]["mmdiff"]["schema"] = 9
    text = encode(document)
    (artifact.folder / "zarr.json").write_bytes(text)
    artifact.folder.rename(store.objects / object_id("graph", text))
    (store.path / W).unlink()
    (store.path / W).symlink_to(f"../objects/{object_id('graph', text)}")
    with pytest.raises(
        Corrupt, match=r"graph/W: kind graph, schema 9: this mmdiff knows descriptors 1.*Use the version of mmdiff"
    ):
        product(store.path)


def golden(version: int, name: str) -> Manifest:
    return Store.open(Path(__file__).parent.parent / "golden" / f"store-{version}").open_artifact(name).manifest


def with_shape(manifest: Manifest, array: str, shape: tuple[int, ...]) -> Manifest:
    entry = manifest.arrays[array]
    return replace(manifest, arrays={**manifest.arrays, array: replace(entry, spec=replace(entry.spec, shape=shape))})


def test_counts_of_partitions_of_schema_1_must_agree() -> None:
    manifest = golden(1, "models/cells")
    assert not list(shapes_of_partitions(manifest))
    cells, width = manifest.arrays["centroids"].spec.shape
    found = dict(shapes_of_partitions(with_shape(manifest, "centroids", (10**6, width))))
    assert "1000000 centroids for" in found["centroids"]
    found = dict(shapes_of_partitions(with_shape(manifest, "centroids", (cells, width + 1))))
    assert f"{width + 1} values each for vectors of {width}" in found["centroids"]


def test_pca_that_reduces_nothing_keeps_the_width(store: Store) -> None:
    manifest = store.open_artifact("models/pca").manifest
    whole = replace(manifest, facts={**manifest.facts, "reduces": False, "dims": 8, "width": 8}, arrays={})
    assert not list(shapes_of_pca(whole))
    [(_, problem)] = shapes_of_pca(replace(whole, facts={**whole.facts, "dims": 7}))
    assert problem == "7 dimensions of 8, where nothing is reduced"


def test_scores_of_test_points_cannot_be_missing(store: Store) -> None:
    manifest = store.open_artifact("scores/diffusion").manifest
    without = replace(manifest, arrays={name: entry for name, entry in manifest.arrays.items() if name != "scores"})
    assert ("scores", "missing, where the manifest says 30 test points") in list(shapes_of_scores(without))


@pytest.mark.parametrize(
    ("name", "other", "told"),
    [
        ("descriptors/background", W, "kind graph under a name of descriptors"),
        ("descriptors/test", "scores/diffusion", "kind scores under a name of descriptors"),
        ("models/pca", "models/cells", "kind cells under a name of pca"),
        ("knn/test", SEEDS, "kind descriptors under a name of knn"),
        (W, "knn/BB", "kind knn under a name of graph"),
    ],
)
def test_an_artifact_under_the_name_of_another_kind_is_damage(store: Store, name: str, other: str, told: str) -> None:
    target = (store.path / other).readlink()
    (store.path / name).unlink()
    (store.path / name).symlink_to(target)
    opened = mmdiff.open(store.path, memory="2G")
    with pytest.raises(Corrupt, match=rf"{name}: an artifact of {told}\. Run again"):
        store.open_artifact(name)
    with pytest.raises(mmdiff.errors.StoreError, match=name):
        opened.report(store.path.parent / "report.html")
    found = opened.verify()["problems"]
    assert [(problem["artifact"], told in problem["what"]) for problem in found] == [(name, True)]


def test_appended_rows_of_another_width_are_not_continued(quick_folder: Path) -> None:
    draw, path = np.random.default_rng(0), quick_folder / "store"
    store = mmdiff.open(path, create=True, memory="2G")
    store.add(draw.normal(size=(60, 8)).astype(np.float32))
    store.add(draw.normal(size=(20, 8)).astype(np.float32), append=True)
    spec = Store.open(path).open_artifact("descriptors/appended").spec("vectors")
    narrow = {"shape": (20, 4), "rows_per_chunk": 2 * spec.rows_per_chunk}
    forge(Store.open(path), "descriptors/appended", {"vectors": narrow}, {})
    with pytest.raises(Corrupt, match=r"descriptors/appended, array vectors: of shape \(20, 4\); expected \(20, 8\)\."):
        store.add(np.ones((5, 8), np.float32), append=True)

"""Held-out scores: each fold equals the plain diffusion of the other labels, made once, and the same bytes after a kill."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mmdiff
from mmdiff.diffusion.api import diffuse
from mmdiff.diffusion.io import checkpoint
from mmdiff.diffusion.prepared import Request
from mmdiff.formats.errors import BadOption
from mmdiff.formats.store.store import Store
from mmdiff.graph.graph import CsrGraph
from mmdiff.runtime.dask import executor_on
from mmdiff.validation import diffusing
from mmdiff.validation.held_out import HeldOut
from mmdiff.validation.stage import Scheme, validate_diffusion
from tests.diffusion.test_diffuse_interrupted import stopped_at
from tests.knn.test_knn import clustered
from tests.support.naive_diffusion import naive_diffusion
from tests.support.stores import SMALL_CHUNKS, chunks_of, problems, tree

ROWS, SEEDS, CLASSES, T, FOLDS = 200, 12, 4, 3, 3
VARIANTS: list[dict[str, Any]] = [
    {},
    {"eta": "none", "alpha": 0.8},
    {"eta": "prior", "prior": "seeds"},
    {"gamma": 1.3},
    {"normalize_graph": "symmetric"},
    {"plain": True},
    {"eta": "row"},
    {"eta": "sinkhorn", "prior": "seeds", "prior_power": 0.5},
    {"reset_seeds": True},
]


def labels_of_rows() -> NDArray[np.int64]:
    """Every fifth row has a label; class 3 has a single one."""
    labels = np.full(ROWS, -1)
    labels[::5] = np.arange(ROWS // 5) % (CLASSES - 1)
    labels[7] = CLASSES - 1
    return labels


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "store"
    store = mmdiff.open(path, create=True, memory="2G")
    store.add(clustered(ROWS, 16, 6), labels=labels_of_rows())
    store.add(clustered(SEEDS, 16, 6, 1), role="seeds", labels=np.stack([np.arange(SEEDS) % 3, np.full(SEEDS, -1)], 1))
    store.build_graph(k=6)
    return path


@pytest.fixture
def store(original: Path, quick_folder: Path) -> Path:
    return Path(shutil.copytree(original, quick_folder / "store", symlinks=True))


def all_labels() -> NDArray[np.int64]:
    return np.concatenate([labels_of_rows(), np.arange(SEEDS) % 3])


def request(**options: Any) -> Request:
    return Request(**({"iterations": T} | options))


def validate(store: Path, **options: Any) -> HeldOut:
    return HeldOut.of(validate_diffusion(store, request(**options), Scheme(FOLDS)).artifact)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_each_fold_is_the_diffusion_of_the_labels_outside_it(store: Path, options: dict[str, Any]) -> None:
    found = validate(store, **options)
    graph, labels = CsrGraph.open(store), all_labels()
    np.testing.assert_array_equal(found.rows, np.flatnonzero((labels >= 0) & (labels != 3)))
    np.testing.assert_array_equal(found.labels[:, 0], labels[found.rows])
    for fold in range(FOLDS):
        rows, reduced = found.rows[found.fold == fold], labels.copy()
        reduced[rows] = -1
        expected = diffuse(graph, reduced, classes=CLASSES, neighbors=rows[:, None], iterations=T, **options)
        np.testing.assert_array_equal(found.scores[:, found.fold == fold], expected)
    assert problems(Store.open(store)) == []


def test_scores_are_those_of_the_definition(store: Path) -> None:
    found = validate(store)
    graph, labels = CsrGraph.open(store), all_labels()
    for fold in range(FOLDS):
        rows, reduced = found.rows[found.fold == fold], labels.copy()
        reduced[rows] = -1
        of_nodes = np.full((len(labels), 1), -1, np.int32)
        of_nodes[graph.node_of_row] = reduced[:, None]
        L = naive_diffusion(graph, of_nodes, CLASSES, request().variant, np.full(CLASSES, 1 / CLASSES), T)
        expected = np.stack([step[graph.node_of_row[rows]] for step in L])
        np.testing.assert_allclose(found.scores[:, found.fold == fold], expected, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("options", [{}, {"eta": "row"}, {"gamma": 1.3}, {"reset_seeds": True}], ids=str)
def test_interrupted_anywhere_the_same_call_continues_to_the_same_bytes(
    original: Path, quick_folder: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "CHECKPOINT_SECONDS", 0)
    asked = request(cols_per_batch=2, **options)

    def copy(name: str) -> Path:
        return Path(shutil.copytree(original, quick_folder / name, symlinks=True))

    with chunks_of(SMALL_CHUNKS):
        whole = copy("whole")
        validate_diffusion(whole, asked, Scheme(FOLDS))
        expected = tree(whole, with_runs=False)
        for moment in itertools.count(1, 7):
            store = copy(str(moment))
            try:
                validate_diffusion(store, asked, Scheme(FOLDS), stopped_at(moment))
            except KeyboardInterrupt:
                assert "folds/diffusion" not in Store.open(store).names()
                validate_diffusion(store, asked, Scheme(FOLDS))
                assert tree(store, with_runs=False) == expected
            else:
                break
    assert moment > 8


def test_batches_and_memory_change_nothing_and_a_second_call_finds_the_artifact(store: Path) -> None:
    first = validate_diffusion(store, request(cols_per_batch=5), Scheme(FOLDS))
    again = validate_diffusion(store, request(cols_per_batch="auto", memory=1 << 30), Scheme(FOLDS))
    assert again.reused
    assert again.artifact.id == first.artifact.id
    other = validate_diffusion(store, replace(request(), cols_per_batch=1), Scheme(FOLDS, seed=1))
    assert other.artifact.id != first.artifact.id


def test_very_many_labels_are_validated_fold_by_fold_with_the_same_result(
    original: Path, quick_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = [Path(shutil.copytree(original, quick_folder / name, symlinks=True)) for name in ("together", "apart")]
    validate_diffusion(stores[0], request(), Scheme(FOLDS))
    monkeypatch.setattr(diffusing, "MOST_TOGETHER", 0)
    validate_diffusion(stores[1], request(), Scheme(FOLDS))
    assert tree(stores[0], with_runs=False) == tree(stores[1], with_runs=False)


def test_workers_give_the_same_bytes(original: Path, quick_folder: Path) -> None:
    for number, options in enumerate(({}, {"reset_seeds": True})):
        asked = request(cols_per_batch=3, **options)
        stores = [Path(shutil.copytree(original, quick_folder / f"{number}{name}", symlinks=True)) for name in "ab"]
        validate_diffusion(stores[0], asked, Scheme(FOLDS))
        with executor_on("local:2", stores[1]) as executor:
            validate_diffusion(stores[1], asked, Scheme(FOLDS), executor=executor)
        assert tree(stores[0], with_runs=False) == tree(stores[1], with_runs=False)


def test_workers_are_refused_where_classes_are_coupled(store: Path) -> None:
    with executor_on("local:2", store) as executor, pytest.raises(BadOption, match="dask with eta='row'"):
        validate_diffusion(store, request(eta="row"), Scheme(FOLDS), executor=executor)


def test_folder_of_a_fold_that_leads_out_of_the_draft_is_replaced(store: Path) -> None:
    asked, outside = request(reset_seeds=True, cols_per_batch=1), store.parent / "outside"
    outside.mkdir()
    with pytest.raises(KeyboardInterrupt):
        validate_diffusion(store, asked, Scheme(FOLDS), stopped_at(12))
    folder = store / "work" / "folds.diffusion" / "object" / "fold_0"
    shutil.rmtree(folder)
    folder.symlink_to(outside)
    validate_diffusion(store, asked, Scheme(FOLDS))
    assert not list(outside.iterdir())

"""A small store whose nodes are in another order than its rows, with ids and labels everywhere, for exports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mmdiff
from mmdiff.formats.store.store import Store
from mmdiff.knn.cells import partition
from tests.support.stores import SMALL_CHUNKS, chunks_of

ROWS = {"background": 150, "seeds": 20, "test": 12}
NAMES = ["cat", "dog", "a, b"]
K = 5


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("libraries")
    draw = np.random.default_rng(3)
    with pytest.MonkeyPatch.context() as patch, chunks_of(SMALL_CHUNKS):
        patch.setattr(partition, "CELL_ROWS", 30)
        store = mmdiff.open(place / "store", create=True)
        for role, rows in ROWS.items():
            labels = np.array(NAMES)[np.arange(rows) % 3]
            given = np.where(np.arange(rows) % 9, "", labels) if role == "background" else labels
            ids = [f"{role} {row}" if row % 7 else f'{role},"{row}"' for row in range(rows)]
            store.add(draw.standard_normal((rows, 8)).astype(np.float32), role=role, ids=ids, labels=given)
        store.build_graph(k=K, index="flat")
        store.diffuse(iterations=2, predict_nodes=True)
    order = store["models/cells"].array("order")
    assert (order != np.arange(len(order))).any()
    return place


@pytest.fixture
def store(folder: Path) -> Store:
    return Store.open(folder / "store")

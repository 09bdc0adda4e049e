"""Mutated stores give typed errors or identical results: a share of the long campaign `tests/long/mutation.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmdiff.formats.errors import BadResult
from tests.long import mutation
from tests.support.mutating import Mutator, Snapshot
from tests.support.probes import small_pieces
from tests.support.stores import Inputs, make_store, publish, recipe, tree

CASES = 2000


def test_mutated_stores_give_typed_errors_or_identical_results() -> None:
    found = mutation.run(1, seed=15, cases=CASES)
    assert (found["mutations"], found["findings"]) == (CASES, 0)


def test_forged_dtypes_and_shapes_with_right_digests_give_typed_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    for method in ("mutate", "_forge"):
        monkeypatch.setattr(Mutator, method, Mutator._forge_shape)
    found = mutation.run(1, seed=1, cases=400)
    assert (found["mutations"], found["findings"]) == (400, 0)


def test_every_mutation_changes_the_store_and_can_be_taken_back(quick_folder: Path, inputs: Inputs) -> None:
    store = make_store(quick_folder / "store", inputs)
    intact = tree(store.path)
    mutator = Mutator(Snapshot.of(store.path))
    with small_pieces():
        for case in range(300):
            changed = mutator.mutate(np.random.default_rng(case))
            if changed.how not in ("fifo", "device", "sparse"):
                assert tree(store.path) != intact, changed
            mutator.snapshot.restore(changed.touched)
            assert tree(store.path) == intact, changed


@pytest.mark.parametrize("where", ["facts", "run"])
def test_figures_that_are_not_finite_are_not_published(quick_folder: Path, where: str) -> None:
    figures: dict[str, Any] = {where: {"command": "a test", "share": float("nan")}}
    with pytest.raises(BadResult, match="not finite"):
        publish(quick_folder / "store", "descriptors/seeds", {"vectors": np.ones((3, 2), np.float32)}, recipe(), **figures)
    assert not (quick_folder / "store" / "descriptors" / "seeds").exists()

"""`knn/W0` is a patch over `knn/BB`: it holds what seeds change, and the graph is the same as that of all lists."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mmdiff.building.stage import Request, build_graph
from mmdiff.formats.errors import Corrupt
from mmdiff.formats.store.checks import problem_of_patched_rows
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.graph.lists import ArrayLists, PatchedLists
from mmdiff.graph.weights import Weighting
from mmdiff.knn import background, completion
from mmdiff.knn.completion import pieces_of
from mmdiff.runtime.threads import in_threads
from tests.building.test_build_graph import K, build, make, nodes_of, seeds_of, small
from tests.knn.test_knn import clustered
from tests.support.graphs import completed_lists, make_graph, some_lists
from tests.support.make_golden import K as GOLDEN_K
from tests.support.naive_knn import naive_neighbors
from tests.support.paths import GOLDEN, GOLDEN_2
from tests.support.stores import problems, tree

__all__ = ["small"]


def open_store(path: Path) -> Store:
    return Store.open(path / "store")


def arrays(artifact: Artifact) -> dict[str, NDArray[Any]]:
    return {name: np.array(artifact.array(name)) for name in artifact.manifest.arrays}


def test_patch_holds_the_lists_that_seeds_change_and_those_of_the_seeds(tmp_path: Path) -> None:
    make(tmp_path)
    build(tmp_path)
    W0, BB = (open_store(tmp_path).open_artifact(name) for name in ("knn/W0", "knn/BB"))
    nodes = nodes_of(tmp_path, "background", "seeds")
    expected = naive_neighbors(nodes, nodes, K)
    changed = np.flatnonzero((expected[:900] != BB.array("neighbors")).any(axis=1))
    assert 0 < len(changed) < 900
    np.testing.assert_array_equal(W0.array("rows"), [*changed, *range(900, 970)])
    np.testing.assert_array_equal(W0.array("neighbors"), expected[W0.array("rows")])
    assert W0.facts["rows"] == len(changed) + 70
    assert (W0.manifest.schema, W0.facts["nodes"], W0.facts["background"]) == (2, 970, 900)


@pytest.mark.parametrize("weighting", [None, Weighting("gaussian", 0.7)])
@pytest.mark.parametrize("transductive", [False, True])
def test_graph_of_a_patch_has_the_bytes_of_the_graph_of_all_lists(
    tmp_path: Path, transductive: bool, weighting: Weighting | None
) -> None:
    make(tmp_path)
    weights: Any = {} if weighting is None else {"edge_weights": "gaussian", "sigma": 0.7}
    build(tmp_path, transductive=transductive, **weights)
    store = open_store(tmp_path)
    found = arrays(store.open_artifact("graph/W"))
    del found["order"]
    expected = arrays(make_graph(tmp_path / "other", completed_lists(store).lists, weighting))
    assert {name: values.tobytes() for name, values in found.items()} == {
        name: values.tobytes() for name, values in expected.items()
    }


def test_new_seeds_write_no_more_lists_than_they_change(tmp_path: Path) -> None:
    make(tmp_path, 3000)
    build(tmp_path)
    seeds_of(tmp_path, clustered(3, 16, 10, 7))
    build(tmp_path)
    W0, BB = (open_store(tmp_path).open_artifact(name) for name in ("knn/W0", "knn/BB"))
    assert W0.manifest.bytes_on_disk < BB.manifest.bytes_on_disk / 4
    assert problems(open_store(tmp_path)) == []


def test_seeds_that_enter_every_list_and_lists_shorter_than_k_are_patched(tmp_path: Path) -> None:
    """Five rows have five neighbours, and every seed enters every list."""
    store = tmp_path / "store"
    make(tmp_path, 5)
    build(tmp_path, k=40)
    W0 = Store.open(store).open_artifact("knn/W0")
    np.testing.assert_array_equal(W0.array("rows"), np.arange(75))
    nodes = nodes_of(tmp_path, "background", "seeds")
    np.testing.assert_array_equal(completed_lists(Store.open(store)).neighbors, naive_neighbors(nodes, nodes, 40))


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("pieces", [1, 4, 12, 24])
def test_interrupted_patch_continues_from_its_checkpoint_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    make(tmp_path, 3000)
    monkeypatch.setattr(background, "BLOCK_ROWS", 256)
    build(tmp_path)
    whole = tree(tmp_path / "store")
    W0 = open_store(tmp_path).open_artifact("knn/W0")
    (tmp_path / "store" / "knn/W0").unlink()
    shutil.rmtree(W0.folder)
    checkpoint = tmp_path / "store" / "work" / "knn.W0" / "checkpoint"
    searched: list[Any] = []

    def interrupting(function: Any, units: Any, _: int) -> Any:
        for number, unit in enumerate(units):
            if number == pieces:
                # Checkpoints are written in the background. The first follows the second piece, a sixteenth of the nodes.
                while pieces > 1 and not checkpoint.exists():
                    time.sleep(0.01)
                raise Interrupted
            yield function(unit)

    def counting(function: Any, units: Any, threads: int) -> Any:
        searched.extend(units)
        return in_threads(function, units, threads)

    monkeypatch.setattr(completion, "in_threads", interrupting)
    with pytest.raises(Interrupted):
        build(tmp_path)
    monkeypatch.setattr(completion, "in_threads", counting)
    build(tmp_path)
    assert open_store(tmp_path).id("knn/W0") == W0.id
    assert len(searched) < len(pieces_of(3000, 3070, K)) or pieces == 1
    assert tree(tmp_path / "store").keys() == whole.keys()


@pytest.mark.parametrize("golden", [GOLDEN, GOLDEN_2])
def test_full_lists_of_older_stores_are_replaced_by_a_patch_that_gives_the_same_graph(tmp_path: Path, golden: Path) -> None:
    shutil.copytree(golden, tmp_path / "store", symlinks=True)
    before = open_store(tmp_path).open_artifact("graph/W")
    assert open_store(tmp_path).open_artifact("knn/W0").manifest.schema == 1
    made = build_graph(tmp_path / "store", Request(k=GOLDEN_K, index="flat"))
    assert made.artifacts["knn/W0"].manifest.schema == 2
    assert "knn/W0" in made.seconds
    if golden == GOLDEN_2:
        assert "knn/BB" not in made.seconds
        after = made.artifacts["graph/W"]
        assert {n: v.tobytes() for n, v in arrays(after).items()} == {n: v.tobytes() for n, v in arrays(before).items()}


@given(
    nodes=st.integers(1, 60),
    joined=st.integers(1, 20),
    k=st.integers(1, 5),
    share=st.sampled_from([0.0, 0.1, 0.9, 1.0]),
    weighted=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_patched_lists_are_those_of_the_background_and_of_the_patch(
    nodes: int, joined: int, k: int, share: float, weighted: bool, seed: int
) -> None:
    draw, count = np.random.default_rng(seed), nodes + joined
    below, above = some_lists(nodes, k, seed), some_lists(count, k, seed + 1)
    changed = np.concatenate([draw.random(nodes) < share, np.ones(joined, bool)])
    rows = np.flatnonzero(changed).astype(np.uint32)
    expected = [np.array(values) for values in (above.neighbors, above.similarities)]
    expected[0][~changed], expected[1][~changed] = below.neighbors[~changed[:nodes]], below.similarities[~changed[:nodes]]
    if not weighted:
        expected[1][:] = 0
    similarities = (below.similarities, above.similarities[changed]) if weighted else (None, None)
    lists = PatchedLists(
        ArrayLists(below.neighbors, similarities[0]), ArrayLists(above.neighbors[changed], similarities[1]), rows, count
    )
    assert (lists.nodes, lists.k) == (count, k)
    start, stop = np.sort(draw.integers(0, count + 1, 2))
    some = draw.integers(0, count, 30)
    for found, values in zip(lists.block(int(start), int(stop)), expected, strict=True):
        np.testing.assert_array_equal(found, values[start:stop])
    for found, values in zip(lists.take(some), expected, strict=True):
        np.testing.assert_array_equal(found, values[some])
    assert problem_of_patched_rows(rows, nodes, count) is None


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([1, 1, 4, 5], "row 1: nodes that do not increase"),
        ([3, 2, 4, 5], "row 1: nodes that do not increase"),
        ([1, 2, 4, 6], "the last nodes are not 4 to 5"),
        ([0, 1, 3, 5], "the last nodes are not 4 to 5"),
        ([0, 1, 2, 3], "the last nodes are not 4 to 5"),
    ],
)
def test_patch_of_wrong_nodes_is_told(rows: list[int], told: str) -> None:
    problem = problem_of_patched_rows(np.array(rows, np.uint32), 4, 6)
    assert problem is not None
    assert told in problem


def test_patch_whose_background_has_other_lists_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    build(tmp_path)
    W0 = open_store(tmp_path).open_artifact("knn/W0")
    make(tmp_path, 800)
    build(tmp_path)
    with pytest.raises(Corrupt, match=r"knn/BB, array neighbors: of shape \(800, 8\); expected \(900, 8\)"):
        PatchedLists.of(open_store(tmp_path).open_artifact("knn/BB"), W0)


def test_pieces_cover_all_nodes_and_none_spans_the_border() -> None:
    pieces = pieces_of(20_000, 20_100, 30)
    assert [start for start, _ in pieces] == [0, *(stop for _, stop in pieces[:-1])]
    assert pieces[-1][1] == 20_100
    assert any(stop == 20_000 for _, stop in pieces)

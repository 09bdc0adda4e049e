"""Shortcuts, batches and spill files change the time of a diffusion, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mmdiff.diffusion.api import diffuse
from mmdiff.diffusion.options import ETAS
from mmdiff.diffusion.stage import Request, prepare
from mmdiff.diffusion.stage import diffuse as stage
from mmdiff.diffusion.variant import Variant
from mmdiff.formats.store.store import Store
from mmdiff.graph.graph import CsrGraph
from mmdiff.graph.import_graph import Request as ImportGraph
from mmdiff.graph.import_graph import import_graph
from mmdiff.runtime.memory import anonymous_bytes
from tests.diffusion.test_diffuse_store import make, spread, stock
from tests.diffusion.test_diffusion import assert_close, graphs, small_pieces, some_labels, some_neighbors
from tests.support.naive_diffusion import naive_diffusion, naive_scores
from tests.support.stores import publish, recipe

pieces = st.tuples(st.sampled_from([5, 60, 1 << 18]), st.sampled_from([0, 8, 1 << 40]))


def both_ways(
    graph: CsrGraph, classes: int, seed: int, cut: tuple[int, int], every_node: bool, **options: Any
) -> list[NDArray[np.float32]]:
    """The diffusion with and without shortcuts."""
    labels, neighbors = some_labels(graph.nodes, classes, 2, seed), some_neighbors(graph.nodes, seed)
    lists = None if every_node else neighbors[:2]
    with small_pieces(*cut):
        return [diffuse(graph, labels, classes=classes, neighbors=lists, plain=plain, **options) for plain in (False, True)]


@settings(max_examples=70)
@given(
    graph=graphs,
    classes=st.integers(1, 6),
    seed=st.integers(0, 1000),
    cut=pieces,
    every_node=st.booleans(),
    iterations=st.integers(0, 4),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    alpha=st.sampled_from([None, 0.8]),
    reset=st.booleans(),
    symmetric=st.booleans(),
    gamma=st.sampled_from([None, None, 1.5]),
)
def test_shortcuts_leave_S_as_it_is_to_the_last_bit(
    graph: CsrGraph,
    classes: int,
    seed: int,
    cut: tuple[int, int],
    every_node: bool,
    iterations: int,
    dtype: Any,
    alpha: float | None,
    reset: bool,
    symmetric: bool,
    gamma: float | None,
) -> None:
    found, plain = both_ways(
        graph,
        classes,
        seed,
        cut,
        every_node,
        eta="none",
        iterations=iterations,
        dtype=dtype,
        alpha=alpha,
        reset_seeds=reset,
        normalize_graph="symmetric" if symmetric else "row",
        gamma=gamma,
        cols_per_batch=1 + seed % 4,
    )
    np.testing.assert_array_equal(found, plain)


@settings(max_examples=30)
@given(
    graph=graphs,
    classes=st.integers(1, 6),
    seed=st.integers(0, 1000),
    cut=pieces,
    every_node=st.booleans(),
    eta=st.sampled_from(ETAS),
    iterations=st.integers(0, 4),
)
def test_shortcuts_leave_L_as_it_is_within_float32(
    graph: CsrGraph, classes: int, seed: int, cut: tuple[int, int], every_node: bool, eta: Any, iterations: int
) -> None:
    found, plain = both_ways(graph, classes, seed, cut, every_node, eta=eta, iterations=iterations)
    assert_close(found, plain, 1e-6)


@settings(max_examples=30)
@given(graph=graphs, seed=st.integers(0, 1000), eta=st.sampled_from(ETAS), reset=st.booleans())
def test_bfloat16_is_off_by_its_own_rounding_and_no_more(graph: CsrGraph, seed: int, eta: Any, reset: bool) -> None:
    classes, iterations = 4, 3
    labels, neighbors = some_labels(graph.nodes, classes, 1, seed), some_neighbors(graph.nodes, seed)
    variant = Variant(eta, None, None, reset, "row", "bfloat16")
    expected = naive_diffusion(graph, labels, classes, variant, np.full(classes, 1 / classes), iterations)
    options: Any = {"eta": eta, "reset_seeds": reset, "dtype": "bfloat16", "iterations": iterations, "classes": classes}
    scores = diffuse(graph, labels, neighbors=neighbors, **options)
    # Half a unit in the last of eight bits for each iteration, and as much again where L is computed from such sums.
    for t in range(iterations + 1):
        tolerance = 1e-5 if t == 0 else 2.0**-9 * (2 * t + 2) * (6 if eta == "sinkhorn" else 1)
        assert_close(scores[t], naive_scores(expected[t], neighbors), tolerance)


@settings(max_examples=25)
@given(graph=graphs, seed=st.integers(0, 1000), eta=st.sampled_from(["prior", "sinkhorn"]), gamma=st.sampled_from([None, 0.5]))
def test_classes_of_prior_zero_get_nothing(graph: CsrGraph, seed: int, eta: Any, gamma: float | None) -> None:
    classes = 4
    labels = some_labels(graph.nodes, classes, 1, seed)
    prior = np.random.default_rng(seed).permutation([0, 0.5, 0.2, 0.3])
    expected = naive_diffusion(graph, labels, classes, Variant(eta, gamma), prior, 3)[-1]
    found = diffuse(graph, labels, iterations=3, eta=eta, gamma=gamma, prior=prior, classes=classes, cols_per_batch=2)
    assert_close(found, expected)
    assert not found[:, prior == 0].any()


@pytest.mark.parametrize("eta", ["column", "row", "sinkhorn"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_width_of_batches_and_memory_do_not_change_a_byte(tmp_path: Path, eta: Any, dtype: Any) -> None:
    folder = make(tmp_path / "folder")
    ids = set()
    much, little = 8 << 30, anonymous_bytes() + (256 << 20)
    for width, memory in ((7, much), (1, much), (3, little), (None, little), (96, much)):
        options = {
            "eta": eta,
            "dtype": dtype,
            "cols_per_batch": width,
            "memory": memory,
            "predict_nodes": tmp_path / "p.parquet",
        }
        outcome = spread(folder, **options)
        assert not outcome.reused
        ids.add(outcome.artifact.id)
        (folder / "store" / "scores" / "diffusion").unlink()
        forget(folder)
    assert len(ids) == 1


def forget(folder: Path) -> None:
    """Removes all scores, named or not."""
    for path in (folder / "store" / "objects").glob("scores-*"):
        shutil.rmtree(path)


def large(folder: Path, nodes: int, tests: int, classes: int, k: int = 10) -> Path:
    """A store with an imported graph, some of whose nodes are seeds and test points. Descriptors do not matter."""
    draw = np.random.default_rng(0)
    near = np.arange(nodes)[:, None] + np.rint(draw.standard_normal((nodes, k)) * 1000).astype(np.int64)
    folder.mkdir()
    np.save(folder / "lists.npy", (near % nodes).astype(np.int32))
    seeds = 2 * classes
    for role, rows in (("background", nodes - tests - seeds), ("seeds", seeds), ("test", tests)):
        arrays: dict[str, NDArray[Any]] = {"vectors": np.ones((rows, 1), np.float32)}
        if role == "seeds":
            arrays |= {"labels": (np.arange(rows) % classes).astype(np.int32), "class_numbers": np.arange(classes)}
        publish(folder / "store", f"descriptors/{role}", arrays, recipe(role=role))
    import_graph(folder / "store", ImportGraph(folder / "lists.npy"))
    return folder


@pytest.mark.parametrize("options", [{}, {"gamma": 1.3}, {"plain": True}, {"dtype": "bfloat16"}], ids=str)
def test_a_spill_file_gives_the_same_bytes(tmp_path: Path, options: dict[str, Any]) -> None:
    nodes, width, batches = 60_000, 100, 2
    folder = large(tmp_path / "folder", nodes, 20_000, width * batches - 30)
    ids = set()
    for on_disk in (False, True):
        request = Request(iterations=3, keep_scores="last", cols_per_batch=width, **options)
        prepared = prepare(Store.open(folder / "store"), request)
        # Half a matrix less than two matrices need.
        spare = nodes * prepared.needs.width * prepared.variant.itemsize // 2
        memory = prepared.needs.most_memory - spare if on_disk else request.memory
        outcome = stage(folder / "store", Request(**{**vars(request), "memory": memory}))
        assert (outcome.needs.spills, outcome.needs.batches) == (on_disk, batches)
        ids.add(outcome.artifact.id)
        assert np.isfinite(stock(folder, "scores")).all()
        forget(folder)
    assert len(ids) == 1

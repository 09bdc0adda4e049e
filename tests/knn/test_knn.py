"""Searches find the exact neighbours, or the measured share of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mmdiff.formats.errors import BadResult, Damaged
from mmdiff.formats.store.manifest import Recipe
from mmdiff.kernels.constants import NONE
from mmdiff.knn.cells import partition
from mmdiff.knn.cells.order import Cells
from mmdiff.knn.cells.partition import Quantizer, by_cell
from mmdiff.knn.choice import Trial, choose
from mmdiff.knn.search import flat as recall
from mmdiff.knn.search.flat import draw, search_flat
from mmdiff.knn.search.outside import Entrance, Probe, Visitors, entering, search_cells
from mmdiff.knn.search.refine import Visited, refine
from mmdiff.knn.search.topk import merge, settle_candidates
from mmdiff.knn.search.visits import nearest_in_groups, rank_cells, search_visited
from tests.support.naive_knn import naive_neighbors, naive_pieces, naive_refine, naive_similarities
from tests.support.stores import publish

sizes = st.integers(1, 60)
widths = st.sampled_from([1, 2, 3, 8, 17])
seeds = st.integers(0, 10**6)
dtypes = st.sampled_from(["float32", "float16"])


def rows(count: int, width: int, seed: int, dtype: str = "float32", repeated: bool = False) -> NDArray[Any]:
    """Random rows; with `repeated`, some occur more than once."""
    draw_from = np.random.default_rng(seed)
    values = draw_from.standard_normal((count, width)).astype(dtype)
    return values[draw_from.integers(0, max(1, count // 3), count)] if repeated else values


def clustered(count: int, width: int = 24, clusters: int = 40, seed: int = 0) -> NDArray[np.float32]:
    centres = np.random.default_rng(99).standard_normal((clusters, width))
    draw_from = np.random.default_rng(seed)
    values = centres[draw_from.integers(0, clusters, count)] + 0.4 * draw_from.standard_normal((count, width))
    unit: NDArray[np.float32] = (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)
    return unit


@given(sizes, sizes, widths, st.integers(1, 12), seeds, dtypes, st.booleans())
@settings(max_examples=30, deadline=None)
def test_exact_search_is_the_naive_one(
    queries: int, vectors: int, width: int, k: int, seed: int, dtype: str, repeated: bool
) -> None:
    some, all_of_them = rows(queries, width, seed, dtype), rows(vectors, width, seed + 1, dtype, repeated)
    neighbors, similarities = search_flat(some, all_of_them, k)
    expected = naive_neighbors(some, all_of_them, k)
    np.testing.assert_array_equal(neighbors, expected)
    scores = naive_similarities(some, all_of_them)
    for i, j in zip(*np.nonzero(expected != NONE), strict=True):
        assert similarities[i, j] == scores[i, expected[i, j]]
    assert np.isneginf(similarities[expected == NONE]).all()


def test_exact_search_crosses_the_tiles_of_its_products() -> None:
    values = clustered(3000)
    neighbors, _ = search_flat(values[:700], values, 20)
    np.testing.assert_array_equal(neighbors, naive_neighbors(values[:700], values, 20))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=80))
@settings(max_examples=22, deadline=None)
def test_rows_by_cell_are_in_order_and_every_cell_begins_where_it_says(numbers: list[int]) -> None:
    cells = np.array(numbers, np.uint32)
    by, offsets = by_cell(cells)
    np.testing.assert_array_equal(by, np.argsort(cells, kind="stable"))
    np.testing.assert_array_equal(offsets, np.searchsorted(np.sort(cells), np.arange(cells.max() + 2)))


def offsets_of(draw_from: np.random.Generator, count: int, cells: int) -> NDArray[np.int64]:
    """Offsets of cells of random sizes, some of them empty."""
    return np.concatenate([[0], np.sort(draw_from.integers(0, count + 1, cells - 1)), [count]])


def visits_of(draw_from: np.random.Generator, queries: int, cells: int, each: int) -> NDArray[np.uint32]:
    """Distinct cells for each query; some are NONE."""
    visits = np.stack([draw_from.permutation(cells)[:each] for _ in range(queries)]).astype(np.uint32)
    visits[draw_from.random(visits.shape) < 0.2] = NONE
    return visits


def in_visited(visits: NDArray[np.uint32], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """The vectors in the visited cells of one query."""
    return np.flatnonzero(np.isin(np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)), visits))


def best_of(query: NDArray[Any], values: NDArray[Any], candidates: NDArray[np.int64], k: int) -> list[int]:
    best = naive_neighbors(query[None], values[candidates], k)[0]
    return [int(candidates[place]) if place != NONE else int(NONE) for place in best]


@given(sizes, sizes, widths, st.integers(1, 6), seeds, dtypes, st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_visits_find_the_best_of_the_cells_they_name(
    queries: int, vectors: int, width: int, k: int, seed: int, dtype: str, each: int
) -> None:
    some, values = rows(queries, width, seed, dtype), rows(vectors, width, seed + 1, dtype, repeated=True)
    draw_from = np.random.default_rng(seed)
    offsets, visits = offsets_of(draw_from, vectors, 5), visits_of(draw_from, queries, 5, each)
    neighbors, _ = search_visited(some, values, visits, offsets, k)
    for query, own, found in zip(some, visits, neighbors, strict=True):
        assert found.tolist() == best_of(query, values, in_visited(own, offsets), k)


def test_visits_cross_the_tiles_of_their_products() -> None:
    values = clustered(3000)
    offsets, visits = np.array([0, 1500, 3000]), np.tile(np.array([1, 0], np.uint32), (700, 1))
    neighbors, _ = search_visited(values[:700], values, visits, offsets, 20)
    np.testing.assert_array_equal(neighbors, naive_neighbors(values[:700], values, 20))


@given(sizes, sizes, widths, st.integers(1, 6), seeds, st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_nearest_in_groups_are_the_best_of_them_with_the_nearest_first(
    queries: int, vectors: int, width: int, count: int, seed: int, each: int
) -> None:
    some, values = rows(queries, width, seed), rows(vectors, width, seed + 1)
    draw_from = np.random.default_rng(seed)
    offsets, visits = offsets_of(draw_from, vectors, 5), visits_of(draw_from, queries, 5, each)
    nearest = nearest_in_groups(some, values, visits, offsets, count)
    for query, own, found in zip(some, visits, nearest, strict=True):
        expected = best_of(query, values, in_visited(own, offsets), count)
        assert found[0] == expected[0]
        assert sorted(found.tolist()) == sorted(expected)


@given(sizes, widths, st.integers(1, 4), seeds)
@settings(max_examples=22, deadline=None)
def test_cells_around_a_cell_that_looks_everywhere_are_exact(count: int, width: int, wanted: int, seed: int) -> None:
    centroids, coarse = rows(count, width, seed), rows(3, width, seed + 2)
    quantizer = Quantizer(coarse, centroids, offsets_of(np.random.default_rng(seed), count, 3))
    wanted, every = min(wanted, count), np.arange(count, dtype=np.uint32)
    around = quantizer.around(every, wanted)
    np.testing.assert_array_equal(around[:, 0], every)
    for cell, found in zip(every, around, strict=True):
        expected = naive_neighbors(centroids[cell : cell + 1], centroids, wanted)[0].tolist()
        # The cell itself stands in for the last of the nearest where other centroids are nearer to its own.
        others = [node for node in expected if node != cell][: wanted - 1]
        assert sorted(found[1:].tolist()) == sorted(others)


@given(sizes, sizes, widths, st.integers(1, 6), seeds, dtypes)
@settings(max_examples=30, deadline=None)
def test_ranked_cells_are_the_first_candidate_and_the_nearest_of_the_others(
    queries: int, cells: int, width: int, count: int, seed: int, dtype: str
) -> None:
    some, centroids = rows(queries, width, seed, dtype), rows(cells, width, seed + 1)
    draw_from = np.random.default_rng(seed)
    around = visits_of(draw_from, 3, cells, cells)
    around[:, 0] = [next(cell for cell in range(cells) if cell not in row[1:]) for row in around]
    group = np.sort(draw_from.integers(0, 3, queries))
    nearest = rank_cells(some, group, around, centroids, count)
    for query, number, found in zip(some, group, nearest, strict=True):
        others = around[number][1:]
        expected = best_of(query, centroids, np.sort(others[others != NONE]).astype(np.int64), count - 1)
        assert found[0] == around[number][0]
        assert sorted(found[1:].tolist()) == sorted(expected)


@given(sizes, widths, st.integers(1, 6), seeds, dtypes)
@settings(max_examples=30, deadline=None)
def test_a_pass_keeps_the_best_of_neighbours_and_their_neighbours(
    count: int, width: int, k: int, seed: int, dtype: str
) -> None:
    values = rows(count, width, seed, dtype)
    draw_from = np.random.default_rng(seed)
    places = np.stack([draw_from.permutation(max(count, k))[:k] for _ in range(count)])
    proposed = np.where(places < count, places, -1)
    own, similarities = settle_candidates(values, values, proposed, k)
    neighbors, _ = refine(values, values, (own, similarities), own)
    np.testing.assert_array_equal(neighbors, naive_refine(values, values, own, own))


@given(sizes, widths, st.integers(1, 6), seeds, dtypes, st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_a_pass_after_visits_is_the_same_as_one_that_compares_everything(
    count: int, width: int, k: int, seed: int, dtype: str, each: int
) -> None:
    values = rows(count, width, seed, dtype)
    draw_from = np.random.default_rng(seed)
    offsets, visits = offsets_of(draw_from, count, 5), visits_of(draw_from, count, 5, each)
    own = search_visited(values, values, visits, offsets, k)
    cell_of = np.repeat(np.arange(5, dtype=np.uint32), np.diff(offsets))
    neighbors, _ = refine(values, values, own, own[0], Visited(visits, cell_of, 5))
    np.testing.assert_array_equal(neighbors, naive_refine(values, values, own[0], own[0]))


@given(sizes, widths, st.integers(1, 6), seeds)
@settings(max_examples=22, deadline=None)
def test_candidates_of_another_index_are_settled_exactly(count: int, width: int, k: int, seed: int) -> None:
    values = rows(count, width, seed)
    proposed = np.random.default_rng(seed).integers(-1, count, (count, k + 3))
    neighbors, _ = settle_candidates(values, values, proposed, k)
    for row, found, ids in zip(values, neighbors, proposed, strict=True):
        candidates = np.unique(ids[ids >= 0])
        best = naive_neighbors(row[None], values[candidates], k)[0]
        np.testing.assert_array_equal(found, [candidates[place] if place != NONE else NONE for place in best])


@given(sizes, sizes, widths, st.integers(1, 6), seeds)
@settings(max_examples=22, deadline=None)
def test_merged_lists_are_those_of_a_search_over_both(first: int, second: int, width: int, k: int, seed: int) -> None:
    queries = rows(7, width, seed + 2)
    left, right = rows(first, width, seed), rows(second, width, seed + 1)
    neighbors, similarities = search_flat(queries, right, k)
    neighbors[neighbors != NONE] += np.uint32(first)
    merged, _ = merge(search_flat(queries, left, k), (neighbors, similarities))
    np.testing.assert_array_equal(merged, naive_neighbors(queries, np.concatenate([left, right]), k))


@given(sizes, sizes, widths, st.integers(1, 6), seeds, dtypes)
@settings(max_examples=22, deadline=None)
def test_points_enter_a_list_when_they_are_nearer_than_its_last(
    count: int, points: int, width: int, k: int, seed: int, dtype: str
) -> None:
    values, others = rows(count, width, seed, dtype), rows(points, width, seed + 1)
    last = search_flat(values, values, k)[1][:, -1]
    draw_from = np.random.default_rng(seed)
    offsets, visits = offsets_of(draw_from, count, 3), visits_of(draw_from, points, 3, 2)
    cell_of = np.repeat(np.arange(3, dtype=np.uint32), np.diff(offsets))
    everyone = entering(values, last, others, 1000, k)[0]
    visitors = entering(values, last, others, 1000, k, cell_of, Visitors.of(visits, 3))[0]
    scores = naive_similarities(values, others)
    for row in range(count):
        order = np.lexsort((np.arange(points), -scores[row]))
        near = [int(point) for point in order if scores[row, point] > last[row]]
        assert [int(node) for node in everyone[row] if node != NONE] == [1000 + point for point in near][:k]
        of_cell = [point for point in near if cell_of[row] in visits[point]]
        assert [int(node) for node in visitors[row] if node != NONE] == [1000 + point for point in of_cell][:k]


@pytest.mark.parametrize(
    ("array", "values"),
    [
        ("offsets", np.array([0, 4, 3])),
        ("offsets", np.array([0, 3, 7])),
        ("children", np.array([0, 3])),
        ("cell_of", np.array([0, 0, 0, 1, 1, 2], np.uint32)),
        ("order", np.array([0, 1, 2, 3, 4, 6], np.uint32)),
    ],
)
def test_forged_cells_that_kernels_could_not_follow_are_refused(quick_folder: Path, array: str, values: NDArray[Any]) -> None:
    arrays = {
        "vectors": np.eye(6, 4, dtype=np.float32),
        "order": np.arange(6, dtype=np.uint32),
        "cell_of": np.array([0, 0, 0, 1, 1, 1], np.uint32),
        "offsets": np.array([0, 3, 6]),
        "centroids": np.zeros((2, 4), np.float32),
        "coarse": np.zeros((1, 4), np.float32),
        "children": np.array([0, 2]),
    }
    of, facts = Recipe("cells", 2, {"seed": 0, "cell_rows": 3}, {}), {"cells": 2}
    Cells.of(publish(quick_folder / "good", "models/cells", arrays, of, facts))
    forged = publish(quick_folder / "bad", "models/cells", arrays | {array: values}, of, facts)
    with pytest.raises(Damaged, match=f"array {array}"):
        Cells.of(forged)


def make_cells(values: NDArray[np.float32]) -> tuple[Cells, NDArray[np.uint32]]:
    """Values in cell order, in cells of about CELL_ROWS, with their exact neighbours."""
    quantizer = partition.train(values, 0)
    assigned = partition.assign_all(values, quantizer, 2, lambda _: None)
    order, offsets = by_cell(partition.cut_large(assigned))
    kept = assigned[order[offsets[:-1]]]
    used = Quantizer(quantizer.coarse, quantizer.centroids[kept], np.searchsorted(kept, quantizer.children))
    cell_of = np.repeat(np.arange(len(kept), dtype=np.uint32), np.diff(offsets))
    ordered = values[order]
    return Cells(ordered, order, cell_of, offsets, used), search_flat(ordered, ordered, 10)[0]


@pytest.fixture
def small_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "CELL_ROWS", 20)


@pytest.mark.usefixtures("small_cells")
def test_probing_finds_neighbours_of_points_that_are_not_in_the_background() -> None:
    cells, lists = make_cells(clustered(3000))
    queries = clustered(200, seed=5)
    truth = naive_neighbors(queries, cells.vectors, 10)
    found, _ = search_cells(queries, cells, lists, 8, 10)
    shares = [len(np.intersect1d(a, b)) / 10 for a, b in zip(found, truth, strict=True)]
    assert np.mean(shares) > 0.95
    every, _ = search_cells(queries, cells, lists, cells.count, 10)
    np.testing.assert_array_equal(every, truth)


@pytest.mark.usefixtures("small_cells")
def test_probe_and_entrance_reach_the_recall_they_report(monkeypatch: pytest.MonkeyPatch) -> None:
    cells, lists = make_cells(clustered(3000))
    points = clustered(300, seed=5)
    exhaustive_probe = Probe(cells, lists, points, 0.97, 0)
    BB = search_flat(cells.vectors, cells.vectors, 10)
    exhaustive = Entrance(cells, BB, points, 0.97, 0)
    monkeypatch.setattr("mmdiff.knn.search.outside.EXHAUSTIVE", 0)
    probe, entrance = Probe(cells, lists, points, 0.97, 0), Entrance(cells, BB, points, 0.97, 0)
    assert exhaustive_probe.facts["exhaustive"]
    assert not probe.facts["exhaustive"]
    truth = naive_neighbors(points, cells.vectors, 10)
    np.testing.assert_array_equal(exhaustive_probe.find(points)[0], truth)
    shares = [len(np.intersect1d(a, b)) / 10 for a, b in zip(probe.find(points)[0], truth, strict=True)]
    assert np.mean(shares) == pytest.approx(probe.facts["recall"], abs=0.02)
    assert probe.facts["recall"] >= 0.97
    everything, some = (
        exhaustive.of(0, 3000)[0],
        np.concatenate([entrance.of(start, start + 500)[0] for start in range(0, 3000, 500)]),
    )
    entered = np.sum(everything != NONE)
    found = sum(len(np.intersect1d(a[a != NONE], b[b != NONE])) for a, b in zip(everything, some, strict=True))
    assert found / entered >= 0.95
    assert entrance.facts["recall"] >= 0.97


@given(st.lists(st.integers(0, 5), min_size=1, max_size=300), st.integers(1, 20))
@settings(max_examples=22, deadline=None)
def test_large_cells_are_cut_and_stay_in_order(cells: list[int], rows_per_cell: int) -> None:
    before, partition.CELL_ROWS = partition.CELL_ROWS, rows_per_cell
    try:
        numbers = np.unique(cells, return_inverse=True)[1].astype(np.uint32)
        pieces = partition.cut_large(numbers)
    finally:
        partition.CELL_ROWS = before
    np.testing.assert_array_equal(pieces, naive_pieces(numbers, rows_per_cell, 4 * rows_per_cell))
    assert np.bincount(pieces).max() <= 4 * rows_per_cell
    assert sorted(set(pieces.tolist())) == list(range(pieces.max() + 1))
    order = np.argsort(pieces, kind="stable")
    assert (np.diff(numbers[order].astype(np.int64)) >= 0).all()


def test_rows_that_are_all_alike_are_cut_into_cells() -> None:
    values = np.tile(clustered(1), (5000, 1))
    cells = partition.cut_large(partition.assign_all(values, partition.train(values, 0), 2, lambda _: None))
    assert np.bincount(cells).max() <= 4 * partition.CELL_ROWS


def test_near_cells_are_near_in_the_order() -> None:
    line = np.linspace(0, 1, 64)[:, None] * np.ones((1, 3), np.float32)
    shuffled = np.random.default_rng(0).permutation(64)
    order = partition.near_order(line[shuffled].astype(np.float32))
    places = shuffled[order]
    assert np.abs(np.diff(places)).max() == 1


def test_the_truth_that_recall_is_measured_against_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall, "_BLOCK_ROWS", 70)
    values = np.repeat(clustered(150), 2, axis=0)
    sample = draw(values, 5, 40, 0)
    np.testing.assert_array_equal(sample.neighbors, naive_neighbors(values[sample.rows], values, 5))


@pytest.mark.usefixtures("small_cells")
def test_a_trial_on_a_few_rows_has_the_recall_of_a_search_of_all() -> None:
    cells, _ = make_cells(clustered(3000))
    sample, every = draw(cells.vectors, 10, 200, 0), np.arange(3000)
    trial = Trial(cells, sample, 10)
    for visits in (2, 5):
        visited = cells.visits_of(every, visits)
        lists = cells.search(cells.vectors, visited, 10)
        first = trial.visiting(visits)
        assert first.recall == pytest.approx(sample.recall(lists[1][sample.rows]).value, abs=0.005)
        refined = cells.refine(cells.vectors, lists, lists[0], visited)
        second = trial.with_pass(first)
        assert second.recall == pytest.approx(sample.recall(refined[1][sample.rows]).value, abs=0.005)
        assert second.recall > first.recall
        assert second.pairs > first.pairs


@pytest.mark.usefixtures("small_cells")
def test_higher_targets_choose_more_comparisons_and_noise_chooses_exact_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmdiff.knn.choice._VISITS", (1, 2, 4, 8, 16, 64))
    cells, _ = make_cells(clustered(6000))
    low, high = (choose(cells, 10, target, 0, always_cells=True) for target in (0.7, 0.97))
    assert low.recall >= 0.7
    assert high.recall >= 0.97
    assert 0 < low.pairs < high.pairs
    assert choose(cells, 10, 0.97, 0) == choose(cells, 10, 0.97, 0)
    noise, _ = make_cells(rows(3000, 64, 0))
    assert choose(noise, 10, 0.95, 0).exact
    assert not choose(noise, 10, 0.95, 0, always_cells=True).exact


@pytest.mark.usefixtures("small_cells")
def test_every_node_visits_its_own_cell_first_and_no_cell_twice() -> None:
    cells, _ = make_cells(clustered(3000))
    visited = cells.visits_of(np.arange(3000), 6)
    np.testing.assert_array_equal(visited[:, 0], cells.cell_of)
    assert all(len(set(row.tolist())) == 6 for row in visited)


@pytest.mark.usefixtures("small_cells")
def test_points_visit_the_cells_whose_centroids_are_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    cells, _ = make_cells(clustered(3000))
    points = np.asarray(cells.vectors[::7], np.float32)
    scores = points @ cells.quantizer.centroids.T

    def found() -> NDArray[Any]:
        """The scores of the visited cells, the first one as it is and the others in falling order."""
        own = np.take_along_axis(scores, cells.visits(points, 6).astype(int), axis=1)
        return np.concatenate([own[:, :1], -np.sort(-own[:, 1:], axis=1)], axis=1)

    # Large cells are cut into pieces with the same centroid, so that scores are compared.
    nearest = -np.sort(-scores, axis=1)[:, :6]
    np.testing.assert_allclose(found(), nearest, atol=1e-5)
    # Below a part of the first-level centroids, a few near cells are missed; the first one hardly ever.
    monkeypatch.setattr(partition, "_LOOKED_AROUND", 1)
    monkeypatch.setattr(partition, "_LOOKED_SHARE", 0.3)
    right = found() >= nearest - 1e-5
    assert right[:, 0].mean() > 0.95
    assert 0.5 < right.mean() < 1


def test_recall_counts_equals_as_equal_and_has_an_interval() -> None:
    values = np.repeat(clustered(100), 5, axis=0)
    sample = draw(values, 3, 500, 0)
    other_copies = search_flat(values[::-1], values[::-1], 3)[1][::-1]
    assert sample.recall(other_copies).value == 1
    half = np.where(np.arange(500)[:, None] % 2 == 0, other_copies, -1).astype(np.float32)
    found = sample.recall(half)
    assert found.value == 0.5
    assert found.margin == pytest.approx(1.96 * 0.5 / np.sqrt(500))


def test_descriptors_that_are_not_finite_are_not_clustered() -> None:
    rows = np.random.default_rng(0).random((200, 4), np.float32)
    rows[7, 2] = np.inf
    with pytest.raises(BadResult, match="not finite"):
        partition._kmeans(rows, 3, 2, 0)

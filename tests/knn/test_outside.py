"""Points outside the background: how many cells they visit, and how many of them the recall is measured on."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmdiff.kernels.constants import NONE
from mmdiff.knn.cells import partition
from mmdiff.knn.search import outside
from mmdiff.knn.search.flat import Recall, search_flat
from mmdiff.knn.search.outside import Entrance, Measure, Probe, entering, in_visited, recall_of_entries, sampled, tune
from tests.knn.test_knn import clustered, make_cells, small_cells

__all__ = ["small_cells"]

pytestmark = pytest.mark.usefixtures("small_cells")

TARGET = 0.95


def recorded(recall: Callable[[int, int], Recall]) -> tuple[list[tuple[int, int]], Measure]:
    """A measurement, and the cells and points that it was asked for."""
    asked: list[tuple[int, int]] = []

    def measure(visits: int, count: int) -> Recall:
        asked.append((visits, count))
        return recall(visits, count)

    return asked, measure


def test_recall_that_is_surely_reached_is_measured_once() -> None:
    cells, _ = make_cells(clustered(3000))
    asked, measure = recorded(lambda _, count: Recall(0.98, 0.02, count))
    assert tune(measure, 5000, cells, TARGET)[0] == 32
    assert asked == [(32, 128)]


def test_recall_that_is_surely_missed_takes_more_visits_and_no_more_points() -> None:
    cells, _ = make_cells(clustered(3000))
    asked, measure = recorded(lambda visits, count: Recall(0.98 if visits >= 128 else 0.7, 0.02, count))
    visits, reached = tune(measure, 5000, cells, TARGET)
    assert asked == [(32, 128), (64, 128), (128, 128)]
    assert (visits, reached.queries) == (128, 128)


@pytest.mark.parametrize(("value", "visits", "last"), [(0.955, 32, 1024), (0.945, 64, 1024)])
def test_undecided_recall_of_many_points_is_measured_on_more_of_them(value: float, visits: int, last: int) -> None:
    """A hundred thousand points that visit twice as many cells would compare more pairs than 128 of them with all rows."""
    cells, _ = make_cells(clustered(3000))
    asked, measure = recorded(lambda visits, count: Recall(value if visits == 32 else 0.99, 0.02, count))
    assert tune(measure, 100_000, cells, TARGET)[0] == visits
    assert asked[:8] == [(32, count) for count in range(128, 1025, 128)]
    assert asked[-1] == (visits, last)


def test_undecided_recall_of_few_points_takes_more_visits_because_these_cost_less() -> None:
    cells, _ = make_cells(clustered(3000))
    asked, measure = recorded(lambda visits, count: Recall(0.95 if visits == 32 else 0.99, 0.02, count))
    assert tune(measure, 150, cells, TARGET)[0] == 64
    assert asked == [(32, 128), (64, 128)]


def test_no_more_cells_are_visited_than_there_are() -> None:
    cells, _ = make_cells(clustered(3000))
    asked, measure = recorded(lambda _, count: Recall(0.5, 0.1, count))
    visits, reached = tune(measure, 5000, cells, TARGET)
    assert visits / 2 < cells.count <= visits
    assert reached.value == 0.5
    assert len(asked) == np.ceil(np.log2(cells.count / 32)) + 1


def test_sample_is_random_the_same_for_the_same_seed_and_read_only_like_a_map() -> None:
    points = clustered(2000)
    first = sampled(points, 3)
    assert len(np.unique(first, axis=0)) == 1024
    np.testing.assert_array_equal(first, sampled(points, 3))
    assert not np.array_equal(first, sampled(points, 4))
    assert not first.flags.writeable
    assert len(sampled(points[:50], 3)) == 50


@given(st.integers(0, 1000), st.integers(1, 12), st.integers(1, 30), st.integers(1, 10), st.integers(0, 60))
def test_recall_of_visits_is_the_share_of_lists_in_visited_cells(
    seed: int, points: int, cells: int, visits: int, lists: int
) -> None:
    draw = np.random.default_rng(seed)
    pairs = np.stack([draw.integers(0, points, lists), draw.integers(0, cells, lists)], axis=1)
    visited = np.stack([np.append(draw.permutation(cells), [NONE] * 10)[:visits] for _ in range(points)]).astype(np.uint32)
    hits = [int(cell) in visited[point].tolist() for point, cell in pairs]
    in_cells = in_visited(pairs[:, 0], pairs[:, 1].astype(np.uint32), visited)
    assert in_cells.tolist() == hits
    found = recall_of_entries(pairs[:, 0], in_cells, points)
    assert found.value == pytest.approx(np.mean(hits) if hits else 1.0)
    assert found.queries == points
    assert found.margin >= 0


def test_recall_of_entering_is_that_of_all_lists_where_all_points_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    cells, _ = make_cells(clustered(2000))
    points, BB = clustered(100, seed=5), search_flat(cells.vectors, cells.vectors, 10)
    monkeypatch.setattr(outside, "EXHAUSTIVE", 0)
    monkeypatch.setattr(outside, "_FEWEST_VISITS", 2)
    monkeypatch.setattr(outside, "PIECE_ROWS", 300)
    entrance = Entrance(cells, BB, points, 0.8, 0)
    assert entrance.facts["queries"] == 100
    assert 2 <= entrance.facts["visits"] < cells.count
    everything = entering(cells.vectors, BB[1][:, -1], points, 2000, 100)[0]
    wide = Entrance(cells, (np.zeros((2000, 100), np.uint32), np.repeat(BB[1][:, -1:], 100, axis=1)), points, 0.8, 0)
    assert wide.facts == entrance.facts
    found = np.concatenate([wide.of(start, min(start + 300, 2000))[0] for start in range(0, 2000, 300)])
    assert (found != NONE).sum() / (everything != NONE).sum() == pytest.approx(entrance.facts["recall"], abs=0.01)
    assert entrance.facts["low"] <= entrance.facts["recall"] <= entrance.facts["high"]


def test_isolated_rows_are_compared_with_all_points(monkeypatch: pytest.MonkeyPatch) -> None:
    cells, _ = make_cells(clustered(2000))
    points, BB = clustered(100, seed=5), search_flat(cells.vectors, cells.vectors, 10)
    monkeypatch.setattr(outside, "EXHAUSTIVE", 0)
    monkeypatch.setattr(outside, "_FEWEST_VISITS", 1)
    monkeypatch.setattr(outside, "_ISOLATED", 8)
    entrance = Entrance(cells, BB, points, 0.5, 0)
    exact = entering(cells.vectors, BB[1][:, -1], points, 2000, 10)
    found = entrance.of(0, 2000)
    isolated = BB[1][:, -1] < entrance.facts["isolated_below"]
    assert 0 < isolated.sum() <= 8 * entrance.facts["visits"] * partition.CELL_ROWS
    for own, whole in zip(found, exact, strict=True):
        np.testing.assert_array_equal(own[isolated], whole[isolated])
    assert (found[0] != NONE).sum() < (exact[0] != NONE).sum()


def test_points_that_enter_no_list_reach_any_recall(monkeypatch: pytest.MonkeyPatch) -> None:
    cells, _ = make_cells(clustered(1000))
    BB = search_flat(cells.vectors, cells.vectors, 10)
    monkeypatch.setattr(outside, "EXHAUSTIVE", 0)
    facts = Entrance(cells, BB, -np.ones((20, cells.vectors.shape[1]), np.float32) * 0, 0.99, 0).facts
    assert (facts["recall"], facts["reached"]) == (1.0, True)


def test_tuning_is_the_same_on_one_thread_and_on_several(monkeypatch: pytest.MonkeyPatch) -> None:
    cells, lists = make_cells(clustered(2000))
    points, BB = clustered(300, seed=5), search_flat(cells.vectors, cells.vectors, 10)
    monkeypatch.setattr(outside, "EXHAUSTIVE", 0)
    made = []
    for threads in (1, 3):
        monkeypatch.setenv("NUMBA_NUM_THREADS", f"{threads}")
        made.append((Probe(cells, lists, points, 0.9, 0).facts, Entrance(cells, BB, points, 0.9, 0).facts))
    assert made[0] == made[1]


def test_products_of_the_first_search_in_threads_stay_on_their_threads() -> None:
    """Kernels load scipy's BLAS with their first product; a limit set before would not apply to it."""
    program = """
        import numpy as np
        from threadpoolctl import threadpool_info
        from mmdiff.knn.search.devices import CORES
        from mmdiff.runtime.threads import in_threads

        rows = np.eye(64, dtype=np.float32)

        def search(_):
            CORES.nearest(rows, rows, 3)
            return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

        limits = [limit for limits in in_threads(search, range(2), 2) for limit in limits]
        assert limits and set(limits) == {1}, limits
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)

"""Generated lists resemble those of real graphs, as measured in benchmarks/lists.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from benchmarks.lists import GeneratedLists

NODES = 200_000


@pytest.fixture(scope="module")
def lists() -> np.ndarray:
    return GeneratedLists(NODES).block(0, NODES)[0].astype(np.int64)


def test_neighbours_are_distinct_and_begin_with_the_node_itself(lists: np.ndarray) -> None:
    assert (lists[:, 0] == np.arange(NODES)).all()
    assert (np.diff(np.sort(lists, axis=1), axis=1) > 0).all()
    assert lists.max() < NODES


def test_about_half_of_the_neighbours_are_in_the_cell_and_a_fifth_to_a_third_are_mutual(lists: np.ndarray) -> None:
    near = np.abs(lists[:, 1:] - np.arange(NODES)[:, None]) <= 1000
    assert 0.4 < near.mean() < 0.6
    W0 = csr_array((np.ones(lists.size, np.int8), lists.reshape(-1), np.arange(0, lists.size + 1, 30)), (NODES, NODES))
    mutual = (W0.multiply(W0.T)).nnz - NODES
    assert 0.17 < mutual / (29 * NODES) < 0.33
    assert 50 < (W0 + W0.T).nnz / NODES < 55


def test_in_degrees_spread_as_those_of_real_graphs(lists: np.ndarray) -> None:
    degrees = np.bincount(lists.reshape(-1), minlength=NODES)
    assert 18 < degrees.std() < 32
    assert degrees.min() >= 1


def test_any_block_and_the_file_are_parts_of_the_same_lists(lists: np.ndarray, tmp_path: Path) -> None:
    made = GeneratedLists(NODES)
    np.testing.assert_array_equal(made.block(777, 1234)[0], lists[777:1234])
    made.write(tmp_path / "lists.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "lists.npy", mmap_mode="r"), lists)


@pytest.mark.parametrize(("nodes", "k"), [(70, 5), (1000, 10), (5000, 100)])
def test_small_graphs_and_other_lengths_are_made_too(nodes: int, k: int) -> None:
    lists = GeneratedLists(nodes, k).block(0, nodes)[0].astype(np.int64)
    assert lists.shape == (nodes, k)
    assert (np.diff(np.sort(lists, axis=1), axis=1) > 0).all()

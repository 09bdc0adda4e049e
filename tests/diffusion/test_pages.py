"""Prefetching brings the requested pages into the page cache, and no others."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.measure import evict
from mmdiff.diffusion.io.graph_stream import Stream
from mmdiff.diffusion.io.prefetch import announce_rows, pages_of
from mmdiff.formats.storage.arrays import PAGE_BYTES
from mmdiff.graph.graph import CsrGraph
from mmdiff.graph.lists import ArrayLists
from tests.support.graphs import make_graph

NODES, K = 40_000, 30
_libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def graph(tmp_path: Path) -> CsrGraph:
    lists = (np.arange(NODES)[:, None] + 1 + np.arange(K)) % NODES
    make_graph(tmp_path / "store", ArrayLists(lists.astype(np.uint32)))
    opened = CsrGraph.open(tmp_path / "store")
    evict(tmp_path / "store")
    return opened


def resident(values: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Whether each page of a mapped array is in the page cache."""
    pages = -(-values.nbytes // PAGE_BYTES)
    found = np.zeros(pages, np.uint8)
    addresses = (ctypes.c_void_p(array.__array_interface__["data"][0]) for array in (values, found))
    assert _libc.mincore(next(addresses), ctypes.c_size_t(values.nbytes), next(addresses)) == 0
    return np.asarray(found % 2 == 1)


def pages_of_rows(graph: CsrGraph, rows: NDArray[np.int64]) -> set[int]:
    spans = [(int(graph.indptr[row]) * 4, int(graph.indptr[row + 1]) * 4 - 1) for row in rows]
    return {page for start, end in spans for page in range(start // PAGE_BYTES, end // PAGE_BYTES + 1)}


def test_pages_of_scattered_rows_are_read_and_those_between_are_not(graph: CsrGraph) -> None:
    if resident(graph.indices).any():
        pytest.skip("the file system does not give up its pages")
    rows = np.arange(100, NODES, 3000)
    announce_rows(graph.indices, graph.indptr, rows)
    wanted = pages_of_rows(graph, rows)
    deadline = time.monotonic() + 10
    while not resident(graph.indices)[list(wanted)].all() and time.monotonic() < deadline:
        time.sleep(0.01)
    found = set(np.flatnonzero(resident(graph.indices)).tolist())
    assert wanted <= found
    assert len(found) <= 2 * len(wanted)


def test_any_rows_may_be_announced(graph: CsrGraph) -> None:
    for rows in ([], [0], [NODES - 1], range(NODES), [5, 6, 7, 39_000]):
        announce_rows(graph.indices, graph.indptr, np.array(rows, np.int64))
    announce_rows(np.array(graph.indices), graph.indptr, np.arange(10))


@pytest.mark.parametrize(("start", "stop", "pages"), [(0, 1, 1), (0, 1024, 1), (0, 1025, 2), (1023, 1025, 2), (1024, 2048, 1)])
def test_how_many_pages_entries_lie_in(start: int, stop: int, pages: int) -> None:
    assert pages_of(np.empty(0, np.uint32), start, stop) == pages


@pytest.mark.parametrize("rows", [None, np.arange(0, NODES, 1000), np.arange(0, NODES, 7), np.arange(100, 110)])
@pytest.mark.parametrize("let_go", [False, True])
def test_a_stream_visits_each_row_once_however_pages_are_requested(
    graph: CsrGraph, rows: NDArray[np.int64] | None, let_go: bool
) -> None:
    with Stream(graph, let_go) as stream:
        visited = [block.rows for block in stream.each(lambda block: block, rows)]
    np.testing.assert_array_equal(np.concatenate(visited), np.arange(NODES) if rows is None else rows)

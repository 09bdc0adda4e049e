"""Windows read by direct I/O have the values of the map at the same indices, and results computed from them are the same."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.measure import evict
from mmdiff.diffusion import stage
from mmdiff.diffusion.engine.deferred_sums import column_sums
from mmdiff.diffusion.engine.frontier import advance_frontier, spread_frontier
from mmdiff.diffusion.engine.needed_rows import reached
from mmdiff.diffusion.engine.product import SeedUpdate, product, product_of_rows
from mmdiff.diffusion.io import graph_stream as streaming
from mmdiff.diffusion.io import remote_batches as spreading
from mmdiff.diffusion.io.graph_stream import Stream
from mmdiff.diffusion.io.kept_rows import RowCache
from mmdiff.diffusion.seeds import Seeds
from mmdiff.diffusion.stage import Request
from mmdiff.diffusion.variant import Variant
from mmdiff.formats.errors import DiskError
from mmdiff.formats.storage import windows as format_windows
from mmdiff.formats.storage.arrays import PAGE_BYTES, ArraySpec
from mmdiff.formats.storage.direct import direct_io, page_aligned
from mmdiff.formats.storage.windows import windows_on
from mmdiff.formats.store.array_writer import ArrayWriter
from mmdiff.graph.graph import CsrGraph
from mmdiff.graph.weights import Weighting
from tests.diffusion.test_diffuse_kernels import frontier_of, some_rows, some_S
from tests.diffusion.test_diffuse_store import make
from tests.diffusion.test_pages import resident
from tests.support.graphs import make_graph, some_lists
from tests.support.stores import publish

ROWS_PER_CHUNK = 4096
places = st.integers(0, 20_000)


@pytest.fixture(autouse=True, scope="module")
def direct(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whether the file system supports direct I/O; test_direct.py covers those that do not."""
    file = tmp_path_factory.mktemp("direct") / "file"
    file.write_bytes(bytes(PAGE_BYTES))
    with file.open("rb") as opened, direct_io(opened.fileno()) as possible:
        if possible and os.preadv(opened.fileno(), [page_aligned((PAGE_BYTES,), "uint8").data], 0):
            return
    pytest.skip("the file system has no way past the cache")


def test_a_window_is_not_read_from_a_file_that_took_the_place_of_the_checked_one(tmp_path: Path) -> None:
    expected = np.arange(5000, dtype=np.uint32)
    artifact = publish(tmp_path / "store", "models/x", {"x": expected})
    values = artifact.array("x")
    file = artifact.folder / "x" / "c.0"
    content = bytearray(file.read_bytes())
    content[100] ^= 4
    (tmp_path / "copy").write_bytes(content)
    opened = windows_on(values)
    assert opened is not None
    buffer = page_aligned((values.nbytes + PAGE_BYTES,), "uint8")
    with opened as windows:
        (tmp_path / "copy").replace(file)
        assert windows.read(0, 5000, buffer) is None
    np.testing.assert_array_equal(values, expected)


def an_array(folder: Path, length: int, dtype: str) -> ArrayWriter:
    """An array of several chunks, in which every entry is its own index."""
    writer = ArrayWriter(folder / "array", ArraySpec.fit((length,), dtype, ROWS_PER_CHUNK))
    writer.fill((np.arange(length) % 30_000).astype(dtype))
    return writer


@settings(max_examples=30, deadline=None)
@given(
    bounds=st.tuples(st.integers(0, 20_000), st.integers(0, 20_000)), dtype=st.sampled_from(["uint32", "float16", "float32"])
)
def test_a_window_has_the_entries_of_the_array_under_their_indices(
    tmp_path_factory: pytest.TempPathFactory, bounds: tuple[int, int], dtype: str
) -> None:
    values = an_array(tmp_path_factory.mktemp("windows"), 20_000, dtype).mapped()
    start, stop = sorted(bounds)
    opened = windows_on(values)
    assert opened is not None
    with opened as windows:
        for first, last in ((start, stop), (0, start), (stop, 20_000)):
            window = windows.read(first, last, page_aligned((values.nbytes + PAGE_BYTES,), "uint8"))
            assert window is not None
            assert (len(window), window.dtype, window.flags.writeable) == (last, values.dtype, False)
            np.testing.assert_array_equal(window[first:last], values[first:last])


def test_a_window_that_cannot_be_had_is_none(tmp_path: Path) -> None:
    writer = an_array(tmp_path, 20_000, "uint32")
    values, buffer = writer.mapped(), page_aligned((2 * PAGE_BYTES,), "uint8")
    opened = windows_on(values)
    assert opened is not None
    with opened as windows:
        assert windows.read(0, 20_000, buffer) is None
        (writer.folder / writer.spec.chunk_file(1)).unlink()
        assert windows.read(ROWS_PER_CHUNK, ROWS_PER_CHUNK + 1, buffer) is None
        assert windows.read(0, 1, buffer) is not None


@pytest.mark.parametrize("when", ["opened", "read"])
def test_a_file_system_that_has_no_windows(when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems refuse direct I/O on open, some only on read."""
    opened = windows_on(an_array(tmp_path, 20_000, "uint32").mapped())
    assert opened is not None

    def refused(*_: object) -> int:
        raise OSError(errno.EINVAL, "direct I/O")

    if when == "opened":
        monkeypatch.setattr(format_windows, "enable_direct_io", lambda _: False)
    else:
        monkeypatch.setattr(os, "preadv", refused)
    before = open_files()
    with opened as windows:
        assert windows.read(0, 1, page_aligned((PAGE_BYTES,), "uint8")) is None
    assert open_files() == before


def test_a_disk_that_fails_is_not_hidden_and_the_message_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = an_array(tmp_path, 20_000, "uint32")
    opened = windows_on(writer.mapped())
    assert opened is not None

    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "preadv", broken)
    file = writer.folder / writer.spec.chunk_file(1)
    problem = rf"^{file}: cannot read the file \(input/output error\).* check the disk"
    with opened as windows, pytest.raises(DiskError, match=problem):
        windows.read(ROWS_PER_CHUNK, ROWS_PER_CHUNK + 1, page_aligned((PAGE_BYTES,), "uint8"))


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_files_are_closed(tmp_path: Path) -> None:
    values = an_array(tmp_path, 20_000, "uint32").mapped()
    before, opened = open_files(), windows_on(values)
    assert opened is not None
    with opened as windows:
        for start in range(0, 20_000, 1000):
            windows.read(start, start + 1000, page_aligned((3 * PAGE_BYTES,), "uint8"))
        assert open_files() == before + 1
    assert open_files() == before


def test_there_are_windows_on_whole_mapped_arrays_only(tmp_path: Path) -> None:
    values = an_array(tmp_path, 20_000, "uint32").mapped()
    assert windows_on(values[10:]) is None
    assert windows_on(np.array(values)) is None


@pytest.fixture(scope="module", params=["value-free", "weighted"])
def graph(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CsrGraph:
    store = tmp_path_factory.mktemp("past") / "store"
    make_graph(store, some_lists(6000, 20).lists, Weighting("gaussian", 0.5) if request.param == "weighted" else None)
    return CsrGraph.open(store)


NODES, WIDTH = 6000, 24
PULL = SeedUpdate(Seeds.of(np.arange(NODES), np.full((NODES, 1), -1, np.int32), WIDTH))
ROWS = some_rows(NODES, 0)


def whole(stream: Stream) -> NDArray[Any]:
    S = some_S(NODES, WIDTH, 0)
    out = np.empty_like(S)
    return np.append(out, product(stream, S, out, PULL))


def some(stream: Stream) -> NDArray[Any]:
    out = np.empty((len(ROWS), WIDTH), np.float32)
    product_of_rows(stream, some_S(NODES, WIDTH, 0), out, PULL, ROWS)
    return out


def spread(stream: Stream) -> NDArray[Any]:
    out = np.empty((NODES, WIDTH), np.float32)
    spread_frontier(stream, frontier_of(some_S(NODES, WIDTH, 0, 0.01)), out, PULL, None, compact=False)
    return out


def advanced(stream: Stream) -> NDArray[Any]:
    after = advance_frontier(stream, frontier_of(some_S(NODES, WIDTH, 0, 0.01)), PULL, None, short=False)
    return np.concatenate([after.offsets, after.columns, after.values])


def neighbours(stream: Stream) -> NDArray[Any]:
    found = reached(stream, np.arange(0, NODES, 50))
    assert found is not None
    return found


def sums(stream: Stream) -> NDArray[Any]:
    seeds = Seeds.of(np.arange(50), np.arange(50, dtype=np.int32)[:, None] % WIDTH, WIDTH)
    return column_sums(stream, seeds, Variant(), None, 3)


@pytest.mark.parametrize("compute", [whole, some, spread, advanced, neighbours, sums])
@pytest.mark.parametrize("most", [1 << 20, 300])
def test_with_direct_io_everything_is_the_same_to_the_last_bit(
    graph: CsrGraph, compute: Callable[[Stream], NDArray[Any]], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that are too large for a window are read through the map."""
    monkeypatch.setattr(streaming, "_WINDOW_EDGES", most)
    monkeypatch.setattr(streaming, "_ENOUGH", 0)
    monkeypatch.setattr(streaming, "_LARGE_EDGES", 500)
    with Stream(graph) as stream:
        expected = compute(stream)
    with Stream(graph, let_go=True, past_cache=True) as stream:
        np.testing.assert_array_equal(compute(stream), expected)


def test_where_there_are_no_windows_the_map_does(graph: CsrGraph) -> None:
    in_memory = CsrGraph(graph.indptr, np.array(graph.indices), graph.scale, graph.weights)
    with Stream(graph) as stream, Stream(in_memory, past_cache=True) as other:
        np.testing.assert_array_equal(whole(other), whole(stream))


def test_nothing_is_left_in_the_page_cache_once_all_is_checked(tmp_path: Path) -> None:
    make_graph(tmp_path / "store", some_lists(6000, 20).lists)
    own = CsrGraph.open(tmp_path / "store").checked()
    evict(tmp_path / "store")
    if resident(own.indices).any():
        pytest.skip("the file system does not give up its pages")
    with Stream(own, past_cache=True) as stream:
        for _ in stream.each(lambda block: int(block.graph.indices[block.graph.indptr[block.rows[0]]])):
            pass
    # The checksum at the end of a chunk is read by buffered I/O.
    assert resident(own.indices).mean() < 0.1


@pytest.mark.parametrize("options", [{}, {"plain": True}, {"dtype": "bfloat16"}])
def test_a_graph_larger_than_memory_gives_the_same_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    store, other = make(tmp_path / "made") / "store", tmp_path / "other"
    shutil.copytree(store, other, symlinks=True)
    request = Request(iterations=3, **options)
    expected = stage.diffuse(store, request).artifact
    past = []

    class Noted(Stream):
        def __init__(self, graph: CsrGraph, let_go: bool, past_cache: bool, cache: RowCache | None) -> None:
            past.append(past_cache)
            super().__init__(graph, let_go, past_cache, cache)

    monkeypatch.setattr(spreading, "available_bytes", lambda: 0)
    monkeypatch.setattr(spreading, "Stream", Noted)
    monkeypatch.setattr(streaming, "_ENOUGH", 0)
    found = stage.diffuse(other, request).artifact
    assert past
    assert all(past)
    assert found.id == expected.id

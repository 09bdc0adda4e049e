"""A damaged graph is refused by every command that reads it, whatever its size; nothing that came of it is kept."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mmdiff.diffusion.engine.product import matmul, no_update
from mmdiff.diffusion.io.graph_stream import Stream
from mmdiff.diffusion.stage import Request, diffuse
from mmdiff.formats.errors import Corrupt, Damaged, MmdiffError
from mmdiff.formats.storage.crc import crc32c, tail
from mmdiff.formats.store.manifest import ArrayEntry, encode, object_id
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.graph.graph import CsrGraph, bad_row
from mmdiff.graph.weights import Weighting
from mmdiff.kernels.constants import COLUMN
from mmdiff.kernels.spmm import GraphArrays, multiply_rows
from tests.diffusion.test_diffuse_shortcuts import large
from tests.diffusion.test_diffuse_store import make
from tests.support.graphs import make_graph, some_graph, some_lists
from tests.support.stores import SMALL_CHUNKS, chunks_of, problems, tree

# More than the 16 MiB up to which arrays were once checked when they were opened.
LARGE_NODES, LARGE_BYTES = 300_000, 16 << 20


@pytest.fixture(scope="module")
def large_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose graph has columns beyond all memory in its middle, where reading them is a crash."""
    store = large(tmp_path_factory.mktemp("large") / "folder", LARGE_NODES, 1000, 20) / "store"
    indices = Store.open(store).open_artifact("graph/W").folder / "indices" / "c.0"
    assert indices.stat().st_size > LARGE_BYTES
    with indices.open("r+b") as stream:
        stream.seek(8 << 20)
        stream.write(np.full(1000, 0x7FFFFFF0, np.uint32).tobytes())
    return store


@pytest.mark.parametrize(
    "command",
    [
        ("diffuse", "--plain"),
        ("diffuse",),
        ("plan", "diffuse"),
        ("inspect", "graph/W"),
        ("export", "graph/W", "W.npz"),
    ],
    ids=" ".join,
)
def test_commands_that_read_a_large_damaged_graph_end_with_a_sentence(
    large_store: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    before = tree(large_store)
    run = [sys.executable, "-c", "from mmdiff.cli import main; main()", *command, "--store", str(large_store)]
    done = subprocess.run(run, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    assert "mmdiff: graph/W, array indices: chunk c.0 does not match its checksum. Run again: " in done.stderr
    assert "Traceback" not in done.stderr
    assert tree(large_store) == before
    assert not list(tmp_path.iterdir())


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A store with a graph of many chunks."""
    with chunks_of(SMALL_CHUNKS):
        return make(tmp_path / "folder") / "store"


def chunk(store: Path, array: str, number: int, name: str = "graph/W") -> Path:
    artifact = Store.open(store).open_artifact(name)
    return artifact.folder / array / artifact.spec(array).chunk_file(number)


def flip(file: Path, at: int = 4) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def test_scores_of_a_damaged_graph_are_not_published_and_its_draft_is_not_continued_after_the_repair(
    made: Path, tmp_path: Path
) -> None:
    request = Request(iterations=3, cols_per_batch=2)
    undisturbed = Path(shutil.copytree(made, tmp_path / "undisturbed", symlinks=True))
    expected = diffuse(undisturbed, request).artifact.id
    last = Store.open(made).open_artifact("graph/W").spec("indices").chunks - 1
    for number in (0, last // 2, last):
        file = chunk(made, "indices", number)
        flip(file)
        with pytest.raises(Damaged, match="does not match its checksum"):
            diffuse(made, request)
        assert Store.open(made).id("scores/diffusion") is None
        assert not (made / "work").exists()
        assert not list((made / "objects").glob("scores-*"))
        flip(file)
    assert diffuse(made, request).artifact.id == expected
    assert not problems(Store.open(made))


def leave_wrong_scores(store: Path, request: Request) -> Path:
    """Leaves a draft with scores of 7, as a run on damaged data may do; returns its recipe."""

    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mmdiff.diffusion.stage._assemble", stop)
        with pytest.raises(KeyboardInterrupt):
            diffuse(store, request)
    note = store / "work" / "scores.diffusion" / "recipe.json"
    for file in note.parent.glob("object/pass_scores_*/c.*"):
        values = np.full((file.stat().st_size - 4) // 4, 7, np.float32).tobytes()
        file.write_bytes(values + tail(crc32c(values)))
    return note


def test_draft_of_a_version_that_trusted_large_arrays_is_not_continued(made: Path) -> None:
    request = Request(iterations=2, cols_per_batch=2)
    note = leave_wrong_scores(made, request)
    described = json.loads(note.read_bytes())
    assert described.pop("draft") == 3
    note.write_text(json.dumps(described))
    outcome = diffuse(made, request)
    assert not (outcome.artifact.array("scores") == 7).any()


@pytest.mark.parametrize("array", [None, "indptr", "indices", "scale"])
def test_draft_of_a_killed_run_is_not_continued_after_its_graph_was_damaged_and_repaired(made: Path, array: str | None) -> None:
    request = Request(iterations=2, cols_per_batch=2)
    leave_wrong_scores(made, request)
    if array is not None:
        file = chunk(made, array, 0)
        status = file.stat()
        flip(file)
        flip(file)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    # Without that the scores come back: this is how a draft is continued.
    assert (diffuse(made, request).artifact.array("scores") == 7).any() == (array is None)


def stream_reads(graph: CsrGraph, past_cache: bool = False) -> None:
    with Stream(graph, past_cache=past_cache) as stream:
        for _ in stream.each(lambda block: len(block.rows)):
            pass


READERS: dict[str, Callable[[CsrGraph], Any]] = {
    "product": lambda graph: matmul(graph, np.ones(graph.nodes, np.float32)),
    "stream": stream_reads,
    "past the cache": lambda graph: stream_reads(graph, True),
    "to_scipy": lambda graph: graph.to_scipy(),
    "in_memory": lambda graph: graph.in_memory(),
    "user_rows": lambda graph: list(graph.user_rows()),
    "checked": lambda graph: graph.checked(),
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())
@pytest.mark.parametrize("array", ["indices", "weights"])
def test_every_reader_of_a_graph_checks_its_chunks(
    tmp_path: Path, reader: Callable[[CsrGraph], Any], array: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmdiff.diffusion.io.graph_stream.BLOCK_EDGES", 500)
    with chunks_of(4096):
        make_graph(tmp_path / "store", some_lists(2000, 8).lists, Weighting("gaussian", 0.5))
    flip(chunk(tmp_path / "store", array, 3))
    with pytest.raises(Damaged, match=f"array {array}: chunk c.3 does not match its checksum"):
        reader(CsrGraph.open(tmp_path / "store"))
    reader(CsrGraph.open(tmp_path / "store", "none"))


def forge(artifact: Artifact, array: str, values: NDArray[Any]) -> None:
    """Replaces an array, with all checksums, digests and names as if it had been published so."""
    spec = replace(artifact.spec(array), shape=values.shape)
    folder, crcs = artifact.folder / array, []
    assert spec.chunks == artifact.spec(array).chunks
    for number in range(spec.chunks):
        start, stop = spec.rows(number)
        data = values[start:stop].tobytes().ljust(spec.chunk_bytes, b"\0")
        crcs.append(crc32c(data))
        (folder / spec.chunk_file(number)).write_bytes(data + tail(crcs[-1]))
    manifest = replace(artifact.manifest, arrays={**artifact.manifest.arrays, array: ArrayEntry(spec, tuple(crcs))})
    (folder / "zarr.json").write_bytes(encode(spec.zarr_json()))
    (artifact.folder / "zarr.json").write_bytes(manifest.zarr_json())
    name = object_id(manifest.kind, manifest.zarr_json())
    artifact.folder.rename(artifact.folder.with_name(name))
    link = artifact.store.path / artifact.name
    link.unlink()
    link.symlink_to(f"../objects/{name}")


def high_column(graph: CsrGraph) -> NDArray[Any]:
    values = np.array(graph.indices)
    values[len(values) // 2] = graph.nodes
    return values


def far_column(graph: CsrGraph) -> NDArray[Any]:
    values = np.array(graph.indices)
    values[-1] = COLUMN
    return values


def backwards(graph: CsrGraph) -> NDArray[Any]:
    values = np.array(graph.indptr)
    values[10] = values[12] + 1
    return values


def beyond(graph: CsrGraph) -> NDArray[Any]:
    values = np.array(graph.indptr)
    values[10] = 1 << 40
    return values


def negative(graph: CsrGraph) -> NDArray[Any]:
    values = np.array(graph.indptr)
    values[1] = -5
    return values


def twice(graph: CsrGraph) -> NDArray[Any]:
    assert graph.order is not None
    values = np.array(graph.order)
    values[0] = values[1]
    return values


FORGERIES = {
    "column N": ("indices", high_column),
    "largest column": ("indices", far_column),
    "offsets go backwards": ("indptr", backwards),
    "offset beyond the end": ("indptr", beyond),
    "negative offset": ("indptr", negative),
    "row twice": ("order", twice),
}


@pytest.mark.parametrize(("array", "change"), FORGERIES.values(), ids=FORGERIES.keys())
@pytest.mark.parametrize("past_cache", [False, True])
def test_a_graph_with_right_checksums_and_impossible_content_is_not_followed(
    made: Path, array: str, change: Callable[[CsrGraph], NDArray[Any]], past_cache: bool
) -> None:
    artifact = Store.open(made).open_artifact("graph/W")
    forge(artifact, array, change(CsrGraph.from_artifact(artifact)))
    forged = Store.open(made).open_artifact("graph/W")

    def use() -> None:
        graph = CsrGraph.from_artifact(forged)
        stream_reads(graph, past_cache)

    with pytest.raises(Corrupt, match=f"graph/W(, array {array})?: .*(beyond|fit|permutation)"):
        use()
    with pytest.raises(MmdiffError):
        diffuse(made, Request(iterations=2))
    assert Store.open(made).id("scores/diffusion") is None
    assert problems(Store.open(made))


@pytest.mark.parametrize("value", [np.nan, np.inf, -1])
def test_a_forged_scale_that_is_not_finite_gives_no_scores(made: Path, value: float) -> None:
    artifact = Store.open(made).open_artifact("graph/W")
    scale = np.array(artifact.array("scale"))
    scale[::2] = value
    forge(artifact, "scale", scale)
    with pytest.raises(Corrupt, match="graph/W, array scale: values that are negative or not finite"):
        diffuse(made, Request(iterations=2, cols_per_batch=2, alpha=0.8))
    assert Store.open(made).id("scores/diffusion") is None
    assert not (made / "work").exists()


@st.composite
def rows_of(draw: st.DrawFn, nodes: int) -> list[int]:
    """Rows of a graph in any order; some lists have the first and the last row of consecutive ones, and others between them."""
    first = draw(st.integers(0, nodes - 1))
    last = draw(st.integers(first, nodes - 1))
    some = st.lists(st.integers(0, nodes - 1), min_size=max(0, last - first - 1), max_size=max(0, last - first - 1))
    kind = draw(st.sampled_from(["similar", "consecutive", "any"]))
    if kind == "consecutive":
        return list(range(first, last + 1))
    return [first, *draw(some), last] if kind == "similar" else draw(st.lists(st.integers(0, nodes - 1)))


@settings(max_examples=150)
@given(nodes=st.integers(1, 40), k=st.integers(1, 6), seed=st.integers(0, 999), data=st.data())
def test_bad_rows_are_those_that_the_naive_check_finds(nodes: int, k: int, seed: int, data: st.DataObject) -> None:
    graph = some_graph(nodes, k, seed)
    indptr, indices = np.array(graph.indptr), np.array(graph.indices)
    rows = np.array(data.draw(rows_of(nodes)), np.int64)
    entries = [at for row in rows for at in range(graph.indptr[row], graph.indptr[row + 1])] or range(len(indices))
    for _ in range(data.draw(st.integers(0, 2))):
        if data.draw(st.booleans()) and len(indices):
            indices[data.draw(st.sampled_from(entries))] = data.draw(st.sampled_from([nodes, nodes + 1, 0xFFFFFFFF]))
        else:
            indptr[data.draw(st.integers(0, nodes))] = data.draw(st.sampled_from([-1, len(indices) + 1, 0, len(indices)]))

    def offsets_fit(row: int) -> bool:
        return bool(0 <= indptr[row] <= indptr[row + 1] <= len(indices))

    def good(row: int) -> bool:
        return bool((indices[indptr[row] : indptr[row + 1]] & COLUMN < nodes).all())

    expected = next((row for row in rows if not offsets_fit(row)), None)
    if expected is None:
        expected = next((row for row in rows if not good(row)), -1)
    assert bad_row(indptr, indices, rows, len(indices), nodes) == expected

    # The product compares columns as it reads them; its rows are sorted.
    chosen = np.unique(rows)
    forged = GraphArrays(indptr, indices, None, graph.scale)
    source = np.ones(nodes * 3, np.float32)
    out = np.zeros((nodes, 3), np.float32)
    nonzero = multiply_rows(forged, source, 3, chosen, out, chosen, no_update(3).arrays())
    followed = all(offsets_fit(row) and good(row) for row in chosen)
    assert (nonzero == np.count_nonzero(out)) if followed else (nonzero == -1)


def test_rows_that_only_look_consecutive_are_all_checked() -> None:
    indptr, indices = np.arange(0, 22, 2), np.zeros(20, np.uint32)
    indices[14] = 999
    assert bad_row(indptr, indices, np.array([3, 7, 5]), 20, 10) == 7


def test_rows_that_are_no_rows_are_bad() -> None:
    graph = some_graph(10, 3)
    for row in (-1, 10):
        assert bad_row(graph.indptr, graph.indices, np.array([row]), graph.edges, graph.nodes) == row
    with pytest.raises(Damaged, match="the graph: row 10"):
        graph.refuse_bad_rows(np.array([10]))


def test_a_graph_in_memory_is_checked_before_a_kernel_follows_it() -> None:
    graph = some_graph(50, 4)
    indices = np.array(graph.indices)
    indices[7] = 50
    with pytest.raises(Damaged, match="beyond the 50 nodes"):
        stream_reads(replace(graph, indices=indices))


def test_a_graph_that_is_shortened_during_a_diffusion_ends_the_command_with_its_name(made: Path) -> None:
    script = """
import os, sys
from pathlib import Path
from mmdiff.diffusion import prepared, stage
before = prepared._compute
def cut(*args, **kwargs):
    os.truncate(sys.argv[2], 0)
    return before(*args, **kwargs)
prepared._compute = cut
stage.diffuse(Path(sys.argv[1]), stage.Request(iterations=3, plain=True))
"""
    file = chunk(made, "indices", 1)
    done = subprocess.run(
        [sys.executable, "-c", script, str(made), str(file)], capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert str(file) in last or "chunk c.1 cannot be read: the file was shortened" in last
    assert Store.open(made).id("scores/diffusion") is None


def test_the_product_follows_no_offset_that_has_changed_since_it_was_checked() -> None:
    nodes, width = 4000, 2
    indptr = np.arange(nodes + 1) * 3
    indices = np.random.default_rng(0).integers(0, nodes, 3 * nodes).astype(np.uint32)
    graph = GraphArrays(indptr=indptr, indices=indices, weights=None, scale=np.ones(nodes, np.float32))
    source, rows, out = np.ones(nodes * width, np.float32), np.arange(nodes), np.empty((nodes, width), np.float32)
    stop = threading.Event()

    def change() -> None:
        good = indptr[1::7].copy()
        while not stop.is_set():
            indptr[1::7] = 1 << 60
            indptr[1::7] = good

    changing = threading.Thread(target=change)
    changing.start()
    try:
        found = {multiply_rows(graph, source, width, rows, out, rows, no_update(width).arrays()) for _ in range(3000)}
    finally:
        stop.set()
        changing.join()
    assert found <= {-1, nodes * width}
    assert -1 in found

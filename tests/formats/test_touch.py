"""A chunk is compared with its checksum before anything is read from it, and only then."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mmdiff
from mmdiff.formats.errors import BadOption, Damaged
from mmdiff.formats.storage.mapped_array import MappedArray
from mmdiff.formats.storage.mapping import map_of, touch, touch_all, touch_entries
from mmdiff.formats.store import checked_files
from mmdiff.formats.store.manifest import Recipe
from mmdiff.formats.store.publish import Publication
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.runtime.find_or_make import input_of
from tests.support.stores import SMALL_CHUNKS, chunks_of, publish, values_for

ROWS, WIDTH = 3000, 7


@pytest.fixture
def artifact(quick_folder: Path) -> Artifact:
    """An artifact with a matrix, a vector and a sequence of planes, each in several chunks."""
    with chunks_of(SMALL_CHUNKS):
        arrays = {
            "matrix": values_for((ROWS, WIDTH), "float32"),
            "vector": values_for((6000,), "int64"),
            "planes": values_for((3, 700, 5), "float32"),
        }
        return publish(quick_folder / "store", "models/x", arrays)


def chunk_of(artifact: Artifact, array: str, chunk: int) -> Path:
    return artifact.folder / array / artifact.spec(array).chunk_file(chunk)


def damage(artifact: Artifact, array: str, chunk: int) -> None:
    file = chunk_of(artifact, array, chunk)
    content = bytearray(file.read_bytes())
    content[100] ^= 4
    file.write_bytes(content)


def unchecked(values: Any) -> set[int]:
    flat = map_of(values._values if isinstance(values, MappedArray) else values)
    assert flat is not None
    return flat.unchecked


def test_mapping_reads_nothing_and_a_touch_only_its_own_chunks(artifact: Artifact) -> None:
    mapped, spec = artifact.mapped("matrix"), artifact.spec("matrix")
    assert unchecked(mapped) == set(range(spec.chunks))
    border = spec.rows_per_chunk
    assert touch(mapped, border - 1, border + 1)
    assert unchecked(mapped) == set(range(2, spec.chunks))
    assert not touch(mapped, 0, border)
    assert not touch(mapped, 5, 5)
    np.testing.assert_array_equal(touch_all(mapped), values_for((ROWS, WIDTH), "float32"))
    assert not unchecked(mapped)


@given(ranges=st.lists(st.tuples(st.integers(0, 6000), st.integers(0, 300)), max_size=8))
def test_scattered_ranges_touch_just_the_chunks_that_they_lie_in(tmp_path_factory: Any, ranges: list[tuple[int, int]]) -> None:
    folder = tmp_path_factory.getbasetemp() / "scattered"
    with chunks_of(4096):
        if not folder.exists():
            publish(folder, "models/x", {"vector": values_for((6000,), "int64")})
    mapped = Store.open(folder).open_artifact("models/x", possible=False).mapped("vector")
    flat = map_of(mapped)
    assert flat is not None
    flat.unchecked = set(range(flat.spec.chunks))
    flat._locks = {chunk: threading.Lock() for chunk in flat.unchecked}
    starts = np.array([start for start, _ in ranges], np.int64)
    stops = np.minimum(starts + np.array([length for _, length in ranges], np.int64), 6000)
    needed = {entry // flat.spec.rows_per_chunk for a, b in zip(starts, stops, strict=True) for entry in range(a, b)}
    assert touch_entries(mapped, starts, stops) == bool(needed)
    assert unchecked(mapped) == set(range(flat.spec.chunks)) - needed


KEYS: list[Any] = [
    5,
    -1,
    slice(10, 20),
    slice(None, None, 700),
    slice(20, 10),
    (slice(3, 9), 2),
    (7, 3),
    (..., 0),
    None,
    [1, 2, 2999],
    [-1, 0],
    np.array([5, 1700]),
    np.arange(ROWS) % 900 == 0,
    (np.array([3, 4]), 1),
    (slice(None), [0, 2]),
]


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_indexing_checks_what_it_reads_and_gives_what_numpy_gives(artifact: Artifact, key: Any) -> None:
    array, expected = artifact["matrix"], values_for((ROWS, WIDTH), "float32")[key]
    found = array[key]
    np.testing.assert_array_equal(found, expected)
    read = np.unique(np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH)[key]) // WIDTH // artifact.spec("matrix").rows_per_chunk
    assert not unchecked(array) & set(read.tolist()), "a chunk was read without a check"


def test_one_row_of_many_chunks_is_checked_alone(artifact: Artifact) -> None:
    for key in (5, [5], slice(5, 6), np.arange(ROWS) == 5):
        array = artifact["matrix"]
        array[key]
        assert len(unchecked(array)) == artifact.spec("matrix").chunks - 1


def test_a_mapped_array_works_where_numpy_takes_arrays(artifact: Artifact) -> None:
    array, expected = artifact["matrix"], values_for((ROWS, WIDTH), "float32")
    assert (array.shape, array.ndim, array.size, len(array)) == ((ROWS, WIDTH), 2, ROWS * WIDTH, ROWS)
    assert array.dtype == np.float32
    assert array.nbytes == expected.nbytes
    assert repr(array) == "MappedArray(3000 x 7 float32)"
    np.testing.assert_array_equal(array + 1, expected + 1)
    np.testing.assert_array_equal(2 * array, 2 * expected)
    assert (array == expected).all()
    np.testing.assert_array_equal(np.concatenate([array, array]), np.concatenate([expected, expected]))
    assert array.sum() == expected.sum()
    assert array.astype(np.float64).dtype == np.float64
    assert np.asarray(array, np.float16).dtype == np.float16
    assert not np.asarray(array).flags.writeable
    assert np.shares_memory(np.asarray(array), array[5:10])
    assert np.array(array).flags.writeable
    np.testing.assert_array_equal(np.stack(list(artifact["vector"])), values_for((6000,), "int64"))
    np.testing.assert_array_equal(artifact["planes"][1, 5:9], values_for((3, 700, 5), "float32")[1, 5:9])
    np.testing.assert_array_equal(artifact["planes"][[2, 0]], values_for((3, 700, 5), "float32")[[2, 0]])
    with pytest.raises(ValueError, match="without a copy"):
        array.__array__(np.float16, copy=False)
    with pytest.raises(AttributeError):
        array.__array_interface__  # noqa: B018
    with pytest.raises(IndexError):
        array[ROWS]
    with pytest.raises(IndexError):
        array[[ROWS]]


def test_an_array_without_rows_has_nothing_to_check(quick_folder: Path) -> None:
    empty = publish(quick_folder / "store", "models/x", {"values": np.empty((0, 3), np.float32)})["values"]
    assert empty[:].shape == (0, 3)
    assert not touch_entries(np.asarray(empty), np.empty(0, np.int64), np.empty(0, np.int64))


@pytest.mark.parametrize("array", ["matrix", "vector", "planes"])
def test_every_way_to_a_damaged_chunk_is_refused(artifact: Artifact, array: str) -> None:
    damage(artifact, array, 1)
    ways: list[Callable[[], Any]] = [
        lambda: artifact.array(array),
        lambda: np.asarray(artifact[array]),
        lambda: artifact[array] + 1,
        lambda: artifact[array].sum(),
        lambda: artifact[array][:],
        lambda: list(artifact[array]),
        lambda: artifact.checked("all"),
    ]
    for way in ways:
        with pytest.raises(Damaged, match=rf"models/x, array {array}: chunk .* does not match its checksum"):
            way()
    trusted = artifact.checked("none")
    assert trusted.array(array).shape == artifact.spec(array).shape


def test_verify_says_when_a_store_is_checked(quick_folder: Path) -> None:
    path, name, values = quick_folder / "store", "descriptors/background", values_for((ROWS, WIDTH), "float32")
    with chunks_of(SMALL_CHUNKS):
        damage(publish(path, name, {"vectors": values}), "vectors", 0)
    assert (mmdiff.open(path)[name]["vectors"][ROWS - 1] == values[-1]).all()
    with pytest.raises(Damaged):
        mmdiff.open(path)[name]["vectors"][0]
    with pytest.raises(Damaged):
        mmdiff.open(path, verify="all")[name]
    mmdiff.open(path, verify="none")[name]["vectors"][0]
    with pytest.raises(BadOption, match="verify='some'"):
        mmdiff.open(path, verify="some")  # type: ignore[arg-type]


def test_a_chunk_that_is_cut_under_its_map_is_refused_when_it_is_touched(artifact: Artifact) -> None:
    mapped = artifact.mapped("matrix")
    os.truncate(chunk_of(artifact, "matrix", 1), 0)
    with pytest.raises(Damaged, match="the file was shortened"):
        touch_all(mapped)


CUTS = """
import os, sys
import numpy as np
from pathlib import Path
from mmdiff.formats.store.store import Store
mapped = Store.open(Path(sys.argv[1])).open_artifact("models/x", possible=False).array("matrix")
os.truncate(sys.argv[2], 0)
print(mapped.sum())
"""


def test_a_file_that_is_shortened_while_in_use_ends_the_process_with_its_name(artifact: Artifact) -> None:
    file = chunk_of(artifact, "matrix", 1)
    done = subprocess.run(
        [sys.executable, "-c", CUTS, str(artifact.folder.parent.parent), str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done
    assert done.stderr.startswith(f"mmdiff: {file}: the file was shortened while it was in use")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


ELSEWHERE = """
import faulthandler, mmap, os, sys
faulthandler.enable()
from pathlib import Path
from mmdiff.formats.store.store import Store
mapped = Store.open(Path(sys.argv[1])).open_artifact("models/x", possible=False).array("matrix")
own = open(sys.argv[2], "w+b")
own.write(bytes(8192)); own.flush()
other = mmap.mmap(own.fileno(), 8192)
os.truncate(sys.argv[2], 0)
print(other[5000])
"""


def test_a_bus_error_elsewhere_goes_to_the_handler_before(artifact: Artifact, tmp_path: Path) -> None:
    command = [sys.executable, "-c", ELSEWHERE, str(artifact.folder.parent.parent), str(tmp_path / "other")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -7
    assert "Fatal Python error: Bus error" in done.stderr
    assert "mmdiff:" not in done.stderr


def test_an_old_file_is_checked_once_in_a_process_and_again_when_it_changed(artifact: Artifact) -> None:
    past = time.time_ns() - 60_000_000_000
    for chunk in range(artifact.spec("vector").chunks):
        os.utime(chunk_of(artifact, "vector", chunk), ns=(past, past))
    assert unchecked(artifact.mapped("vector"))
    artifact.array("vector")
    assert not unchecked(artifact.mapped("vector"))
    damage(artifact, "vector", 1)
    assert unchecked(artifact.mapped("vector")) == {1}


def test_a_file_that_was_just_written_is_checked_again(artifact: Artifact) -> None:
    artifact.array("vector")
    assert len(unchecked(artifact.mapped("vector"))) == artifact.spec("vector").chunks


def test_nothing_is_published_from_an_input_that_changed_while_it_was_in_use(artifact: Artifact) -> None:
    path = artifact.folder.parent.parent
    made_from = Recipe("other", 1, {}, {"x": input_of(artifact)})

    def disturbed_run() -> None:
        with Publication(path, ["models/y"], "") as run:
            draft = run.draft("models/y", made_from)
            draft.values("doubled", 2 * artifact.array("vector"))
            damage(artifact, "vector", 1)
            run.publish(draft, {}, {"command": "a test"})

    with pytest.raises(Damaged, match=r"vector/c\.1: changed while it was in use"):
        disturbed_run()
    assert Store.open(path).names() == ["models/x"]
    assert not (path / "work").exists(), "the draft may come of damaged bytes"
    # A later run answers for what it reads itself.
    with Publication(path, ["models/y"], "") as run:
        draft = run.draft("models/y", made_from)
        draft.values("doubled", np.arange(5))
        run.publish(draft, {}, {"command": "a test"})


def test_an_input_that_was_replaced_or_removed_has_not_changed(artifact: Artifact) -> None:
    artifact.array("vector")
    objects, file = artifact.folder.parent, chunk_of(artifact, "vector", 1)
    content = file.read_bytes()
    file.rename(file.with_name("kept"))
    assert not list(checked_files.changed_files(objects, [artifact.folder.name]))
    file.write_bytes(content)
    assert not list(checked_files.changed_files(objects, [artifact.folder.name]))


def test_threads_that_meet_at_a_chunk_check_it_once(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = artifact.mapped("matrix")
    flat = map_of(mapped)
    assert flat is not None
    checked: list[int] = []
    check = flat._check

    def slowly(chunk: int) -> None:
        time.sleep(0.01)
        checked.append(chunk)
        check(chunk)

    monkeypatch.setattr(flat, "_check", slowly)
    threads = [threading.Thread(target=touch, args=(mapped, 0, ROWS)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(checked) == list(range(flat.spec.chunks))


def test_indices_out_of_range_are_refused_by_their_row(quick_folder: Path) -> None:
    arrays = {"below": np.array([[0, 1], [4, 2]], np.uint32), "labels": np.array([0, -1, 3], np.int32)}
    artifact = publish(quick_folder / "store", "models/x", arrays)
    assert artifact.index_array("below", 5).tolist() == [[0, 1], [4, 2]]
    assert artifact.index_array("labels", 4, none=-1).tolist() == [0, -1, 3]
    with pytest.raises(Damaged, match=r"models/x, array below, row 1: \[4 2\] is not below 4"):
        artifact.index_array("below", 4)
    for none in (None, -2):
        with pytest.raises(Damaged, match="array labels, row 1"):
            artifact.index_array("labels", 4, none=none)


@pytest.mark.parametrize("key", [[], [0.5], np.array(["a"])])
def test_a_key_that_selects_no_rows_is_left_to_numpy(artifact: Artifact, key: Any) -> None:
    mapped, plain = artifact["matrix"], values_for((ROWS, WIDTH), "float32")
    try:
        expected = plain[key]
    except IndexError as error:
        with pytest.raises(IndexError, match=re.escape(str(error))):
            mapped[key]
    else:
        np.testing.assert_array_equal(mapped[key], expected)

"""A chunk is compared with its checksum before anything is read from it, and only then."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mmdiff
from mmdiff.formats.errors import BadOption, Damaged, DiskFull
from mmdiff.formats.storage.mapped_array import MappedArray
from mmdiff.formats.storage.mapping import map_of, touch, touch_all, touch_entries
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


def test_scattered_ranges_of_a_part_of_an_array_touch_the_chunks_of_that_part(artifact: Artifact) -> None:
    mapped, per_chunk = artifact.mapped("vector"), artifact.spec("vector").rows_per_chunk
    before = unchecked(mapped).copy()
    assert touch_entries(mapped[2 * per_chunk :], np.array([0, 5]), np.array([1, per_chunk]))
    assert before - unchecked(mapped) == {2}


def test_an_array_whose_last_chunk_another_thread_checks_meanwhile_is_checked(artifact: Artifact) -> None:
    class CheckedMeanwhile(set[int]):
        """Chunks that are all checked by another thread, right after they were found to be unchecked."""

        def __bool__(self) -> bool:
            found = len(self) > 0
            self.clear()
            return found

    mapped = artifact.mapped("matrix")
    flat = map_of(mapped)
    assert flat is not None
    flat.unchecked = CheckedMeanwhile(flat.unchecked)
    assert touch_all(mapped) is mapped


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
    True,
    np.True_,
    (True, 5),
    np.int8(127),
    np.int16(-1),
    (np.int8(127), np.uint8(3)),
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


def test_a_mapped_array_is_true_and_contains_values_as_numpy_says(quick_folder: Path, artifact: Artifact) -> None:
    zero = publish(quick_folder / "zero", "models/x", {"value": np.zeros(1, np.int64)})["value"]
    assert not zero
    with pytest.raises(ValueError, match="ambiguous"):
        bool(artifact["vector"])
    matrix = values_for((ROWS, WIDTH), "float32")
    assert matrix[7, 3] in artifact["matrix"]
    assert 1000 not in artifact["matrix"]


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


def test_a_row_number_that_is_the_largest_of_its_type_is_checked(quick_folder: Path) -> None:
    with chunks_of(4096):
        artifact = publish(quick_folder / "store", "models/x", {"vector": values_for((40_000,), "uint8")})
    for row in (np.int8(127), np.uint8(255), np.int16(32_767)):
        array = artifact["vector"]
        assert array[row] == values_for((40_000,), "uint8")[row]
        assert len(unchecked(array)) == artifact.spec("vector").chunks - 1


def pickled(array: Any) -> Any:
    """The array that a pickle gives back."""
    function, arguments = array.__reduce_ex__(4)
    return function(*arguments)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
def test_a_copy_of_a_mapped_array_is_an_array_of_checked_values(artifact: Artifact, copied: Callable[[Any], Any]) -> None:
    found = copied(artifact["matrix"])
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, values_for((ROWS, WIDTH), "float32"))
    assert found.flags.writeable
    damage(artifact, "matrix", 1)
    with pytest.raises(Damaged):
        copied(artifact["matrix"])


def test_a_shallow_copy_of_a_mapped_array_is_mapped_too(artifact: Artifact) -> None:
    found = copy.copy(artifact["matrix"])
    assert isinstance(found, MappedArray)
    assert unchecked(found)


def test_a_mapped_array_is_not_written_to(artifact: Artifact) -> None:
    array, plain = artifact["vector"], values_for((6000,), "int64")
    function: Any = np.add
    divided: Any = np.divmod
    ways: list[Callable[[], Any]] = [
        lambda: array.__iadd__(1),
        lambda: function(plain, 1, out=array),
        lambda: divided(plain, 7, out=(np.empty(6000, np.int64), array)),
        lambda: function.reduce(plain, out=array),
        lambda: function.at(array, [0], 1),
    ]
    for way in ways:
        with pytest.raises(ValueError, match="read-only"):
            way()
    np.testing.assert_array_equal(array, plain)


def test_a_mapped_array_selects_where_a_function_of_numpy_applies(artifact: Artifact) -> None:
    chosen = publish(artifact.folder.parent.parent, "models/y", {"chosen": values_for((6000,), "uint8") % 2})["chosen"]
    plain, where = values_for((6000,), "int64"), (values_for((6000,), "uint8") % 2).astype(bool)
    expected = np.add(plain, 1, out=np.zeros(6000, np.int64), where=where)
    with pytest.raises(TypeError, match="bool"):
        np.add(plain, 1, out=np.zeros(6000, np.int64), where=chosen)
    found = np.add(plain, 1, out=np.zeros(6000, np.int64), where=chosen == 1)
    np.testing.assert_array_equal(found, expected)


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
    age(artifact, "vector")
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


def age(artifact: Artifact, array: str) -> None:
    """Makes the chunks of an array old enough to be checked only once in a process."""
    past = time.time_ns() - 60_000_000_000
    for chunk in range(artifact.spec(array).chunks):
        os.utime(chunk_of(artifact, array, chunk), ns=(past, past))


def run_from(artifact: Artifact, name: str, during: Callable[[], None]) -> None:
    """A run that doubles an input, and is disturbed after it has checked it."""
    with Publication(artifact.folder.parent.parent, [name], "") as run:
        draft = run.draft(name, Recipe("other", 1, {"name": name}, {"x": input_of(artifact)}))
        values = artifact.array("vector")
        during()
        draft.values("doubled", 2 * values)
        run.link({name: run.publish(draft, {}, {"command": "a test"})})


def test_a_later_run_of_a_process_notices_an_input_that_changes(artifact: Artifact) -> None:
    age(artifact, "vector")
    run_from(artifact, "models/y", lambda: None)
    with pytest.raises(Damaged, match=r"vector/c\.1: changed while it was in use"):
        run_from(artifact, "models/z", lambda: damage(artifact, "vector", 1))
    assert Store.open(artifact.folder.parent.parent).names() == ["models/x", "models/y"]


def test_a_run_that_ends_meanwhile_does_not_make_another_forget_what_it_checked(artifact: Artifact, quick_folder: Path) -> None:
    def disturb() -> None:
        publish(quick_folder / "another", "models/x", {"x": np.arange(5)})
        run_from(artifact, "models/z", lambda: None)
        damage(artifact, "vector", 1)

    with pytest.raises(Damaged, match=r"vector/c\.1: changed while it was in use"):
        run_from(artifact, "models/y", disturb)
    assert Store.open(artifact.folder.parent.parent).names() == ["models/x", "models/z"]


def test_an_input_that_changes_between_its_check_and_the_run_is_refused_at_once(artifact: Artifact) -> None:
    artifact.array("vector")
    damage(artifact, "vector", 1)
    begun: list[str] = []
    with pytest.raises(Damaged, match=r"vector/c\.1: changed while it was in use"):
        run_from(artifact, "models/y", lambda: begun.append("y"))
    with pytest.raises(Damaged, match="does not match its checksum"):
        run_from(artifact, "models/y", lambda: begun.append("y"))
    assert not begun


@pytest.mark.parametrize("end", [KeyboardInterrupt(), DiskFull("full"), MemoryError()], ids=repr)
@pytest.mark.parametrize("changed", [False, True])
def test_a_draft_of_an_input_that_changed_is_not_kept_however_the_run_ends(
    artifact: Artifact, end: BaseException, changed: bool
) -> None:
    path = artifact.folder.parent.parent

    def interrupted() -> None:
        with Publication(path, ["models/y"], "") as run:
            draft = run.draft("models/y", Recipe("other", 1, {}, {"x": input_of(artifact)}))
            draft.values("doubled", 2 * artifact.array("vector"))
            if changed:
                damage(artifact, "vector", 1)
            raise end

    with pytest.raises(type(end)):
        interrupted()
    assert (path / "work" / "models.y" / "object").exists() is not changed


def test_an_input_that_was_replaced_or_removed_has_not_changed(artifact: Artifact) -> None:
    file = chunk_of(artifact, "vector", 1)
    content = file.read_bytes()

    def replace() -> None:
        file.rename(file.with_name("kept"))
        file.write_bytes(content)

    run_from(artifact, "models/y", replace)
    run_from(artifact, "models/z", file.unlink)


@pytest.mark.parametrize("replaced", [False, True])
def test_chunk_whose_file_was_removed_or_replaced_is_checked_in_the_map(artifact: Artifact, replaced: bool) -> None:
    mapped, file = artifact.mapped("vector"), chunk_of(artifact, "vector", 1)
    content = file.read_bytes()
    file.unlink()
    if replaced:
        file.write_bytes(bytes(len(content) - 4) + content[-4:])
    touch(mapped, 0, len(mapped))
    np.testing.assert_array_equal(mapped, values_for((len(mapped),), mapped.dtype.name))


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
    with pytest.raises(Damaged, match=r"models/x, array below, row 1: 4 is not from 0 to 3\."):
        artifact.index_array("below", 4)
    with pytest.raises(Damaged, match=r"array labels, row 1: -1 is not from 0 to 3\."):
        artifact.index_array("labels", 4)
    with pytest.raises(Damaged, match=r"array labels, row 1: -1 is not from 0 to 3, nor -2\."):
        artifact.index_array("labels", 4, none=-2)


def test_long_rows_of_indices_are_checked_in_little_memory(quick_folder: Path) -> None:
    values = np.zeros((4000, 1000), np.uint32)
    values[-1, -1] = 7
    artifact = publish(quick_folder / "store", "models/x", {"lists": values})
    tracemalloc.start()
    try:
        artifact.index_array("lists", 8, none=9)
        assert tracemalloc.get_traced_memory()[1] < values.size
    finally:
        tracemalloc.stop()
    with pytest.raises(Damaged, match="array lists, row 3999: 7 is not from 0 to 6, nor 9"):
        artifact.index_array("lists", 7, none=9)


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

"""An array is one address range over all of its chunk files: without a copy, and mapped exactly as long as it is in use."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mmdiff.formats.errors import StoreError
from mmdiff.formats.storage import mapping
from mmdiff.formats.storage.arrays import ArraySpec
from mmdiff.formats.storage.mapping import map_chunks
from mmdiff.formats.store.store import Artifact, Store
from tests.support.stores import SMALL_CHUNKS, chunks_of, publish, values_for


def mapped_files(array: NDArray[Any]) -> list[str]:
    """The files mapped at the addresses of the array, in order; fails if there is anything else in between."""
    start, stop = array.ctypes.data, array.ctypes.data + array.nbytes
    files = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, permissions, _, _, _, *path = line.split(maxsplit=5)
        low, high = (int(end, 16) for end in span.split("-"))
        if low < stop and start < high:
            assert permissions == "r--s", line
            assert low == start
            start = high
            files.append(path[0])
    assert start >= stop or not files
    return files


@pytest.fixture
def artifact(quick_folder: Path) -> Artifact:
    with chunks_of(SMALL_CHUNKS):
        return publish(quick_folder / "store", "models/x", {"values": values_for((3000, 7), "float32")})


def test_array_is_the_chunk_files_side_by_side_and_not_a_copy(artifact: Artifact) -> None:
    mapped = artifact.array("values")
    spec = artifact.spec("values")
    assert spec.chunks == 3
    assert [Path(file).name for file in mapped_files(mapped)] == [spec.chunk_file(chunk) for chunk in range(spec.chunks)]


def test_array_cannot_be_written_to(artifact: Artifact) -> None:
    mapped = artifact.array("values")
    with pytest.raises(ValueError, match="read-only"):
        mapped[0, 0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        mapped.flags.writeable = True


def test_map_outlives_its_files_and_the_artifact(quick_folder: Path, artifact: Artifact) -> None:
    mapped = artifact.array("values")
    del artifact
    shutil.rmtree(quick_folder / "store")
    gc.collect()
    np.testing.assert_array_equal(mapped, values_for((3000, 7), "float32"))


def test_address_range_is_given_back_with_the_last_array_over_it(artifact: Artifact) -> None:
    mapped = artifact.array("values")
    piece = mapped[100:200, 3]
    files = mapped_files(mapped)
    address, size = mapped.ctypes.data, mapped.nbytes
    del mapped
    gc.collect()
    np.testing.assert_array_equal(piece, values_for((3000, 7), "float32")[100:200, 3])
    assert len(files) == 3
    maps = Path("/proc/self/maps").read_text()
    assert all(file in maps for file in files)
    del piece
    gc.collect()
    maps = Path("/proc/self/maps").read_text()
    assert not any(file in maps for file in files), f"{size} bytes at {address:x} are still mapped"


def test_five_hundred_chunk_files_map_as_one(quick_folder: Path) -> None:
    values = values_for((500 * 512 - 100,), "int64")
    with chunks_of(4096):
        artifact = publish(quick_folder / "store", "models/x", {"values": values})
    mapped = artifact.array("values")
    assert artifact.spec("values").chunks == 500
    assert len(mapped_files(mapped)) == 500
    np.testing.assert_array_equal(mapped, values)


def test_array_of_many_gigabytes_maps_without_being_read(tmp_path: Path) -> None:
    spec = ArraySpec((3 * (1 << 30), 4), "float32", 1 << 28)
    folder = tmp_path / "sparse"
    folder.mkdir()
    descriptors = []
    for chunk in range(spec.chunks):
        stream = (folder / spec.chunk_file(chunk)).open("w+b")
        stream.truncate(spec.file_bytes)
        stream.seek(0)
        stream.write(np.float32(chunk + 1).tobytes())
        stream.flush()
        descriptors.append(stream)
    mapped = map_chunks(spec, (stream.fileno() for stream in descriptors))
    for stream in descriptors:
        stream.close()
    assert mapped.nbytes == 48 << 30
    starts = [spec.rows(chunk)[0] for chunk in range(spec.chunks)]
    np.testing.assert_array_equal(mapped[starts, 0], np.arange(1, spec.chunks + 1))


def test_array_that_is_too_large_for_the_machine_is_an_error_and_not_a_crash() -> None:
    spec = ArraySpec((1 << 46, 1), "float32", 1 << 46)
    with pytest.raises(StoreError, match="cannot map"):
        map_chunks(spec, [])


def test_array_without_rows_is_read_only_too(quick_folder: Path) -> None:
    artifact = publish(quick_folder / "store", "models/x", {"values": np.empty((0, 3), np.float32)})
    mapped = artifact.array("values")
    assert mapped.shape == (0, 3)
    assert not mapped.flags.writeable


READS_AT_EXIT = """
import atexit, sys
from pathlib import Path
kept = []
atexit.register(lambda: sys.stdout.write(str(int(kept[0].sum()))))
from mmdiff.formats.store.store import Store
kept.append(Store.open(Path(sys.argv[1])).open_artifact("models/x", possible=False).array("values"))
"""


def test_array_can_still_be_read_while_the_interpreter_exits(artifact: Artifact) -> None:
    store = artifact.folder.parent.parent
    assert Store.open(store).names() == ["models/x"]
    done = subprocess.run([sys.executable, "-c", READS_AT_EXIT, str(store)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == int(values_for((3000, 7), "float32").sum())


def test_where_pages_cannot_be_populated_they_are_announced(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def old_system(_address: int, _size: int, advice: int) -> int:
        asked.append(advice)
        return -1 if advice == mapping._MADV_POPULATE_READ else 0

    mapped = artifact.array("values")
    with monkeypatch.context() as patched:
        patched.setattr(mapping._libc, "madvise", old_system)
        mapping.request(mapped, 0, len(mapped))
    assert asked == [mapping._MADV_POPULATE_READ, mapping.MADV_WILLNEED]
    np.testing.assert_array_equal(mapped, values_for((3000, 7), "float32"))

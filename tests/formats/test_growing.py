"""Growing arrays: after a failed write nothing later counts, so that the next run continues from what is really there."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmdiff.formats.errors import DiskFull, MmdiffError
from mmdiff.formats.storage import seam
from mmdiff.formats.storage.crc import crc32c
from mmdiff.formats.store.growing import Growth
from mmdiff.formats.store.manifest import Json, encode
from mmdiff.formats.store.publish import Draft
from tests.support.stores import chunks_of, recipe

CHUNK = 8192
PIECES = [np.arange(start, start + 1500, dtype=np.uint32) for start in range(0, 15_000, 1500)]


def draft(folder: Path) -> Draft:
    (folder / "work").mkdir(exist_ok=True)
    return Draft(folder / "work", "graph/W", recipe("graph"), {})


def grow(folder: Path) -> None:
    """Appends all pieces that the last checkpoint does not have, with a checkpoint after each."""
    with Growth(draft(folder), {"indices": "uint32"}) as growth:
        for number in range(growth.note.get("pieces", 0), len(PIECES)):
            growth.append("indices", PIECES[number])
            growth.checkpoint({"pieces": number + 1})
        growth.close()


def content(folder: Path) -> np.ndarray[Any, Any]:
    files = draft(folder).folder_of("indices").glob("c.*")
    chunks = sorted((file for file in files if file.suffix != ".part"), key=lambda file: int(file.name.split(".")[1]))
    return np.concatenate([np.frombuffer(file.read_bytes()[:CHUNK], np.uint32) for file in chunks])[: sum(map(len, PIECES))]


def descriptors(folder: Path) -> list[str]:
    found = [entry.readlink() if entry.is_symlink() else entry for entry in Path("/proc/self/fd").iterdir()]
    return [str(path) for path in found if path.is_relative_to(folder)]


@pytest.mark.parametrize("name", ["pwrite", "fsync", "ftruncate"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_write_that_fails_once_leaves_no_gap(
    quick_folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    """A checkpoint after the failed write would vouch for an array that lacks a piece, and the next run would publish it."""
    original = getattr(os, name)
    for at in range(40):
        folder = quick_folder / f"{at}"
        folder.mkdir()
        calls = 0

        def failing(*args: Any, at: int = at) -> Any:
            nonlocal calls
            calls += 1
            if calls == at + 1:
                raise OSError(number, os.strerror(number))
            return original(*args)

        with chunks_of(CHUNK), monkeypatch.context() as patched:
            patched.setattr(os, name, failing)
            try:
                grow(folder)
            except (MmdiffError, OSError):
                assert descriptors(folder) == []
            patched.undo()
            grow(folder)
            np.testing.assert_array_equal(content(folder), np.concatenate(PIECES), err_msg=f"{name} {at}")
        if calls <= at:
            return
    raise AssertionError("the array was never written undisturbed")


def checkpoint_at(folder: Path, length: int) -> None:
    """Leaves a checkpoint after so many values, as an interrupted run does."""
    with chunks_of(CHUNK), Growth(draft(folder), {"indices": "uint32"}) as growth:
        growth.append("indices", np.arange(length, dtype=np.uint32))
        growth.checkpoint({"length": length})
        # Waits for the disk like `close`, which would also end the partial chunk.
        growth._settle()


def continued_note(folder: Path) -> Json:
    with chunks_of(CHUNK), Growth(draft(folder), {"indices": "uint32"}) as growth:
        return growth.note


@pytest.mark.parametrize("length", [CHUNK // 4, CHUNK // 2, CHUNK // 4 + 10])
def test_a_checkpoint_within_or_between_chunks_is_continued(quick_folder: Path, length: int) -> None:
    checkpoint_at(quick_folder, length)
    assert continued_note(quick_folder) == {"length": length}


def test_a_checkpoint_whose_partial_chunk_was_changed_is_not_continued(quick_folder: Path) -> None:
    checkpoint_at(quick_folder, 100)
    [part] = draft(quick_folder).folder_of("indices").glob("c.0*")
    part.write_bytes(b"torn")
    assert continued_note(quick_folder) == {}


def test_a_checkpoint_whose_full_chunk_was_shortened_is_not_continued(quick_folder: Path) -> None:
    checkpoint_at(quick_folder, CHUNK // 2)
    os.truncate(draft(quick_folder).folder_of("indices") / "c.1", CHUNK)
    assert continued_note(quick_folder) == {}


@pytest.mark.parametrize("places", [{}, {"indices": 5}, {"indices": ["a", 0]}, {"indices": [-1, 0]}, []])
def test_a_checkpoint_that_does_not_fit_the_arrays_is_not_continued(quick_folder: Path, places: Any) -> None:
    content = {"places": places, "note": {"pieces": 3}}
    seam.write_file(draft(quick_folder).checkpoint, encode({**content, "crc32c": crc32c(encode(content))}))
    with Growth(draft(quick_folder), {"indices": "uint32"}) as growth:
        assert growth.note == {}


def test_a_checkpoint_that_cannot_be_restored_leaves_no_file_open(quick_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with chunks_of(CHUNK):
        with Growth(draft(quick_folder), {"indices": "uint32"}) as growth:
            growth.append("indices", PIECES[0])
            growth.checkpoint({"pieces": 1})
            growth.close()
        refusal = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        monkeypatch.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(refusal))
        with pytest.raises(DiskFull):
            Growth(draft(quick_folder), {"indices": "uint32"})
    assert descriptors(quick_folder) == []


@pytest.mark.parametrize("rows", [10, 256, 300, 1500])
def test_rows_of_several_values_are_continued_within_and_between_chunks(quick_folder: Path, rows: int) -> None:
    """Chunks of 8,192 bytes hold 256 rows of eight values."""
    values = np.arange(1600 * 8, dtype=np.float32).reshape(-1, 8)
    with chunks_of(CHUNK):
        with Growth(draft(quick_folder), {"lists": "float32"}, {"lists": 8}) as growth:
            growth.append("lists", values[:rows])
            growth.checkpoint({"rows": rows})
            growth.append("lists", values[rows : rows + 50] + 1)
            growth._settle()
        with Growth(draft(quick_folder), {"lists": "float32"}, {"lists": 8}) as growth:
            assert growth.note == {"rows": rows}
            growth.append("lists", values[rows:])
            growth.close()
        array = growth.arrays["lists"]
        assert (array.spec.shape, array.spec.rows_per_chunk) == ((1600, 8), 256)
        np.testing.assert_array_equal(array.mapped(), values)


def test_few_rows_of_several_values_get_a_smaller_chunk(quick_folder: Path) -> None:
    with Growth(draft(quick_folder), {"lists": "uint32"}, {"lists": 30}) as growth:
        growth.append("lists", np.ones((700, 30), np.uint32))
        growth.close()
    spec = growth.arrays["lists"].spec
    assert (spec.shape, spec.chunks, spec.chunk_bytes) == ((700, 30), 1, 1024 * 120)

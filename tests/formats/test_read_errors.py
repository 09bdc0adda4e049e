"""A disk that fails to read: the file is named, and a draft starts again where its checkpoint cannot be read."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import socket
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmdiff.formats.errors import Corrupt, DiskError, DiskFull
from mmdiff.formats.storage import mapping
from mmdiff.formats.store import shapes
from mmdiff.formats.store.growing import Growth
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import Publication
from mmdiff.formats.store.store import Store
from mmdiff.formats.store.verify import crc_of_complete_chunk, verify, verify_frame
from mmdiff.kinds import KINDS
from tests.support.stores import SMALL_CHUNKS, chunks_of, problems, publish, recipe

SEEDS, NAME = "descriptors/seeds", "models/x"


def failing(*_: Any) -> Any:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_chunk_that_a_failing_disk_does_not_read_names_the_disk(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pread", failing)
    with pytest.raises(DiskError, match=r"vectors/c\.0\.0: cannot read the file \(Input/output error\).* check the disk"):
        store.open_artifact(SEEDS).array("vectors")


def test_store_whose_folder_a_failing_disk_does_not_read_names_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    status = os.stat

    def refusing(path: Any, **more: Any) -> os.stat_result:
        return failing() if str(path).startswith(str(store.path)) else status(path, **more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", refusing)
        with pytest.raises(DiskError, match=r"store: cannot open the store \(Input/output error\).* check the disk"):
            Store.open(store.path)


READ_REFUSALS = {
    errno.EMFILE: "raise `ulimit -n`",
    errno.ENFILE: "end other programs",
    errno.EACCES: "permissions",
    errno.EIO: "check the disk",
}


@pytest.mark.parametrize("file", ["zarr.json", "c.0.0"])
@pytest.mark.parametrize("code", READ_REFUSALS, ids=errno.errorcode.get)
def test_file_that_the_system_refuses_to_open_is_not_called_damaged(
    store: Store, monkeypatch: pytest.MonkeyPatch, code: int, file: str
) -> None:
    opens, artifact = os.open, store.open_artifact(SEEDS)

    def refusing(path: Any, *args: Any, **more: Any) -> int:
        if Path(path).name == file:
            raise OSError(code, os.strerror(code))
        return opens(path, *args, **more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refusing)
        with pytest.raises(DiskError, match=READ_REFUSALS[code]) as raised:
            artifact.array("vectors")
        assert re.search(r"build|Run again:", str(raised.value)) is None
        found = list(verify(store, [SEEDS], KINDS))
    assert found
    assert all(READ_REFUSALS[code] in problem.what for problem in found)
    assert all("verify again" in problem.remedy for problem in found)


@pytest.mark.parametrize("instead", ["nothing", "a link", "a folder", "a socket"])
def test_file_with_something_else_in_its_place_is_damage(store: Store, instead: str) -> None:
    artifact = store.open_artifact(SEEDS)
    for file in (artifact.folder / "vectors" / "c.0.0", artifact.folder / "vectors" / "zarr.json"):
        moved = file.rename(store.path.with_name("moved"))
        if instead == "a link":
            file.symlink_to(moved)
        elif instead == "a folder":
            file.mkdir()
        elif instead == "a socket":
            with socket.socket(socket.AF_UNIX) as made, chdir(file.parent):
                made.bind(file.name)
        with pytest.raises(Corrupt, match=SEEDS):
            artifact.array("vectors")
        if instead != "nothing":
            file.rmdir() if instead == "a folder" else file.unlink()
        moved.rename(file)
    artifact.array("vectors")


def test_chunk_that_cannot_be_read_is_found_by_verify(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = store.open_artifact(SEEDS)
    monkeypatch.setattr(os, "readv", failing)
    found = [problem for problem in problems(store) if problem.array is not None]
    assert {(problem.array, problem.chunk) for problem in found} >= {("vectors", "c.0.0")}
    # The file may be intact: it is the disk that fails.
    for problem in found:
        assert re.search(r"/c\.0(\.0)?: cannot read the file \(Input/output error\)\. The disk .* is failing", problem.what)
        assert problem.remedy == "It may be intact: verify again afterwards."
    assert crc_of_complete_chunk(artifact.folder / "vectors" / "c.0.0", artifact.spec("vectors")) is None


def refuse_to_read_chunks(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """The pages of the map are refused with this code, and the file with an I/O error."""

    def refuse(*_: Any) -> int:
        ctypes.set_errno(code)
        return -1

    monkeypatch.setattr(mapping._libc, "madvise", refuse)
    monkeypatch.setattr(mapping, "crc32c_of_file", failing)


def test_mapped_chunk_that_can_neither_be_read_nor_opened_says_why(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = store.open_artifact(SEEDS).mapped("vectors")
    refuse_to_read_chunks(monkeypatch, errno.EFAULT)
    monkeypatch.setattr(os, "open", lambda *_: (_ for _ in ()).throw(OSError(errno.EMFILE, os.strerror(errno.EMFILE))))
    with pytest.raises(DiskError, match=r"vectors/c\.0\.0: cannot read the file .*ulimit -n"):
        mapping.touch(mapped, 0, 1)


def test_mapped_chunk_is_checked_in_the_map_where_its_file_cannot_be_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped = store.open_artifact(SEEDS).mapped("vectors")
    refuse_to_read_chunks(monkeypatch, errno.EINVAL)
    assert mapping.touch(mapped, 0, 1)


@pytest.mark.parametrize("when", ["mapped", "touched"])
def test_chunk_whose_status_cannot_be_read_is_named_or_checked_in_the_map_and_not_left_open(
    store: Store, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    artifact, status = store.open_artifact(SEEDS), os.fstat
    values = artifact.mapped("vectors") if when == "touched" else None
    before, opened = open_files(), []

    def at_first_only(descriptor: int) -> os.stat_result:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == "c.0.0":
            opened.append(descriptor)
            if len(opened) == 2:
                failing()
        return status(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", at_first_only)
        if values is None:
            with pytest.raises(DiskError, match=r"vectors/c\.0\.0: cannot read the file \(Input/output error\)"):
                artifact.mapped("vectors")
        else:
            assert mapping.touch(values, 0, 1)
    assert len(opened) == 2
    assert open_files() == before


@pytest.mark.parametrize(
    ("code", "told"), [(errno.EFAULT, r"\(Input/output error\).* check the disk"), (errno.ENOMEM, "out of memory")]
)
def test_mapped_chunk_that_the_system_does_not_read_is_not_called_damaged(
    store: Store, monkeypatch: pytest.MonkeyPatch, code: int, told: str
) -> None:
    """The kernel says EFAULT both for a file that was shortened and for a disk that fails."""
    mapped = store.open_artifact(SEEDS).mapped("vectors")
    refuse_to_read_chunks(monkeypatch, code)
    with pytest.raises(DiskError, match=rf"vectors/c\.0\.0: cannot read the file .*{told}"):
        mapping.touch(mapped, 0, 1)


@pytest.mark.parametrize("folder", ["", "objects"])
def test_metadata_of_a_folder_that_cannot_be_read_is_not_called_changed(
    store: Store, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    file, opens = (store.path / folder / "zarr.json"), os.open

    def refusing(path: Any, flags: int, *args: Any, dir_fd: int | None = None) -> int:
        place = Path(f"/proc/self/fd/{dir_fd}").readlink() / path if dir_fd is not None else Path(path)
        if place == file:
            failing()
        return opens(path, flags, *args, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refusing)
    (problem,) = verify_frame(store)
    assert problem.what.startswith(f"{file}: cannot read the file (Input/output error)")
    assert problem.remedy == "It may be intact: verify again afterwards."


@pytest.mark.parametrize("problem", ["error", "end"])
def test_scratch_that_cannot_be_read_back_names_the_file(
    quick_folder: Path, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    with Publication(quick_folder / "store", [NAME], "a test") as publication:
        scratch = publication.draft(NAME, recipe()).scratch("scratch", (2000,), "int32")
        scratch.fill(np.arange(2000, dtype=np.int32))
        monkeypatch.setattr(os, "preadv", failing if problem == "error" else lambda *_: 0)
        reason = "Input/output error" if problem == "error" else "the file ends after 0 of"
        kind, cannot = (DiskError, "cannot read the file") if problem == "error" else (Corrupt, "cannot be read")
        with pytest.raises(kind, match=rf"scratch/c\.0: {cannot} \({reason}.* the same command again"):
            scratch.read(0, np.empty(2000, np.int32))


def interrupt_after_a_full_chunk(path: Path) -> None:
    """Leaves a checkpoint within the first chunk, which was then filled and got its name."""
    with (
        Publication(path, [NAME], "a test") as publication,
        Growth(publication.draft(NAME, recipe()), {"v": "int32"}) as growth,
    ):
        growth.append("v", np.arange(100, dtype=np.int32))
        growth.checkpoint({"done": 100})
        growth.append("v", np.arange(100, 3000, dtype=np.int32))
        growth.close()
        raise KeyboardInterrupt


def continue_the_draft(path: Path) -> Json:
    """The note of the checkpoint that a later run continues from."""
    with (
        chunks_of(SMALL_CHUNKS),
        Publication(path, [NAME], "a test") as publication,
        Growth(publication.draft(NAME, recipe()), {"v": "int32"}) as growth,
    ):
        return growth.note


def test_draft_is_continued_from_the_chunk_that_replaced_its_part(quick_folder: Path) -> None:
    with chunks_of(SMALL_CHUNKS), pytest.raises(KeyboardInterrupt):
        interrupt_after_a_full_chunk(quick_folder / "store")
    assert continue_the_draft(quick_folder / "store") == {"done": 100}


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_draft_whose_chunk_cannot_be_copied_back_starts_again_or_tells_of_the_full_disk(
    quick_folder: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    with chunks_of(SMALL_CHUNKS), pytest.raises(KeyboardInterrupt):
        interrupt_after_a_full_chunk(quick_folder / "store")
    pread, reads = os.pread, []

    def second_read_fails(descriptor: int, size: int, at: int) -> bytes:
        reads.append(size)
        if len(reads) == 3 and code == errno.EIO:
            failing()
        return pread(descriptor, size, at)

    def full(*_: Any) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pread", second_read_fails)
    if code == errno.ENOSPC:
        monkeypatch.setattr(os, "pwrite", lambda *args: full() if len(reads) > 2 else len(args[1]))
        with pytest.raises(DiskFull):
            continue_the_draft(quick_folder / "store")
    else:
        assert continue_the_draft(quick_folder / "store") == {}
    assert len(reads) >= 3


def test_graph_of_too_many_nodes_is_found(quick_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "MOST_NODES", 1)
    graph = {"indptr": np.array([0, 1, 2]), "indices": np.array([0, 1], np.uint32), "scale": np.ones(2, np.float32)}
    facts = {"nodes": 2, "edges": 2, "background": 2, "seeds": 0, "test": 0, "reciprocal": 1.0}
    publish(quick_folder / "store", "graph/W", graph, Recipe("graph", 1, {}, {}), facts)
    assert "2 nodes, more than 1" in [problem.what for problem in problems(Store.open(quick_folder / "store"))]

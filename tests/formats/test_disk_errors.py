"""Disk errors are sentences with the file, the operation, the reason and advice; finished work is kept."""

from __future__ import annotations

import copy
import errno
import fcntl
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from mmdiff.cli import app
from mmdiff.export.target import whole_file
from mmdiff.formats.errors import Corrupt, DiskError, DiskFull, StoreError
from mmdiff.formats.storage import seam
from mmdiff.formats.storage.disk_errors import disk_error, explained
from mmdiff.formats.store.store import Store
from mmdiff.importing.stage import import_descriptors
from tests.support.refusals import CHANGING, refusal, refused_at
from tests.support.stores import SMALL_CHUNKS, Inputs, chunks_of, problems, tree

REFUSALS = (errno.EIO, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.EPERM, errno.ENOSPC)


@pytest.fixture(autouse=True)
def small_chunks() -> Iterator[None]:
    with chunks_of(SMALL_CHUNKS):
        yield


def refuse(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, code: int) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise refusal(code)

    monkeypatch.setattr(module, name, refused)


def run_write(folder: Path) -> None:
    seam.write_file(folder / "file", b"text")


def run_worker_chunk(folder: Path) -> None:
    seam.write_worker_chunk(folder / "file", b"text")


def run_adopt(folder: Path) -> None:
    (folder / "written").touch()
    seam.adopt_worker_chunk("written", folder / "file")


def run_part(folder: Path) -> None:
    part = seam.Part(folder / "file")
    part.write(b"text", 0)
    part.cut(2)
    part.sync()
    part.finish(2)


def run_discard(folder: Path) -> None:
    part = seam.Part(folder / "file")
    part.discard()


def run_close(folder: Path) -> None:
    seam.Part(folder / "file").close()


def run_place(folder: Path) -> None:
    seam.place_file(folder / "file", b"text", Path(tempfile.mkdtemp(dir=folder)))


def run_point(folder: Path) -> None:
    seam.point(folder / "file", "target", Path(tempfile.mkdtemp(dir=folder)))


def run_move(folder: Path) -> None:
    (folder / "there").mkdir()
    seam.move_folder(folder / "there", folder / "file")


def run_remove_folder(folder: Path) -> None:
    (folder / "file").mkdir()
    seam.remove_folder(folder / "file")


def run_remove_file(folder: Path) -> None:
    seam.remove_file(folder / "file")


def run_lock(folder: Path) -> None:
    seam.open_lock(folder / "file")


def run_describe(folder: Path) -> None:
    with (folder / "file").open("wb") as stream:
        seam.describe_lock(folder / "file", stream.fileno(), b"holder")


def run_free(folder: Path) -> None:
    seam.free_bytes(folder / "file")


def run_make(folder: Path) -> None:
    seam.make_folder(folder / "file")


OPERATIONS: list[tuple[Callable[[Path], None], Any, str, str]] = [
    (run_write, os, "open", "create the file"),
    (run_write, os, "posix_fallocate", "reserve 4 bytes for the file"),
    (run_write, os, "write", "write the file"),
    (run_write, os, "fsync", "flush the file to disk"),
    (run_write, os, "rename", "give the file its name"),
    (run_worker_chunk, os, "write", "write the file"),
    (run_adopt, os, "rename", "give the file its name"),
    (run_part, os, "open", "create the file"),
    (run_part, os, "pwrite", "write the file"),
    (run_part, os, "ftruncate", "set the size of the file to 2 bytes"),
    (run_part, os, "fsync", "flush the file to disk"),
    (run_part, os, "rename", "give the file its name"),
    (run_discard, os, "unlink", "remove the unfinished file"),
    (run_place, os, "replace", "give the file its name"),
    (run_point, os, "symlink", "make the link"),
    (run_move, os, "rename", "move .* there"),
    (run_remove_folder, os, "rmdir", "remove the folder"),
    (run_remove_file, os, "unlink", "remove the file"),
    (run_lock, fcntl, "flock", "take the lock"),
    (run_lock, os, "open", "open the lock"),
    (run_describe, os, "pwrite", "describe the holder of the lock"),
    (run_free, os, "statvfs", "find out how much space is free"),
    (run_make, os, "mkdir", "make the folder"),
]


@pytest.mark.parametrize(("operation", "module", "call", "what"), OPERATIONS)
def test_io_error_of_every_operation_names_the_file_and_the_operation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: Callable[[Path], None], module: Any, call: str, what: str
) -> None:
    refuse(monkeypatch, module, call, errno.EIO)
    with pytest.raises(DiskError, match=rf"{tmp_path}/file: cannot {what} \(Input/output error\)\. The disk .* is failing"):
        operation(tmp_path)


@pytest.mark.parametrize("operation", [run_write, run_part, run_close])
def test_error_that_is_reported_when_the_file_is_closed_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: Callable[[Path], None]
) -> None:
    close = os.close

    def failing(descriptor: int) -> None:
        close(descriptor)
        raise refusal(errno.EIO)

    monkeypatch.setattr(os, "close", failing)
    with pytest.raises(DiskError, match="file: cannot close the file"):
        operation(tmp_path)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_found_by_the_sync_of_a_folder_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    refuse(monkeypatch, os, "fsync", code)
    reason = "bytes free" if code == errno.ENOSPC else "the quota is used up"
    with pytest.raises(DiskFull, match=rf"cannot flush the folder to disk: the disk is full \(.*{reason}\)"):
        seam.sync_folder(tmp_path)


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.EFBIG, "ulimit -f"),
        (errno.EROFS, "mounted read-only"),
        (errno.EACCES, "permissions"),
        (errno.EPERM, "permissions"),
        (errno.ENOLCK, "flock"),
        (errno.ENOENT, "moved, removed or replaced"),
        (errno.EMFILE, "ulimit -n"),
        (errno.EUCLEAN, "failing"),
    ],
)
def test_advice_fits_the_reason(tmp_path: Path, code: int, advice: str) -> None:
    error = disk_error(refusal(code), tmp_path / "file", "write the file")
    assert isinstance(error, DiskError)
    assert error.exit_code == 1
    assert re.search(advice, str(error))
    assert "Finished work is kept" in str(error)
    assert str(copy.copy(error)) == str(error)


def test_full_disk_whose_free_space_is_unknown_is_still_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, os, "statvfs", errno.EIO)
    assert "the disk is full (0 bytes free)" in str(disk_error(refusal(errno.ENOSPC), tmp_path / "x" / "y", "write the file"))


def test_error_without_a_text_is_named_by_its_type(tmp_path: Path) -> None:
    assert "(TimeoutError)" in str(disk_error(TimeoutError(), tmp_path, "write the file"))


def test_our_own_errors_pass_unchanged(tmp_path: Path) -> None:
    damage = Corrupt("damaged")
    with pytest.raises(Corrupt) as caught, explained(tmp_path, "write the file"):
        raise damage
    assert caught.value is damage


def test_lock_that_cannot_be_made_exclusive_is_not_exclusive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = seam.lock_folder(tmp_path, exclusive=False)
    assert lock is not None
    refuse(monkeypatch, fcntl, "flock", errno.ENOLCK)
    assert not seam.make_exclusive(lock)
    os.close(lock)


def test_lock_in_a_folder_that_is_removed_again_and_again_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, tries = os.open, []

    def removed(name: Any, *more: Any) -> int:
        if Path(name).name == "lock":
            tries.append(name)
            raise refusal(errno.ENOENT)
        return opened(name, *more)

    monkeypatch.setattr(os, "open", removed)
    with pytest.raises(DiskError, match="lock: cannot open the lock"):
        seam.open_lock(tmp_path / "lock")
    assert len(tries) > 10


def test_lock_file_that_is_removed_under_every_attempt_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def unlinked(name: Any, *more: Any) -> int:
        descriptor = opened(name, *more)
        if Path(name).name == "lock":
            Path(name).unlink()
        return descriptor

    monkeypatch.setattr(os, "open", unlinked)
    assert seam.open_lock(tmp_path / "lock") is None


def test_temporary_folder_that_cannot_be_made_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, os, "mkdir", errno.EROFS)
    with pytest.raises(DiskError, match=r"cannot make a temporary folder .*mounted read-only"), seam.temporary_folder(1):
        pytest.fail("there is no folder")


def test_refusal_at_any_step_is_a_sentence_and_the_same_command_continues(quick_folder: Path, inputs: Inputs) -> None:
    request = inputs.request()
    import_descriptors(quick_folder / "other", request)
    expected = tree(quick_folder / "other", with_runs=False)
    told: list[str] = []
    for step in itertools.count(0, 5):
        path = quick_folder / f"store{step}"
        with refused_at(step, CHANGING, REFUSALS[step // 5 % len(REFUSALS)]) as reached:
            try:
                import_descriptors(path, request)
            except (DiskError, DiskFull) as error:
                told.append(str(error))
        if not reached():
            break
        assert not path.exists() or problems(Store.open(path)) == [], step
        import_descriptors(path, request)
        assert tree(path, with_runs=False) == expected, f"step {step}"
        shutil.rmtree(path)
    assert len(told) > 24
    assert all("same command again" in message for message in told)


@pytest.mark.parametrize(("code", "kind"), [(errno.EIO, DiskError), (errno.EDQUOT, DiskFull), (errno.EROFS, DiskError)])
def test_export_that_fails_is_explained_and_leaves_nothing(tmp_path: Path, code: int, kind: type[StoreError]) -> None:
    def write() -> None:
        with whole_file(tmp_path / "out.npy") as stream:
            stream.write(b"some")
            raise refusal(code)

    with pytest.raises(kind, match=r"out\.npy: cannot write the file.*Nothing was written"):
        write()
    assert not list(tmp_path.iterdir())


def shell(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False)


def test_file_size_limit_is_a_sentence_and_without_it_the_same_command_continues(tmp_path: Path) -> None:
    """In a process of its own, with a limit of the shell."""
    np.save(tmp_path / "b.npy", np.random.default_rng(0).standard_normal((1000, 300)).astype(np.float32))
    program = f"{sys.executable} -c 'from mmdiff.cli import app; app()'"
    limited = shell(tmp_path, f"ulimit -f 200; {program} import b.npy --role background --dims 256")
    assert limited.returncode == 1
    assert "Traceback" not in limited.stderr
    assert re.search(r"mmdiff: .*cannot reserve [\d,]+ bytes for the file \(File too large\).*ulimit -f", limited.stderr)
    assert shell(tmp_path, f"{program} import b.npy --role background --dims 256").returncode == 0
    exported = shell(tmp_path, f"ulimit -f 200; {program} export descriptors/background out.npz")
    assert exported.returncode == 1
    assert "out.npz: cannot write the file (File too large)" in exported.stderr
    assert not list(tmp_path.glob("out*"))


def test_system_error_without_a_file_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, Store, "open", errno.EIO)
    result = CliRunner().invoke(app, ["inspect", "--store", str(tmp_path)])
    assert result.exit_code == 1
    assert "mmdiff: the system refuses to read or write a file (Input/output error). Check the disk" in result.stderr

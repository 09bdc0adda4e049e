"""The order of writes: nothing gets its name before it is on disk, so that a power cut is no worse than a kill."""

from __future__ import annotations

import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmdiff.formats.errors import Corrupt
from mmdiff.formats.storage import seam
from mmdiff.formats.store.publish import Publication
from mmdiff.importing.stage import import_descriptors
from tests.support.stores import SMALL_CHUNKS, Inputs, chunks_of, full_seeds, publish, recipe, values_for


class Disk:
    """Unsynced changes, which a power cut could undo: written files, and folders with changed entries."""

    def __init__(self) -> None:
        self.unsynced: dict[int, str] = {}
        self.moves: list[str] = []
        self.lock = threading.Lock()

    def changed(self, path: Path) -> None:
        self.unsynced[path.stat().st_ino] = str(path)

    def synced(self, descriptor: int) -> None:
        self.unsynced.pop(os.fstat(descriptor).st_ino, None)

    def expect_synced(self, path: Path) -> None:
        """Asserts that a file, or a folder with everything in it, is on disk."""
        for each in (path, *path.rglob("*")) if path.is_dir() else (path,):
            assert each.stat().st_ino not in self.unsynced, f"{each} is not on the disk yet, but {path} gets its name"


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()

    def wrap(name: str, before: Callable[..., None] | None, after: Callable[..., None] | None) -> None:
        call = getattr(os, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with disk.lock:
                if before:
                    before(*args)
                result = call(*args, **kwargs)
                if after and not kwargs.get("dir_fd"):
                    after(*args)
                return result

        context.setattr(os, name, wrapped)

    def entry_changed(path: Any, *_: Any) -> None:
        disk.changed(Path(path).parent)

    def opened(path: Any, flags: int, *_: Any) -> None:
        if flags & os.O_CREAT:
            entry_changed(path)

    def written(descriptor: int, *_: Any) -> None:
        disk.unsynced[os.fstat(descriptor).st_ino] = f"descriptor {descriptor}"

    def about_to_move(source: Any, target: Any) -> None:
        source, target = Path(source), Path(target)
        disk.moves.append(target.name)
        if not source.is_symlink():
            disk.expect_synced(source)
        elif source.name == "link":
            # A name is about to be replaced: its target, and the path to it, must be on disk.
            aim = target.parent / source.readlink()
            disk.expect_synced(aim)
            for folder in (aim.resolve().parent, aim.resolve().parent.parent):
                assert folder.stat().st_ino not in disk.unsynced, f"{folder} is not on the disk yet, but {target} leads there"

    def moved(source: Any, target: Any) -> None:
        entry_changed(source)
        entry_changed(target)

    with monkeypatch.context() as context:
        wrap("open", None, opened)
        wrap("write", None, written)
        wrap("posix_fallocate", None, written)
        wrap("fsync", None, disk.synced)
        wrap("mkdir", None, entry_changed)
        wrap("symlink", None, lambda _, path, *__: entry_changed(path))
        wrap("rename", about_to_move, moved)
        wrap("replace", about_to_move, moved)
        yield disk


def test_everything_is_on_the_disk_before_a_name_leads_to_it(
    tmp_path: Path, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with chunks_of(SMALL_CHUNKS), watched(monkeypatch) as disk:
        import_descriptors(tmp_path / "store", inputs.request())
        import_descriptors(tmp_path / "store", full_seeds(inputs))
    assert {"pca", "background", "seeds"} <= set(disk.moves)
    left = {Path(path) for path in disk.unsynced.values() if "descriptor" not in path}
    names = {tmp_path / "store" / space for space in ("descriptors", "models", "objects")}
    assert not left & names, "a name that the user was told of could still be lost"


def test_file_has_its_name_only_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"old")
    write = os.write

    def half(descriptor: int, data: Any) -> int:
        assert target.read_bytes() == b"old"
        return write(descriptor, memoryview(data)[: max(1, len(data) // 2)])

    monkeypatch.setattr(os, "write", half)
    seam.write_file(target, np.arange(1000, dtype=np.int64), b"", b"tail")
    assert target.read_bytes() == np.arange(1000, dtype=np.int64).tobytes() + b"tail"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_room_is_claimed_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    write = os.write

    def seen(descriptor: int, data: Any) -> int:
        sizes.append(os.fstat(descriptor).st_size)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", seen)
    seam.write_file(tmp_path / "file", bytes(10_000), bytes(10_000))
    assert sizes == [20_000, 20_000]


def test_name_changes_hands_in_one_step_and_leftovers_do_not_matter(tmp_path: Path) -> None:
    scratch, name = tmp_path / "scratch", tmp_path / "names" / "x"
    scratch.mkdir()
    (scratch / "link").symlink_to("left by a killed run")
    seam.point(name, "../a", scratch)
    assert str(name.readlink()) == "../a"
    seam.point(name, "../b", scratch)
    assert str(name.readlink()) == "../b"
    assert list(scratch.iterdir()) == []


def test_lock_is_taken_by_one_and_ends_with_its_descriptor(tmp_path: Path) -> None:
    first = seam.open_lock(tmp_path / "made" / "on the way" / "lock")
    assert first is not None
    assert seam.open_lock(tmp_path / "made" / "on the way" / "lock") is None
    os.close(first)
    again = seam.open_lock(tmp_path / "made" / "on the way" / "lock")
    assert again is not None
    os.close(again)


@pytest.mark.parametrize("removed", ["lock", "folder"])
def test_lock_removed_by_its_last_holder_is_not_held_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: str
) -> None:
    """The last holder removes the file between open and lock: a lock on it would not exclude others."""
    path = tmp_path / "work" / "lock"
    (tmp_path / "work").mkdir()
    opened, tries = os.open, []

    def open_slowly(name: Any, flags: int, *mode: Any) -> int:
        if Path(name) != path:
            return opened(name, flags, *mode)
        tries.append(name)
        if len(tries) == 1 and removed == "folder":
            path.parent.rmdir()
        descriptor = opened(name, flags, *mode)
        if len(tries) == 1:
            path.unlink()
        return descriptor

    monkeypatch.setattr(os, "open", open_slowly)
    descriptor = seam.open_lock(path)
    assert descriptor is not None
    assert len(tries) == 2
    assert os.fstat(descriptor).st_ino == path.stat().st_ino
    os.close(descriptor)


def test_shared_locks_of_a_folder_exclude_exclusive_ones_only(tmp_path: Path) -> None:
    first, second = (seam.lock_folder(tmp_path, exclusive=False) for _ in range(2))
    assert first is not None
    assert second is not None
    assert seam.lock_folder(tmp_path, exclusive=True) is None
    assert not seam.make_exclusive(second)
    os.close(second)
    assert seam.make_exclusive(first)
    assert seam.lock_folder(tmp_path, exclusive=False) is None
    os.close(first)


def test_folder_that_is_not_empty_or_cannot_go_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    seam.remove_empty_folder(tmp_path)
    seam.remove_empty_folder(tmp_path / "nowhere")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    seam.remove_empty_folder(Path())
    assert (tmp_path / "here").is_dir()


def test_files_of_a_store_are_readable_by_everyone_whom_the_umask_allows(tmp_path: Path) -> None:
    seam.write_file(tmp_path / "file", b"x")
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644 & ~umask


@pytest.mark.parametrize("write", ["file", "part"])
def test_link_in_place_of_an_unfinished_file_is_replaced_and_not_followed(tmp_path: Path, write: str) -> None:
    other, file = tmp_path / "other", tmp_path / "file"
    for target in (other, tmp_path / "missing"):
        other.write_text("precious")
        (tmp_path / "file.part").symlink_to(target)
        if write == "file":
            seam.write_file(file, b"new")
        else:
            part = seam.Part(file)
            part.write(b"new", 0)
            part.finish(3)
        assert not file.is_symlink()
        assert (file.read_bytes(), other.read_text()) == (b"new", "precious")
        assert not (tmp_path / "missing").exists()


def test_link_in_place_of_a_lock_is_refused_and_not_followed(tmp_path: Path) -> None:
    other, lock = tmp_path / "other", tmp_path / "lock"
    other.write_text("precious")
    for target in (other, tmp_path / "missing"):
        lock.symlink_to(target)
        with pytest.raises(Corrupt, match=r"lock: a link where the lock should be\. Remove it\."):
            seam.open_lock(lock)
        lock.unlink()
    assert other.read_text() == "precious"
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("link", ["object", "object/x"])
def test_link_in_place_of_a_folder_of_a_draft_is_replaced_and_not_followed(tmp_path: Path, link: str) -> None:
    """The draft is otherwise one that the run continues."""

    def run(end: type[BaseException] | None) -> None:
        with Publication(tmp_path / "store", ["models/y"], "a test") as publication:
            draft = publication.draft("models/y", recipe())
            draft.values("x", values_for((10,), "int32"))
            if end is not None:
                raise end
            publication.publish(draft, {}, {"command": "a test"})

    publish(tmp_path / "store", "models/x", {"x": values_for((10,), "int32")})
    with pytest.raises(KeyboardInterrupt):
        run(KeyboardInterrupt)
    folder, other = tmp_path / "store" / "work" / "models.y" / link, tmp_path / "other"
    shutil.rmtree(folder)
    other.mkdir()
    folder.symlink_to(other)
    run(None)
    assert list(other.iterdir()) == []

"""`gc` removes objects without a name and nothing else, never during a write, and readers keep their maps."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmdiff.formats.errors import Corrupt, Locked
from mmdiff.formats.storage import seam
from mmdiff.formats.store.gc import collect, find_garbage
from mmdiff.formats.store.publish import Publication
from mmdiff.formats.store.store import Store
from mmdiff.importing.stage import import_descriptors
from tests.support.stores import SMALL_CHUNKS, Inputs, chunks_of, interrupted_after_first_chunk, problems, tree


@pytest.fixture(autouse=True)
def small_chunks() -> Iterator[None]:
    with chunks_of(SMALL_CHUNKS):
        yield


@pytest.fixture
def used(store: Store, inputs: Inputs) -> Store:
    """A store in which a background was replaced, and another replacement was interrupted."""
    import_descriptors(store.path, inputs.request(name="others.npy"))
    with pytest.raises(KeyboardInterrupt):
        import_descriptors(store.path, inputs.request("test", name="others.npy"), interrupted_after_first_chunk)
    return store


def within(folders: list[Path], root: Path, found: dict[str, Any]) -> set[str]:
    """The entries of a tree that are in some folders, or are one of them."""
    return {key for key in found if any((root / key).is_relative_to(folder) for folder in folders)}


def test_replaced_objects_and_interrupted_drafts_go_and_nothing_else(used: Store) -> None:
    before = tree(used.path)
    listed = find_garbage(used)
    assert sorted(item.folder.parent.name for item in listed) == ["objects", "objects", "work"]
    assert tree(used.path) == before
    assert collect(used) == listed
    after = tree(used.path)
    gone = within([item.folder for item in listed], used.path, before)
    assert set(before) - set(after) == gone | {"work"}
    assert all(after[key] == before[key] for key in after)
    assert problems(used) == []
    assert sum(item.bytes for item in listed) == sum(len(before[key]) for key in gone if isinstance(before[key], bytes))


def test_there_is_nothing_to_remove_after_that(used: Store) -> None:
    collect(used)
    before = tree(used.path)
    assert find_garbage(used) == []
    assert collect(used) == []
    assert tree(used.path) == before


def test_object_that_a_name_leads_to_stays_even_if_it_was_made_with_another_pca(used: Store) -> None:
    collect(used)
    assert used.names() == ["descriptors/background", "descriptors/seeds", "models/pca"]
    assert problems(used) == []


def test_refused_while_a_run_is_writing(used: Store) -> None:
    before = tree(used.path)
    with Publication(used.path, ["models/other"], "a run"), pytest.raises(Locked, match="a run is writing"):
        collect(used)
    assert tree(used.path) == before


def test_run_is_refused_while_gc_is_removing(used: Store, inputs: Inputs) -> None:
    lock = seam.lock_folder(used.path, exclusive=True)
    assert lock is not None
    before = tree(used.path)
    with pytest.raises(Locked, match="gc"):
        import_descriptors(used.path, inputs.request())
    os.close(lock)
    assert tree(used.path) == before


def test_readers_keep_the_maps_they_have(store: Store, inputs: Inputs) -> None:
    mapped = store.open_artifact("descriptors/background").array("vectors")
    expected = np.array(mapped)
    import_descriptors(store.path, inputs.request(name="others.npy"))
    assert len(collect(store)) == 2
    np.testing.assert_array_equal(mapped, expected)
    assert not np.array_equal(store.open_artifact("descriptors/background").array("vectors"), expected)


def test_what_is_not_ours_stays(used: Store) -> None:
    for stranger in ("objects/notes.txt", "objects/backup/file", "work/notes.txt", "elsewhere/file"):
        (used.path / stranger).parent.mkdir(exist_ok=True)
        (used.path / stranger).write_text("precious")
    collect(used)
    kept = tree(used.path)
    assert {"objects/notes.txt", "objects/backup/file", "work/notes.txt", "elsewhere/file"} <= set(kept)


def test_name_that_leads_astray_stops_the_collection_before_it_begins(used: Store) -> None:
    """The object of that name may be one of those without a name."""
    (used.path / "descriptors" / "seeds").unlink()
    (used.path / "descriptors" / "seeds").symlink_to("../elsewhere")
    before = tree(used.path)
    with pytest.raises(Corrupt):
        collect(used)
    assert tree(used.path) == before


@pytest.mark.parametrize("step", range(0, 18, 3))
def test_collection_that_fails_midway_leaves_nothing_that_looks_like_an_object(
    used: Store, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [step]
    unlink = os.unlink

    def failing(*args: Any, **kwargs: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError("the disk is gone")
        unlink(*args, **kwargs)

    with monkeypatch.context() as context:
        context.setattr(os, "unlink", failing)
        with pytest.raises(OSError, match="gone"):
            collect(used)
    for folder in used.objects.iterdir():
        if folder.is_dir():
            used.open_object("some name", folder.name)
    assert problems(used) == []
    collect(used)
    assert find_garbage(used) == []
    assert not used.work.exists()


def test_collection_is_not_stopped_by_what_an_interrupted_one_left(used: Store) -> None:
    doomed = next(item.folder for item in find_garbage(used) if item.folder.parent == used.objects)
    left = used.work / f"removed.{doomed.name}"
    left.mkdir()
    (left / "file").touch()
    assert left in {item.folder for item in collect(used)}
    assert find_garbage(used) == []


def test_interrupted_import_starts_from_the_beginning_after_a_collection(used: Store, inputs: Inputs) -> None:
    collect(used)
    outcome = import_descriptors(used.path, inputs.request("test", name="others.npy"))
    assert outcome.chunks_found == 0
    assert problems(used) == []


@pytest.mark.parametrize("removed", ["work", "work/descriptors.test", "work/descriptors.test/object/vectors"])
def test_draft_that_its_run_removes_meanwhile_is_no_error(used: Store, monkeypatch: pytest.MonkeyPatch, removed: str) -> None:
    gone = used.path / removed
    assert gone.is_dir()
    for name in ("scandir", "listdir"):
        original = getattr(os, name)

        def slowly(path: Any, original: Any = original) -> Any:
            if not isinstance(path, int) and Path(path) == gone:
                shutil.rmtree(gone, ignore_errors=True)
            return original(path)

        monkeypatch.setattr(os, name, slowly)
    assert [item.folder.parent.name for item in find_garbage(used)].count("objects") == 2
    assert not gone.exists()

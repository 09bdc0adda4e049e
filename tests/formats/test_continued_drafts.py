"""A killed run is continued only from a draft whose inputs are, to the file, those that it was computed from."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from mmdiff.formats.store.fingerprint import source_fingerprint
from mmdiff.formats.store.manifest import Recipe
from mmdiff.formats.store.publish import Publication
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.runtime.find_or_make import input_of
from tests.support.processes import child
from tests.support.stores import SMALL_CHUNKS, chunks_of, publish, values_for

NAME, VALUES = "models/y", values_for((6000,), "int64")

# Python 3.12 warns of forks with threads; the children here do not use the threads of the test runner.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture(autouse=True)
def small_chunks() -> Iterator[None]:
    with chunks_of(SMALL_CHUNKS):
        yield


@pytest.fixture
def artifact(quick_folder: Path) -> Artifact:
    return publish(quick_folder / "store", "models/x", {"vector": VALUES})


def made_from(artifact: Artifact) -> Recipe:
    return Recipe("other", 1, {}, {"x": input_of(artifact)})


def killed_run(path: Path, recipe: Recipe, read: Callable[[], object], disturb: Callable[[], object] = lambda: None) -> None:
    """A run that is disturbed after it has read its input, writes the first chunk of its result, and is killed."""

    def work() -> None:
        publication = Publication(path, [NAME], "a test").__enter__()
        draft = publication.draft(NAME, recipe)
        read()
        disturb()
        writer = draft.array("doubled", (6000,), "int64")
        writer.write(0, 2 * VALUES[: writer.spec.rows_per_chunk])

    with child(work):
        pass
    assert list((path / "work" / "models.y" / "object" / "doubled").glob("c.*"))


def continues(path: Path, recipe: Recipe) -> bool:
    """Whether the same run, done again, finds the chunk of the killed one."""
    with Publication(path, [NAME], "a test") as publication:
        return 0 not in publication.draft(NAME, recipe).array("doubled", (6000,), "int64").missing


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[100] ^= 4
    file.write_bytes(content)


def restore_with_its_time(file: Path) -> None:
    """As `cp -p` from a backup does."""
    flip(file)
    os.utime(file, ns=(0, 0))


def replace(file: Path) -> None:
    flip(file)
    shutil.copy2(file, file.with_name("copy"))
    file.with_name("copy").rename(file)


REPAIRS = {"in place": flip, "with its old time": restore_with_its_time, "by another file": replace}


@pytest.mark.parametrize("repair", REPAIRS.values(), ids=REPAIRS.keys())
def test_a_killed_run_whose_input_was_damaged_and_repaired_starts_over(
    artifact: Artifact, repair: Callable[[Path], None]
) -> None:
    path, file = artifact.store.path, artifact.folder / "vector" / "c.1"
    os.utime(file, ns=(0, 0))
    killed_run(path, made_from(artifact), lambda: artifact.array("vector"), lambda: flip(file))
    repair(file)
    np.testing.assert_array_equal(artifact.array("vector"), VALUES)
    assert not continues(path, made_from(artifact))


def test_a_killed_run_whose_input_was_made_again_starts_over(artifact: Artifact) -> None:
    path = artifact.store.path
    killed_run(path, made_from(artifact), lambda: artifact.array("vector"), lambda: flip(artifact.folder / "vector" / "c.1"))
    again = publish(path, "models/x", {"vector": VALUES})
    assert again.id == artifact.id
    assert again.folder != artifact.folder
    assert not continues(path, made_from(artifact))


def test_a_killed_run_whose_input_is_as_it_was_continues(artifact: Artifact) -> None:
    path = artifact.store.path
    killed_run(path, made_from(artifact), lambda: artifact.array("vector"))
    assert list(Store.open(path).open_artifact("models/x", possible=False).array("vector")) == list(VALUES)
    publish(path, "models/z", {"other": VALUES})
    # The store may have another path: the files are the same.
    moved = path.rename(path.with_name("moved"))
    assert continues(moved, made_from(artifact))


def test_a_draft_in_a_copy_of_the_store_starts_over(artifact: Artifact) -> None:
    path = artifact.store.path
    killed_run(path, made_from(artifact), lambda: artifact.array("vector"))
    other = shutil.copytree(path, path.with_name("other"), symlinks=True)
    assert not continues(other, made_from(artifact))


@pytest.mark.parametrize("changed", [False, True])
def test_a_draft_is_continued_unless_its_source_file_was_changed_and_restored(quick_folder: Path, changed: bool) -> None:
    source = quick_folder / "x.bin"
    source.write_bytes(bytes(1000))
    os.utime(source, ns=(0, 0))
    recipe = Recipe("other", 1, {}, {}, {"x": source_fingerprint([source])})
    killed_run(quick_folder / "store", recipe, source.read_bytes, lambda: flip(source) if changed else None)
    if changed:
        restore_with_its_time(source)
    assert recipe.source_fingerprints == {"x": source_fingerprint([source])}
    assert continues(quick_folder / "store", recipe) is not changed


def test_a_draft_whose_source_file_is_gone_starts_over(quick_folder: Path) -> None:
    source = quick_folder / "x.bin"
    source.write_bytes(bytes(1000))
    recipe = Recipe("other", 1, {}, {}, {"x": source_fingerprint([source])})
    killed_run(quick_folder / "store", recipe, source.read_bytes)
    source.unlink()
    assert not continues(quick_folder / "store", recipe)

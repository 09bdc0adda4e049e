"""Metadata is read like chunks: regular files of bounded size, and nothing beyond a link."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmdiff.cli import app
from mmdiff.evaluation.stage import read_classes
from mmdiff.formats.errors import Corrupt, UnreadableSource
from mmdiff.formats.storage.metadata import read_inside, read_json
from mmdiff.formats.store.fingerprint import fingerprint
from mmdiff.formats.store.growing import Growth
from mmdiff.formats.store.publish import Publication
from mmdiff.formats.store.store import Store
from tests.support.stores import interrupt_growth, problems, recipe

SEEDS = "descriptors/seeds"


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def huge(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(1 << 40)


def folder(path: Path) -> None:
    path.mkdir()


def link(path: Path) -> None:
    """A link to a file with the very same content."""
    path.symlink_to(path.with_name(path.name + ".before"))


ODD = [pipe, device, huge, folder, link]


def replace(path: Path, odd: Callable[[Path], None]) -> None:
    path.rename(path.with_name(path.name + ".before"))
    odd(path)


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("file", ["zarr.json", "run/zarr.json", "vectors/zarr.json"])
def test_odd_file_in_place_of_the_metadata_of_an_artifact_is_refused(
    store: Store, file: str, odd: Callable[[Path], None]
) -> None:
    replace(store.open_artifact(SEEDS).folder / file, odd)
    with pytest.raises(Corrupt, match=f"{SEEDS}: cannot read .*{file}"):
        _ = (artifact := store.open_artifact(SEEDS)).array("vectors"), artifact.run
    assert SEEDS in {problem.artifact for problem in problems(store)}


@pytest.mark.parametrize("odd", ODD)
def test_odd_file_in_place_of_the_mark_of_a_store_is_refused(store: Store, odd: Callable[[Path], None]) -> None:
    replace(store.path / "zarr.json", odd)
    with pytest.raises(Corrupt, match=r"cannot read .*zarr\.json"):
        Store.open(store.path)
    assert CliRunner().invoke(app, ["inspect", "--store", str(store.path)]).exit_code == 1


@pytest.mark.parametrize("odd", ODD)
def test_odd_file_in_place_of_the_metadata_of_a_namespace_is_a_problem(store: Store, odd: Callable[[Path], None]) -> None:
    replace(store.path / "descriptors" / "zarr.json", odd)
    (store.path / "descriptors" / "zarr.json.before").rename(store.path.parent / "zarr.json.before")
    found = problems(store)
    assert [(problem.artifact, problem.what) for problem in found] == [("descriptors", "zarr.json is missing or was changed")]


@pytest.mark.parametrize("odd", ODD)
def test_odd_file_in_place_of_a_checkpoint_or_recipe_starts_the_draft_again(
    quick_folder: Path, odd: Callable[[Path], None]
) -> None:
    name, path = "models/x", quick_folder / "store"
    interrupt_growth(path, name)
    work = path / "work" / "models.x"
    replace(work / "checkpoint", odd)
    with Publication(path, [name], "a test") as publication:
        draft = publication.draft(name, recipe())
        assert draft.noted == {}
        with Growth(draft, {"v": "int32"}) as growth:
            assert growth.note == {}
    interrupt_growth(path, name)
    assert read_json(work / "recipe.json")["kind"] == "descriptors"
    os.mkfifo(work / "object" / "part.json")
    with Publication(path, [name], "a test") as publication:
        assert publication.draft(name, recipe()).saved_part("part") is None
    assert not work.exists()


def test_nested_json_that_cannot_be_parsed_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[" * 200_000)
    assert read_json(tmp_path / "x.json") is None
    assert read_json(tmp_path / "nowhere.json") is None


def test_file_inside_must_be_a_small_regular_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    assert read_inside(tmp_path, tmp_path / "file", most=4) == b"text"
    with pytest.raises(OSError, match="4 bytes; at most 3 are read"):
        read_inside(tmp_path, tmp_path / "file", most=3)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for odd in (tmp_path / "pipe", tmp_path / "folder", Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            read_inside(odd.parent, odd)


def test_file_that_grows_while_it_is_read_is_read_to_the_bound_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "read", lambda _, size: bytes(size))
    (tmp_path / "file").write_bytes(b"text")
    assert len(read_inside(tmp_path, tmp_path / "file", most=10)) == 10


def test_no_link_on_the_way_to_a_file_inside_is_followed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "file").write_bytes(b"text")
    assert read_inside(root, root / "a" / "b" / "file") == b"text"
    (root / "link").symlink_to("a")
    (tmp_path / "to root").symlink_to("root")
    assert read_inside(tmp_path / "to root", tmp_path / "to root" / "a" / "b" / "file") == b"text"
    with pytest.raises(OSError, match="link is a link"):
        read_inside(root, root / "link" / "b" / "file")
    with pytest.raises(NotADirectoryError):
        read_inside(root, root / "a" / "b" / "file" / "file")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_inside(root, root / "a" / "nowhere")


def test_list_of_classes_that_is_too_large_is_refused(tmp_path: Path) -> None:
    huge(tmp_path / "classes.txt")
    with pytest.raises(UnreadableSource, match=r"classes\.txt.*1,099,511,627,776 bytes"):
        read_classes(str(tmp_path / "classes.txt"))


def test_source_that_cannot_be_read_for_its_fingerprint_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableSource, match=r"nowhere\.npy: cannot be read \(No such file"):
        fingerprint("nowhere.npy", [tmp_path / "nowhere.npy"])

"""The frame of a store: folders that are links or have another name, surplus entries and lost names are problems."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmdiff.cli import app
from mmdiff.formats.errors import Corrupt, DiskError
from mmdiff.formats.store.gc import collect, find_garbage
from mmdiff.formats.store.publish import Publication
from mmdiff.formats.store.store import Store
from mmdiff.formats.store.verify import verify_frame
from mmdiff.importing.stage import import_descriptors
from tests.support.stores import Inputs, problems, recipe, tree

SEEDS = "descriptors/seeds"


def found(store: Store) -> list[tuple[str, str]]:
    assert all(problem.remedy for problem in problems(store))
    return [(problem.artifact, problem.what) for problem in problems(store)]


def move_away(path: Path, store: Store) -> Path:
    """Moves a folder out of the store, and leaves a link to it."""
    away = store.path.parent / f"away.{path.name}"
    path.rename(away)
    path.symlink_to(away)
    return away


def test_record_of_a_run_behind_a_link_is_damage(store: Store) -> None:
    run = store.open_artifact(SEEDS).folder / "run"
    move_away(run, store)
    with pytest.raises(Corrupt, match=r"cannot read .*run/zarr\.json \(run is a link\)"):
        _ = store.open_artifact(SEEDS).run
    assert SEEDS in {problem.artifact for problem in problems(store)}
    assert CliRunner().invoke(app, ["verify", "--store", str(store.path)]).exit_code == 1


@pytest.mark.parametrize("space", ["descriptors", "objects", "models"])
def test_folder_of_the_store_that_is_a_link_is_a_problem_and_nothing_is_written_through_it(
    store: Store, inputs: Inputs, space: str
) -> None:
    away = move_away(store.path / space, store)
    before = tree(away)
    assert (space, "a link, not a folder") in found(store)
    with pytest.raises(Corrupt):
        store.open_artifact("descriptors/background" if space != "models" else "models/pca")
    with pytest.raises(Corrupt, match="a link, not a folder"):
        import_descriptors(store.path, inputs.request("test"))
    with pytest.raises(Corrupt, match="a link, not a folder"):
        collect(store)
    assert CliRunner().invoke(app, ["verify", "--store", str(store.path)]).exit_code == 1
    assert CliRunner().invoke(app, ["inspect", "--store", str(store.path)]).exit_code in (0, 1)
    assert tree(away) == before


def test_work_folder_that_is_a_link_is_a_problem_and_what_it_leads_to_stays(store: Store, inputs: Inputs) -> None:
    away = store.path.parent / "away"
    (away / "precious").mkdir(parents=True)
    (store.path / "work").symlink_to(away)
    assert found(store) == [("work", "a link, not a folder")]
    for attempt in (lambda: collect(store), lambda: import_descriptors(store.path, inputs.request("test"))):
        with pytest.raises(Corrupt, match="work: a link, not a folder"):
            attempt()
    assert (away / "precious").is_dir()


def test_links_among_the_drafts_are_problems_and_what_they_lead_to_stays(store: Store) -> None:
    away = store.path.parent / "away"
    (away / "object").mkdir(parents=True)
    (store.path / "work").mkdir()
    (store.path / "work" / "models.x").symlink_to(away)
    assert found(store) == [("work/models.x", "not a draft of mmdiff")]
    with (
        pytest.raises(Corrupt, match=r"models\.x: a link where the draft of models/x should be"),
        Publication(store.path, ["models/x"], "a test"),
    ):
        pytest.fail("the lock was taken in another folder")
    assert collect(store) == []
    assert (away / "object").is_dir()


def test_link_in_place_of_the_draft_itself_is_removed_and_not_followed(store: Store) -> None:
    away = store.path.parent / "away"
    (away / "precious").mkdir(parents=True)
    work = store.path / "work" / "models.x"
    work.mkdir(parents=True)
    (work / "object").symlink_to(away)
    with Publication(store.path, ["models/x"], "a test") as publication:
        publication.draft("models/x", recipe())
    assert (away / "precious").is_dir()
    assert not (store.path / "work").exists()


def test_file_in_place_of_a_folder_is_a_problem(store: Store) -> None:
    (store.path / "scores").touch()
    assert found(store) == [("scores", "a file, not a folder")]


def test_renamed_folder_of_names_is_a_problem_and_its_objects_are_not_garbage(store: Store) -> None:
    (store.path / "descriptors").rename(store.path / "descriptors.old")
    assert found(store) == [("descriptors.old", "a folder of names that a store does not have")]
    before = tree(store.path)
    with pytest.raises(Corrupt, match=r"descriptors\.old: a folder of names .* Give the folder its name back"):
        collect(store)
    assert tree(store.path) == before
    (store.path / "descriptors.old").rename(store.path / "descriptors")
    assert found(store) == []
    assert find_garbage(store) == []


def test_lost_name_of_an_input_is_a_problem_and_its_object_is_not_garbage(store: Store) -> None:
    object_name = store.open_artifact("models/pca").object_name
    shutil.rmtree(store.path / "models")
    what = f"the name is missing, and descriptors/background was made from its object {object_name}"
    assert found(store) == [("models/pca", what)]
    with pytest.raises(Corrupt, match="models/pca: the name is missing"):
        collect(store)
    (problem,) = verify_frame(store)
    (store.path / "models").mkdir()
    target, link = problem.remedy.partition("ln -s ")[2].partition(",")[0].split()
    Path(link).symlink_to(target)
    assert found(store) == [("models", "zarr.json is missing or was changed")]


def test_input_whose_object_is_not_here_is_no_problem(store: Store) -> None:
    """As in a store that only some artifacts were fetched into."""
    shutil.rmtree(store.open_artifact("models/pca").folder)
    shutil.rmtree(store.path / "models")
    assert found(store) == []


def test_surplus_entries_anywhere_are_problems(store: Store) -> None:
    (store.path / "notes.txt").touch()
    (store.path / "lost+found").mkdir()
    (store.path / "empty").mkdir()
    (store.path / "objects" / "other").mkdir()
    (store.path / "objects" / f"graph-{'0' * 24}").symlink_to("other")
    (store.path / "models" / "not-a-link").mkdir()
    (store.path / "work").mkdir()
    (store.path / "work" / "file").touch()
    assert sorted(found(store)) == [
        ("empty", "not a part of the store"),
        ("models/not-a-link", "not an artifact of mmdiff"),
        ("notes.txt", "not a part of the store"),
        (f"objects/graph-{'0' * 24}", "not an object of mmdiff"),
        ("objects/other", "not an object of mmdiff"),
        ("work/file", "not a draft of mmdiff"),
    ]
    assert find_garbage(store) == []


def test_entry_that_vanishes_meanwhile_is_no_problem(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run removes its draft between the listing and the look at it."""
    iterdir = Path.iterdir

    def listed(folder: Path) -> list[Path]:
        return [*iterdir(folder), *([folder / "vanished"] if folder.name == "work" else [])]

    (store.path / "work").mkdir()
    monkeypatch.setattr(Path, "iterdir", listed)
    assert found(store) == []


def test_folder_that_cannot_be_listed_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(folder: Path) -> list[Path]:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(DiskError, match=r"store: cannot list the folder \(Permission denied\).*permissions"):
        list(verify_frame(store))


def test_inspect_of_a_store_with_lost_names_shows_the_others(store: Store) -> None:
    shutil.rmtree(store.path / "models")
    result = CliRunner().invoke(app, ["inspect", "--store", str(store.path)])
    assert result.exit_code == 0
    assert SEEDS in result.stdout
    assert CliRunner().invoke(app, ["gc", "--dry-run", "--store", str(store.path)]).exit_code == 1


def test_store_that_is_not_made_yet_has_no_problems(tmp_path: Path) -> None:
    assert list(verify_frame(Store(tmp_path / "nowhere"))) == []

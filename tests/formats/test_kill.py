"""An import killed at any step leaves nothing incomplete under a name, and the same command continues it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmdiff.formats.store.store import Store
from mmdiff.importing.stage import import_descriptors
from tests.support.stores import (
    SMALL_CHUNKS,
    Inputs,
    chunk_inodes,
    chunks_of,
    full_seeds,
    interrupted_after_first_chunk,
    problems,
    tree,
)
from tests.support.sweeping import swept


def kill_at_every_step(stage: str, kind: str, folder: Path, every: int = 1) -> dict[str, int]:
    """The number of kills by system call; `sweeping.py` asserts the state of the store after each.

    Stages are killed at one step in `every`: the campaign of faults in the long run kills them at each.
    """
    return swept(stage, f"killed {kind}", folder, every)


def test_import_killed_before_any_step_resumes_to_identical_bytes(quick_folder: Path) -> None:
    kills = kill_at_every_step("import-seeds", "before", quick_folder, every=2)
    assert sum(kills.values()) > 100
    assert set(kills) >= {
        "mkdir",
        "create",
        "posix_fallocate",
        "write",
        "fsync",
        "rename",
        "symlink",
        "replace",
        "unlink",
        "rmdir",
    }


def test_import_killed_after_any_step_resumes_to_identical_bytes(quick_folder: Path) -> None:
    assert sum(kill_at_every_step("import-background", "after", quick_folder, every=8).values()) > 18


def test_label_killed_before_any_step_keeps_the_old_labels_or_has_the_new_ones_and_repeats_to_identical_bytes(
    quick_folder: Path,
) -> None:
    assert sum(kill_at_every_step("label", "before", quick_folder, every=6).values()) > 8


def test_build_graph_killed_before_any_step_resumes_to_identical_bytes(quick_folder: Path) -> None:
    assert sum(kill_at_every_step("build-graph", "before", quick_folder, every=20).values()) > 10


def test_logreg_killed_before_any_step_resumes_to_identical_bytes(quick_folder: Path) -> None:
    assert sum(kill_at_every_step("logreg", "before", quick_folder, every=12).values()) > 8


@pytest.mark.parametrize("kind", ["before", "after", "within"])
def test_diffusion_killed_at_any_step_resumes_to_identical_bytes(quick_folder: Path, kind: str) -> None:
    assert sum(kill_at_every_step("diffuse", kind, quick_folder, every=40).values()) > (1 if kind == "within" else 5)


@pytest.mark.parametrize("kind", ["before", "after", "within"])
def test_diffusion_with_coupled_classes_killed_at_any_step_resumes_to_identical_bytes(quick_folder: Path, kind: str) -> None:
    kills = kill_at_every_step("diffuse-coupled", kind, quick_folder, every=40)
    assert sum(kills.values()) > (1 if kind == "within" else 5)


def test_import_killed_in_the_middle_of_a_write_resumes_to_identical_bytes(quick_folder: Path) -> None:
    assert sum(kill_at_every_step("import-seeds", "within", quick_folder, every=6).values()) > 8


def test_replacement_killed_at_any_step_shows_the_old_artifact_or_the_new_one_whole(quick_folder: Path) -> None:
    assert sum(kill_at_every_step("import-again", "before", quick_folder, every=8).values()) > 12


@pytest.mark.parametrize(("kind", "every"), [("before", 1), ("after", 6), ("within", 2)])
def test_append_killed_at_any_step_resumes_to_identical_bytes(quick_folder: Path, kind: str, every: int) -> None:
    kills = kill_at_every_step("append", kind, quick_folder, every)
    assert sum(kills.values()) > (2 if kind == "within" else 60 // every)
    assert kind != "before" or kills["link"] > 0


@pytest.mark.parametrize("kind", ["before", "after"])
def test_merge_of_appended_rows_killed_at_any_step_resumes_to_identical_bytes(quick_folder: Path, kind: str) -> None:
    """At few steps: kills at links are those of an append, which is killed at every step."""
    assert sum(kill_at_every_step("merge-appended", kind, quick_folder, every=50).values()) > 3


def test_interrupted_import_tells_how_many_chunks_it_found_and_does_not_write_them_again(
    quick_folder: Path, inputs: Inputs
) -> None:
    request = full_seeds(inputs, no_background=True)
    with chunks_of(SMALL_CHUNKS):
        with pytest.raises(KeyboardInterrupt):
            import_descriptors(quick_folder / "store", request, interrupted_after_first_chunk)
        assert Store.open(quick_folder / "store").names() == []
        finished = chunk_inodes(quick_folder / "store")
        outcome = import_descriptors(quick_folder / "store", request)
        undisturbed = import_descriptors(quick_folder / "other", request)
    assert 1 <= outcome.chunks_found <= outcome.artifact.spec("vectors").chunks
    assert outcome.artifact.run["chunks_found"] == outcome.chunks_found
    assert undisturbed.chunks_found == 0
    assert finished <= chunk_inodes(quick_folder / "store")
    assert tree(quick_folder / "store", with_runs=False) == tree(quick_folder / "other", with_runs=False)


def test_draft_of_an_input_that_changed_is_not_continued(quick_folder: Path, inputs: Inputs) -> None:
    request = inputs.request(name="vectors.npy")
    with chunks_of(SMALL_CHUNKS):
        with pytest.raises(KeyboardInterrupt):
            import_descriptors(quick_folder / "store", request, interrupted_after_first_chunk)
        (inputs.folder / "others.npy").rename(inputs.folder / "vectors.npy")
        outcome = import_descriptors(quick_folder / "store", request)
        import_descriptors(quick_folder / "other", request)
    assert outcome.chunks_found == 0
    assert problems(Store.open(quick_folder / "store")) == []
    ids = [Store.open(quick_folder / name).id("descriptors/background") for name in ("store", "other")]
    assert ids[0] == ids[1]


def test_chunk_of_a_draft_that_was_damaged_meanwhile_is_made_again(quick_folder: Path, inputs: Inputs) -> None:
    request = inputs.request()
    with chunks_of(SMALL_CHUNKS):
        with pytest.raises(KeyboardInterrupt):
            import_descriptors(quick_folder / "store", request, interrupted_after_first_chunk)
        finished = sorted((quick_folder / "store" / "work" / "descriptors.background" / "object" / "vectors").glob("c.*"))
        damaged = bytearray(finished[0].read_bytes())
        damaged[100] ^= 1
        finished[0].write_bytes(damaged)
        outcome = import_descriptors(quick_folder / "store", request)
        import_descriptors(quick_folder / "other", request)
    assert outcome.chunks_found == len(finished) - 1
    assert tree(quick_folder / "store", with_runs=False) == tree(quick_folder / "other", with_runs=False)

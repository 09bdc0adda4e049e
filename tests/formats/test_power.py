"""Power cuts that a random campaign meets rarely: what goes is replaced on the disk before."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmdiff.formats.store.manifest import Recipe
from mmdiff.formats.store.publish import Draft, Publication
from mmdiff.formats.store.store import Store
from tests.support.power import Entries, Keep, Operation, Recorder, crash, is_removal, lay_out
from tests.support.stages import Rehearsal, small_thresholds, stages
from tests.support.stores import SMALL_CHUNKS, chunks_of, restamp_drafts, tree, values_for

NAME, RECIPE = "models/y", Recipe("other", 1, {}, {})
VALUES = values_for((6000,), "int64")


@pytest.fixture
def small_chunks() -> Iterator[None]:
    with chunks_of(SMALL_CHUNKS):
        yield


def only_removals(operation: Operation) -> float:
    """A crash that keeps removals alone, of all that is not synced."""
    return float(is_removal(operation))


@pytest.mark.usefixtures("small_chunks")
def test_note_and_its_lists_are_on_disk_before_older_lists_are_removed(quick_folder: Path) -> None:
    disk = quick_folder / "disk"
    disk.mkdir()

    def write(draft: Draft, name: str) -> None:
        writer = draft.scratch(name, VALUES.shape, "int64")
        writer.fill(VALUES)
        writer.sync()

    with Publication(disk / "store", [NAME], "a test") as publication:
        draft = publication.draft(NAME, RECIPE)
        write(draft, "first")
        draft.note({"last": "first"})
        recorder = Recorder(disk)
        with recorder.installed():
            write(draft, "second")
            draft.note({"last": "second"})
            draft.drop("first")
        removed = [at for at, operation in enumerate(recorder.operations, 1) if is_removal(operation)]
        assert removed
        for end in removed:
            left = crash(recorder.start, recorder.operations[:end], only_removals, random.Random(0))
            lay_out(left.tree(), quick_folder / "after")
            with Publication(quick_folder / "after" / "store", [NAME], "a test") as later:
                found = later.draft(NAME, RECIPE)
                last = found.noted["last"]
                assert not found.scratch(last, VALUES.shape, "int64").missing, f"{last} after {end} operations"
        draft.values("y", VALUES)
        publication.link({NAME: publication.publish(draft, {}, {})})
    assert Store.open(disk / "store").names() == [NAME]


def test_build_graph_goes_on_where_its_last_note_did_not_reach_the_disk(quick_folder: Path) -> None:
    disk = quick_folder / "disk"
    disk.mkdir()
    with small_thresholds():
        rehearsal = Rehearsal(stages(quick_folder)["build-graph"], quick_folder)
        rehearsal.reset()
        rehearsal.store.rename(disk / "store")
        rehearsal.store = disk / "store"
        recorder = Recorder(disk)
        with recorder.installed():
            rehearsal.act()
        assert recorder.now.tree() == tree(disk)
        # The lists of the last pass take their final place.
        ends = [
            at for at, operation in enumerate(recorder.operations, 1) if {"neighbors", "similarities"} & {*names(operation)}
        ]
        assert len(ends) >= 4
        for end in ends:
            operations = recorder.operations[:end]
            note = next(operation for operation in reversed(operations) if "checkpoint" in names(operation))
            lay_out(crash(recorder.start, operations, all_but(note), random.Random(0)).tree(), disk)
            restamp_drafts(rehearsal.store)
            rehearsal.check_intact()
            rehearsal.act()
            rehearsal.check_finished()


def all_but(lost: Operation) -> Keep:
    """A crash that loses one operation, of all that is not synced."""
    return lambda operation: float(operation is not lost)


def names(operation: Operation) -> list[str]:
    """The names of files and folders that an operation changes."""
    return [name for _, name, _ in operation.changes] if isinstance(operation, Entries) else []

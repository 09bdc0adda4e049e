"""One writer for each artifact, readers that never wait, and runs that fail without leaving a trace."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from mmdiff.formats.errors import BadOption, BadResult, BadRow, Corrupt, CountMismatch, DiskFull, InputError, Locked
from mmdiff.formats.storage import seam
from mmdiff.formats.store.publish import Publication
from mmdiff.formats.store.store import Store
from mmdiff.importing.stage import Request, import_descriptors
from tests.support.processes import child
from tests.support.refusals import TAKE_ROOM, refused_at
from tests.support.stores import (
    SMALL_CHUNKS,
    Inputs,
    chunk_inodes,
    chunks_of,
    full_seeds,
    interrupted_after_first_chunk,
    problems,
    publish,
    recipe,
    tree,
    values_for,
)

# Python 3.12 warns of forks with threads; the children here do not use the threads of the test runner.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture(autouse=True)
def small_chunks() -> Iterator[None]:
    with chunks_of(SMALL_CHUNKS):
        yield


def hold(path: Path, name: str) -> Callable[[], None]:
    """Starts to publish and does not finish."""

    def work() -> None:
        publication = Publication(path, [name], "mmdiff import x.npy").__enter__()
        publication.draft(name, recipe()).values("values", values_for((100, 3), "float32"))

    return work


def test_second_writer_is_told_who_is_writing(quick_folder: Path) -> None:
    with child(hold(quick_folder / "store", "models/x")) as pid:
        with pytest.raises(Locked, match=rf"models/x: process {pid} on .* \(mmdiff import x\.npy\)"):
            publish(quick_folder / "store", "models/x", {})
        with pytest.raises(Locked):
            import_locked(quick_folder / "store")


def import_locked(path: Path) -> None:
    with Publication(path, ["models/y", "models/x"], "needs both"):
        pytest.fail("both names were granted")


def test_refused_writer_leaves_the_work_of_the_other_alone(quick_folder: Path) -> None:
    with child(hold(quick_folder / "store", "models/x")):
        before = tree(quick_folder / "store")
        with pytest.raises(Locked):
            publish(quick_folder / "store", "models/x", {})
        with pytest.raises(Locked):
            import_locked(quick_folder / "store")
        assert tree(quick_folder / "store") == before


def test_readers_never_wait_for_a_writer(quick_folder: Path) -> None:
    values = values_for((1000, 3), "float32")
    publish(quick_folder / "store", "models/x", {"values": values})
    with child(hold(quick_folder / "store", "models/x")):
        np.testing.assert_array_equal(
            Store.open(quick_folder / "store").open_artifact("models/x", possible=False).array("values"), values
        )


def test_different_artifacts_are_written_at_the_same_time(quick_folder: Path) -> None:
    with child(hold(quick_folder / "store", "models/x")):
        publish(quick_folder / "store", "models/y", {"values": values_for((10,), "int64")})
        assert Store.open(quick_folder / "store").names() == ["models/y"]


def test_lock_of_a_killed_process_does_not_block(quick_folder: Path) -> None:
    with child(hold(quick_folder / "store", "models/x")):
        pass
    publish(quick_folder / "store", "models/x", {"values": values_for((10,), "int64")})
    assert not (quick_folder / "store" / "work").exists()


def test_many_first_writers_of_a_new_store_all_come_through(quick_folder: Path) -> None:
    for attempt in range(5):
        store = quick_folder / f"store{attempt}"
        read_end, write_end = os.pipe()
        children = []
        for number in range(6):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    os.close(write_end)
                    os.read(read_end, 1)
                    publish(store, f"models/m{number}", {"values": values_for((100,), "int64", number)}, recipe("pca"))
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            children.append(pid)
        os.close(write_end)
        os.close(read_end)
        assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 6
        opened = Store.open(store)
        assert opened.names() == [f"models/m{number}" for number in range(6)]
        assert {problem.what for problem in problems(opened)} <= {"an array that this kind does not have"}
        assert not opened.work.exists()


def test_failure_of_one_first_writer_does_not_pull_the_store_from_under_another(quick_folder: Path) -> None:
    path = quick_folder / "store"
    with Publication(path, ["models/x"], "first"):
        # The first run publishes nothing. The second has opened the store, and is about to make its work folder.
        second = seam.lock_folder(path, exclusive=False)
    assert second is not None
    assert os.fstat(second).st_ino == path.stat().st_ino
    os.close(second)


def test_same_content_under_two_names_is_two_objects(quick_folder: Path) -> None:
    values = {"values": values_for((100,), "int64")}
    first, second = (publish(quick_folder / "store", name, values) for name in ("models/x", "models/y"))
    assert first.id == second.id
    assert second.folder.name == f"{first.id}.1"
    np.testing.assert_array_equal(second.array("values"), values["values"])


def bad_inputs(inputs: Inputs) -> dict[str, Request]:
    folder = inputs.folder
    rows = np.load(folder / "others.npy")
    rows[555, 3] = np.nan
    np.save(folder / "nan.npy", rows)
    np.save(folder / "short_labels.npy", np.zeros(599, int))
    np.save(folder / "negative_labels.npy", np.full(600, -2))
    (folder / "two_classes.txt").write_text("a\nb\n")
    (folder / "same_ids.txt").write_text("x\n" * 600)
    np.save(folder / "few.npy", rows[:5])
    np.save(folder / "wide.npy", np.ones((600, 13), np.float32))
    labels = str(folder / "labels.npy")
    return {
        "NaN": inputs.request(name="nan.npy"),
        "NaN in what is not reduced": inputs.request(name="nan.npy", dims=12),
        "too few labels": inputs.request(labels=str(folder / "short_labels.npy")),
        "labels below -1": inputs.request("seeds", labels=str(folder / "negative_labels.npy"), no_background=True),
        "class without a name": inputs.request(labels=labels, class_names=str(folder / "two_classes.txt")),
        "ids twice": inputs.request(ids=str(folder / "same_ids.txt")),
        "too few rows for the PCA": inputs.request(name="few.npy"),
        "no such file": inputs.request(name="nowhere.npy"),
        "no dimensions": inputs.request(dims=0),
        "seeds without labels": inputs.request("seeds", labels=None),
    }


BAD = ["NaN", "NaN in what is not reduced", "too few labels", "labels below -1", "class without a name", "ids twice"]
BAD += ["too few rows for the PCA", "no such file", "no dimensions", "seeds without labels"]


@pytest.mark.parametrize("what", BAD)
def test_bad_input_leaves_the_store_as_it_was(store: Store, inputs: Inputs, what: str) -> None:
    before = tree(store.path)
    with pytest.raises(InputError):
        import_descriptors(store.path, bad_inputs(inputs)[what])
    assert tree(store.path) == before


@pytest.mark.parametrize("what", BAD)
def test_bad_input_does_not_make_a_store(quick_folder: Path, inputs: Inputs, what: str) -> None:
    with pytest.raises(InputError):
        import_descriptors(quick_folder / "store", bad_inputs(inputs)[what])
    assert not (quick_folder / "store").exists()


@pytest.mark.parametrize("row", [3, 599])
def test_bad_row_found_late_leaves_no_trace_of_the_pca_that_was_published_first(
    store: Store, inputs: Inputs, row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The PCA of a large source reads a sample, so a bad row may be found after models/pca was made."""
    monkeypatch.setattr("mmdiff.importing.space.SAMPLE_ROWS", 256)
    monkeypatch.setattr("mmdiff.importing.space._RUN_ROWS", 1)
    rows = np.load(inputs.folder / "others.npy")
    sampled = np.linspace(0, 599, 256).astype(int)
    bad = next(i for i in range(row - 1, 600) if i not in sampled) if row < 599 else 598
    assert bad not in sampled
    rows[bad] = np.inf
    np.save(inputs.folder / "late.npy", rows)
    before = tree(store.path)
    with pytest.raises(BadRow, match=f"row {bad}"):
        import_descriptors(store.path, inputs.request(name="late.npy"))
    assert tree(store.path) == before


def test_failure_in_an_empty_folder_of_the_users_is_the_users_error(
    tmp_path: Path, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(BadRow):
        import_descriptors(Path(), bad_inputs(inputs)["NaN"])
    assert list((tmp_path / "here").iterdir()) == []


@pytest.mark.parametrize("what", ["NaN", "too few labels"])
def test_run_that_fails_before_it_takes_up_a_draft_leaves_it_to_the_command_that_began_it(
    quick_folder: Path, inputs: Inputs, what: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        import_descriptors(quick_folder / "store", inputs.request(), interrupted_after_first_chunk)
    finished = chunk_inodes(quick_folder / "store")
    with pytest.raises(InputError):
        import_descriptors(quick_folder / "store", bad_inputs(inputs)[what])
    assert chunk_inodes(quick_folder / "store") == finished
    assert import_descriptors(quick_folder / "store", inputs.request()).chunks_found >= 1
    assert finished <= chunk_inodes(quick_folder / "store")


def test_same_import_again_is_recognised_and_changes_nothing(store: Store, inputs: Inputs) -> None:
    before = tree(store.path)
    assert import_descriptors(store.path, full_seeds(inputs)).reused
    assert import_descriptors(store.path, inputs.request()).reused
    assert tree(store.path) == before


def test_input_whose_file_was_written_again_is_never_silently_reused(store: Store, inputs: Inputs) -> None:
    rows = np.load(inputs.folder / "vectors.npy")
    rows[17] = rows[18]
    np.save(inputs.folder / "vectors.npy", rows)
    outcome = import_descriptors(store.path, inputs.request())
    assert not outcome.reused
    assert any("import it again" in note for note in outcome.notes)


@pytest.mark.parametrize("place", ["file", "folder"])
def test_store_is_not_made_among_other_files(tmp_path: Path, inputs: Inputs, place: str) -> None:
    if place == "file":
        (tmp_path / "store").write_text("precious")
    else:
        (tmp_path / "store").mkdir()
        (tmp_path / "store" / "file").write_text("precious")
    before = tree(tmp_path)
    with pytest.raises(BadOption):
        import_descriptors(tmp_path / "store", inputs.request())
    assert tree(tmp_path) == before


def test_file_whose_name_is_no_utf8_is_imported(quick_folder: Path, inputs: Inputs) -> None:
    name = os.fsdecode(b"caf\xe9.npy")
    shutil.copy(inputs.folder / "vectors.npy", inputs.folder / name)
    request = inputs.request(name=name, command=f"mmdiff import {name}")
    artifact = import_descriptors(quick_folder / "store", request).artifact
    assert artifact.run["command"] == request.command
    assert problems(Store.open(quick_folder / "store")) == []
    assert import_descriptors(quick_folder / "store", request).reused


def test_array_too_large_for_the_disk_is_refused_before_it_is_begun(
    quick_folder: Path, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = inputs.request(dims=12, keep_raw=True)
    whole = import_descriptors(quick_folder / "other", request).artifact
    vectors, raw = (whole.spec(name).bytes_on_disk for name in ("vectors", "raw"))
    for free in (0, vectors - 1, vectors + raw - 1):
        monkeypatch.setattr(seam, "free_bytes", lambda _, free=free: free)
        with pytest.raises(DiskFull, match=f"{free:,} free"):
            import_descriptors(quick_folder / "store", request)
        assert chunk_inodes(quick_folder / "store") == set()
    monkeypatch.setattr(seam, "free_bytes", lambda _: vectors + raw)
    import_descriptors(quick_folder / "store", request)
    assert tree(quick_folder / "store", with_runs=False) == tree(quick_folder / "other", with_runs=False)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 96 KiB; needs root."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount a small disk here (not root)")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_disk_that_fills_up_is_an_error_and_with_room_the_same_command_continues(
    small_disk: Path, quick_folder: Path, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = inputs.request(dims=12, keep_raw=True)
    with monkeypatch.context() as context:
        context.setattr(seam, "free_bytes", lambda _: 1 << 40)
        with pytest.raises(DiskFull, match="run the same command again"):
            import_descriptors(small_disk / "store", request)
    assert Store.open(small_disk / "store").names() == []
    finished = chunk_inodes(small_disk / "store")
    assert finished
    with pytest.raises(DiskFull):
        import_descriptors(small_disk / "store", request)
    assert chunk_inodes(small_disk / "store") == finished
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    outcome = import_descriptors(small_disk / "store", request)
    assert outcome.chunks_found >= 1
    assert finished <= chunk_inodes(small_disk / "store")
    import_descriptors(quick_folder / "other", request)
    assert tree(small_disk / "store", with_runs=False) == tree(quick_folder / "other", with_runs=False)


def test_no_room_at_any_step_is_an_error_in_words_and_with_room_the_same_command_continues(
    quick_folder: Path, inputs: Inputs
) -> None:
    request = inputs.request()
    import_descriptors(quick_folder / "other", request)
    expected = tree(quick_folder / "other", with_runs=False)
    for step in range(1000):
        path = quick_folder / f"store{step}"
        with refused_at(step, TAKE_ROOM, errno.ENOSPC):
            try:
                import_descriptors(path, request)
            except DiskFull as error:
                message = str(error)
            else:
                break
        assert "run the same command again" in message
        assert not path.exists() or problems(Store.open(path)) == []
        import_descriptors(path, request)
        assert tree(path, with_runs=False) == expected, f"step {step}"
        shutil.rmtree(path)
    assert step > 80


def test_labels_of_another_length_are_refused_with_both_numbers(quick_folder: Path, inputs: Inputs) -> None:
    with pytest.raises(CountMismatch, match="599 labels for the 600 rows"):
        import_descriptors(quick_folder / "store", bad_inputs(inputs)["too few labels"])


@pytest.mark.parametrize("lost", ["a chunk", "all chunks but a part"])
def test_array_that_a_power_cut_left_incomplete_is_adopted_again(quick_folder: Path, lost: str) -> None:
    """The folder got its final name, and the names of chunks in it did not reach the disk."""
    values = values_for((9000,), "int32")
    with Publication(quick_folder / "store", ["models/x"], "a test") as publication:
        draft = publication.draft("models/x", recipe())
        scratch = draft.scratch("pass_x", values.shape, "int32")
        scratch.fill(values)
        left = draft.folder_of("x")
        shutil.copytree(scratch.folder, left)
        chunks = sorted(left.glob("c.*"))
        if lost == "a chunk":
            chunks[1].unlink()
        else:
            for chunk in chunks:
                chunk.unlink()
            (left / "c.0.part").write_bytes(b"torn")
        draft.adopt(scratch, "x")
        artifact = publication.publish(draft, {}, {"command": "a test"})
        publication.link({"models/x": artifact})
    assert (Store.open(quick_folder / "store").open_artifact("models/x", possible=False).array("x") == values).all()


def test_chunk_that_is_lost_before_publication_is_an_error_with_its_name(quick_folder: Path) -> None:
    with Publication(quick_folder / "store", ["models/x"], "a test") as publication:
        draft = publication.draft("models/x", recipe())
        writer = draft.array("x", (9000,), "int32")
        writer.write(0, values_for((writer.spec.rows_per_chunk,), "int32"))
        with pytest.raises(Corrupt, match=r"models/x, array x: chunk c\.1 cannot be read back"):
            publication.publish(draft, {}, {"command": "a test"})


def test_checkpoint_with_figures_that_are_not_finite_is_a_bad_result(quick_folder: Path) -> None:
    with Publication(quick_folder / "store", ["models/x"], "a test") as publication:
        draft = publication.draft("models/x", recipe())
        for save in (draft.note, lambda document: draft.save_part("part", document)):
            with pytest.raises(BadResult, match="models/x: values that are not finite"):
                save({"sum": float("nan")})

"""Ctrl-C, a full disk, damage: a clear message, nothing half-published, and the same command continues to the same bytes."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mmdiff.diffusion.io import checkpoint
from mmdiff.diffusion.stage import Request, diffuse
from mmdiff.formats.errors import Corrupt, DiskFull
from mmdiff.formats.store.store import Store
from mmdiff.runtime.progress import Advance, Progress
from tests.diffusion.test_diffuse_shortcuts import large
from tests.diffusion.test_diffuse_store import make
from tests.support.refusals import TAKE_ROOM, refused_at
from tests.support.stores import SMALL_CHUNKS, chunk_inodes, chunks_of, problems, restamp_drafts, tree

SCORES = "scores/diffusion"
VARIANTS: dict[str, dict[str, Any]] = {"in batches": {}, "coupled": {"eta": "row"}, "powers": {"gamma": 1.2}}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """States are saved after every iteration, and arrays have several chunks."""
    monkeypatch.setattr(checkpoint, "CHECKPOINT_SECONDS", 0)
    with chunks_of(SMALL_CHUNKS):
        yield


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("made") / "folder")


def copy(original: Path, folder: Path) -> Path:
    return Path(shutil.copytree(original / "store", folder / "store", symlinks=True))


def request(folder: Path, **options: Any) -> Request:
    usual: dict[str, Any] = {"iterations": 3, "cols_per_batch": 3, "predict_nodes": folder / "p.parquet"}
    return Request(**usual | options)


def stopped_at(moment: int) -> Progress:
    """A progress bar that interrupts the run at its given move."""

    @contextmanager
    def progress(what: str, total: int, unit: str) -> Iterator[Advance]:
        del total, unit
        moves = itertools.count()

        def advance(_: int) -> None:
            if what == "diffusing" and next(moves) == moment:
                os.kill(os.getpid(), signal.SIGINT)

        yield advance

    return progress


def interrupt(store: Path, asked: Request, moment: int) -> bool:
    """Whether the run was interrupted; otherwise it finished first."""
    try:
        diffuse(store, asked, stopped_at(moment))
    except KeyboardInterrupt:
        assert SCORES not in Store.open(store).names()
        assert problems(Store.open(store)) == []
        return True
    return False


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
def test_interrupted_anywhere_the_same_command_continues_to_the_same_bytes(
    original: Path, quick_folder: Path, options: dict[str, Any]
) -> None:
    asked = request(quick_folder, **options)
    reference = copy(original, quick_folder / "reference")
    diffuse(reference, asked)
    expected = tree(reference, with_runs=False)
    for moment in itertools.count(0, 5):
        store = copy(original, quick_folder / str(moment))
        if not interrupt(store, asked, moment):
            break
        # Interrupt the resumed run too.
        interrupt(store, asked, 1)
        finished = chunk_inodes(store)
        diffuse(store, asked)
        assert tree(store, with_runs=False) == expected
        assert finished <= chunk_inodes(store)
        shutil.rmtree(store)
    assert moment > 8


def test_saved_batches_and_iterations_are_not_computed_again(original: Path, quick_folder: Path) -> None:
    asked = request(quick_folder, plain=True)
    moves = itertools.count()

    @contextmanager
    def counting(what: str, total: int, unit: str) -> Iterator[Advance]:
        del total, unit

        def advance(_: int) -> None:
            if what == "diffusing":
                next(moves)

        yield advance

    whole = diffuse(copy(original, quick_folder / "whole"), asked, counting).artifact.run["steps"]
    store = copy(original, quick_folder)
    # Three batches of three iterations, each with as many moves: the interrupt comes within the third batch.
    assert interrupt(store, asked, next(moves) * 5 // 6)
    rest = diffuse(store, asked).artifact.run["steps"]
    assert 0 < sum(step["bytes"] for step in rest) <= sum(step["bytes"] for step in whole) / 3


def test_other_batches_after_an_interruption_do_not_count_classes_twice(original: Path, quick_folder: Path) -> None:
    expected = diffuse(copy(original, quick_folder / "whole"), request(quick_folder)).artifact.id
    store = copy(original, quick_folder)
    for width, moment in ((3, 13), (1, 13), (3, 13), (2, 13), (1, 13)):
        assert interrupt(store, request(quick_folder, cols_per_batch=width), moment)
    assert diffuse(store, request(quick_folder, cols_per_batch=1)).artifact.id == expected


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
@pytest.mark.parametrize("harm", ["flipped", "gone"])
def test_damaged_checkpoints_are_computed_again(original: Path, quick_folder: Path, options: dict[str, Any], harm: str) -> None:
    asked = request(quick_folder, **options)
    expected = diffuse(copy(original, quick_folder / "whole"), asked).artifact.id
    begun = copy(original, quick_folder / "begun")
    assert interrupt(begun, asked, 14)
    kept = sorted(file.relative_to(begun) for file in (begun / "work").rglob("c.*"))
    assert kept
    for file in [*kept, Path("work/scores.diffusion/checkpoint")]:
        store = quick_folder / "store"
        shutil.copytree(begun, store, symlinks=True)
        restamp_drafts(store)
        if harm == "gone":
            (store / file).unlink()
        else:
            damaged = bytearray((store / file).read_bytes())
            damaged[0] ^= 1
            (store / file).write_bytes(damaged)
        assert diffuse(store, asked).artifact.id == expected, file
        shutil.rmtree(store)


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
def test_full_disk_is_an_error_in_words_and_with_space_the_same_command_continues(
    original: Path, quick_folder: Path, options: dict[str, Any]
) -> None:
    asked = request(quick_folder, **options)
    reference = copy(original, quick_folder / "reference")
    diffuse(reference, asked)
    expected = tree(reference, with_runs=False)
    for step in itertools.count(3, 17):
        store = copy(original, quick_folder)
        with refused_at(step, TAKE_ROOM, errno.ENOSPC):
            try:
                diffuse(store, asked)
            except DiskFull as error:
                message = str(error)
            else:
                break
        assert "run the same command again" in message
        assert SCORES not in Store.open(store).names()
        assert problems(Store.open(store)) == []
        diffuse(store, asked)
        assert tree(store, with_runs=False) == expected, f"step {step}"
        shutil.rmtree(store)
    assert step > 50


def command(store: Path, *options: str) -> list[str]:
    start = [sys.executable, "-c", "from mmdiff.cli import main; main()", "diffuse", "--iterations", "4"]
    return [*start, "--cols-per-batch", "4", "--keep-scores", "last", *options, "--store", str(store), "--json"]


@pytest.mark.parametrize("options", [(), ("--eta", "row")], ids=str)
def test_ctrl_c_is_answered_with_130_and_the_same_command_continues(quick_folder: Path, options: tuple[str, ...]) -> None:
    store = large(quick_folder / "folder", 40_000, 2_000, 40) / "store"
    other = Path(shutil.copytree(store, quick_folder / "other", symlinks=True))
    process = subprocess.Popen(command(store, *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (store / "work" / "scores.diffusion" / "checkpoint").exists() and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    output, message = process.communicate()
    assert process.returncode == 130, message
    assert output == ""
    assert "interrupted. What is finished is kept: the same command continues from there." in message
    assert "Traceback" not in message
    assert SCORES not in Store.open(store).names()
    found = [
        json.loads(subprocess.run(command(path, *options), capture_output=True, text=True, check=True).stdout)
        for path in (store, other)
    ]
    assert found[0]["object"] == found[1]["object"]
    read = [sum(step["bytes"] for step in each["steps"]) for each in found]
    assert read[0] < read[1]
    assert problems(Store.open(store)) == []


def test_coupled_product_that_changes_on_disk_is_never_used(
    tmp_path: Path, original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, reference = copy(original, tmp_path), copy(original, tmp_path / "reference")
    asked = request(tmp_path, eta="row")
    put = checkpoint.ProductsOnDisk.put

    def damaging(self: checkpoint.ProductsOnDisk, iteration: int, batch: int, values: Any) -> None:
        put(self, iteration, batch, values)
        if (iteration, batch) == (2, 1):
            file = next(self._declare(iteration, batch).folder.glob("c.*"))
            damaged = bytearray(file.read_bytes())
            damaged[100] ^= 1
            file.write_bytes(damaged)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint.ProductsOnDisk, "put", damaging)
        with pytest.raises(Corrupt, match=r"product of iteration 2, columns 3 to .* cannot be read back"):
            diffuse(store, asked)
    assert Store.open(store).id(SCORES) is None
    diffuse(store, asked)
    diffuse(reference, asked)
    assert tree(store, with_runs=False) == tree(reference, with_runs=False)

"""Commands without their resources end in a sentence: a share of the long campaign `tests/long/resources.py`."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mmdiff.formats.store.store import Store
from mmdiff.runtime import bars
from tests.long import resources
from tests.support.stores import make_inputs, make_store

PROGRAM = Path(sys.executable).parent / "mmdiff"


def test_commands_without_their_resources_end_in_a_sentence_and_leave_the_store_intact() -> None:
    assert resources.run(1, seed=0, small=True)["failures"] == 0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resources")
    make_store(folder / "store", make_inputs(folder / "inputs"))
    return folder / "store"


def shell(command: str, store: Path) -> tuple[int, str]:
    """Runs a command line with `mmdiff` in it; returns its exit code and what stderr has."""
    script = f'mmdiff() {{ "{PROGRAM}" "$@"; }}; {command}; exit ${{PIPESTATUS[0]}}'
    outcome = subprocess.run(["bash", "-c", script], cwd=store.parent, capture_output=True, text=True, check=False)
    return outcome.returncode, outcome.stderr


def test_a_reader_that_reads_nothing_is_no_error(store: Path) -> None:
    assert shell("mmdiff inspect descriptors/seeds --rows : --store store | true", store) == (0, "")


def test_output_that_cannot_be_written_is_a_sentence(store: Path) -> None:
    code, told = shell("mmdiff inspect --store store > /dev/full", store)
    assert code == 1
    assert told == "mmdiff: the output cannot be written (No space left on device). Write it to another place.\n"


@pytest.mark.parametrize("streams", [">&-", "<&-", "<&- >&- 2>&-", ">&- 2>&-"])
def test_closed_streams_are_no_error_and_no_file_takes_their_place(store: Path, streams: str) -> None:
    assert shell(f"mmdiff verify --store store {streams}", store) == (0, "")


def broken_pipe() -> int:
    """The end for writing of a pipe that has no reader."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def hung_up() -> int:
    """A terminal that was closed."""
    ours, theirs = pty.openpty()
    os.close(ours)
    return theirs


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graph")
    resources.make_original(folder)
    return folder / "store"


@pytest.mark.parametrize(("option", "what", "needed"), [("-d", "data", "512.0 MiB"), ("-v", "address space", "1.5 GiB")])
def test_limit_below_which_libraries_abort_is_refused_before_they_are_loaded(
    graph: Path, option: str, what: str, needed: str
) -> None:
    code, told = shell(f"ulimit {option} 204800; mmdiff build-graph --k 6 --store store", graph)
    assert code == 1
    assert (
        told == f"mmdiff: this process may have 200.0 MiB of {what} (ulimit {option}), and needs {needed}. Raise the limit.\n"
    )
    assert shell(f"ulimit {option} 2097152; mmdiff build-graph --k 6 --store store", graph)[0] == 0


@pytest.mark.parametrize("stderr", [broken_pipe, hung_up, lambda: os.open("/dev/full", os.O_WRONLY)])
def test_notes_without_a_reader_do_not_end_the_run(graph: Path, stderr: Callable[[], int]) -> None:
    name, stream = stderr.__name__.strip("<>"), stderr()
    words = [str(PROGRAM), "diffuse", "--iterations", "1", "--name", name, "--store", str(graph)]
    outcome = subprocess.run(words, stdout=subprocess.PIPE, stderr=stream, text=True, check=False)
    os.close(stream)
    assert (outcome.returncode, outcome.stdout.split(":")[0]) == (0, f"scores/{name}")
    assert Store.open(graph).id(f"scores/{name}") is not None


def test_command_whose_streams_have_lost_their_reader_still_does_its_work(graph: Path) -> None:
    words = [str(PROGRAM), "diffuse", "--iterations", "1", "--name", "unseen", "--store", str(graph)]
    pipe = broken_pipe()
    assert subprocess.run(words, stdout=pipe, stderr=pipe, check=False).returncode == 0
    os.close(pipe)
    assert Store.open(graph).id("scores/unseen") is not None


def test_error_without_a_reader_keeps_its_exit_code(graph: Path) -> None:
    pipe = broken_pipe()
    words = [str(PROGRAM), "diffuse", "--iterations", "1", "--eta", "colum", "--store", str(graph)]
    assert subprocess.run(words, stderr=pipe, check=False).returncode == 2
    os.close(pipe)


@pytest.mark.parametrize("stderr", [broken_pipe, hung_up])
def test_progress_without_a_reader_does_not_end_the_work(stderr: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bars, "_FIRST_LINE_SECONDS", 0.0)
    raw = os.fdopen(stderr(), "wb", buffering=0)
    done = []
    with raw, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", io.TextIOWrapper(raw, write_through=True))
        patch.setattr(sys.stderr, "isatty", lambda: stderr is hung_up, raising=False)
        with bars.show_progress("searching", 10, "rows") as advance:
            for count in range(5):
                advance(2)
                done.append(count)
    assert done == [0, 1, 2, 3, 4]

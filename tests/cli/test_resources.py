"""Commands without their resources end in a sentence: a share of the long campaign `tests/long/resources.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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

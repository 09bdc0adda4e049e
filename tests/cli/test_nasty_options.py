"""No value of an option is a traceback: every option of every command, with values that no user means."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.nasty_options import QUICK, World, cases, commands
from tests.support.stores import MEMORY


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    before = Path.cwd()
    with TemporaryDirectory(dir=MEMORY) as folder:
        made = World(Path(folder))
        (made.folder / "here").mkdir()
        os.chdir(made.folder / "here")
        yield made
        os.chdir(before)


@pytest.mark.parametrize("command", [name for name, _ in commands()])
def test_no_value_of_an_option_is_a_traceback_or_changes_the_store_when_refused(world: World, command: str) -> None:
    found = [wrong for case in cases(command, QUICK) if (wrong := world.run(case)) is not None]
    assert not found, "\n".join(found)

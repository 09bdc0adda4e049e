"""No value of a parameter of the Python API ends in an error that is not ours; numbers of numpy are as good as Python's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.nasty_options import World
from tests.support.nasty_parameters import CALLS, QUICK, ApiWorld, api_cases, numpy_cases
from tests.support.stores import MEMORY


@pytest.fixture(scope="module")
def world() -> Iterator[ApiWorld]:
    before = Path.cwd()
    with TemporaryDirectory(dir=MEMORY) as folder:
        made = ApiWorld(World(Path(folder)))
        (Path(folder) / "here").mkdir()
        os.chdir(Path(folder) / "here")
        yield made
        os.chdir(before)


@pytest.mark.parametrize("call", CALLS)
def test_no_value_of_a_parameter_is_an_untyped_error_or_changes_the_store_when_refused(world: ApiWorld, call: str) -> None:
    found = [wrong for case in api_cases(call, QUICK) if (wrong := world.run(case)) is not None]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("call", CALLS)
def test_numbers_and_flags_of_numpy_make_what_those_of_python_make(world: ApiWorld, call: str) -> None:
    found = [wrong for case in numpy_cases(call) if (wrong := world.accepts(case)) is not None]
    assert not found, "\n".join(found)

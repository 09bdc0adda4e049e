"""Nasty values for every option of every command and every parameter of the Python API, and random pairs of options.

Every case ends in success, or in a sentence of our own with the store unchanged; what is accepted passes `verify` and holds no
NaN. The first pass tries every value of the tables once; then random command lines with two nasty or random values follow, as
many as `scale` allows (6,000 at 1.0).
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from tests.support.nasty_options import Case, World, cases, commands
from tests.support.nasty_parameters import CALLS, ApiCase, ApiWorld, api_cases
from tests.support.stores import MEMORY

_PAIRS = 6000

Tried = TypeVar("Tried")


def run(scale: float, seed: int) -> dict[str, int | float | str]:
    """Runs the campaign; raises AssertionError with every case that went wrong."""
    before, draw = Path.cwd(), random.Random(seed)
    wrong: list[str] = []
    with TemporaryDirectory(dir=MEMORY) as folder:
        world = World(Path(folder))
        (world.folder / "here").mkdir()
        os.chdir(world.folder / "here")
        try:
            single = _share([case for name, _ in commands() for case in cases(name)], scale, draw)
            calls = _share([case for name in CALLS for case in api_cases(name)], scale, draw)
            pairs = [_pair(draw) for _ in range(max(1, int(_PAIRS * scale)))]
            api = ApiWorld(world)
            clock = time.monotonic()
            todo: list[Case | ApiCase] = [*single, *pairs, *calls]
            for number, case in enumerate(todo):
                found = world.run(case) if isinstance(case, Case) else api.run(case)
                wrong += [] if found is None else [found]
                if time.monotonic() - clock > 60:
                    sys.stderr.write(f"options: {number + 1:,} cases, {len(wrong)} findings\n")
                    clock = time.monotonic()
        finally:
            os.chdir(before)
    assert not wrong, f"seed {seed}, scale {scale}:\n" + "\n".join(wrong)
    return {"command lines": len(single) + len(pairs), "calls": len(calls), "findings": 0}


def _share(all_of_them: list[Tried], scale: float, draw: random.Random) -> list[Tried]:
    """All cases in a long run, some of them in a quick look."""
    return all_of_them if scale >= 1 else draw.sample(all_of_them, max(1, int(len(all_of_them) * scale)))


def _pair(draw: random.Random) -> Case:
    """A command with a nasty value of one option, and a nasty or random value of another."""
    command, _ = draw.choice(commands())
    first, second = draw.choice(list(cases(command))), draw.choice(list(cases(command)))
    return Case(command, first.option, first.value, ((second.option, _value(second, draw)),))


def _value(case: Case, draw: random.Random) -> str:
    """The nasty value itself, or a number of any size. Addresses stay as they are: others would be connected to."""
    if case.option == "--dask":
        return case.value
    number = f"{draw.choice('-+').strip('+')}{10 ** draw.uniform(-12, 12):g}"
    return draw.choice([case.value, number, str(draw.randrange(40)), f"{draw.random():.3f}"])

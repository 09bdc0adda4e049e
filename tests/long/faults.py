"""Faults and kills at the file operations of every stage: EIO, ENOSPC, EINTR, short writes, once and from then on, and SIGKILL.

After each one the error is one of ours with a sentence, `verify` is content, names lead to the old artifact or the new one, no
descriptor is left open, and the same command completes to the bytes of an undisturbed run.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

from tests.support.injection import Fault, operations, with_signals
from tests.support.stages import Rehearsal, small_thresholds, stages
from tests.support.stores import MEMORY
from tests.support.sweeping import Tally, places, sweep

# The share of the operations that each kind of fault disturbs at scale 1; `True` stands for faults from then on.
SHARES = {
    ("EIO", False): 1.0,
    ("EIO", True): 0.4,
    ("ENOSPC", False): 1.0,
    ("ENOSPC", True): 0.4,
    ("EDQUOT", False): 0.1,
    ("EINTR", False): 0.4,
    ("EINTR", True): 0.1,
    ("EMFILE", False): 0.2,
    ("EMFILE", True): 0.1,
    ("ENOLCK", False): 1.0,
    ("short", False): 1.0,
    ("short", True): 0.02,
    ("killed before", False): 1.0,
    ("killed after", False): 0.5,
    ("killed within", False): 1.0,
}
# Stages with many operations that take long; the share of them that scale 1 takes.
_LONG = {"build-graph": 0.25}
# Intervals of the timer whose signals interrupt system calls, in seconds.
_INTERVALS = (0.0002, 0.001)


def run(scale: float, seed: int) -> dict[str, int | float | str]:
    """Disturbs each stage at a random choice of its operations, of which `scale` is the share."""
    draw = random.Random(seed)
    tally, total, signals, clock = Tally(), 0, 0, time.monotonic()
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="faults-") as name, small_thresholds():
        folder = Path(name)
        every = stages(folder)
        for stage, parts in every.items():
            (folder / stage).mkdir()
            rehearsal = Rehearsal(parts, folder / stage)
            calls = operations(rehearsal, folder)
            total += len(calls)
            for (kind, forever), share in SHARES.items():
                faults = chosen(places(kind, forever, calls), min(1.0, share * scale * _LONG.get(stage, 1.0)), draw)
                sweep(stage, rehearsal, folder, faults, tally)
            for seconds in _INTERVALS:
                signals += with_signals(rehearsal, seconds)
            done = sum(tally.cases.values())
            sys.stderr.write(f"{time.monotonic() - clock:.0f} s: {stage}, {done:,} faults, {len(tally.findings)} findings\n")
    assert not tally.findings, f"{len(tally.findings)} findings, seed {seed}, scale {scale}:\n{tally.report()}"
    kills = tally.outcomes["killed"]
    return {
        "stages": len(every),
        "operations": total,
        "faults": sum(tally.cases.values()) - kills,
        "refused": tally.outcomes["refused"],
        "unnoticed": tally.outcomes["finished"],
        "kills": kills,
        "signals": signals,
        "findings": 0,
    }


def chosen(faults: list[Fault], share: float, draw: random.Random) -> list[Fault]:
    """A random share of the faults, at least one, in order."""
    return sorted(draw.sample(faults, max(1, round(share * len(faults)))), key=lambda fault: fault.at)

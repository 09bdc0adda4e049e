"""Faults and kills at the file operations of every stage: EIO, ENOSPC, EINTR, short writes, once and from then on, and SIGKILL.

After each one the error is one of ours with a sentence, `verify` is content, names lead to the old artifact or the new one, no
descriptor is left open, and the same command completes to the bytes of an undisturbed run.

Several processes share the stages: a small stage mostly waits for its own threads. `python -m tests.long.faults SCALE SEED
STAGE...` is one of them, and prints what came of each stage as JSON.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.support.injection import Fault, operations, with_signals
from tests.support.paths import ROOT
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
_LONG = {"build-graph": 0.25, "merge-appended": 0.25}
# Intervals of the timer whose signals interrupt system calls, in seconds.
_INTERVALS = (0.0002, 0.001)
_PROCESSES = 2
# Stages with many operations and long runs, which the processes share alike.
_SLOW = ("diffuse-spilled", "build-graph", "completion", "merge-appended", "diffuse", "diffuse-coupled")


def run(scale: float, seed: int) -> dict[str, int | float | str]:
    """Disturbs each stage at a random choice of its operations, of which `scale` is the share."""
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="faults-") as name:
        every = sorted(stages(Path(name)), key=lambda stage: (stage not in _SLOW, stage))
    tally, operations_in_all, signals = Tally(), 0, 0
    with ThreadPoolExecutor(_PROCESSES) as pool:
        for found in pool.map(lambda first: apart(every[first::_PROCESSES], scale, seed), range(_PROCESSES)):
            for part in found:
                counts = {key: Counter(part[key]) for key in ("cases", "outcomes", "findings")}
                tally.join(Tally(**counts, examples=part["examples"]))
                operations_in_all += part["operations"]
                signals += part["signals"]
    assert not tally.findings, f"{len(tally.findings)} findings, seed {seed}, scale {scale}:\n{tally.report()}"
    kills = tally.outcomes["killed"]
    return {
        "stages": len(every),
        "operations": operations_in_all,
        "faults": sum(tally.cases.values()) - kills,
        "refused": tally.outcomes["refused"],
        "unnoticed": tally.outcomes["finished"],
        "kills": kills,
        "signals": signals,
        "findings": 0,
    }


def apart(some: Sequence[str], scale: float, seed: int) -> list[dict[str, Any]]:
    """Disturbs some stages in a process of their own."""
    command = [sys.executable, "-m", "tests.long.faults", str(scale), str(seed), *some]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, f"{', '.join(some)}: exit code {done.returncode}"
    return [json.loads(line) for line in done.stdout.splitlines()]


def disturbed(stage: str, scale: float, seed: int) -> dict[str, Any]:
    """Disturbs a stage in this process, which no other thread may run in."""
    draw, tally, signals = random.Random(f"{seed} {stage}"), Tally(), 0
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="faults-") as name, small_thresholds():
        folder = Path(name)
        rehearsal = Rehearsal(stages(folder)[stage], folder)
        calls = operations(rehearsal, folder)
        for (kind, forever), share in SHARES.items():
            faults = chosen(places(kind, forever, calls), min(1.0, share * scale * _LONG.get(stage, 1.0)), draw)
            sweep(stage, rehearsal, folder, faults, tally)
        for seconds in _INTERVALS:
            signals += with_signals(rehearsal, seconds)
    return {**vars(tally), "operations": len(calls), "signals": signals}


def chosen(faults: list[Fault], share: float, draw: random.Random) -> list[Fault]:
    """A random share of the faults, at least one, in order."""
    return sorted(draw.sample(faults, max(1, round(share * len(faults)))), key=lambda fault: fault.at)


def main(scale: float, seed: int, some: Sequence[str]) -> None:
    clock = time.monotonic()
    for stage in some:
        found = disturbed(stage, scale, seed)
        sys.stdout.write(json.dumps(found) + "\n")
        done, findings = sum(found["cases"].values()), len(found["findings"])
        sys.stderr.write(f"{time.monotonic() - clock:.0f} s: {stage}, {done:,} faults, {findings} findings\n")


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])

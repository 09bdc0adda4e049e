"""Sweeps a fault or a kill over the file operations of a stage, and counts what becomes of it.

`python -m tests.support.sweeping STAGE KIND FOLDER [EVERY] [--forever]`, in an interpreter of its own with BLAS on one thread,
which makes forking safe. Prints the number of cases by system call.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.injection import Fault, Outcome, disturb, operations
from tests.support.paths import ROOT
from tests.support.stages import Rehearsal, small_thresholds, stages


@dataclass
class Tally:
    """Outcomes of many faults. Failures of the same origin are one finding, of which the first example is kept."""

    cases: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, stage: str, fault: Fault, outcome: Outcome) -> None:
        # A fault after the last operation disturbs nothing.
        if not outcome.call and outcome.how == "finished":
            return
        self.cases[outcome.call] += 1
        self.outcomes[outcome.how] += 1
        if outcome.how == "failed":
            finding = f"{fault.kind} at {outcome.call}: {outcome.where}"
            self.findings[finding] += 1
            self.examples.setdefault(finding, f"stage {stage}, {fault}:\n{outcome.error}")

    def join(self, other: Tally) -> None:
        """Adds the outcomes of further faults."""
        self.cases += other.cases
        self.outcomes += other.outcomes
        self.findings += other.findings
        self.examples = other.examples | self.examples

    def report(self) -> str:
        """All findings with their number and an example; empty if there are none."""
        return "\n".join(
            f"--- {count} times: {finding}\n{self.examples[finding]}" for finding, count in self.findings.most_common()
        )


def places(kind: str, forever: bool, calls: Sequence[str], every: int = 1) -> list[Fault]:
    """One fault in `every` operations at which it can happen, and one more, after the last."""
    count = sum(call in Fault(kind, 0).calls for call in calls)
    return [Fault(kind, at, forever) for at in range(0, count + every, every)]


def sweep(stage: str, rehearsal: Rehearsal, folder: Path, faults: Iterable[Fault], tally: Tally) -> None:
    """Disturbs the stage by each fault in turn."""
    gc.freeze()
    for fault in faults:
        tally.add(stage, fault, disturb(rehearsal, folder, fault))


def swept(stage: str, kind: str, folder: Path, every: int = 1, forever: bool = False) -> dict[str, int]:
    """Sweeps in a process of its own; returns the number of cases by system call, and fails with what was found wrong."""
    command = [sys.executable, "-m", "tests.support.sweeping", stage, kind, str(folder), str(every)]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *(["--forever"] if forever else [])], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    cases: dict[str, int] = json.loads(done.stdout)
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.sweeping")
    parser.add_argument("stage")
    parser.add_argument("kind")
    parser.add_argument("folder", type=Path)
    parser.add_argument("every", type=int, nargs="?", default=1)
    parser.add_argument("--forever", action="store_true")
    chosen = parser.parse_args()
    tally = Tally()
    with small_thresholds():
        rehearsal = Rehearsal(stages(chosen.folder)[chosen.stage], chosen.folder)
        calls = operations(rehearsal, chosen.folder)
        sweep(chosen.stage, rehearsal, chosen.folder, places(chosen.kind, chosen.forever, calls, chosen.every), tally)
    sys.stdout.write(json.dumps(tally.cases) + "\n")
    sys.exit(tally.report() or 0)


if __name__ == "__main__":
    main()

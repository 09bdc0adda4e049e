"""Mutation: every file of every kind of artifact is damaged or forged, and the stages that read it run on it.

After damage a stage gives a typed error or the identical result, and `verify` finds a problem. After a forgery with impossible
content and right checksums no computed number changes. Nothing ever crashes, hangs or raises an untyped error. Arrays have
chunks of a page, so that small arrays behave as large ones do. The cases run in forked processes, some hundred each: a process
that dies or hangs is a finding of its last case.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmdiff.errors import MmdiffError
from tests.support.mutating import DAMAGE, IMPOSSIBLE, Mutation, Mutator, Snapshot
from tests.support.probes import VERIFY, Found, Probe, Scene, make_stores, probes_of, small_pieces
from tests.support.stores import MEMORY

CASES = 100_000
CASES_OF_A_PROCESS = 500
HANGS_AFTER = 20

# Anonymous memory that a process may take beyond what it has when it starts.
_MEMORY = 3 << 30
_EXAMPLES = 3


@dataclass(frozen=True)
class Finding:
    """Something that must not happen; `kind` groups findings of one cause."""

    case: int
    kind: str
    details: str


class World:
    """The stores that are mutated, with what every probe gives on them while they are intact."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.seed, self.out = seed, folder / "out"
        self.out.mkdir()
        self.stores = []
        for name, made in make_stores(folder).items():
            path = folder / name
            snapshot = Snapshot.of(path)
            expected: dict[Probe, Found] = {}
            for probe in [*probes_of(path, made), VERIFY]:
                try:
                    expected[probe] = probe.call(Scene(path, self.out))
                except MmdiffError:
                    continue
                finally:
                    snapshot.restore()
            self.stores.append((Mutator(snapshot), expected))

    def run_case(self, case: int) -> Finding | None:
        """Mutates a store, runs one of the probes that read what was mutated, and restores the store."""
        draw = np.random.default_rng([self.seed, case])
        mutator, expected = self.stores[int(draw.integers(len(self.stores)))]
        mutation = mutator.mutate(draw)
        try:
            probe = self.probe_for(draw, mutation, list(expected))
            found = outcome(probe, Scene(mutator.root, self.out))
            problem = judge(mutation, probe, found, expected[probe])
            if problem:
                details = f"case {case}, store {mutator.root.name}: {mutation}, then {probe.name}: {found!r}"
                return Finding(case, f"{mutation.category}, {mutation.how}, {probe.name}: {problem}", details)
            return None
        finally:
            mutator.snapshot.restore(mutation.touched)

    def probe_for(self, draw: np.random.Generator, mutation: Mutation, probes: list[Probe]) -> Probe:
        reading = [probe for probe in probes if probe.reads_from(mutation.artifact)]
        weights = np.array([probe.weight for probe in reading])
        return reading[int(draw.choice(len(reading), p=weights / weights.sum()))]

    def restore(self) -> None:
        """Restores everything after a process died."""
        for mutator, _ in self.stores:
            mutator.snapshot.restore(tuple(path for path, (kind, _) in mutator.snapshot.entries.items() if kind != "folder"))


def outcome(probe: Probe, scene: Scene) -> Found | str:
    """The result of a probe, or how it ends: "refused", or the type and place of an untyped error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return probe.call(scene)
    except MmdiffError as error:
        return "refused" if str(error).strip() else "an empty message"
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {Path(place.filename).name}, {place.name}: {error!s:.200}"


def judge(mutation: Mutation, probe: Probe, found: Found | str, expected: Found) -> str:
    """The kind of a finding; "" if the outcome is as it should be."""
    if isinstance(found, str):
        return "" if found == "refused" else f"untyped {found.partition(':')[0]}"
    if probe is VERIFY:
        return "damage not found" if mutation.category in (DAMAGE, IMPOSSIBLE) and found.text == "ok" else ""
    if mutation.category == DAMAGE and found != expected:
        return "another result" if found.numbers != expected.numbers else "another text"
    if mutation.category == IMPOSSIBLE and probe.computes and probe.passes != mutation.artifact:
        # Results made from the artifact before it was forged are stale and left out; whatever is still there is unchanged.
        return "" if found.numbers and found.numbers <= expected.numbers else "another number"
    return ""


def run_cases(world: World, first: int, stop: int, pipe: int) -> None:
    """The forked process: says which case begins, and what it found."""
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for case in range(first, stop):
        _send(pipe, case)
        finding = world.run_case(case)
        if finding is not None:
            _send(pipe, asdict(finding))


def _send(pipe: int, message: Any) -> None:
    os.write(pipe, json.dumps(message).encode() + b"\n")


def campaign(world: World, cases: int, first: int = 0, progress: bool = True) -> list[Finding]:
    """Runs cases from `first` on; returns all findings."""
    findings: list[Finding] = []
    case, stop, told, start = first, first + cases, time.monotonic(), time.monotonic()
    while case < stop:
        reading, writing = os.pipe()
        sys.stdout.flush()
        with warnings.catch_warnings():
            # The process has threads that BLAS left idle; they hold no locks.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            code = 1
            try:
                os.close(reading)
                run_cases(world, case, min(stop, case + CASES_OF_A_PROCESS), writing)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(writing)
        last = case
        hung = False
        with os.fdopen(reading, "rb", buffering=0) as messages:
            while True:
                if not select.select([messages], [], [], HANGS_AFTER)[0]:
                    hung = True
                    os.kill(child, signal.SIGKILL)
                    break
                line = messages.readline()
                if not line.endswith(b"\n"):
                    break
                message = json.loads(line)
                if isinstance(message, int):
                    last = message
                else:
                    finding = Finding(**message)
                    if progress and finding.kind not in {known.kind for known in findings}:
                        sys.stderr.write(f"mutation: {finding.kind}\n    {finding.details}\n")
                    findings.append(finding)
                if progress and time.monotonic() - told > 60:
                    told = time.monotonic()
                    sys.stderr.write(f"mutation: {last - first:,} of {cases:,}, {len(findings)} findings\n")
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != 0:
            what = "a hang" if hung else f"signal {-status}" if status < 0 else f"exit code {status}"
            findings.append(Finding(last, f"the process ended by {what}", described(world, last)))
            world.restore()
        case = last + 1
    if progress:
        spent = 1000 * (time.monotonic() - start) / max(1, cases)
        sys.stderr.write(f"mutation: {cases:,} cases, {spent:.1f} ms each, {len(findings)} findings\n")
    return findings


def described(world: World, case: int) -> str:
    """The mutation and the probe of a case that ended the process."""
    draw = np.random.default_rng([world.seed, case])
    mutator, expected = world.stores[int(draw.integers(len(world.stores)))]
    world.restore()
    mutation = mutator.mutate(draw)
    mutator.snapshot.restore(mutation.touched)
    probe = world.probe_for(draw, mutation, list(expected))
    return f"case {case}, store {mutator.root.name}: {mutation} ({mutation.category}), then {probe.name}"


def summary_of(findings: list[Finding]) -> str:
    """Findings by kind, with some examples each."""
    lines = []
    for kind, count in Counter(finding.kind for finding in findings).most_common():
        lines.append(f"{count} x {kind}")
        lines += [f"    {finding.details}" for finding in findings if finding.kind == kind][:_EXAMPLES]
    return "\n".join(lines)


def run(scale: float, seed: int, cases: int | None = None, first: int = 0) -> dict[str, int | float | str]:
    """Runs the campaign; raises AssertionError with the findings, if there are any."""
    count = max(100, round(CASES * scale)) if cases is None else cases
    folder = Path(tempfile.mkdtemp(dir=MEMORY, prefix="mutation-"))
    try:
        with small_pieces():
            world = World(folder, seed)
            findings = campaign(world, count, first)
            files = sum(len(mutator.files) for mutator, _ in world.stores)
            probes = len({probe.name for _, expected in world.stores for probe in expected})
    finally:
        shutil.rmtree(folder)
    assert not findings, f"{len(findings)} findings of seed {seed}:\n{summary_of(findings)}"
    return {"mutations": count, "files": files, "probes": probes, "findings": 0}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    sys.stdout.write(f"{run(1, given.seed, given.cases, given.first)}\n")

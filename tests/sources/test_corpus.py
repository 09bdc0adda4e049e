"""Inputs that fuzzing found worth keeping are read or refused with a typed error, and so are 2,000 fresh ones.

All run in processes of their own: a crash in a C library fails a test and does not end the test run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.long.fuzz import CORPUS
from tests.support.fuzz_targets import targets
from tests.support.paths import ROOT

_MOST_CORPUS_BYTES = 500_000

_REPLAY = """
import json, sys, warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from tests.long.fuzz import CORPUS
from tests.support.fuzz_targets import targets
from tests.support.fuzzing import outcome, unpack

warnings.simplefilter("ignore")
found, known = {}, targets({})
with TemporaryDirectory() as folder:
    for path in sorted(CORPUS.glob("*.zip")):
        print(path.name, file=sys.stderr, flush=True)
        found[path.name] = outcome(known[path.name.split(".")[0]], Path(folder) / "case", unpack(path.read_bytes()))
print(json.dumps(found))
"""

_FRESH = """
import json
from tests.long.fuzz import run

print(json.dumps(run(0.002, 0)))
"""

_CRASHING = """
import json, os
from dataclasses import replace
from tests.long.fuzz import find
from tests.support import fuzzing

def crash(folder, files):
    if len(next(iter(files.values()))) % 2:
        os.abort()
    raise KeyError("untyped")

made = fuzzing.targets
fuzzing.targets = lambda seeds: {"bin": replace(made(seeds)["bin"], read=crash)}
found = find(40, 0)
print(json.dumps([found.cases, [[finding.native, finding.wrong] for finding in found.findings]]))
"""


def run_apart(program: str) -> Any:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_every_input_of_the_corpus_is_read_or_refused() -> None:
    found = run_apart(_REPLAY)
    assert len(found) == len(list(CORPUS.glob("*.zip"))) > 100
    assert {name: wrong for name, (_, wrong) in found.items() if wrong} == {}
    assert {name.split(".")[0] for name in found} == set(targets({}))


def test_the_corpus_is_small() -> None:
    assert sum(path.stat().st_size for path in CORPUS.iterdir()) < _MOST_CORPUS_BYTES


def test_fresh_cases_are_read_or_refused() -> None:
    figures = run_apart(_FRESH)
    assert figures["cases"] == 2000
    assert figures["findings"] == 0
    assert 0 < figures["accepted"] < 2000
    assert figures["targets"] == len(targets({}))


def test_crashes_and_untyped_errors_are_findings() -> None:
    cases, findings = run_apart(_CRASHING)
    assert cases == len(findings) == 40
    assert {native for native, _ in findings} == {True, False}
    assert all("SIGABRT" in wrong if native else "KeyError: 'untyped'" in wrong for native, wrong in findings)

"""Fuzz of all readers of foreign files, configs and manifests: a million mutated inputs, each of which must be read or refused.

Every case is a small valid file with mutated bytes, numbers or structure. It must give a result that is sane or a typed error,
within seconds and a bounded amount of memory. A crash or an endless loop inside a C library (libhdf5, Arrow) is counted apart:
no check in Python prevents it, so it is a figure and not a failure. `keep` collects inputs for `tests/corpus`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.support.fuzzing import Found, corpus_name, pack, run_cases
from tests.support.paths import ROOT

CASES = 1_000_000
CORPUS = ROOT / "tests" / "corpus"

# Readers whose library is C code that damaged files can bring down.
_NATIVE = ("hdf5", "parquet", "clip", "column-parquet", "zarr")
_SHOWN = 20


def run(scale: float, seed: int) -> dict[str, int | float | str]:
    """Runs the cases of a seed, and returns their figures."""
    found = find(max(1, int(CASES * scale)), seed)
    native = [finding for finding in found.findings if finding.native and finding.target in _NATIVE]
    wrong = [finding for finding in found.findings if finding not in native]
    for finding in native:
        sys.stderr.write(f"fuzz: {finding}\n")
    assert not wrong, f"{len(wrong)} findings:\n" + "\n".join(map(str, wrong[:_SHOWN]))
    return {
        "cases": found.cases,
        "accepted": found.accepted,
        "refused": found.cases - found.accepted - len(native),
        "kinds of errors": len(found.kinds) - ("" in found.kinds),
        "targets": len(found.by_target),
        "crashes of C libraries": len(native),
        "findings": len(wrong),
    }


def find(cases: int, seed: int, first: int = 0) -> Found:
    """Runs cases in a folder in memory, where there is one."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: PTH112
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        return run_cases(seed, first, cases, Path(folder) / "fuzz")


def keep(cases: int, seed: int, most_bytes: int = 3000) -> int:
    """Adds the smallest input of each kind of error to the corpus; returns their number."""
    found = find(cases, seed)
    CORPUS.mkdir(exist_ok=True)
    kept = [entry for entry in found.rare.values() if sum(map(len, entry[1].values())) <= most_bytes]
    for target, files in kept:
        (CORPUS / corpus_name(target, files)).write_bytes(pack(files))
    return len(kept)

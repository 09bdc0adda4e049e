"""Fuzz of all readers of foreign files, configs and manifests: a million mutated inputs, each of which must be read or refused.

Every case is a small valid file with mutated bytes, numbers or structure. It must give a result that is sane or a typed error,
within seconds and a bounded amount of memory. A crash or an endless loop inside a C library (libhdf5, Arrow) is counted apart:
no check in Python prevents it, so it is a figure and not a failure. `keep` collects inputs for `tests/corpus`.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.support.fuzzing import Found, corpus_name, pack, run_cases
from tests.support.paths import ROOT
from tests.support.stores import MEMORY

CASES = 1_000_000
CORPUS = ROOT / "tests" / "corpus"

# Readers whose library is C code that damaged files can bring down.
_NATIVE = ("hdf5", "parquet", "clip", "column-parquet", "zarr", "arrow", "dataset", "column-arrow", "column-dataset")
_SHOWN = 20


def run(scale: float, seed: int) -> dict[str, int | float | str]:
    """Runs the cases of a seed, and returns their figures."""
    found = find(max(1, int(CASES * scale)), seed)
    native = [finding for finding in found.findings if finding.native and finding.target in _NATIVE]
    wrong = [finding for finding in found.findings if finding not in native]
    kept = Path(tempfile.gettempdir()) / "mmdiff-fuzz"
    for finding in found.findings:
        kept.mkdir(exist_ok=True)
        (kept / corpus_name(finding.target, finding.files)).write_bytes(pack(finding.files))
    for finding in native:
        sys.stderr.write(f"fuzz: {finding}; its input is in {kept}\n")
    assert not wrong, f"{len(wrong)} findings, whose inputs are in {kept}:\n" + "\n".join(map(str, wrong[:_SHOWN]))
    return {
        "cases": found.cases,
        "accepted": found.accepted,
        "refused": found.cases - found.accepted - len(native),
        "kinds of errors": len(found.kinds) - ("" in found.kinds),
        "refused for lack of memory": sum(count for kind, count in found.kinds.items() if "more memory than there is" in kind),
        "targets": len(found.by_target),
        "crashes of C libraries": len(native),
        "findings": len(wrong),
    }


def find(cases: int, seed: int, first: int = 0) -> Found:
    """Runs cases in a folder in memory, where there is one."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        return run_cases(seed, first, cases, Path(folder) / "fuzz")


def keep(cases: int, seed: int, per_target: int = 12, most_bytes: int = 3000) -> int:
    """Adds inputs to the corpus: of each target the smallest ones of its rarest kinds of errors. Returns their number."""
    found = find(cases, seed)
    taken: Counter[str] = Counter()
    for kind, (target, files) in sorted(found.rare.items(), key=lambda entry: found.kinds[entry[0]]):
        if taken[target] < per_target and kind and sum(map(len, files.values())) <= most_bytes:
            taken[target] += 1
            (CORPUS / corpus_name(target, files)).write_bytes(pack(files))
    return taken.total()

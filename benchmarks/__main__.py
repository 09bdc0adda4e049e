"""Runs the benchmarks: `make bench` compares with peers, `make bench-scale` measures large runs; both write results.json.

    python -m benchmarks [SECTION...] [--folder DIR]

A section takes minutes to half an hour, D100M hours. Those of `make bench` need up to 20 GB of disk, those of
`make bench-scale` up to 50, and D100M takes all that is free.
Only the sections named are measured; the others keep their figures. Each section records machine and versions.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from benchmarks import checking, cluster, diffuse, knn, scale, spmm, store, symmetrise
from benchmarks.measure import Figure, machine
from mmdiff.formats.store.manifest import Json

RESULTS = Path(__file__).parent / "results.json"
SECTIONS: dict[str, Callable[[Path], list[Figure]]] = {
    "store": lambda folder: store.figures(folder, gigabytes=3),
    "knn": lambda folder: knn.figures(folder, rows=1_000_000),
    "symmetrise": symmetrise.figures,
    "spmm": spmm.figures,
    "diffuse": diffuse.figures,
    "checking": checking.figures,
}
# Sections that share graphs, which are built once.
_ON_GRAPHS, _GRAPHS = ("spmm", "diffuse"), "graphs"
SCALE: dict[str, Callable[[Path], Json]] = {
    "F1M": scale.F1M,
    "F10M": scale.F10M,
    "F100M": scale.F100M,
    "D100M": scale.D100M,
    "reading": scale.reading,
    "growth": scale.growth,
    "cluster": cluster.figures,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    names = ", ".join([*SECTIONS, *SCALE])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"one of {names}; by default {', '.join(SECTIONS)}")
    parser.add_argument("--folder", default=".", help="folder for large temporary files")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="bench-") as folder:
        for section in arguments.sections or SECTIONS:
            own = Path(folder) / (_GRAPHS if section in _ON_GRAPHS else section)
            own.mkdir(exist_ok=True)
            clock = time.perf_counter()
            if section in SCALE:
                _record("scale", section, SCALE[section](own), clock)
            else:
                figures = SECTIONS[section](own)
                _show(figures)
                found = [{**asdict(figure), "ratio": figure.ratio} for figure in figures]
                _record("sections", section, {"figures": found}, clock)
            if section not in _ON_GRAPHS:
                shutil.rmtree(own)


def _show(figures: list[Figure]) -> None:
    for figure in figures:
        ours, theirs = (f"{value:,.2f} {figure.unit}" for value in (figure.ours, figure.theirs))
        sys.stdout.write(f"{figure.what}: {ours}; {figure.peer}: {theirs}; {figure.ratio:.2f} times better\n")


def _record(part: str, section: str, found: Json, clock: float) -> None:
    """Writes the figures of a section to results.json, beside those of other sections."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    taken = time.perf_counter() - clock
    results.setdefault(part, {})[section] = {**found, "machine": machine(), "taken": taken}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    sys.stdout.write(f"{section}: {taken / 60:.1f} minutes\n")


if __name__ == "__main__":
    main()

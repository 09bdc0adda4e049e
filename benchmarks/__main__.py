"""`make bench`: everything against its peers; `make bench-scale`: the large ones. Figures go to benchmarks/results.json.

    python -m benchmarks [SECTION...] [--folder DIR]

Sections take minutes to half an hour each; those of `make bench` need up to 20 GB of disk, those of `make bench-scale` up to
50. With sections named, only theirs are measured and the others kept. Each says what it was measured on, and with what.
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

from benchmarks import cluster, diffuse, knn, scale, spmm, store, symmetrise
from benchmarks.measure import Figure, machine
from mmdiff.formats.store.manifest import Json

RESULTS = Path(__file__).parent / "results.json"
SECTIONS: dict[str, Callable[[Path], list[Figure]]] = {
    "store": lambda folder: store.figures(folder, gigabytes=3),
    "knn": lambda folder: knn.figures(folder, rows=1_000_000),
    "symmetrise": symmetrise.figures,
    "spmm": spmm.figures,
    "diffuse": diffuse.figures,
}
# These take the same graphs, which are made once.
_ON_GRAPHS, _GRAPHS = ("spmm", "diffuse"), "graphs"
SCALE: dict[str, Callable[[Path], Json]] = {
    "F1M": scale.F1M,
    "F10M": scale.F10M,
    "F100M": scale.F100M,
    "growth": scale.growth,
    "cluster": cluster.figures,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    names = ", ".join([*SECTIONS, *SCALE])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {names}; by default {', '.join(SECTIONS)}")
    parser.add_argument("--folder", default=".", help="where the large files go for the time of the run")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="bench-") as folder:
        for section in arguments.sections or SECTIONS:
            own = Path(folder) / (_GRAPHS if section in _ON_GRAPHS else section)
            own.mkdir(exist_ok=True)
            clock = time.perf_counter()
            if section in SCALE:
                _enter("scale", section, SCALE[section](own), clock)
            else:
                figures = SECTIONS[section](own)
                _show(figures)
                found = [{**asdict(figure), "ratio": figure.ratio} for figure in figures]
                _enter("sections", section, {"figures": found}, clock)
            if section not in _ON_GRAPHS:
                shutil.rmtree(own)


def _show(figures: list[Figure]) -> None:
    for figure in figures:
        ours, theirs = (f"{value:,.2f} {figure.unit}" for value in (figure.ours, figure.theirs))
        sys.stdout.write(f"{figure.what}: {ours}; {figure.peer}: {theirs}; {figure.ratio:.2f} times better\n")


def _enter(part: str, section: str, found: Json, clock: float) -> None:
    """Puts what was measured beside what is there."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    taken = time.perf_counter() - clock
    results.setdefault(part, {})[section] = {**found, "machine": machine(), "taken": taken}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    sys.stdout.write(f"{section}: {taken / 60:.1f} minutes\n")


if __name__ == "__main__":
    main()

"""`make bench`: everything against its peers, on this machine, in one run; the figures go to benchmarks/results.json.

    python -m benchmarks [SECTION...] [--folder DIR]

Sections take minutes to half an hour each, and up to 20 GB of disk. With sections named, only theirs are measured and the
others kept.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from benchmarks import diffuse, knn, spmm, store, symmetrise
from benchmarks.measure import Figure, machine

RESULTS = Path(__file__).parent / "results.json"
SECTIONS: dict[str, Callable[[Path], list[Figure]]] = {
    "store": lambda folder: store.figures(folder, gigabytes=3),
    "knn": lambda folder: knn.figures(folder, rows=1_000_000),
    "symmetrise": symmetrise.figures,
    "spmm": spmm.figures,
    "diffuse": diffuse.figures,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; all by default")
    parser.add_argument("--folder", default=".", help="where the large files go for the time of the run")
    arguments = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() and arguments.sections else {"sections": {}}
    for section in arguments.sections or SECTIONS:
        with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="bench-") as folder:
            figures = SECTIONS[section](Path(folder))
        for figure in figures:
            ours, theirs = (f"{value:,.2f} {figure.unit}" for value in (figure.ours, figure.theirs))
            sys.stdout.write(f"{figure.what}: {ours}; {figure.peer}: {theirs}; {figure.ratio:.2f} times better\n")
        results["machine"] = machine()
        results["sections"][section] = [{**asdict(figure), "ratio": figure.ratio} for figure in figures]
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

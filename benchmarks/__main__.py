"""`make bench`: everything against its peers, on this machine, in one run; the figures go to benchmarks/results.json.

python -m benchmarks [--gigabytes 3] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks import store
from benchmarks.measure import machine

RESULTS = Path(__file__).parent / "results.json"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--gigabytes", type=float, default=3.0, help="size of the file to import")
    parser.add_argument("--folder", default=".", help="where the large files go for the time of the run")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="bench-") as folder:
        figures = store.figures(Path(folder), arguments.gigabytes)
    for figure in figures:
        ours, theirs = (f"{value:,.2f} {figure.unit}" for value in (figure.ours, figure.theirs))
        sys.stdout.write(f"{figure.what}: {ours}; {figure.peer}: {theirs}; {figure.ratio:.2f} times better\n")
    results = {"machine": machine(), "figures": [{**asdict(figure), "ratio": figure.ratio} for figure in figures]}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

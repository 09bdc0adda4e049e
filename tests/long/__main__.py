"""Runs campaigns, several at a time, and records their figures in docs/testing.json.

    python -m tests.long [CAMPAIGN...] [--scale S] [--seed N] [--jobs J]

Each campaign runs in a process of its own. Campaigns that are not named, and those that fail, keep the figures of their last
successful run. The exit code is 1 if a campaign failed; its log file says how.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import machine
from tests import long
from tests.support.paths import ROOT

RESULTS = ROOT / "docs" / "testing.json"
Figures = dict[str, int | float | str]


@dataclass(frozen=True)
class Finished:
    """A campaign that has ended; `figures` is None if it failed."""

    name: str
    figures: Figures | None
    seconds: float
    log: Path


def campaigns() -> list[str]:
    """The names of all campaigns: the modules of this package."""
    return sorted(module.name for module in pkgutil.iter_modules(long.__path__) if not module.name.startswith("_"))


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.long", description="Runs the campaigns of the long run.")
    parser.add_argument("campaigns", nargs="*", metavar="CAMPAIGN", help=f"by default all: {', '.join(campaigns())}")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the long run, such as 0.01 (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    parser.add_argument("--jobs", type=int, default=2, help="campaigns that run at the same time (default: 2)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file of the figures (default: docs/testing.json)")
    parser.add_argument("--one", action="store_true", help="run the one campaign in this process and print its figures")
    chosen = parser.parse_args(words)
    unknown = sorted(set(chosen.campaigns) - set(campaigns()))
    if unknown:
        parser.error(f"there is no campaign {', '.join(unknown)}; choose from {', '.join(campaigns())}")
    if chosen.one:
        return run_here(chosen.campaigns[0], chosen.scale, chosen.seed)
    logs = Path(tempfile.mkdtemp(prefix="mmdiff-long-"))
    failed = []
    with ThreadPoolExecutor(chosen.jobs) as pool:
        names = longest_first(chosen.campaigns or campaigns(), chosen.results)
        pending = [pool.submit(run_apart, name, chosen.scale, chosen.seed, logs) for name in names]
        for done in as_completed(pending):
            finished = done.result()
            show(finished)
            if finished.figures is None:
                failed.append(finished.name)
            else:
                record(chosen.results, finished, chosen.scale, chosen.seed)
    return 1 if failed else 0


def longest_first(names: Sequence[str], results: Path) -> list[str]:
    """Orders campaigns by the time they took last, so that the last ones to start are short; unknown ones come first."""
    known = json.loads(results.read_text()) if results.exists() else {}
    return sorted(names, key=lambda name: -known.get(name, {}).get("seconds_at_scale_1", float("inf")))


def run_here(name: str, scale: float, seed: int) -> int:
    """Runs a campaign in this process; the last line on stdout is its figures, or the traceback of its failure."""
    run: Callable[[float, int], Figures] = importlib.import_module(f"tests.long.{name}").run
    try:
        with redirect_stdout(sys.stderr):
            figures = run(scale, seed)
    except Exception:
        sys.stdout.write(traceback.format_exc())
        return 1
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0


def run_apart(name: str, scale: float, seed: int, logs: Path) -> Finished:
    """Runs a campaign in a process of its own; shows its progress, and keeps all it says in a log file."""
    command = [sys.executable, "-m", "tests.long", name, "--one", "--scale", str(scale), "--seed", str(seed)]
    # Several threads of BLAS would make forked children unsafe, and take the cores of the other campaign.
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    path, start = logs / f"{name}.log", time.monotonic()
    with (
        path.open("w") as log,
        subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        ) as process,
    ):
        assert process.stdout is not None
        progress = threading.Thread(target=forward, args=(process.stderr, log, name))
        progress.start()
        output = process.stdout.read()
        progress.join()
        code = process.wait()
        seconds = time.monotonic() - start
        log.write(f"{output}\n{name}: exit code {code} after {seconds:.0f} seconds, scale {scale}, seed {seed}\n")
    figures = json.loads(output.splitlines()[-1]) if code == 0 else None
    return Finished(name, figures, seconds, path)


def forward(lines: Any, log: Any, name: str) -> None:
    """Copies lines to a log and, with the campaign's name, to stderr."""
    for line in lines:
        log.write(line)
        log.flush()
        sys.stderr.write(f"{name}: {line}")


def show(finished: Finished) -> None:
    """Prints a line about a finished campaign."""
    if finished.figures is None:
        what = f"FAILED, see {finished.log}"
    else:
        what = ", ".join(
            f"{key} {value:,}" if isinstance(value, int) else f"{key} {value}" for key, value in finished.figures.items()
        )
    sys.stdout.write(f"{finished.name}: {what} ({finished.seconds / 60:.1f} minutes)\n")
    sys.stdout.flush()


def record(results: Path, finished: Finished, scale: float, seed: int) -> None:
    """Writes the figures of a campaign, beside those of other campaigns."""
    known = json.loads(results.read_text()) if results.exists() else {}
    here = machine()
    known[finished.name] = {
        "figures": finished.figures,
        "seconds": round(finished.seconds, 1),
        "seconds_at_scale_1": round(finished.seconds / scale, 1),
        "seed": seed,
        "scale": scale,
        "commit": here["commit"],
        "processor": here["cpu"],
        "date": here["date"],
    }
    results.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())

"""All stages at one size, command by command: time, memory, and bytes read from and written to the disk.

Descriptors are generated: the background has all clusters; seeds and test points have the first 500, which are the classes.
With `cold`, nothing of the store is in the page cache when a command begins.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.generate import generate
from benchmarks.knn import PROGRAM
from benchmarks.measure import Watched, evict, watch
from mmdiff.formats.store.manifest import Json

CLASSES, SEEDS, TESTS, T = 500, 1000, 10_000, 4


def whole_job(folder: Path, rows: int, memory: str, cold: bool = False) -> Json:
    """The cost of each command, recall and accuracy. Source files are removed after import."""
    store = folder / "store"
    stages: dict[str, Watched] = {}

    def run(stage: str, *arguments: str | Path) -> Any:
        if cold:
            evict(folder)
        stages[stage] = watch([PROGRAM, *arguments, "--store", store, "--json"])
        return json.loads(stages[stage].output)

    background = folder / "background.npy"
    if not background.exists():
        generate(background, rows)
    run("import", "import", background, "--role", "background", "--dtype", "float16")
    background.unlink()
    built = run("build-graph", "build-graph", "--memory", memory)
    for number, (role, count) in enumerate({"seeds": SEEDS, "test": TESTS}.items(), start=1):
        labels = np.arange(count) % CLASSES
        generate(folder / f"{role}.npy", count, number, labels)
        np.save(folder / f"{role}_labels.npy", labels)
        run(f"import {role}", "import", folder / f"{role}.npy", "--role", role, "--labels", folder / f"{role}_labels.npy")
    run("complete", "build-graph", "--memory", memory)
    run("diffuse", "diffuse", "--iterations", str(T), "--memory", memory)
    evaluated = run("evaluate", "evaluate")
    return {
        "rows": rows,
        "memory": memory,
        "cold": cold,
        "recall": built["knn/BB"]["facts"]["recall"],
        "accuracy": {top: best["accuracy"] for top, best in evaluated["scores"][0]["iterations"][-1]["all"].items()},
        "stages": {name: watched.figures() for name, watched in stages.items()},
    }

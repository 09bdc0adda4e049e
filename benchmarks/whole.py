"""All stages at one size, command by command: time, memory, disk, and bytes read from and written to it.

Descriptors are generated: the background has all clusters; seeds and test points have the first ones, which are the classes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.generate import Surface, generate
from benchmarks.knn import PROGRAM
from benchmarks.measure import Watched, evict, used_bytes, watch
from mmdiff.formats.store.manifest import Json

TESTS, PER_CLASS = 10_000, 2


@dataclass(frozen=True)
class Job:
    """A collection, its classes, and how it is worked on.

    With `cold`, nothing of the store is in the page cache when a command begins. A `recall` of None is that of the command.
    """

    rows: int
    memory: str
    surface: Surface = field(default_factory=Surface)
    dtype: str = "<f4"
    recall: float | None = None
    classes: int = 500
    iterations: int = 4
    cold: bool = False

    def generate(self, file: Path, rows: int, seed: int = 0, labelled: bool = False) -> None:
        """Writes rows of the background, or labelled ones with their labels beside them."""
        labels = np.arange(rows) % self.classes if labelled else None
        generate(file, rows, seed, labels, self.surface, self.dtype)
        if labels is not None:
            np.save(_labels_of(file), labels)


def _labels_of(file: Path) -> Path:
    return file.with_name(f"{file.stem}_labels.npy")


def whole_job(folder: Path, job: Job) -> Json:
    """The cost of each command, recall and accuracy. Source files are removed after import.

    `final` are the bytes of the store in the end, `held` the most that each stage held at any time, without the source.
    """
    store = folder / "store"
    stages: dict[str, Watched] = {}
    held: dict[str, int] = {}

    def run(stage: str, *arguments: str | Path) -> Any:
        if job.cold:
            evict(folder)
        before = used_bytes(folder) - empty
        stages[stage] = watch([PROGRAM, *arguments, "--store", store, "--json"], disk=folder)
        held[stage] = before + stages[stage].disk_bytes
        return json.loads(stages[stage].output)

    background = folder / "background.npy"
    if not background.exists():
        job.generate(background, job.rows)
    empty = used_bytes(folder)
    run("import", "import", background, "--role", "background", "--dtype", "float16")
    empty -= background.stat().st_size
    background.unlink()
    asked = [] if job.recall is None else ["--recall", str(job.recall)]
    built = run("build-graph", "build-graph", *asked, "--memory", job.memory)
    for number, (role, count) in enumerate({"seeds": PER_CLASS * job.classes, "test": TESTS}.items(), start=1):
        file = folder / f"{role}.npy"
        job.generate(file, count, number, labelled=True)
        run(f"import {role}", "import", file, "--role", role, "--labels", _labels_of(file))
    run("complete", "build-graph", *asked, "--memory", job.memory)
    diffused = run("diffuse", "diffuse", "--iterations", str(job.iterations), "--memory", job.memory)
    evaluated = run("evaluate", "evaluate")
    return {
        "rows": job.rows,
        "dims": job.surface.dims,
        "classes": job.classes,
        "seeds": PER_CLASS * job.classes,
        "tests": TESTS,
        "iterations": job.iterations,
        "memory": job.memory,
        "cold": job.cold,
        "recall": built["knn/BB"]["facts"]["recall"],
        "batches": diffused["batches"],
        "accuracy": {top: best["accuracy"] for top, best in evaluated["scores"][0]["iterations"][-1]["all"].items()},
        "final": used_bytes(folder) - empty,
        "held": held,
        "stages": {name: watched.figures() for name, watched in stages.items()},
    }

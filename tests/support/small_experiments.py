"""Small experiments on the sample: its test points are training images, its seeds are test points."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mmdiff.experiment.stage import Outcome, run_experiment
from mmdiff.runtime.progress import Advance, Progress, silent
from tests.support.paths import SAMPLE

DIMS, K, ITERATIONS = 16, 8, 5

DIFFUSION: dict[str, Any] = {"name": "diffusion", "kind": "diffusion", "k": K, "iterations": ITERATIONS}
LOGREG: dict[str, Any] = {"name": "logreg", "kind": "logreg", "iterations": 20, "tune": {"weight_decay": [1e-3, 1e-2]}}
FUSION: dict[str, Any] = {"name": "fusion", "kind": "fusion", "of": ["logreg", "diffusion"]}


def splits() -> dict[str, list[int]]:
    """Four base and four novel classes in each group; the other classes are out of domain."""
    novel = [int(line) for line in (SAMPLE / "novel.txt").read_text().split()]
    labels = np.load(SAMPLE / "test_labels.npy")
    base = [int(label) for label in np.unique(labels) if label not in novel]
    return {
        "base_1": base[:4],
        "base_2": base[4:8],
        "novel_1": novel[:4],
        "novel_2": novel[4:8],
        "others": [*base[8:], *novel[8:]],
    }


def small_config(**changes: Any) -> dict[str, Any]:
    """A config with every kind of background; `changes` replace keys."""
    config: dict[str, Any] = {
        "name": "small",
        "n": [1, 3],
        "draws": 2,
        "dims": DIMS,
        "backgrounds": ["none", "in-domain", "out-of-domain:40", "out-of-domain"],
        "data": {
            "train": str(SAMPLE / "test.npy"),
            "train_labels": str(SAMPLE / "test_labels.npy"),
            "test": str(SAMPLE / "seeds.npy"),
            "test_labels": str(SAMPLE / "seed_labels.npy"),
            "split": "split.json",
        },
        "groups": {
            "out_of_domain": "others",
            "validation": {"base": "base_1", "novel": "novel_1"},
            "test": {"base": "base_2", "novel": "novel_2"},
        },
        "methods": [DIFFUSION],
    }
    return copy.deepcopy(config | changes)


def write_config(folder: Path, config: dict[str, Any]) -> Path:
    """Writes a config and the split file that it refers to."""
    # Rewriting the split would change its modification time, and so count as other data.
    if not (folder / "split.json").exists():
        (folder / "split.json").write_text(json.dumps(splits()))
    path = folder / "config.toml"
    path.write_text("\n".join(f"{key} = {toml(value)}" for key, value in config.items()))
    return path


def toml(value: Any) -> str:
    """A value as TOML, with inline tables."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")


def run(folder: Path, config: dict[str, Any], store: str = "store", progress: Progress = silent) -> Outcome:
    return run_experiment(folder / store, write_config(folder, config), "mmdiff experiment run config.toml", progress)


def interrupted_after(cells: int) -> Callable[[str, int, str], Any]:
    """A progress bar that raises KeyboardInterrupt after so many cells."""

    @contextmanager
    def bar(what: str, total: int, unit: str) -> Iterator[Advance]:
        del what, total
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if unit == "cells" and done == cells:
                raise KeyboardInterrupt

        yield advance

    return bar

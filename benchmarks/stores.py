"""Stores for benchmarks: nearest-neighbour graphs of generated descriptors and of Tiny ImageNet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.generate import generate
from benchmarks.knn import PROGRAM, TINY


def mmdiff(store: Path, *arguments: str | Path) -> None:
    """Runs a command on a store."""
    subprocess.run([PROGRAM, *map(str, arguments), "--store", store], check=True, stdout=sys.stderr)


def generated(folder: Path, rows: int, classes: int = 500, tests: int = 10_000) -> Path:
    """A store of generated descriptors with its graph. Reused if it exists."""
    store = folder / f"generated-{rows}"
    if not (store / "graph" / "W").exists():
        imported(folder, rows, classes, tests)
        mmdiff(store, "build-graph")
    return store


def imported(folder: Path, rows: int, classes: int = 500, tests: int = 10_000) -> Path:
    """A store with a background, two labelled seeds per class, and test points."""
    store = folder / f"generated-{rows}"
    folder.mkdir(exist_ok=True)
    counts = {"background": rows, "seeds": 2 * classes, "test": tests}
    for number, (role, count) in enumerate(counts.items()):
        own = None if role == "background" else np.arange(count) % classes
        generate(folder / f"{role}.npy", count, number, own)
        labels: list[str | Path] = []
        if own is not None:
            np.save(folder / f"{role}_labels.npy", own)
            labels = ["--labels", folder / f"{role}_labels.npy"]
        mmdiff(store, "import", folder / f"{role}.npy", "--role", role, *labels)
        (folder / f"{role}.npy").unlink()
    return store


def tiny(folder: Path, seeds_per_class: int = 10, k: int = 30) -> Path | None:
    """A store of Tiny ImageNet: training images as background and seeds, validation images as test points."""
    if not TINY.is_dir():
        return None
    store = folder / "tiny"
    if (store / "graph" / "W").exists():
        return store
    features, labels = np.load(TINY / "train_features.npy"), np.load(TINY / "train_labels.npy")
    draw = np.random.default_rng(0)
    chosen = np.concatenate(
        [draw.choice(np.flatnonzero(labels == label), seeds_per_class, replace=False) for label in np.unique(labels)]
    )
    others = draw.permutation(np.setdiff1d(np.arange(len(labels)), chosen))
    for role, rows in (("background", others), ("seeds", chosen)):
        np.save(folder / f"{role}.npy", features[rows])
        np.save(folder / f"{role}_labels.npy", labels[rows])
    mmdiff(store, "import", folder / "background.npy", "--role", "background")
    mmdiff(store, "import", folder / "seeds.npy", "--role", "seeds", "--labels", folder / "seeds_labels.npy")
    mmdiff(store, "import", TINY / "val_features.npy", "--role", "test", "--labels", TINY / "val_labels.npy")
    mmdiff(store, "build-graph", "--k", str(k))
    return store

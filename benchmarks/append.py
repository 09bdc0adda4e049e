"""Labels and rows that come later: quality against all rows at once, and time against that of a build.

    python -m benchmarks.append quality DATA [--rows N] [--recall R] [--folder DIR]    Tiny ImageNet: the last tenth is appended
    python -m benchmarks.append speed ROWS [--memory 4G] [--folder DIR]    generated rows: 20 labels come, then 1 % more rows

Both print their figures as JSON. A search that misses some neighbours misses others with another random seed, so the
quality has a noise floor: the share of equal predictions of two graphs that were both built at once, with two random seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mmdiff
from benchmarks.generate import Surface, generate
from benchmarks.knn import PROGRAM
from benchmarks.measure import machine, watch
from mmdiff.formats.store.manifest import Json

K, RECALL, ITERATIONS = 30, 0.95, 5
_SAMPLE, _PER_CLASS = 2000, 20
# Labels in the speed run: so many rows of each class at first, of as many classes.
_CLASSES, _LABELLED, _MORE = 100, 10, 20


def quality(folder: Path, data: Path, rows: int | None = None, recall: float = RECALL, index: str = "cells") -> Json:
    """Recall of the lists of all graphs on the same rows, and the shares of rows with the same prediction."""
    values, labels = (np.load(data / f"train_{name}.npy", mmap_mode="r") for name in ("features", "labels"))
    # Classes are together in the files; the last tenth must have all of them.
    chosen = np.random.default_rng(0).permutation(len(values))[:rows]
    vectors, known = np.asarray(values[chosen], np.float32), _few(np.asarray(labels[chosen]))
    border = len(chosen) - len(chosen) // 10

    def built(name: str, first: int = len(chosen), seed: int = 0) -> mmdiff.Store:
        """A store of all rows, of which those from `first` on are appended to a graph of those before."""
        store = mmdiff.open(folder / name, create=True, memory="8G")
        # The PCA of fewer rows is another space; all dimensions are the same one.
        store.add(vectors[:first], labels=known[:first], dims=vectors.shape[1])
        store.build_graph(k=K, recall=recall, index=index, seed=seed)
        if first < len(chosen):
            store.add(vectors[first:], labels=known[first:], append=True)
            store.build_graph(k=K, recall=recall, index=index, seed=seed)
        return store

    stores = {"once": built("once"), "again": built("again", seed=1), "appended": built("appended", border)}
    predicted = {
        name: store.diffuse(iterations=ITERATIONS, predict_nodes=True).predict_background() for name, store in stores.items()
    }
    sample = np.sort(np.random.default_rng(1).choice(len(chosen), min(_SAMPLE, len(chosen)), replace=False))
    return {
        "rows": len(chosen),
        "appended": len(chosen) - border,
        "index": index,
        "recall_asked": recall,
        **{f"recall_{name}": _recall(store, sample) for name, store in stores.items()},
        "same_predictions": float(np.mean(predicted["once"] == predicted["appended"])),
        "same_predictions_of_two_builds": float(np.mean(predicted["once"] == predicted["again"])),
    }


def _few(labels: NDArray[Any]) -> NDArray[np.int64]:
    """The labels of a few rows of each class, -1 for the others."""
    known = np.full(len(labels), -1)
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)[:_PER_CLASS]
        known[own] = label
    return known


def _recall(store: mmdiff.Store, sample: NDArray[np.int64]) -> float:
    """The share of true neighbours of some rows of the collection that are edges of W0, in the space of the store.

    A neighbour that the exact search ties with another counts as found if it is as near.
    """
    names = [name for name in ("descriptors/background", "descriptors/appended") if name in store]
    vectors = np.concatenate([np.asarray(store[name]["vectors"], np.float32) for name in names])
    with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        store.export("knn/W0" if "descriptors/appended" in store else "knn/BB", file.name, array="similarities")
        found = np.load(file.name)[sample]
    truth = np.sort(vectors[sample] @ vectors.T, axis=1)[:, -K]
    return float(np.mean(found >= truth[:, None] - 1e-5))


def speed(folder: Path, rows: int, memory: str) -> Json:
    """Seconds of a build; of answers from the first labels and after 20 more; of import and completion after 1 % more rows."""
    store = folder / "store"

    def run(*arguments: str | Path) -> float:
        return watch([PROGRAM, *arguments, "--store", store, "--json"]).seconds

    draw, shares = np.random.default_rng(0), Surface().shares()
    clusters = np.searchsorted(shares, draw.random(rows))
    generate(folder / "background.npy", rows, 0, clusters)
    generate(folder / "more.npy", rows // 100, 1)
    classes, known = clusters % _CLASSES, draw.permutation(rows)
    first, more = known[: _CLASSES * _LABELLED], known[_CLASSES * _LABELLED :][:_MORE]
    for name, chosen in (("first.csv", first), ("more.csv", more)):
        lines = [f"{row},class {classes[row]}\n" for row in chosen.tolist()]
        (folder / name).write_text("".join(["id,label\n", *lines]))
    bounded = ("--memory", memory)
    run("import", folder / "background.npy", "--role", "background", "--dtype", "float16")
    built = run("build-graph", *bounded)
    found: Json = {"rows": rows, "memory": memory, "build": built}
    for name in ("first", "more"):
        found[f"label_{name}"] = run("label", folder / f"{name}.csv")
        found[f"diffuse_{name}"] = run("diffuse", *bounded)
        found[f"predict_{name}"] = run("predict", folder / "answers.parquet", *bounded)
    found["append"] = run("import", folder / "more.npy", "--role", "background", "--append")
    found["complete"] = run("build-graph", *bounded)
    return {
        **found,
        "share_labels": (found["diffuse_more"] + found["predict_more"]) / built,
        "share_append": (found["append"] + found["complete"]) / built,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.append")
    kinds = parser.add_subparsers(dest="kind", required=True)
    of_quality, of_speed = kinds.add_parser("quality"), kinds.add_parser("speed")
    of_quality.add_argument("data", type=Path)
    of_quality.add_argument("--rows", type=int, default=None)
    of_quality.add_argument("--recall", type=float, default=RECALL)
    of_quality.add_argument("--index", default="cells", help="cells, or flat for exact search")
    of_speed.add_argument("rows", type=int)
    of_speed.add_argument("--memory", default="4G")
    for each in (of_quality, of_speed):
        each.add_argument("--folder", default=".", help="folder for large temporary files")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="bench-") as folder:
        if given.kind == "quality":
            found = quality(Path(folder), given.data, given.rows, given.recall, given.index)
        else:
            found = speed(Path(folder), given.rows, given.memory)
    sys.stdout.write(json.dumps({**found, "machine": machine()}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Measures the confidences of `mmdiff predict` on Tiny ImageNet: docs/experiments/results/calibration.json, docs/results.md.

.venv/bin/python docs/calibration.py FOLDER            group 2 of the paper's protocol; the stores are made in FOLDER
.venv/bin/python docs/calibration.py FOLDER --per-class 50 --draws 2 --out FILE     a quick look, on 50 images of each class

The collection is the training images of group 2, without labels; labels are given by `store.label`, so that the graph is built
once. The truth of all other rows is known. Four ways to label:

- *n of each class*: n images of each of the 80 classes.
- *all of base, n of novel*, the paper's seeds: judged on the other rows of the collection, which are all novel, and on the test
  points, of which half are.
- *unequal classes*: a collection whose classes have from 500 images down to 5, of which a random twentieth is labelled.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from results_page import page
from saving import save

DOCS = Path(__file__).resolve().parent
DATA = DOCS.parent.parent / "shared" / "data" / "tiny-imagenet"
RESULT = DOCS / "experiments" / "results" / "calibration.json"

N = (1, 5, 20)
LEAST = (0.8, 0.9)
BINS = 15
SMALLEST, LABELLED = 5, 20

Labels = NDArray[np.int64]


@dataclass
class Judged:
    """Confidences of predictions and whether they were right, over several draws."""

    accuracies: list[float] = field(default_factory=list)
    promised: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    confidences: list[NDArray[np.float64]] = field(default_factory=list)
    rights: list[NDArray[np.bool_]] = field(default_factory=list)

    def add(self, confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> None:
        self.accuracies.append(float(right.mean()))
        self.promised.append(float(confidence.mean()))
        self.errors.append(calibration_error(confidence, right))
        self.confidences.append(confidence)
        self.rights.append(right)

    def line(self, setting: str, n: int | None, rows: str) -> dict[str, Any]:
        """Means over draws in percent; precisions are those of all draws together."""
        confidence, right = np.concatenate(self.confidences), np.concatenate(self.rights)
        found: dict[str, Any] = {"setting": setting, "n": n, "rows": rows}
        for name, values in (("accuracy", self.accuracies), ("confidence", self.promised), ("error", self.errors)):
            found[name] = [round(100 * float(np.mean(values)), 2), round(100 * float(np.std(values)), 2)]
        for least in LEAST:
            sure = confidence >= least
            promised, kept = (round(100 * float(part[sure].mean()), 2) if sure.any() else None for part in (confidence, right))
            found[f"{least:g}"] = {"labelled": round(100 * float(sure.mean()), 2), "promised": promised, "kept": kept}
        return found


def calibration_error(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> float:
    """The expected calibration error: the mean distance of confidence and accuracy, in bins of equal width."""
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    rows, promised, kept = (np.bincount(bins, values, BINS) for values in (np.ones(len(bins)), confidence, right))
    return float(np.abs(promised - kept).sum() / rows.sum())


@dataclass(frozen=True)
class Collection:
    """A store over rows without labels, with its graph, and the class of each row and test point."""

    store: Any
    truth: Labels
    test_truth: Labels | None = None

    def judge(self, labelled: Labels, judged: dict[str, Judged]) -> None:
        """Labels some rows, in place of those that were labelled before, and judges all predictions."""
        before = [entry["id"] for entry in self.store.labels()["labels"]] if "labels/current" in self.store else []
        given = dict.fromkeys(before) | {int(row): f"class {self.truth[row]}" for row in labelled}
        self.store.label(given)
        self.store.diffuse(predict_nodes=True)
        for rows, found in judged.items():
            table = self.store.predict(rows=rows)
            truth = self.truth if rows == "collection" or self.test_truth is None else self.test_truth
            names = np.array([f"class {own}" for own in truth], object)
            predicted = np.array(table["source"]) == "predicted"
            right = np.array(table["label"].to_pylist(), object) == names
            found.add(np.asarray(table["confidence"], np.float64)[predicted], right[predicted])


def make_collection(
    folder: Path, rows: Labels, truth: Labels, test: Labels | None = None, test_truth: Any = None
) -> Collection:
    import mmdiff

    store = mmdiff.open(folder, create=True, progress=True)
    store.add(np.load(DATA / "train_features.npy", mmap_mode="r")[rows])
    if test is not None:
        store.add(np.load(DATA / "val_features.npy", mmap_mode="r")[test], role="test")
    store.build_graph()
    return Collection(store, truth, test_truth)


def of_each(truth: Labels, counts: dict[int, int], draw: np.random.Generator) -> Labels:
    """So many rows of each class, drawn at random."""
    return np.concatenate([draw.choice(np.flatnonzero(truth == own), count, replace=False) for own, count in counts.items()])


def lines(folder: Path, per_class: int, draws: int) -> Iterator[dict[str, Any]]:
    split = json.loads((DATA / "split.json").read_text())
    base, novel = split["base_2"], split["novel_2"]
    classes = sorted(base + novel)
    train, test = (np.load(DATA / f"{name}_labels.npy").astype(np.int64) for name in ("train", "val"))
    rows = np.sort(of_each(train, dict.fromkeys(classes, per_class), np.random.default_rng(0)))
    points = np.flatnonzero(np.isin(test, classes))
    group = make_collection(folder / "group2", rows, train[rows], points, test[points])
    for n in N:
        each, base_and_novel = {"collection": Judged()}, {"collection": Judged(), "test": Judged()}
        for number in range(draws):
            draw = np.random.default_rng((n, number))
            group.judge(of_each(group.truth, dict.fromkeys(classes, n), draw), each)
            counts = {own: per_class if own in base else n for own in classes}
            group.judge(of_each(group.truth, counts, draw), base_and_novel)
        yield each["collection"].line("n of each class", n, "collection")
        for where, judged in base_and_novel.items():
            yield judged.line("all of base, n of novel", n, where)
    falling = np.geomspace(per_class, min(SMALLEST, per_class), len(classes)).round().astype(int)
    order = np.random.default_rng(1).permutation(classes)
    few = np.sort(of_each(train, dict(zip(order.tolist(), falling.tolist(), strict=True)), np.random.default_rng(2)))
    unequal, skewed = make_collection(folder / "unequal", few, train[few]), {"collection": Judged()}
    for number in range(draws):
        labelled = np.random.default_rng(number).choice(len(few), len(few) // LABELLED, replace=False)
        unequal.judge(np.sort(labelled), skewed)
    yield skewed["collection"].line("unequal classes", None, "collection")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--per-class", type=int, default=500)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    clock = time.perf_counter()
    found = list(lines(options.folder, options.per_class, options.draws))
    head = {"command": ".venv/bin/python docs/calibration.py FOLDER", "draws": options.draws, "per_class": options.per_class}
    head["seconds"] = round(time.perf_counter() - clock)
    save(options.out, head, lines=found)
    sys.stdout.write(options.out.read_text())
    if options.out == RESULT:
        (DOCS / "results.md").write_text(page(RESULT.parent))


if __name__ == "__main__":
    main()

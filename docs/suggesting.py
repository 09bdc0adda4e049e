"""Compares ways to choose the rows to label, and saves docs/experiments/results/suggesting.json.

.venv/bin/python docs/suggesting.py --store FOLDER                 Tiny ImageNet: the novel classes of groups 1 and 2, and all
.venv/bin/python docs/suggesting.py --store FOLDER --images 50     a quick look, with so many images of each class; prints only

A collection is all training images of some classes that the describing network has not seen, without labels. A method chooses
rows, their labels are revealed, and the accuracy is that of a diffusion on the validation images of these classes. Cluster +
typicality is TypiClust (Hacohen, Dekel, Weinshall, ICML 2022): k-means with a cluster for each label, and of each cluster the
row that is most similar to its nearest neighbours in it. Then labels come in five rounds, the first by coverage, the others by
coverage, by uncertainty or mixed, with the predictions from the labels before. `docs/results.py` shows the result in
docs/results.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import numpy as np
from numpy.typing import NDArray
from saving import save

import mmdiff

DOCS = Path(__file__).resolve().parent
DATA = DOCS.parents[1] / "shared" / "data" / "tiny-imagenet"
RESULT = DOCS / "experiments" / "results" / "suggesting.json"
COMMAND = "python docs/suggesting.py --store FOLDER"

COLLECTIONS = {"novel 1": ("novel_1",), "novel 2": ("novel_2",), "novel 1 and 2": ("novel_1", "novel_2")}
BUDGETS, DRAWS, K, DIMS, ITERATIONS, NEAR = (1, 2, 5), 5, 30, 256, 4, 20
ROUNDS, BY = 5, ("coverage", "mixed", "uncertainty")
METHODS = ("random", "per class", "cluster + typicality", "suggest")
TWICE = "random, twice as many"

Row = dict[str, Any]
Rows = NDArray[np.int64]


def measure(place: Path, data: Path, images: int | None, name: str) -> list[Row]:
    """The accuracies of all methods in a collection, for every budget and draw."""
    rows, classes = rows_of(data, images, name)
    truth, points = np.load(data / "train_labels.npy")[rows], np.load(data / "val_labels.npy")
    tests = np.flatnonzero(np.isin(points, classes))
    store = mmdiff.open(place, create=True)
    store.add(np.load(data / "train_features.npy", mmap_mode="r")[rows], dims=min(DIMS, len(rows) - 1))
    store.add(np.load(data / "val_features.npy", mmap_mode="r")[tests], role="test", labels=points[tests])
    store.build_graph(k=K)
    # The suggestions for a smaller budget are the first of those for a larger one.
    suggested = np.array(store.suggest(max(BUDGETS) * len(classes))["id"])
    vectors = np.asarray(store["descriptors/background"]["vectors"], np.float32)
    before: Rows = np.empty(0, np.int64)
    found = []
    for budget in BUDGETS:
        count = budget * len(classes)
        ways: dict[str, Callable[[int], Rows]] = {
            "random": lambda draw, count=count: of_all(len(rows), count, draw),
            TWICE: lambda draw, count=count: of_all(len(rows), 2 * count, draw),
            "per class": lambda draw, budget=budget: of_each(truth, budget, draw),
            "cluster + typicality": lambda draw, count=count: typical(vectors, count, draw),
            "suggest": lambda _, count=count: suggested[:count],
        }
        for method, choose in ways.items():
            for draw in range(1 if method == "suggest" else DRAWS):
                chosen = choose(draw)
                store.label(dict.fromkeys(before.tolist()) | dict(zip(chosen.tolist(), truth[chosen].tolist(), strict=True)))
                before = chosen
                row = {"collection": name, "classes": len(classes), "budget": budget, "method": method, "draw": draw}
                found.append(row | {"known": len(np.unique(truth[chosen]))} | accuracies(store))
                sys.stdout.write(f"{found[-1]}\n")
    return found


def measure_rounds(place: Path, data: Path, images: int | None, name: str) -> list[Row]:
    """The accuracies after each round of a label a class, in the store that `measure` has made."""
    rows, classes = rows_of(data, images, name)
    truth, store = np.load(data / "train_labels.npy")[rows], mmdiff.open(place)
    found = []
    for by in BY:
        store.label(dict.fromkeys(entry["id"] for entry in store.labels()["labels"]))
        for done in range(1, ROUNDS + 1):
            chosen = np.array(store.suggest(len(classes), by="coverage" if done == 1 else by)["id"])
            store.label(dict(zip(chosen.tolist(), truth[chosen].tolist(), strict=True)))
            found.append({"collection": name, "by": by, "labels": done * len(classes)} | accuracies(store))
            sys.stdout.write(f"{found[-1]}\n")
    return found


def rows_of(data: Path, images: int | None, name: str) -> tuple[Rows, list[int]]:
    """The training images of a collection, class by class."""
    labels, split = np.load(data / "train_labels.npy"), json.loads((data / "split.json").read_text())
    classes = sorted(label for part in COLLECTIONS[name] for label in split[part])
    return np.concatenate([np.flatnonzero(labels == label)[:images] for label in classes]), classes


def accuracies(store: mmdiff.Store) -> Row:
    store.diffuse(iterations=ITERATIONS, predict_nodes=True)
    figures = store.evaluate("diffusion")["scores"][0]["iterations"][-1]["all"]
    return {f"top{k}": round(100 * figures[f"top{k}"]["accuracy"], 3) for k in (1, 5)}


def of_all(rows: int, count: int, draw: int) -> Rows:
    """So many of all rows; those for a smaller budget are among those for a larger one."""
    return np.random.default_rng([1, draw]).permutation(rows)[:count]


def of_each(truth: NDArray[Any], count: int, draw: int) -> Rows:
    """So many rows of each class."""
    chosen = np.random.default_rng([2, draw]).permutation(len(truth))
    return np.concatenate([chosen[truth[chosen] == label][:count] for label in np.unique(truth)])


def typical(vectors: NDArray[np.float32], count: int, draw: int) -> Rows:
    """The most typical row of each of as many clusters."""
    from sklearn.cluster import KMeans

    clusters = KMeans(count, n_init=1, random_state=draw).fit_predict(vectors)
    chosen = []
    for cluster in range(count):
        own = np.flatnonzero(clusters == cluster)
        similar = vectors[own] @ vectors[own].T
        np.fill_diagonal(similar, -np.inf)
        near = min(NEAR, max(1, len(own) - 1))
        typicality = np.sort(similar, axis=1)[:, -near:].mean(axis=1)
        chosen.append(own[np.argmax(typicality)])
    return np.array(chosen)


def table(rows: list[Row]) -> str:
    """Means over draws of top-1 and top-5, with the standard deviation of top-1."""
    lines = [
        "| collection | labels | " + " | ".join((*METHODS, TWICE)) + " |",
        "|---" * (len(METHODS) + 3) + "|",
    ]
    for name in COLLECTIONS:
        for budget in BUDGETS:
            own = [row for row in rows if row["collection"] == name and row["budget"] == budget]
            if own:
                cells = [_figures([row for row in own if row["method"] == method]) for method in (*METHODS, TWICE)]
                lines.append(f"| {name} | {budget * own[0]['classes']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def verdict(rows: list[Row]) -> str:
    """The number of settings in which the suggested rows are better than those of other methods, and the margin."""
    gaps: dict[tuple[str, str], list[float]] = {}
    first = []
    for name in COLLECTIONS:
        for budget in BUDGETS:
            own = [row for row in rows if row["collection"] == name and row["budget"] == budget]
            for top in ("top1", "top5"):
                means = {method: mean(row[top] for row in own if row["method"] == method) for method in (*METHODS, TWICE)}
                for other in (*METHODS[:-1], TWICE):
                    gaps.setdefault((other, top), []).append(means["suggest"] - means[other])
                if budget == 1 and top == "top1":
                    first.append(means["suggest"] - means["random"])
    parts = []
    for other in (TWICE, "cluster + typicality"):
        counts = []
        for top in ("top1", "top5"):
            own = gaps[other, top]
            worst = f" (at worst {min(own):+.1f} points)" if min(own) < 0 else ""
            counts.append(f"{sum(gap >= 0 for gap in own)} of {len(own)} by {top.replace('top', 'top-')}{worst}")
        parts.append(f"At least as good as *{other}*: {' and '.join(counts)}.")
    gap = f"{min(first):.1f} to {max(first):.1f} points"
    return f"With one label a class on average, *suggest* is {gap} of top-1 above random rows. {' '.join(parts)}"


def rounds_table(rows: list[Row]) -> str:
    """Top-1 and top-5 after each round."""
    lines = ["| collection | by | " + " | ".join(f"round {done}" for done in range(1, ROUNDS + 1)) + " |"]
    lines.append("|---" * (ROUNDS + 2) + "|")
    for name in COLLECTIONS:
        for by in BY:
            own = [_figures([row]) for row in rows if row["collection"] == name and row["by"] == by]
            lines.append(f"| {name} | {by} | {' | '.join(own)} |")
    return "\n".join(lines)


def _figures(rows: list[Row]) -> str:
    top1, top5 = ([row[key] for row in rows] for key in ("top1", "top5"))
    spread = f" ± {pstdev(top1):.1f}" if len(rows) > 1 else ""
    return f"{mean(top1):.1f}{spread} / {mean(top5):.1f}"


def section(result: dict[str, Any]) -> list[str]:
    """The section of docs/results.md."""
    return [
        "## Which rows to label",
        "`mmdiff suggest` ([what it computes](suggestions.md)) against other ways to choose the rows that get labels. A "
        "collection is all training images of 40 or 80 classes that the describing network has not seen, 500 of each, without "
        f"a label at first; the labels of the chosen rows are revealed. Top-1 / top-5 of a diffusion of {ITERATIONS} "
        "iterations on the validation images of these classes, in percent; mean (± standard deviation of top-1) over "
        f"{DRAWS} draws where a method draws. *Per class* draws the same number of each class, for which one would have to "
        "know the labels. *Cluster + typicality* is TypiClust: k-means with a cluster for each label, and of each the row "
        f"that is most similar to its {NEAR} nearest neighbours in it.",
        f"`{result['command']}`: {result['seconds']:,} s.",
        table(result["rows"]),
        verdict(result["rows"]),
        "Labels that come in rounds, one a class on average in each (40 or 80): the first round by coverage, the next ones as "
        "the row says, with the predictions from the labels before.",
        rounds_table(result["rounds"]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True, help="a folder for the stores")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--images", type=int)
    given = parser.parse_args()
    clock = time.perf_counter()
    given.store.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    rounds: list[Row] = []
    for name in COLLECTIONS:
        rows += measure(given.store / name, given.data, given.images, name)
        rounds += measure_rounds(given.store / name, given.data, given.images, name)
    sys.stdout.write(f"{table(rows)}\n\n{rounds_table(rounds)}\n")
    if given.images is None:
        head = {"command": COMMAND, "draws": DRAWS, "seconds": round(time.perf_counter() - clock)}
        save(RESULT, head, rows=rows, rounds=rounds)


if __name__ == "__main__":
    main()

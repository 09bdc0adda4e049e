"""Compares the accuracy on held-out labels with the real one, and saves docs/experiments/results/held_out.json.

.venv/bin/python docs/held_out.py --store FOLDER                  group 2 of Tiny ImageNet, n = 5 and 20, five draws
.venv/bin/python docs/held_out.py --store FOLDER --images 20      a quick look, with so many images of each class; prints only

The collection is all training images of the group, of which n in each class have a label; `mmdiff evaluate --folds 5` sees
these labels alone. It is compared with the accuracy on the other images of the collection, and on the validation images, which
are test points outside it. `docs/results.py` shows the result in docs/results.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from saving import save

import mmdiff

DOCS = Path(__file__).resolve().parent
DATA = DOCS.parents[1] / "shared" / "data" / "tiny-imagenet"
RESULT = DOCS / "experiments" / "results" / "held_out.json"
COMMAND = "python docs/held_out.py --store FOLDER"

NS, DRAWS, FOLDS = (5, 20), 5, 5
K, DIMS, ITERATIONS, FIXED = 30, 256, 10, 5

Row = dict[str, Any]


def measure(place: Path, data: Path, images: int | None) -> list[Row]:
    """The accuracies of both kinds, for every n and draw."""
    labels, points = np.load(data / "train_labels.npy"), np.load(data / "val_labels.npy")
    split = json.loads((data / "split.json").read_text())
    classes = sorted([*split["base_2"], *split["novel_2"]])
    rows = np.concatenate([np.flatnonzero(labels == label)[:images] for label in classes])
    tests = np.flatnonzero(np.isin(points, classes))
    store = mmdiff.open(place, create=True)
    store.add(np.load(data / "train_features.npy", mmap_mode="r")[rows], dims=min(DIMS, len(rows) - 1))
    store.add(np.load(data / "val_features.npy", mmap_mode="r")[tests], role="test", labels=points[tests])
    store.build_graph(k=K)
    found = []
    before: set[int] = set()
    for n in NS:
        for draw in range(DRAWS):
            given = drawn(labels[rows], n, draw)
            store.label(dict.fromkeys(before - given.keys()) | given)
            before = set(given)
            found.append({"n": n, "draw": draw, **compare(store, labels[rows], given)})
            sys.stdout.write(f"{found[-1]}\n")
    return found


def drawn(labels: NDArray[Any], n: int, draw: int) -> dict[int, int]:
    """n rows of each class, with their class; those for a smaller n are among those for a larger one."""
    given: dict[int, int] = {}
    for label in np.unique(labels).tolist():
        chosen = np.random.default_rng([0, draw, label]).permutation(np.flatnonzero(labels == label))[:n]
        given |= dict.fromkeys(chosen.tolist(), label)
    return given


def compare(store: mmdiff.Store, labels: NDArray[Any], given: dict[int, int]) -> Row:
    """Accuracies on held-out labels, on the other rows of the collection and on test points.

    They are those of a fixed number of iterations, and of the number that held-out labels choose.
    """
    curve = store.diffuse(iterations=ITERATIONS).iterations
    held_out = [step["all"] for step in store.evaluate("diffusion", folds=FOLDS)["scores"][0]["iterations"]]
    test = [step["all"] for step in store.evaluate("diffusion")["scores"][0]["iterations"]]
    chosen = max(curve[1:], key=lambda t: (held_out[t]["top1"]["accuracy"], held_out[t]["top5"]["accuracy"], -t))
    best = max(step["top1"]["accuracy"] for step in test[1:])
    found: Row = {"chosen": chosen, "lost": round(100 * (best - test[chosen]["top1"]["accuracy"]), 3)}
    others = np.setdiff1d(np.arange(len(labels)), list(given))
    for place, at in (("fixed", FIXED), ("auto", chosen)):
        classes = store.diffuse(iterations=at, predict_nodes=True).classes
        right = np.append(classes, -1)[store["scores/diffusion"]["top_classes"][:][others]] == labels[others, None]
        for k in (1, 5):
            own = held_out[at][f"top{k}"]
            found[f"{place}_top{k}"] = {
                "held_out": round(100 * own["accuracy"], 3),
                "interval": [round(100 * own[end], 3) for end in ("low", "high")],
                "collection": round(100 * float(right[:, :k].any(axis=1).mean()), 3),
                "test": round(100 * test[at][f"top{k}"]["accuracy"], 3),
            }
    return found


def table(rows: list[Row]) -> str:
    """The comparison as a table: means over draws, and each bias with its standard deviation."""
    lines = [
        "| n | iterations | accuracy | held-out labels | rest of the collection | bias | in interval | test points | bias |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for n in sorted({row["n"] for row in rows}):
        own = [row for row in rows if row["n"] == n]
        chosen = sorted({row["chosen"] for row in own})
        auto = f"auto: {chosen[0]}" if len(chosen) == 1 else f"auto: {chosen[0]} to {chosen[-1]}"
        for place, at in (("fixed", str(FIXED)), ("auto", auto)):
            for top in ("top1", "top5"):
                figures = [row[f"{place}_{top}"] for row in own]
                within = sum(low <= figure["collection"] <= high for figure in figures for low, high in [figure["interval"]])
                cells = [str(n), at, top.replace("top", "top-"), f"{mean(figure['held_out'] for figure in figures):.1f}"]
                for other in ("collection", "test"):
                    bias = np.array([figure["held_out"] - figure[other] for figure in figures])
                    spread = bias.std(ddof=1) if len(bias) > 1 else 0.0
                    cells += [f"{mean(figure[other] for figure in figures):.1f}", f"{bias.mean():+.1f} ± {spread:.1f}"]
                    cells += [f"{within} of {len(own)}"] if other == "collection" else []
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def section(result: dict[str, Any]) -> list[str]:
    """The section of docs/results.md."""
    rows: list[Row] = result["rows"]
    lost = ", ".join(f"{mean(row['lost'] for row in rows if row['n'] == n):.2f} for n = {n}" for n in result["n"])
    return [
        "## Accuracy without test points",
        "`mmdiff evaluate` holds labelled rows out in folds where there are no test points. Here all training images of "
        "group 2 are the collection, and n of each class have a label. The accuracy on held-out labels (5 folds) is "
        "compared with that on the rest of the collection, whose labels are known but not used, and with that on the "
        "4,000 test points, which are outside of the collection, for the same draws. *Bias* is held-out accuracy less the "
        "other one, as mean ± standard deviation over draws; *in interval* counts the draws in which the 95 % interval of "
        "the held-out accuracy has that of the rest. With `auto` the labels also choose the number of iterations, of 1 to "
        "10.",
        "A row of the collection is read at its node; a test point gathers the scores of its neighbours, which is one "
        "step further, and it is an image of another set. So held-out labels speak for the collection first.",
        f"`{result['command']}`: {result['seconds']:,} s.",
        table(rows),
        f"Choosing the number of iterations on labels costs, in points of top-1 on the test points against the best number "
        f"for them: {lost}.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--images", type=int)
    given = parser.parse_args()
    clock = time.perf_counter()
    rows = measure(given.store, given.data, given.images)
    sys.stdout.write(f"{table(rows)}\n")
    if given.images is None:
        head = {"command": COMMAND, "n": NS, "draws": DRAWS, "seconds": round(time.perf_counter() - clock)}
        save(RESULT, head, rows=rows)


if __name__ == "__main__":
    main()

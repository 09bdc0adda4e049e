"""Draws small images of figures, and measures how well a describer that was trained on some of them describes others.

.venv/bin/python docs/shapes.py FOLDER              images for docs/images.md: base classes, a collection, test images
.venv/bin/python docs/shapes.py --measure FOLDER    saves docs/experiments/results/images.json and its table in docs/images.md

A figure is a flower of 2 to 7 petals that is full, hollow, striped or dotted: its class. Place, size, rotation, the two colours
and noise say nothing about the class, so pixels are of little use. Base classes are some of the pairs of petals and filling;
novel classes are other pairs. The collection has images of both kinds, of which few have a label.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from saving import save

import mmdiff

DOCS = Path(__file__).resolve().parent
RESULT, PAGE = DOCS / "experiments" / "results" / "images.json", DOCS / "images.md"
COMMAND = "python docs/shapes.py --measure FOLDER"

PETALS, FILLINGS = (2, 3, 4, 5, 7), ("full", "hollow", "striped", "dotted")
SIDE = 32
LABELLED, DRAWS, K, ITERATIONS = (1, 2, 5), 5, 10, 4
EPOCHS, WIDTH = 20, 16


def classes(novel: bool) -> list[str]:
    """The base or the novel classes: of every filling, and of every number of petals but one, both have some."""
    pairs = [(petals, filling) for petals in range(len(PETALS)) for filling in range(len(FILLINGS))]
    return [f"{FILLINGS[f]}-{PETALS[p]}" for p, f in pairs if ((p + f) % 5 in (0, 2)) == novel]


def draw(name: str, rng: np.random.Generator, side: int = SIDE) -> NDArray[np.uint8]:
    """An image of a figure."""
    filling, petals = name.split("-")
    x, y = np.meshgrid(*2 * [(np.arange(side) + 0.5) / side - 0.5])
    x, y = x - rng.uniform(-0.08, 0.08), y - rng.uniform(-0.08, 0.08)
    size, turn = rng.uniform(0.26, 0.36), rng.uniform(0, 2 * np.pi)
    radius, angle = np.hypot(x, y), np.arctan2(y, x) + turn
    edge = size * (1 + 0.4 * np.cos(int(petals) * angle))
    figure = radius < edge
    along, across = (x * np.cos(turn) + y * np.sin(turn)) / size, (y * np.cos(turn) - x * np.sin(turn)) / size
    if filling == "hollow":
        figure &= radius > 0.55 * edge
    elif filling == "striped":
        figure &= (np.sin(9 * along) > 0) | (radius > 0.75 * edge)
    elif filling == "dotted":
        figure &= (np.sin(9 * along) * np.sin(9 * across) > 0) | (radius > 0.75 * edge)
    colours = rng.uniform(0, 255, (2, 3))
    while np.abs(colours[0] - colours[1]).sum() < 200:
        colours = rng.uniform(0, 255, (2, 3))
    pixels = np.where(figure[:, :, None], colours[0], colours[1]) + rng.normal(0, 12, (side, side, 3))
    return np.clip(pixels, 0, 255).astype(np.uint8)


def write(folder: Path, base: int, each: int, labelled: int, tests: int, seed: int = 0, side: int = SIDE) -> None:
    """Writes `base/CLASS`, `collection/CLASS` (labelled), `collection` (not labelled) and `test/CLASS`.

    `base` images of each base class to train on; in the collection `each` of every class, of which `labelled` of each novel
    class have a label; `tests` of each novel class. The classes of all images of the collection are in `truth.csv`.
    """
    rng = np.random.default_rng(seed)
    both = [*classes(novel=False), *classes(novel=True)]

    def put(place: Path, name: str) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw(name, rng, side)).save(place)

    for name in classes(novel=False):
        for i in range(base):
            put(folder / "base" / name / f"{i}.png", name)
    names = rng.permutation([name for name in both for _ in range(each)]).tolist()
    left, truth = dict.fromkeys(classes(novel=True), labelled), ["id,class"]
    for i, name in enumerate(names):
        known = left.get(name, 0) > 0
        place = f"{name}/{i:05}.png" if known else f"{i:05}.png"
        left[name] = left.get(name, 0) - known
        put(folder / "collection" / place, name)
        truth.append(f"{place},{name}")
    (folder / "truth.csv").write_text("\n".join(truth) + "\n")
    for name in classes(novel=True):
        for i in range(tests):
            put(folder / "test" / name / f"{i}.png", name)


def novel_images(folder: Path) -> tuple[list[str], list[str]]:
    """The ids of all images of the collection, by row, and their classes."""
    rows = [line.split(",") for line in (folder / "truth.csv").read_text().split()[1:]]
    return [row[0] for row in rows], [row[1] for row in rows]


def pixels_of(folder: Path, names: Sequence[str]) -> NDArray[np.float32]:
    """The pixels of images as rows, for comparison, around their mean."""
    rows = np.stack([np.asarray(Image.open(folder / name), np.float32).reshape(-1) for name in names])
    return rows - rows.mean(axis=1, keepdims=True)


def accuracies(
    vectors: NDArray[Any], truth: Sequence[str], labelled: Sequence[int], draws: int, k: int = K, iterations: int = ITERATIONS
) -> dict[int, list[float]]:
    """The share of unlabelled novel images that get their class, with so many labels for each novel class, for each draw."""
    names = classes(novel=True)
    number = np.array([names.index(name) if name in names else -1 for name in truth])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    if len(unit) < unit.shape[1]:
        # Rows with the same inner products, as few columns as there are rows.
        unit = np.linalg.qr(unit.T)[1].T
    graph = mmdiff.knn_graph(unit, k=k, recall=1.0, seed=0)
    found: dict[int, list[float]] = {}
    for count in labelled:
        for seed in range(draws):
            rng = np.random.default_rng([seed, count])
            known = np.concatenate([rng.choice(np.flatnonzero(number == c), count, replace=False) for c in range(len(names))])
            y = np.full(len(number), -1)
            y[known] = number[known]
            answers = mmdiff.diffuse(graph, y, iterations=iterations).predict()
            asked = (number >= 0) & (y < 0)
            found.setdefault(count, []).append(float((np.asarray(answers)[asked] == number[asked]).mean()))
    return found


def measure(folder: Path) -> None:
    """Trains a describer on the base classes, and compares its descriptors with pixels on the novel ones."""
    write(folder, base=150, each=60, labelled=2, tests=20)
    summary = mmdiff.train_describer(
        folder / "base", folder / "describer.safetensors", size=SIDE, width=WIDTH, epochs=EPOCHS, threads=1, progress=True
    )
    store = mmdiff.open(folder / "store", create=True, progress=True)
    store.describe(folder / "collection", model=folder / "describer.safetensors")
    ids, truth = novel_images(folder)
    row_of = {name: row for row, name in enumerate(store["descriptors/background"].strings("ids"))}
    described = np.asarray(store["descriptors/background"]["vectors"])[[row_of[name] for name in ids]]
    results = []
    for what, vectors in (("pixels", pixels_of(folder / "collection", ids)), ("describer", described)):
        for labels, shares in accuracies(vectors, truth, LABELLED, DRAWS).items():
            results.append({"descriptors": what, "labels": labels, "accuracy": [round(share, 4) for share in shares]})
    kept = ("network", "values", "classes", "images", "held_out", "accuracy", "chance")
    head = {"command": COMMAND, "novel": len(classes(novel=True)), "describer": {key: summary[key] for key in kept}}
    save(RESULT, head, results=results)
    PAGE.write_text(page(PAGE.read_text()))


def page(text: str) -> str:
    """The page docs/images.md with the table of the saved results."""
    found = json.loads(RESULT.read_text())
    describer = found["describer"]
    lines = ["| labels for each novel class | pixels | describer |", "|---|---|---|"]
    for count in LABELLED:
        shares = {row["descriptors"]: row["accuracy"] for row in found["results"] if row["labels"] == count}
        cells = (f"{100 * mean(shares[what]):.1f} ± {100 * pstdev(shares[what]):.1f}" for what in ("pixels", "describer"))
        lines.append(f"| {count} | {' | '.join(cells)} |")
    lines += [
        "",
        f"Percent of the unlabelled images of {found['novel']} novel classes that get their class, mean ± standard deviation "
        f"over {DRAWS} draws of labels; chance is {100 / found['novel']:.1f}. The describer ({describer['network']}, "
        f"{describer['values']} values) was trained on {describer['images']:,} images of {describer['classes']} base classes; "
        f"of {describer['held_out']} held-out images of these it classifies {100 * describer['accuracy']:.1f} % rightly. "
        f"`{found['command']}` computes the table.",
    ]
    content = "\n".join(lines)
    return re.sub(r"(?s)(<!-- measured -->\n).*(<!-- /measured -->)", lambda marks: f"{marks[1]}{content}\n{marks[2]}", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--measure", action="store_true", help="train, describe and compare with pixels")
    parser.add_argument("--base", type=int, default=60, help="images of each base class")
    parser.add_argument("--each", type=int, default=20, help="images of each class in the collection")
    given = parser.parse_args()
    if given.folder.exists():
        sys.exit(f"{given.folder}: is there already. Name a new folder.")
    if given.measure:
        measure(given.folder)
    else:
        write(given.folder, given.base, given.each, labelled=2, tests=5)


if __name__ == "__main__":
    main()

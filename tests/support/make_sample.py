"""Makes `tests/sample` from Tiny ImageNet descriptors, which are not part of the repository.

    .venv/bin/python -m tests.support.make_sample ../shared/data/tiny-imagenet

It has ten base and ten novel classes of group 2. The background is in-domain (other images of the novel classes); seeds are 20
images of each base class and 5 of each novel class; test points are validation images of all twenty classes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from tests.support.paths import SAMPLE

CLASSES_OF_A_KIND = 10
BACKGROUND, BASE_SEEDS, NOVEL_SEEDS, TEST = 150, 20, 5, 30


def main(data: Path, sample: Path) -> None:
    split = json.loads((data / "split.json").read_text())
    names = json.loads((data / "class_names.json").read_text())
    base, novel = split["base_2"][:CLASSES_OF_A_KIND], split["novel_2"][:CLASSES_OF_A_KIND]
    train, train_labels = (np.load(data / f"train_{what}.npy") for what in ("features", "labels"))
    val, val_labels = (np.load(data / f"val_{what}.npy") for what in ("features", "labels"))
    seeds: list[int] = []
    background: list[int] = []
    for label in (*base, *novel):
        rows = np.flatnonzero(train_labels == label)
        count = NOVEL_SEEDS if label in novel else BASE_SEEDS
        seeds.extend(rows[:count])
        background.extend(rows[count : count + BACKGROUND] if label in novel else [])
    test = [row for label in (*base, *novel) for row in np.flatnonzero(val_labels == label)[:TEST]]
    # Shuffled, so that mistakes in the order of rows show.
    np.save(sample / "background.npy", train[np.random.default_rng(0).permutation(background)])
    np.save(sample / "seeds.npy", train[seeds])
    np.save(sample / "seed_labels.npy", train_labels[seeds])
    np.save(sample / "test.npy", val[test])
    np.save(sample / "test_labels.npy", val_labels[test])
    table = {str(label): names[label] if isinstance(names, list) else names[str(label)] for label in sorted((*base, *novel))}
    (sample / "class_names.json").write_text(json.dumps(table, indent=1) + "\n")
    (sample / "novel.txt").write_text("".join(f"{label}\n" for label in sorted(novel)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), SAMPLE)

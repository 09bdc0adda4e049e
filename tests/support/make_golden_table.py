"""Makes the golden store of a labelled table, `tests/golden/store-4`. Run it only for a new schema version:

    .venv/bin/python -m tests.support.make_golden_table

It has the kinds that a table without other roles leads to: the journal of labels and held-out scores.
"""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

import mmdiff
from tests.support.make_golden import LARGER_K, golden_rows
from tests.support.paths import GOLDEN_4

TABLE_ROWS = 30
TABLE_CLASSES = ("cat", "dog", "Käfer")
ITERATIONS, FOLDS = 2, 2
RELABELLED = {"row-4": "dog", "row-7": "Käfer", "row-8": "Käfer", "row-0": None}


def main() -> None:
    platform.node = lambda: "golden"
    shutil.rmtree(GOLDEN_4, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder)
        np.save(files / "table.npy", golden_rows(TABLE_ROWS, 0))
        (files / "ids.txt").write_text("".join(f"row-{row}\n" for row in range(TABLE_ROWS)))
        labels = [TABLE_CLASSES[row % 2] if row < 6 else "" for row in range(TABLE_ROWS)]
        (files / "labels.txt").write_text("".join(f"{label}\n" for label in labels))
        store = mmdiff.open(GOLDEN_4, create=True)
        store.add(str(files / "table.npy"), ids=str(files / "ids.txt"), labels=str(files / "labels.txt"))
        store.build_graph(k=LARGER_K, index="flat")
        store.label(RELABELLED)
        store.diffuse(iterations=ITERATIONS, predict_nodes=True)
        store.evaluate(folds=FOLDS)
    sys.stdout.write(f"{GOLDEN_4}\n")


if __name__ == "__main__":
    main()

"""Makes the golden store of audits, `tests/golden/store-5`. Run it only for a new schema version:

    .venv/bin/python -m tests.support.make_golden_audit

Row 20 + i of the collection is row i once more, and so is test point i: duplicates, and leaks where row i has a label.
"""

from __future__ import annotations

import platform
import shutil
import sys

import numpy as np

import mmdiff
from tests.support.make_golden import LARGER_K
from tests.support.paths import GOLDEN_5

ROWS, COPIES, TESTS, WIDTH = 24, 4, 5, 6
CLASSES = ("cat", "dog", "Käfer")
LABELLED = 9


def main() -> None:
    platform.node = lambda: "golden"
    shutil.rmtree(GOLDEN_5, ignore_errors=True)
    i, j = np.mgrid[: ROWS - COPIES, :WIDTH]
    rows = np.cos(i * 1.7 + j * (i + 2)).astype(np.float32) + 2 * (i % 3 == j)
    table = np.concatenate([rows, rows[:COPIES]])
    labels = [CLASSES[row % 3] if row < LABELLED else None for row in range(ROWS)]
    store = mmdiff.open(GOLDEN_5, create=True, command="golden")
    store.add(table, ids=[f"row-{row}" for row in range(ROWS)], labels=labels)
    store.add(rows[:TESTS], role="test", labels=[CLASSES[row % 3] for row in range(TESTS)])
    store.build_graph(k=LARGER_K, index="flat")
    store.diffuse(iterations=2)
    store.audit(above=0.99)
    sys.stdout.write(f"{GOLDEN_5}\n")


if __name__ == "__main__":
    main()

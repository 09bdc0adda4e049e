"""Makes the golden store of the current schema versions, `tests/golden/store-3`. Run it only for a new schema version:

    .venv/bin/python -m tests.support.make_golden

Its content follows from the formula in `golden_rows`, so that tests can compute what they expect to read.
"""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmdiff.building.stage import Request as BuildRequest
from mmdiff.building.stage import build_graph
from mmdiff.diffusion.stage import Request as DiffuseRequest
from mmdiff.diffusion.stage import diffuse
from mmdiff.experiment.stage import run_experiment
from mmdiff.importing.stage import Request, import_descriptors
from mmdiff.logreg.stage import Request as LogregRequest
from mmdiff.logreg.stage import logreg
from tests.support.paths import GOLDEN_3

BACKGROUND_ROWS, SEED_ROWS, TEST_ROWS, WIDTH, DIMS = 40, 6, 5, 6, 4
BAD_ROWS = (3, 17)
SEED_LABELS = ("cat", "dog", "", "cat", "Käfer", "dog")
TEST_LABELS = (0, 2, -1, 7, 1)
K = 3
# Rows occur up to four times: with more neighbours than that, seeds enter lists of the background.
LARGER_K = 5
LOGREG_ITERATIONS = 20
DIFFUSION_ITERATIONS = 2
IMAGES, EXPERIMENT_TESTS, CLASSES, DRAWS = 32, 12, 4, 2
NODES = BACKGROUND_ROWS - len(BAD_ROWS) + SEED_ROWS


def golden_rows(count: int, shift: int) -> NDArray[np.float32]:
    """Rows of small whole numbers; none is all zero."""
    i, j = np.mgrid[:count, :WIDTH]
    values: NDArray[np.float32] = ((i * i * 7 + j * 5 + i * j * 3 + shift) % 11 - 4 + (j == 0) * 9).astype(np.float32)
    return values


def diffusion(folder: Path) -> DiffuseRequest:
    """A diffusion in two batches, with the top classes of the background."""
    return DiffuseRequest(iterations=DIFFUSION_ITERATIONS, cols_per_batch=2, predict_nodes=folder / "predictions.parquet")


def experiment(folder: Path) -> Path:
    """Two base and two novel classes; image i is of class i modulo their number."""
    np.save(folder / "train.npy", golden_rows(IMAGES, 3))
    np.save(folder / "train_labels.npy", np.arange(IMAGES) % CLASSES)
    np.save(folder / "tests.npy", golden_rows(EXPERIMENT_TESTS, 5))
    np.save(folder / "tests_labels.npy", np.arange(EXPERIMENT_TESTS) % CLASSES)
    config = folder / "golden.toml"
    config.write_text(f"""
n = [1, 2]
draws = {DRAWS}
dims = {DIMS}
backgrounds = ["none", "in-domain"]
data = {{train = "train.npy", train_labels = "train_labels.npy", test = "tests.npy", test_labels = "tests_labels.npy"}}
groups = {{validation = {{base = [0, 1], novel = [2, 3]}}}}
methods = [{{name = "diffusion", kind = "diffusion", k = {K}, iterations = {DIFFUSION_ITERATIONS}}}]
""")
    return config


def main() -> None:
    platform.node = lambda: "golden"
    shutil.rmtree(GOLDEN_3, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder)
        background = golden_rows(BACKGROUND_ROWS, 0)
        background[BAD_ROWS[0]] = 0
        background[BAD_ROWS[1], 2] = np.nan
        np.save(files / "background.npy", background)
        np.save(files / "seeds.npy", golden_rows(SEED_ROWS, 1))
        np.save(files / "test.npy", golden_rows(TEST_ROWS, 2).astype(np.float16))
        np.save(files / "test_labels.npy", np.array(TEST_LABELS))
        (files / "seed_labels.txt").write_text("".join(f"{label}\n" for label in SEED_LABELS))
        (files / "ids.txt").write_text("".join(f"seed-{row}\n" for row in range(SEED_ROWS)))
        for request in (
            Request([str(files / "background.npy")], "background", dims=DIMS, on_bad="drop", keep_raw=True),
            Request([str(files / "seeds.npy")], "seeds", labels=str(files / "seed_labels.txt"), ids=str(files / "ids.txt")),
            Request([str(files / "test.npy")], "test", labels=str(files / "test_labels.npy"), dtype="float16"),
        ):
            import_descriptors(GOLDEN_3, request)
        build_graph(GOLDEN_3, BuildRequest(k=LARGER_K, index="flat"))
        logreg(GOLDEN_3, LogregRequest(iterations=LOGREG_ITERATIONS, device="cpu"))
        diffuse(GOLDEN_3, diffusion(files))
        run_experiment(GOLDEN_3, experiment(files), "mmdiff experiment run golden.toml")
    sys.stdout.write(f"{GOLDEN_3}\n")


if __name__ == "__main__":
    main()

"""Small stores with scores: labelled seeds and test points, and scores like those of a diffusion."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typer.testing import CliRunner

from mmdiff.cli import app
from mmdiff.formats.store.manifest import Recipe
from mmdiff.formats.store.publish import Publication
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.importing.stage import Request, import_descriptors
from mmdiff.labels.classes import Classes
from mmdiff.runtime.find_or_make import input_of, make

CLASSES, WIDTH = 6, 10


def descriptors(labels: NDArray[Any], seed: int, spread: float = 1.0) -> NDArray[np.float32]:
    """Rows around a centre of their class."""
    centres = np.random.default_rng(99).normal(size=(40, WIDTH)) * 1.5
    noise = np.random.default_rng(seed).normal(size=(len(labels), WIDTH)) * spread
    rows: NDArray[np.float32] = (5 + centres[labels] + noise).astype(np.float32)
    return rows


def import_role(folder: Path, role: Any, rows: NDArray[Any], labels: NDArray[Any] | None, **more: Any) -> Artifact:
    np.save(folder / f"{role}.npy", rows)
    if labels is not None:
        np.save(folder / f"{role}_labels.npy", labels)
        more["labels"] = str(folder / f"{role}_labels.npy")
    request = Request([str(folder / f"{role}.npy")], role, **more)
    return import_descriptors(folder / "store", request).artifact


def make_scored(folder: Path, seeds: int = 60, tests: int = 90, **test_options: Any) -> Store:
    """A store of test points and of seeds, unevenly distributed over the classes."""
    seed_labels = np.minimum(np.arange(seeds) % 11, CLASSES - 1)
    import_role(folder, "seeds", descriptors(seed_labels, 1), seed_labels, no_background=True)
    test_labels = np.arange(tests) % CLASSES
    import_role(folder, "test", descriptors(test_labels, 2), test_labels, **test_options)
    return Store.open(folder / "store")


def diffused(store: Store, iterations: int = 3, zeros: float = 0.3, seed: int = 0) -> NDArray[np.float32]:
    """Scores that improve with the iterations, with zeros among them, and rows of zeros."""
    draw = np.random.default_rng(seed)
    seeds, test = (store.open_artifact(f"descriptors/{role}") for role in ("seeds", "test"))
    classes, truth = len(Classes.of(seeds)), np.zeros(test.spec("vectors").shape[0], np.int64)
    if "labels" in test:
        truth = Classes.of(test).columns_in(Classes.of(seeds))[test.array("labels")]
    scores = draw.random((iterations, len(truth), classes)) * (draw.random((iterations, len(truth), classes)) > zeros)
    for iteration in range(iterations):
        scores[iteration, np.arange(len(truth)), truth] += iteration * draw.random(len(truth))
    scores[:, :4] = 0
    return scores.astype(np.float32)


def publish_diffusion(
    store: Store, scores: NDArray[np.float32], name: str = "scores/diffusion", classes: Classes | None = None
) -> Artifact:
    """Publishes scores as `mmdiff diffuse` does, as far as their readers can tell."""
    seeds, test = (store.open_artifact(f"descriptors/{role}") for role in ("seeds", "test"))
    # The digest makes other scores another recipe: one that was made before is found, not made.
    digest = zlib.crc32(scores.tobytes() + repr(classes).encode())
    parameters = {"method": "diffusion", "iterations": len(scores), "digest": digest}
    recipe = Recipe("scores", 1, parameters, {"seeds": input_of(seeds), "test": input_of(test)})
    facts = {"tests": scores.shape[1], "classes": scores.shape[2], "planes": list(range(1, len(scores) + 1))}
    with Publication(store.path, [name], "mmdiff diffuse") as publication:

        def fill(draft: Any) -> dict[str, Any]:
            draft.values("scores", scores)
            (classes or Classes.of(seeds)).write(draft)
            return facts

        return make(publication, name, recipe, "mmdiff diffuse", fill).artifact


def run(folder: Path, command: str) -> Any:
    return CliRunner().invoke(app, [*command.split(), "--store", str(folder / "store")])


def run_json(folder: Path, command: str) -> Any:
    outcome = run(folder, f"{command} --json")
    assert outcome.exit_code == 0, outcome.output
    return json.loads(outcome.stdout)


def refused(folder: Path, command: str) -> str:
    """The message of a refused command, which prints no result and no traceback."""
    outcome = run(folder, command)
    assert outcome.exit_code == 2, outcome.output
    assert outcome.stdout == ""
    assert "Traceback" not in outcome.stderr
    return str(outcome.stderr).removeprefix("mmdiff: ").rstrip("\n")

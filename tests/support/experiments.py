"""Experiment results as `mmdiff experiment` publishes them, with random accuracies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mmdiff.formats.store.fingerprint import fingerprint, source_fingerprint
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.store import Artifact
from mmdiff.runtime.find_or_make import Run
from tests.support.stores import publish

NS = (1, 2, 5, 20)


def line(group: str, n: int, background: str | None, kind: str, draw: np.random.Generator) -> Json:
    """A line as `Series.line` makes it."""
    planes: list[Any] = {"diffusion": [0, 1, 2, 3], "logreg": [0]}.get(kind, [0.0, 0.25, 0.5, 0.75, 1.0])
    figures = ("top1", "top5", "novel_top1", "novel_top5")
    mean = {figure: np.round(draw.uniform(0.3, 0.95, len(planes)), 6).tolist() for figure in figures}
    found: Json = {
        "group": group,
        "n": n,
        "background": background,
        "method": {"diffusion": "<i>diffusion</i>", "logreg": "logistic regression"}.get(kind, "fusion"),
        "kind": kind,
        "variant": {"k": 30} if kind == "diffusion" else {},
        "options": {},
        "chosen": True,
        "planes": planes,
        "plane": len(planes) // 2,
        "mean": mean,
        "std": {figure: [0.0125] * len(planes) for figure in figures},
        "first_cell": 0,
    }
    return found | ({"nonzero": [0.01, 0.2, 0.7, 1.0]} if kind == "diffusion" else {})


def publish_experiment(
    store: Path, name: str, groups: tuple[str, ...] = ("validation", "test"), draws: int = 5, data: Path | None = None
) -> Artifact:
    """Publishes results for four methods; `data` is the training file that they claim to be made from."""
    draw = np.random.default_rng(1)
    kinds = (("logreg", None), ("diffusion", "none"), ("diffusion", "in-domain"), ("fusion", "in-domain"))
    lines = [line(group, n, background, kind, draw) for group in groups for n in NS for kind, background in kinds]
    facts = {"tests": {group: {"all": 800, "novel": 400} for group in groups}, "lines": lines}
    inputs = {} if data is None else {"train": fingerprint(data.name, [data])}
    seen = {} if data is None else {"train": source_fingerprint([data])}
    recipe = Recipe("report", 1, {"name": name, "draws": draws, "n": list(NS), "methods": []}, inputs, seen)
    # Pages show the lines; the cells that they come from are left out.
    cells: dict[str, Any] = {
        "planes": np.zeros((0, 6), np.int64),
        "offsets": np.zeros(1, np.int64),
        "keys": np.zeros((0, 12), np.uint8),
    }
    run = Run("mmdiff experiment run x.toml").record() | {"cell_seconds": []}
    return publish(store, f"reports/{name}", cells, recipe, facts, run)

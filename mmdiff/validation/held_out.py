"""Held-out scores as they are stored in `folds/NAME`: written by the cross-validation, read by everything that learns from it.

Evaluation, the choice of the number of iterations, calibration and fusion weights all read the same artifact, so that none of
them uses a label for the row that it belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmdiff.evaluation.metrics import ranks_of, top_k_accuracy
from mmdiff.formats.errors import BadOption
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.publish import Draft
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.labels.classes import UNLABELLED, Classes, labels_of
from mmdiff.runtime.staleness import require_current
from mmdiff.text import count
from mmdiff.validation.folds import Folds

KIND, SCHEMA = "folds", 1
TOPS = (1, 5)


def full_name(name: str) -> str:
    """The name of the held-out scores that belong to scores, which may have their namespace."""
    return f"{KIND}/{name.rpartition('/')[2]}"


@dataclass(frozen=True)
class HeldOut:
    """Held-out scores, (planes, rows, classes), of the rows with these numbers, in the user's order.

    `fold` and `labels`, (rows, labels per row), belong to the rows; `iterations` are those of the planes.
    """

    artifact: Artifact
    classes: Classes
    method: str
    iterations: tuple[int, ...]
    scores: NDArray[np.float32]
    rows: NDArray[np.int64]
    fold: NDArray[np.int32]
    labels: NDArray[np.int32]

    @classmethod
    def of(cls, artifact: Artifact) -> HeldOut:
        manifest = artifact.manifest
        if manifest.kind != KIND:
            raise BadOption(f"{artifact.name}: of kind {manifest.kind}, not {KIND}. Name one of {KIND}/...")
        classes = Classes.of(artifact)
        return cls(
            artifact,
            classes,
            manifest.parameters["method"],
            tuple(manifest.facts["planes"]),
            artifact.array("scores"),
            artifact.array("rows"),
            artifact.index_array("fold", below=manifest.facts["folds"]),
            labels_of(artifact, classes),
        )

    @classmethod
    def open(cls, store: Store, name: str) -> HeldOut:
        """The current held-out scores of a method; stale ones are refused."""
        artifact = store.open_artifact(full_name(name))
        require_current(store, artifact)
        return cls.of(artifact)


def write_rows(
    draft: Draft, rows: NDArray[np.int64], labels: NDArray[np.int32], classes: Classes, folds: Folds, planes: list[int]
) -> Json:
    """Writes what belongs to the scores, which are written already, and returns the facts.

    `rows` and `labels` are those of all labelled rows.
    """
    out = folds.held_out
    draft.values("rows", rows[out])
    draft.values("fold", folds.fold[out])
    draft.values("labels", labels[out])
    classes.write(draft)
    scores = draft.writers["scores"].mapped()
    return {
        "rows": len(out),
        "classes": len(classes),
        "planes": planes,
        "folds": folds.count,
        "singletons": folds.singletons,
        "curve": [_accuracies(plane, labels[out]) for plane in scores],
    }


def _accuracies(scores: NDArray[np.float32], labels: NDArray[np.int32]) -> Json:
    ranks = ranks_of(scores, labels)
    return {f"top{k}": round(top_k_accuracy(ranks, k), 9) for k in TOPS}


def what_folds(artifact: Artifact) -> str:
    """One line for `inspect`."""
    facts, parameters = artifact.manifest.facts, artifact.manifest.parameters
    kept = "kept out" if parameters["scheme"] == "holdout" else f"in {count(facts['folds'], 'fold')}"
    return f"{parameters['method']}, {count(facts['rows'], 'row')} {kept} x {count(facts['classes'], 'class', 'classes')}"


def fold_statistics(artifact: Artifact) -> Json:
    """Statistics for `inspect`: the accuracy of each plane, and the held-out rows of each class."""
    facts = artifact.manifest.facts
    labels = labels_of(artifact, Classes.of(artifact))
    rows = np.bincount(labels[labels != UNLABELLED], minlength=facts["classes"])
    return {
        "accuracies": [{"plane": plane, **point} for plane, point in zip(facts["planes"], facts["curve"], strict=True)],
        "held_out_per_class": {"least": int(rows.min(initial=0)), "most": int(rows.max(initial=0))},
        "classes_never_held_out": facts["singletons"],
    }

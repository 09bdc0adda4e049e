"""Predictions of labelled rows whose own label was not used: read from `folds/NAME`, which is made where it does not fit.

Held-out scores fit the scores of a diffusion if they come from the same labels, graph and parameters, and hold the iteration
that is predicted from. Those of a regression are found by their recipe. Those of a fusion are fused from those of its parts, by
the same weight.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.prepared import Request as DiffusionRequest
from mmdiff.diffusion.problem import choose_classes
from mmdiff.diffusion.variant import Variant
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.fusion.late import fuse, log_of_scores
from mmdiff.labels.classes import UNLABELLED
from mmdiff.labels.label_set import LabelSet
from mmdiff.prediction.class_shift import HeldOutPredictions
from mmdiff.prediction.rows import margins_of, shares_of
from mmdiff.prediction.sources import Source, best_of, current_labels
from mmdiff.runtime.progress import Progress
from mmdiff.runtime.staleness import stale_artifacts
from mmdiff.validation.evaluation import options_of, request_of
from mmdiff.validation.folds import first_labels
from mmdiff.validation.held_out import HeldOut, full_name
from mmdiff.validation.stage import Scheme, validate_diffusion, validate_logreg

_VARIANT = tuple(each.name for each in fields(Variant))


@dataclass(frozen=True)
class Making:
    """A store, and how held-out scores are made in it where they are missing."""

    store: Store
    memory: int
    command: str
    progress: Progress


def held_out(making: Making, source: Source) -> HeldOutPredictions:
    """The held-out predictions that belong to scores; none where no label can be held out."""
    labels = current_labels(making.store, source.scores)
    counts = _labels_per_class(labels.used(), source.scores)
    if not (counts > 1).any():
        nothing = np.empty(0, np.int32)
        return HeldOutPredictions(np.empty(0, np.float32), nothing, nothing, np.empty(0, bool), counts)
    rows, scores = _scores(making, source.scores, source.iteration, labels)
    return predicted(scores, source.method, rows.labels, counts)


def predicted(
    scores: NDArray[Any], method: str, labels: NDArray[np.int32], labels_per_class: NDArray[np.int64]
) -> HeldOutPredictions:
    """The held-out rows that a label has reached, as their scores predict them; the others have no prediction to judge."""
    best = best_of(scores, method)
    reached = best.classes[:, 0] != UNLABELLED
    right = (labels == best.classes[:, :1]).any(axis=1)
    return HeldOutPredictions(
        margins_of(shares_of(best.scores))[reached],
        best.classes[reached, 0],
        first_labels(labels)[reached],
        right[reached],
        labels_per_class,
    )


def _scores(making: Making, scores: Artifact, iteration: int | None, labels: LabelSet) -> tuple[HeldOut, NDArray[Any]]:
    """The held-out rows, and their scores as the method gives them: logarithms, unless it is a diffusion."""
    manifest = scores.manifest
    if manifest.parameters["method"] == "diffusion":
        made = HeldOut.of(_of_diffusion(making, scores, iteration, labels))
        return made, made.scores[made.iterations.index(manifest.parameters["iterations"] if iteration is None else iteration)]
    if manifest.parameters["method"] == "logreg":
        model, name = making.store.open_artifact(manifest.inputs["model"]["artifact"]), scores.name.removeprefix("scores/")
        found = validate_logreg(making.store.path, options_of(model), Scheme(), name, making.command, making.progress)
        made = HeldOut.of(found.artifact)
        return made, made.scores[0]
    parts, logs = [], []
    for key in ("first", "second"):
        part = making.store.open_artifact(manifest.inputs[key]["artifact"])
        rows, values = _scores(making, part, manifest.parameters["iteration"].get(part.name), labels)
        parts.append(rows)
        logs.append(log_of_scores(values) if part.manifest.parameters["method"] == "diffusion" else values)
    return parts[0], fuse(logs[0], logs[1], manifest.facts["weight"])


@dataclass(frozen=True)
class HeldOutScores:
    """Held-out rows and their scores, as the method gives them: logarithms, unless it is a diffusion.

    `artifacts` are what they are made of. `iteration` is that of a diffusion, `weight` that of a fusion.
    """

    rows: HeldOut
    values: NDArray[Any]
    method: str
    artifacts: list[Artifact]
    iteration: int | None = None
    weight: float | None = None


def held_out_scores(making: Making, scores: Artifact, labels: LabelSet) -> HeldOutScores:
    """The held-out scores that belong to scores, with all labels as they are now."""
    manifest = scores.manifest
    method = manifest.parameters["method"]
    iteration = manifest.parameters["iterations"] if method == "diffusion" else None
    rows, values = _scores(making, scores, iteration, labels)
    names = [scores.name]
    if method == "fusion":
        names = [manifest.inputs[key]["artifact"] for key in ("first", "second")]
    artifacts = [making.store.open_artifact(full_name(name)) for name in names]
    return HeldOutScores(rows, values, method, artifacts, iteration, manifest.facts.get("weight"))


def default_held_out(making: Making) -> HeldOutScores:
    """The held-out scores of a diffusion with default options."""
    request = DiffusionRequest(memory=making.memory, command=making.command)
    rows = HeldOut.of(validate_diffusion(making.store.path, request, Scheme(), making.progress).artifact)
    return HeldOutScores(rows, rows.scores[-1], "diffusion", [rows.artifact], rows.iterations[-1])


def _of_diffusion(making: Making, scores: Artifact, iteration: int | None, labels: LabelSet) -> Artifact:
    """Held-out scores of the store that fit, else new ones."""
    found = _found(making.store, scores, iteration, labels)
    if found is None:
        request = request_of(scores, making.memory, making.command)
        found = validate_diffusion(making.store.path, request, Scheme(), making.progress).artifact
    return found


def _found(store: Store, scores: Artifact, iteration: int | None, labels: LabelSet) -> Artifact | None:
    name, made = full_name(scores.name), scores.manifest
    if store.id(name) is None:
        return None
    folds = store.open_artifact(name)
    own = folds.manifest
    # The prior of each fold depends on how it was given, which scores do not say; the recipe finds such folds.
    same = "prior" not in made.parameters and all(
        own.parameters.get(key) == made.parameters.get(key) for key in ("method", "classes", "eta_applied", *_VARIANT)
    )
    inputs: Json = {"W": made.inputs["W"], **labels.inputs}
    # Labels that the user keeps out for good judge the result; nothing is learned from them.
    fits = own.parameters["scheme"] == "folds" and own.inputs == inputs and iteration in folds.facts["planes"]
    return folds if same and fits and not stale_artifacts(store, folds) else None


def _labels_per_class(labels: LabelSet, scores: Artifact) -> NDArray[np.int64]:
    """The rows of each class of held-out scores, counted by their first label."""
    # Only diffusions are made of chosen classes, and only of the same classes fused.
    chosen = scores.manifest.parameters.get("classes")
    classes, table = choose_classes(labels.classes, labels.labels, chosen)
    return np.bincount(first_labels(table[(table != UNLABELLED).any(axis=1)]), minlength=len(classes))

"""Scores as `mmdiff fuse` and `mmdiff evaluate` read them, and what the test points are in truth.

Scores are (planes, tests, classes): of a diffusion a plane is an iteration, other methods have one. The columns are the seeds'
classes; labels of the test points are brought to them.

What `mmdiff inspect` tells of scores, without asking what is right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.evaluation.metrics import predictions
from mmdiff.formats.errors import BadLabels, BadOption, CountMismatch, Missing, Stale
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.inspection.distribution import distribution
from mmdiff.labels.classes import UNLABELLED, Classes
from mmdiff.runtime.staleness import stale_artifacts

SCHEMA = 1
SEEDS, TEST = "descriptors/seeds", "descriptors/test"


@dataclass(frozen=True)
class Scores:
    """What a method says of each test point."""

    name: str
    artifact: Artifact
    classes: Classes
    method: str
    planes: tuple[int, ...]
    values: NDArray[np.float32]

    @classmethod
    def of(cls, artifact: Artifact) -> Scores:
        manifest = artifact.manifest
        if manifest.kind != "scores":
            raise BadOption(f"{artifact.name}: of kind {manifest.kind}, not scores. Name one of scores/...")
        if "scores" not in artifact:
            raise Missing(
                f"{artifact.name}: made without test points, so there are no scores of any. "
                f"Import them with --role test, then {artifact.remedy[0].lower()}{artifact.remedy[1:]}"
            )
        planes = tuple(manifest.facts["planes"])
        return cls(
            artifact.name, artifact, Classes.of(artifact), manifest.parameters["method"], planes, artifact.array("scores")
        )

    @property
    def tests(self) -> int:
        return int(self.values.shape[1])

    @property
    def has_iterations(self) -> bool:
        return self.method == "diffusion"

    def plane(self, iteration: int | None = None) -> NDArray[np.float32]:
        """The scores after an iteration; after the last where none is named."""
        if iteration is None:
            return np.asarray(self.values[-1])
        if not self.has_iterations:
            raise BadOption(f"--iteration {iteration}: {self.name} has no iterations. Leave the option out.")
        if iteration not in self.planes:
            kept = ", ".join(map(str, self.planes))
            raise BadOption(f"--iteration {iteration}: {self.name} has the iterations {kept}. Choose one of them.")
        return np.asarray(self.values[self.planes.index(iteration)])


@dataclass(frozen=True)
class Truth:
    """What the test points are: (tests, labels a point), UNLABELLED where there is none.

    `own` are indices into the classes of the test points, and `columns` leads from these to columns of the scores. `labels` are
    those columns that are `seeded`: of a class without seeds nothing can be learned, so its points can only be missed.
    """

    own: NDArray[np.int64]
    labels: NDArray[np.int64]
    classes: Classes
    columns: NDArray[np.int64]
    seeded: NDArray[np.bool_]

    @classmethod
    def of(cls, labels: NDArray[Any], classes: Classes, columns: NDArray[np.int64], seeded: NDArray[np.bool_]) -> Truth:
        """From labels as stored, their classes, for each of these its column, and for each column whether it has seeds."""
        own = labels.reshape(len(labels), -1).astype(np.int64)
        # Behind each table stands an entry for what is not in it, which is where the index -1 leads.
        possible = np.where(np.append(seeded, False)[columns], columns, UNLABELLED)
        return cls(own, np.append(possible, UNLABELLED)[own], classes, columns, seeded)

    @property
    def labelled(self) -> NDArray[np.bool_]:
        return np.asarray((self.own != UNLABELLED).any(axis=1))

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which points have a class that has seeds."""
        return np.asarray((self.labels != UNLABELLED).any(axis=1))


def open_scores(store: Store, name: str) -> Scores:
    """Scores that are still what their inputs would give."""
    artifact = store.open_artifact(name if "/" in name else f"scores/{name}")
    found = stale_artifacts(store, artifact)
    if found:
        commands = "; then ".join(dict.fromkeys(entry.command for entry in found))
        raise Stale(
            f"{artifact.name}: {found[0].changed} has changed since {found[0].artifact} was made from it. Run again: {commands}"
        )
    return Scores.of(artifact)


def open_truth(store: Store, scores: Scores) -> Truth | None:
    """The labels of the test points, in columns of the scores; None where the test points have no labels."""
    if store.id(TEST) is None:
        raise Missing(f"{store.path}: there are no test points. Run first: mmdiff import FILE --labels FILE --role test")
    test = store.open_artifact(TEST)
    if test.spec("vectors").shape[0] != scores.tests:
        raise CountMismatch(
            f"{scores.name}: scores of {scores.tests:,} test points, but {TEST} has {test.spec('vectors').shape[0]:,}. "
            f"{scores.artifact.remedy}"
        )
    if "labels" not in test:
        return None
    classes = Classes.of(test)
    try:
        columns = classes.columns_in(scores.classes)
    except BadLabels as error:
        raise BadLabels(f"{TEST}: {error}") from None
    return Truth.of(test.array("labels"), classes, columns, _seeded(store, scores))


def _seeded(store: Store, scores: Scores) -> NDArray[np.bool_]:
    """Which columns have seeds. Class names may name classes that have none; labels from a file are of classes that occur."""
    if not _made_from_seeds(store, scores.artifact):
        return np.ones(len(scores.classes), bool)
    seeds = store.open_artifact(SEEDS)
    labels = seeds.array("labels")
    present = np.bincount(labels[labels != UNLABELLED], minlength=len(Classes.of(seeds))) > 0
    columns = Classes.of(seeds).columns_in(scores.classes)[present]
    return np.isin(np.arange(len(scores.classes)), columns)


def _made_from_seeds(store: Store, artifact: Artifact) -> bool:
    """Whether scores, or those that they were fused from, were made from the labels of the seeds."""
    names = [entry["artifact"] for entry in artifact.manifest.inputs.values() if "artifact" in entry]
    fused = [name for name in names if name.startswith("scores/")]
    return SEEDS in names or any(_made_from_seeds(store, store.open_artifact(name)) for name in fused)


def test_points_of(store: Store, artifact: Artifact) -> str | None:
    """The test points that scores are of, by the object that they were made from, at first or at second hand."""
    entries = [entry for entry in artifact.manifest.inputs.values() if "artifact" in entry]
    for entry in entries:
        if entry["artifact"] == TEST:
            return str(entry["object"])
    found = (test_points_of(store, store.open_artifact(entry["artifact"])) for entry in entries)
    return next((identity for identity in found if identity is not None), None)


# Statistics of values are taken on this many rows, spread evenly: enough for every digit that is shown.
_SAMPLE_ROWS = 1 << 16


def what_scores(artifact: Artifact) -> str:
    facts, method = artifact.manifest.facts, artifact.manifest.parameters["method"]
    parts = [method]
    if "scores" in artifact:
        parts.append(f"{facts['tests']:,} test points x {facts['classes']:,} classes")
    if method == "diffusion":
        parts.append(f"{artifact.manifest.parameters['iterations']} iterations")
    if method == "fusion":
        parts.append(f"weight {facts['weight']:g}")
    if "top_classes" in artifact:
        parts.append(f"predictions of {artifact.spec('top_classes').shape[0]:,} nodes")
    return ", ".join(parts)


def score_statistics(artifact: Artifact) -> Json:
    """Of the last iteration: how sure the method is, and of which classes it finds most and fewest."""
    if "scores" not in artifact or 0 in artifact.spec("scores").shape:
        return {}
    plane = artifact.array("scores")[-1]
    classes = Classes.of(artifact)
    best, margins = predictions(plane[:: -(-len(plane) // _SAMPLE_ROWS)])
    found: Json = {"undecided": round(float((best == UNLABELLED).mean()), 6)}
    finite = margins[np.isfinite(margins)]
    if len(finite):
        found["margin_of_best_over_second"] = distribution(finite)
    counts = np.bincount(best[best != UNLABELLED], minlength=len(classes))
    order = np.argsort(-counts, kind="stable")
    found["points_per_predicted_class"] = distribution(counts)
    found["predicted_most"] = {classes.title(int(c)): int(counts[c]) for c in order[:3]}
    found["classes_never_predicted"] = int((counts == 0).sum())
    return found

"""Scores of test points and their true classes, as evaluation, fusion, explanations and exports read them.

Scores are (iterations, test points, classes); a method other than diffusion has one iteration. Columns are the classes of the
seeds; labels of the test points are translated to these columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.evaluation.metrics import predictions
from mmdiff.formats.errors import (
    FILE,
    BadLabels,
    BadOption,
    CountMismatch,
    Missing,
    Parameter,
    Part,
    call,
)
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.graph.graph import NAME as GRAPH
from mmdiff.inspection.distribution import distribution
from mmdiff.labels.classes import UNLABELLED, Classes, labels_of
from mmdiff.labels.collection import APPENDED, BACKGROUND
from mmdiff.labels.journal import NAME as LABELS
from mmdiff.labels.label_set import read_label_set
from mmdiff.runtime.staleness import require_current, stale_artifacts

SCHEMA = 1
SEEDS, TEST = "descriptors/seeds", "descriptors/test"
_TEST_LISTS = "knn/test"


@dataclass(frozen=True)
class Scores:
    """Scores of a method for each test point and class; `iterations` are those of the diffusion that are stored."""

    name: str
    artifact: Artifact
    classes: Classes
    method: str
    iterations: tuple[int, ...]
    values: NDArray[np.float32]

    @classmethod
    def of(cls, artifact: Artifact) -> Scores:
        manifest = artifact.manifest
        if manifest.kind != "scores":
            raise BadOption(f"{artifact.name}: of kind {manifest.kind}, not scores. Name one of scores/...")
        if "scores" not in artifact:
            raise missing_scores(artifact.store, artifact.name, artifact.run["command"])
        return cls(
            artifact.name,
            artifact,
            Classes.of(artifact),
            manifest.parameters["method"],
            tuple(manifest.facts["planes"]),
            artifact.array("scores"),
        )

    @property
    def tests(self) -> int:
        return int(self.values.shape[1])

    @property
    def has_iterations(self) -> bool:
        return self.method == "diffusion"

    def after(self, iteration: int | None = None) -> NDArray[np.float32]:
        """The scores after an iteration, by default the last."""
        if iteration is None:
            return np.asarray(self.values[-1])
        given = Parameter("iteration", iteration)
        if not self.has_iterations:
            raise BadOption(given, f": {self.name} has no iterations. Leave it out.")
        if iteration not in self.iterations:
            stored = ", ".join(map(str, self.iterations))
            raise BadOption(given, f": {self.name} has the iterations {stored}. Choose one of them.")
        return np.asarray(self.values[self.iterations.index(iteration)])


@dataclass(frozen=True)
class Truth:
    """The true classes of the test points, (test points, labels per point), UNLABELLED for none.

    `own` are indices into `classes`, those of the test points; `columns` translates them to columns of the scores. `labels` are
    these columns, without classes that are not `seeded`: nothing can be learned about them, so their points count as misses.
    """

    own: NDArray[np.int64]
    labels: NDArray[np.int64]
    classes: Classes
    columns: NDArray[np.int64]
    seeded: NDArray[np.bool_]

    @classmethod
    def of(cls, labels: NDArray[Any], classes: Classes, columns: NDArray[np.int64], seeded: NDArray[np.bool_]) -> Truth:
        """From stored labels, their classes, the column of each class, and whether each column has seeds."""
        own = labels.reshape(len(labels), -1).astype(np.int64)
        # The entry appended to each table is the one that index -1 finds.
        possible = np.where(np.append(seeded, False)[columns], columns, UNLABELLED)
        return cls(own, np.append(possible, UNLABELLED)[own], classes, columns, seeded)

    @property
    def labelled(self) -> NDArray[np.bool_]:
        return np.asarray((self.own != UNLABELLED).any(axis=1))

    @property
    def known(self) -> NDArray[np.bool_]:
        """Points with a class that has seeds."""
        return np.asarray((self.labels != UNLABELLED).any(axis=1))


def full_name(name: str) -> str:
    """The name of scores with its namespace."""
    return name if "/" in name else f"scores/{name}"


def open_scores(store: Store, name: str) -> Scores:
    """Current scores; stale ones are refused."""
    artifact = store.open_artifact(full_name(name))
    require_current(store, artifact)
    return Scores.of(artifact)


def missing_scores(store: Store, where: str, *last: Part, needs_graph: bool = True) -> Missing:
    """The error for scores of test points that do not exist: the one cause, and all steps to them in their order.

    `last` are the steps that compute the scores, with or without a graph.
    """
    cause, steps = _before_scoring(store) if needs_graph else _before_scoring_without_graph(store)
    parts: list[Part] = [f"{where}: {cause}. Run: "]
    for number, step in enumerate([*steps, *last]):
        parts += ["; then ", step] if number else [step]
    return Missing(*parts)


def why_no_scores(store: Store) -> str:
    """The cause alone, for a note."""
    return _before_scoring(store)[0]


_NOT_IMPORTED = "no test points were imported, so there are no scores of any"
_NOT_SCORED = "there are no scores of the test points yet"
_IMPORT_TEST_POINTS = call("add", FILE, labels=FILE, role="test")


def _before_scoring_without_graph(store: Store) -> tuple[str, list[Part]]:
    return (_NOT_SCORED, []) if store.id(TEST) is not None else (_NOT_IMPORTED, [_IMPORT_TEST_POINTS])


def _before_scoring(store: Store) -> tuple[str, list[Part]]:
    """Why a diffusion cannot have scored test points, and the steps after which it can."""
    graph = store.open_artifact(GRAPH) if store.id(GRAPH) is not None else None
    if graph is None:
        cause, steps = _before_scoring_without_graph(store)
        return cause, [*steps, call("build_graph")]
    imported = "source" in graph.manifest.inputs
    again: Part = call("import_graph", FILE) if imported else graph.run["command"]
    if store.id(TEST) is None:
        return _NOT_IMPORTED, [_IMPORT_TEST_POINTS, again]
    if imported and not graph.manifest.facts["test"]:
        return f"{GRAPH} was imported without the test points, which would be its last nodes, so they have no scores", [again]
    if not imported and (store.id(_TEST_LISTS) is None or stale_artifacts(store, store.open_artifact(_TEST_LISTS))):
        return "the test points were imported after the graph was built, so they have no scores", [again]
    return _NOT_SCORED, []


def open_truth(store: Store, scores: Scores) -> Truth | None:
    """The labels of the test points, in columns of the scores; None where the test points have no labels."""
    if store.id(TEST) is None:
        raise missing_scores(store, scores.name, scores.artifact.run["command"])
    test = store.open_artifact(TEST)
    if test.spec("vectors").shape[0] != scores.tests:
        raise CountMismatch(
            f"{scores.name}: {scores.tests:,} test points, but {TEST} has {test.spec('vectors').shape[0]:,}. "
            f"{scores.artifact.remedy}"
        )
    if "labels" not in test:
        return None
    classes = Classes.of(test)
    try:
        columns = classes.columns_in(scores.classes)
    except BadLabels as error:
        raise BadLabels(f"{TEST}: ", *error.parts) from None
    return Truth.of(labels_of(test, classes), classes, columns, _seeded(store, scores))


def _seeded(store: Store, scores: Scores) -> NDArray[np.bool_]:
    """The columns that have labels to learn from. Class names may include classes without any; those of a file all occur."""
    roles = _labelled_roles(store, scores.artifact)
    if LABELS in roles:
        found = read_label_set(store, store.open_artifact(GRAPH)).used()
        seeded = np.zeros(len(scores.classes) + 1, bool)
        seeded[found.classes.columns_in(scores.classes)[found.counts() > 0]] = True
        return seeded[:-1]
    if SEEDS not in roles:
        return np.ones(len(scores.classes), bool)
    seeded = np.zeros(len(scores.classes) + 1, bool)
    for role in roles:
        artifact = store.open_artifact(role)
        if "labels" not in artifact:
            continue
        classes = Classes.of(artifact)
        labels = labels_of(artifact, classes)
        present = np.bincount(labels[labels != UNLABELLED], minlength=len(classes)) > 0
        # A class that was not chosen has no column; its mark goes to the entry after the last.
        seeded[classes.columns_in(scores.classes)[present]] = True
    return seeded[:-1]


def _labelled_roles(store: Store, artifact: Artifact) -> set[str]:
    """The roles whose labels scores were made from, directly or through the scores that they were fused from."""
    names = {entry["artifact"] for entry in artifact.manifest.inputs.values() if "artifact" in entry}
    fused = [name for name in names if name.startswith("scores/")]
    roles = names & {SEEDS, BACKGROUND, APPENDED, LABELS}
    return roles.union(*(_labelled_roles(store, store.open_artifact(name)) for name in fused))


def test_points_of(store: Store, artifact: Artifact) -> str | None:
    """The id of the test points that scores were computed for, directly or through other artifacts."""
    entries = [entry for entry in artifact.manifest.inputs.values() if "artifact" in entry]
    for entry in entries:
        if entry["artifact"] == TEST:
            return str(entry["object"])
    found = (test_points_of(store, store.open_artifact(entry["artifact"])) for entry in entries)
    return next((identity for identity in found if identity is not None), None)


# Rows that statistics are taken on, evenly spread: enough for every digit shown.
_SAMPLE_ROWS = 1 << 16


def what_scores(artifact: Artifact) -> str:
    """One line for `inspect`."""
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
    """Statistics of the last iteration for `inspect`: margins, and how often classes are predicted."""
    if "scores" not in artifact or 0 in artifact.spec("scores").shape:
        return {}
    last = artifact.array("scores")[-1]
    classes = Classes.of(artifact)
    best, margins = predictions(last[:: -(-len(last) // _SAMPLE_ROWS)])
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

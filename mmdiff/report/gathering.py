"""Reads a store for the HTML report: artifacts, evaluations, experiment results and example paths, as plain values.

Missing and stale parts are left out, each with a note that gives the reason. Notes are sentences for the page and for the
caller; they spell neither options nor commands of their own. A parameter that cannot be obeyed is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mmdiff.evaluation.metrics import predictions
from mmdiff.evaluation.scores import TEST, Scores, open_scores, why_no_scores
from mmdiff.evaluation.stage import Request as EvaluationRequest
from mmdiff.evaluation.stage import evaluate
from mmdiff.explain.nodes import Images, Name, find_row
from mmdiff.explain.stage import Explainer
from mmdiff.formats.errors import FILE, Call, InputError, Missing, MmdiffError, Parameter, Placeholder, Stale, call
from mmdiff.formats.store.fingerprint import state
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.knn.targets import missed_targets
from mmdiff.labels.classes import UNLABELLED
from mmdiff.runtime.progress import Progress, silent
from mmdiff.runtime.staleness import reasons_stale

EXAMPLES = 4
EXPERIMENT = ("report", 1)

# Calls as they read in a sentence.
_ACTIONS = {"add": "import", "build_graph": "build the graph", "logreg": "train a logistic regression"}


@dataclass(frozen=True)
class Request:
    """The classes to report separately, the place of images, and the test points whose paths are shown (None: examples)."""

    novel: str | None = None
    images: str | None = None
    tests: Sequence[str] = ()


@dataclass(frozen=True)
class Findings:
    """The content of a page. `scores` maps the name of each artifact of scores to its parameters, facts and method."""

    store: str
    artifacts: list[Json]
    scores: dict[str, Json] = field(default_factory=dict)
    evaluation: Json | None = None
    experiments: list[Json] = field(default_factory=list)
    explained: list[Json] = field(default_factory=list)
    explained_scores: str | None = None
    images_from: str | None = None
    notes: list[str] = field(default_factory=list)


def gather(store: Store, request: Request, progress: Progress = silent) -> Findings:
    """Reads the store, evaluates its scores and explains some test points."""
    images = None if request.images is None else Images.of(request.images)
    notes: list[str] = []
    artifacts = [store.open_artifact(name) for name in store.names()]
    notes += [sentence for artifact in artifacts for sentence in missed_targets(artifact)]
    current, stale = _current_scores(store, artifacts)
    notes += [f"left out {error}" for error in stale]
    if not current and not stale:
        notes.append(f"nothing is evaluated: {why_no_scores(store)}.")
    evaluation = _evaluation(store, request, current, notes, progress)
    explainer = _explainer(store, current, notes)
    if request.tests and explainer is None:
        raise _no_paths(store, request.tests[0], stale, notes)
    return Findings(
        store=str(store.path),
        artifacts=[_artifact(store, artifact) for artifact in artifacts],
        scores={name: {**_plain(scores.artifact), "method": scores.method} for name, scores in current.items()},
        evaluation=evaluation,
        experiments=[_experiment(artifact) for artifact in artifacts if _kind(artifact) == EXPERIMENT],
        explained=[] if explainer is None else _explained(explainer, request, images),
        explained_scores=None if explainer is None else explainer.scores.name,
        images_from=images.host if images is not None else None,
        notes=notes,
    )


def _kind(artifact: Artifact) -> tuple[str, int]:
    return artifact.manifest.kind, artifact.manifest.schema


def _plain(artifact: Artifact) -> Json:
    manifest = artifact.manifest
    return {"artifact": artifact.name, "parameters": manifest.parameters, "facts": manifest.facts}


def _artifact(store: Store, artifact: Artifact) -> Json:
    run = artifact.run
    return {
        "artifact": artifact.name,
        "kind": artifact.manifest.kind,
        "bytes": artifact.manifest.bytes_on_disk,
        "parameters": artifact.manifest.parameters,
        "facts": artifact.manifest.facts,
        "shapes": {name: list(entry.spec.shape) for name, entry in artifact.manifest.arrays.items()},
        "stale": reasons_stale(store, artifact),
        **{key: run.get(key) for key in ("command", "started", "seconds", "peak_memory", "host", "cores", "versions")},
    }


def _experiment(artifact: Artifact) -> Json:
    about = {"seconds": artifact.run["seconds"], "command": artifact.run["command"]}
    inputs = artifact.manifest.inputs.items()
    changed = [entry["source"] for role, entry in inputs if state(artifact.run["witness"][role]) == "changed"]
    return {**_plain(artifact), **about, "changed": changed}


def _current_scores(store: Store, artifacts: Sequence[Artifact]) -> tuple[dict[str, Scores], list[Stale]]:
    """Scores of test points by name, and the errors of those that are stale."""
    found, stale = {}, []
    for artifact in artifacts:
        if artifact.manifest.kind == "scores" and "scores" in artifact:
            try:
                found[artifact.name] = open_scores(store, artifact.name)
            except Stale as error:
                stale.append(error)
    return found, stale


def _evaluation(
    store: Store, request: Request, current: dict[str, Scores], notes: list[str], progress: Progress
) -> Json | None:
    """Evaluates scores one by one, since the labels may suit some scores and not others."""
    evaluations: list[Json] = []
    for name in current:
        try:
            found = evaluate(store, EvaluationRequest([name], (1, 5), request.novel, per_class=True), progress)
        except (InputError, Missing) as error:
            if request.novel is not None:
                raise
            notes.append(f"{name} has no accuracies: {in_words(error)}")
            continue
        evaluations.append(found)
    if not evaluations:
        return None
    return {
        "scores": [one for found in evaluations for one in found["scores"]],
        "notes": list(dict.fromkeys(note for found in evaluations for note in found["notes"])),
    }


def _explainer(store: Store, current: dict[str, Scores], notes: list[str]) -> Explainer | None:
    """The explainer of the first diffusion that has one; `scores/diffusion` is tried first."""
    names = [name for name, scores in current.items() if scores.has_iterations and scores.tests]
    for name in sorted(names, key=lambda name: name != "scores/diffusion"):
        labels = current[name].artifact.manifest.inputs.get("labels")
        if labels is not None:
            notes.append(f"{name} has no paths here, since its labels come from {labels['source']} and not from the seeds.")
            continue
        try:
            return Explainer(store, name)
        except (InputError, Missing, Stale) as error:
            notes.append(f"{name} has no paths here: {in_words(error)}")
    return None


def _no_paths(store: Store, test: str, stale: Sequence[Stale], notes: Sequence[str]) -> MmdiffError:
    """The error for a test point that was asked for in a store without a diffusion to explain."""
    if stale:
        return stale[0]
    why = [note for note in notes if "has no paths here" in note]
    if why:
        return Missing(Parameter("test", test), f": {why[0]}")
    if store.id(TEST) is None:
        return Missing(
            Parameter("test", test), ": there are no test points. Run first: ", call("add", FILE, labels=FILE, role="test")
        )
    return Missing(Parameter("test", test), ": there is no diffusion to explain. Run first: ", call("diffuse"))


def in_words(error: MmdiffError) -> str:
    """The message of an error for a note: parameters and calls as words instead of code."""
    return error.spelled(_words)


def _words(part: Parameter | Call) -> str:
    if isinstance(part, Parameter):
        name = part.name.strip("_").replace("_", " ")
        return name if not part.has_value or isinstance(part.value, Placeholder) else f"{name} {part.value}"
    action = _ACTIONS.get(part.method, part.method.replace("_", " "))
    parameters = " and ".join(_words(Parameter(name, value)) for name, value in part.parameters.items())
    return " ".join([action, *map(str, part.arguments)]) + (f" with {parameters}" if parameters else "")


def _explained(explainer: Explainer, request: Request, images: Images | None) -> list[Json]:
    """The paths of the requested test points, or of typical ones."""
    rows = [find_row(explainer.ids, wanted) for wanted in request.tests] or examples(explainer)
    try:
        found = explainer.explain(rows) if rows else []
    except InputError:
        # Row-coupled classes may be too large to compute again.
        if request.tests:
            raise
        return []
    if images is not None:
        for one in found:
            for step in [one["test"], *(step for path in one["paths"] for step in path["steps"])]:
                step["image"] = images.thumbnail(Name(step["role"], step["id"]))
    return found


def examples(explainer: Explainer, count: int = EXAMPLES) -> list[int]:
    """Rows of typical test points, with margins near the median: half of them classified right, half wrong."""
    predicted, margins = predictions(explainer.scores.after())
    decided = predicted != UNLABELLED
    if explainer.truth is None:
        return _typical(np.flatnonzero(decided), margins, predicted, count)
    labels = explainer.truth.labels
    right = decided & (labels == predicted[:, None]).any(axis=1)
    wrong = decided & explainer.truth.known & ~right
    half = _typical(np.flatnonzero(right), margins, labels[:, 0], count // 2)
    return half + _typical(np.flatnonzero(wrong), margins, labels[:, 0], count - len(half))


def _typical(rows: NDArray[np.int64], margins: NDArray[np.float32], kinds: NDArray[np.int64], count: int) -> list[int]:
    """The rows whose margins are nearest the median, each of another class."""
    if not len(rows):
        return []
    # With a single class there is no second best, and every margin is infinite.
    finite = np.minimum(margins[rows].astype(np.float64), np.finfo(np.float32).max)
    near = rows[np.argsort(np.abs(finite - np.median(finite)), kind="stable")]
    _, first = np.unique(kinds[near], return_index=True)
    return [int(row) for row in near[np.sort(first)][:count]]

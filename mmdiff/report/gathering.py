"""Reads a store for the HTML report: artifacts, evaluations, experiment results and example paths, as plain values.

Missing and stale parts are left out, each with a note that gives the reason. Notes are sentences for the page and for the
caller; they spell neither options nor commands of their own. A parameter that cannot be obeyed is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mmdiff.auditing.artifact import KIND as AUDIT
from mmdiff.auditing.summary import summarised
from mmdiff.evaluation.scores import TEST, Scores, open_scores, why_no_scores
from mmdiff.evaluation.stage import Request as EvaluationRequest
from mmdiff.evaluation.stage import evaluate, read_classes
from mmdiff.explain.nodes import Images, Name, find_row
from mmdiff.explain.points import Decisions
from mmdiff.explain.stage import Explainer, labels_file, point_of
from mmdiff.formats.errors import FILE, Call, InputError, Missing, MmdiffError, Parameter, Placeholder, Stale, call
from mmdiff.formats.store.fingerprint import state
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.knn.targets import missed_targets
from mmdiff.labels.classes import UNLABELLED
from mmdiff.runtime.progress import Progress, silent
from mmdiff.runtime.staleness import reasons_stale, stale_artifacts
from mmdiff.validation.evaluation import evaluate_held_out
from mmdiff.validation.held_out import KIND as FOLDS
from mmdiff.validation.held_out import HeldOut

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
    audits: dict[str, Json] = field(default_factory=dict)
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
    evaluation = _evaluation(store, request, current, notes, progress)
    if not current and not stale:
        evaluation = _held_out(store, request, artifacts, progress)
        if evaluation is None:
            notes.append(f"nothing is evaluated: {why_no_scores(store)}.")
    explainer = _explainer(store, artifacts, current, notes)
    if request.tests and (explainer is None or explainer.points.role != "test"):
        raise _no_paths(store, request.tests[0], stale, notes)
    return Findings(
        store=str(store.path),
        artifacts=[_artifact(store, artifact) for artifact in artifacts],
        scores={name: {**_plain(scores.artifact), "method": scores.method} for name, scores in current.items()},
        evaluation=evaluation,
        experiments=[_experiment(artifact) for artifact in artifacts if _kind(artifact) == EXPERIMENT],
        audits=_audits(store, artifacts, notes),
        explained=[] if explainer is None else _explained(explainer, request, images),
        explained_scores=None if explainer is None else explainer.name,
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


def _audits(store: Store, artifacts: Sequence[Artifact], notes: list[str]) -> dict[str, Json]:
    """The audits that are current, by their part."""
    found = {}
    for artifact in artifacts:
        if artifact.manifest.kind != AUDIT:
            continue
        stale = stale_artifacts(store, artifact)
        if stale:
            notes.append(f"left out {artifact.name}: {stale[0]}.")
        else:
            found[artifact.manifest.parameters["part"]] = summarised(store, artifact)
    return found


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


def _held_out(store: Store, request: Request, artifacts: Sequence[Artifact], progress: Progress) -> Json | None:
    """The evaluation on held-out labels, as far as it was made before."""
    folds = [artifact for artifact in artifacts if artifact.manifest.kind == FOLDS and not stale_artifacts(store, artifact)]
    if not folds:
        return None
    wanted = None if request.novel is None else read_classes(request.novel)
    return evaluate_held_out([HeldOut.of(artifact) for artifact in folds], [1, 5], wanted, per_class=True, progress=progress)


def _explainer(store: Store, artifacts: Sequence[Artifact], current: dict[str, Scores], notes: list[str]) -> Explainer | None:
    """The explainer of the first diffusion that has one, of its test points or else of the rows of the collection.

    `scores/diffusion` is tried first.
    """
    tests = [name for name, scores in current.items() if scores.has_iterations and scores.tests]
    rows = [artifact.name for artifact in artifacts if "top_classes" in artifact and not stale_artifacts(store, artifact)]
    for name in sorted(tests or rows, key=lambda name: name != "scores/diffusion"):
        labels = labels_file(store.open_artifact(name))
        if labels is not None:
            notes.append(f"{name} has no paths here, since its labels come from {labels['source']} and not from the store.")
            continue
        try:
            return Explainer(store, name, of_collection=not tests)
        except (InputError, Missing, Stale) as error:
            # Without test points, the same cause is noted where nothing is evaluated.
            notes += [f"{name} has no paths here: {in_words(error)}"] if tests else []
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
    wanted = [find_row(explainer.ids, Parameter("test", test), "test point") for test in request.tests]
    rows = wanted or examples(explainer.points.decisions())
    try:
        found = explainer.explain(rows) if rows else []
    except InputError:
        # Row-coupled classes may be too large to compute again.
        if request.tests:
            raise
        return []
    if images is not None:
        for one in found:
            for step in [point_of(one), *(step for path in one["paths"] for step in path["steps"])]:
                step["image"] = images.thumbnail(Name(step["role"], step["id"]))
    return found


def examples(decisions: Decisions, count: int = EXAMPLES) -> list[int]:
    """Rows of typical points, with margins near the median: half of them right and half wrong, where that is known."""
    if decisions.right is None or decisions.wrong is None:
        return _typical(decisions, decisions.predicted != UNLABELLED, count)
    half = _typical(decisions, decisions.right, count // 2)
    return half + _typical(decisions, decisions.wrong, count - len(half))


def _typical(decisions: Decisions, among: NDArray[np.bool_], count: int) -> list[int]:
    """The rows whose margins are nearest the median, each of another class."""
    if not among.any():
        return []
    # With a single class there is no second best, and every margin is infinite.
    finite = np.minimum(decisions.margins[among].astype(np.float64), np.finfo(np.float32).max)
    near = np.argsort(np.abs(finite - np.median(finite)), kind="stable")
    _, first = np.unique(decisions.kinds[among][near], return_index=True)
    return [int(row) for row in decisions.rows[among][near][np.sort(first)][:count]]

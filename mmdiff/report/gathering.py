"""What a report is about, read from the store as plain values. What is missing or out of date is left out, and said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mmdiff.evaluation.metrics import predictions
from mmdiff.evaluation.scores import Scores, open_scores, why_no_scores
from mmdiff.evaluation.stage import Request as EvaluationRequest
from mmdiff.evaluation.stage import evaluate
from mmdiff.explain.nodes import Images, Name, find_row
from mmdiff.explain.stage import Explainer
from mmdiff.formats.errors import InputError, Missing, Stale
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.labels.classes import UNLABELLED
from mmdiff.runtime.progress import Progress, silent
from mmdiff.runtime.staleness import reasons_stale

EXAMPLES = 4
EXPERIMENT = ("report", 1)


@dataclass(frozen=True)
class Request:
    """What the user asked for. Without test points, some are chosen to show the paths of."""

    novel: str | None = None
    images: str | None = None
    tests: Sequence[str] = ()


@dataclass(frozen=True)
class Findings:
    """All that a page shows. `scores` are the parameters, facts and steps of each artifact of scores."""

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
    """Reads, evaluates and explains. The user's own options are never passed over: what is wrong with them is an error."""
    images = None if request.images is None else Images.of(request.images)
    notes: list[str] = []
    artifacts = [store.open_artifact(name) for name in store.names()]
    current = _current_scores(store, artifacts, notes)
    evaluation = _evaluation(store, request, current, notes, progress)
    explainer = _explainer(store, request, current, notes)
    return Findings(
        str(store.path),
        [_artifact(store, artifact) for artifact in artifacts],
        {name: {**_plain(scores.artifact), "method": scores.method} for name, scores in current.items()},
        evaluation,
        [_experiment(artifact) for artifact in artifacts if _kind(artifact) == EXPERIMENT],
        [] if explainer is None else _explained(explainer, request, images),
        None if explainer is None else explainer.scores.name,
        images.host if images is not None else None,
        notes,
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
    return {**_plain(artifact), "seconds": artifact.run["seconds"], "command": artifact.run["command"]}


def _current_scores(store: Store, artifacts: Sequence[Artifact], notes: list[str]) -> dict[str, Scores]:
    found = {}
    for artifact in artifacts:
        if artifact.manifest.kind != "scores" or "scores" not in artifact:
            continue
        try:
            found[artifact.name] = open_scores(store, artifact.name)
        except Stale as error:
            notes.append(f"{artifact.name} is left out: {error}")
    if not found:
        notes.append(f"nothing is evaluated: {why_no_scores(store)}.")
    return found


def _evaluation(
    store: Store, request: Request, current: dict[str, Scores], notes: list[str], progress: Progress
) -> Json | None:
    """All scores one by one: what is wrong with the labels of one need not be wrong with those of others."""
    reports: list[Json] = []
    for name in current:
        try:
            found = evaluate(store, EvaluationRequest([name], (1, 5), request.novel, per_class=True), progress)
        except (InputError, Missing) as error:
            if request.novel is not None:
                raise
            notes.append(f"{name} has no accuracies: {error}")
            continue
        reports.append(found)
    if not reports:
        return None
    return {
        "scores": [one for found in reports for one in found["scores"]],
        "notes": list(dict.fromkeys(note for found in reports for note in found["notes"])),
    }


def _explainer(store: Store, request: Request, current: dict[str, Scores], notes: list[str]) -> Explainer | None:
    """That of the first diffusion that can be explained; `scores/diffusion` is tried first."""
    names = [name for name, scores in current.items() if scores.has_iterations and scores.tests]
    for name in sorted(names, key=lambda name: name != "scores/diffusion"):
        try:
            return Explainer(store, name)
        except (InputError, Missing) as error:
            notes.append(f"{name} has no paths here: {error}")
    if request.tests:
        raise Missing(f"--test {request.tests[0]}: the store has no diffusion to explain. Run first: mmdiff diffuse")
    return None


def _explained(explainer: Explainer, request: Request, images: Images | None) -> list[Json]:
    """The paths of the test points that were asked for, or of some that are typical."""
    rows = [find_row(explainer.ids, wanted) for wanted in request.tests] or examples(explainer)
    try:
        found = explainer.explain(rows) if rows else []
    except InputError:
        # Classes that are coupled and too large to compute again.
        if request.tests:
            raise
        return []
    if images is not None:
        for one in found:
            for step in [one["test"], *(step for path in one["paths"] for step in path["steps"])]:
                step["image"] = images.thumbnail(Name(step["role"], step["id"]))
    return found


def examples(explainer: Explainer, count: int = EXAMPLES) -> list[int]:
    """Test points that are neither the surest nor the least sure: half of them taken for the right class, half for another."""
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
    """Those nearest the median margin, each of another class."""
    if not len(rows):
        return []
    near = rows[np.argsort(np.abs(margins[rows] - np.median(margins[rows])), kind="stable")]
    _, first = np.unique(kinds[near], return_index=True)
    return [int(row) for row in near[np.sort(first)][:count]]

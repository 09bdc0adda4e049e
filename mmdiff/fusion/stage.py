"""`mmdiff fuse`: two artifacts of scores -> scores/fusion, with the accuracy at every weight (paper, "Late fusion weights").

The curve over the weights is measured on the labelled test points. A weight tuned there is optimistically biased on these
points, and the artifact says so; for an unbiased accuracy, tune the weight on other data. Without labelled test points it is
tuned on held-out labels. Where both scores have the best classes of the rows of the collection, these are fused too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.evaluation.scores import (
    SCHEMA,
    TEST,
    Scores,
    Truth,
    full_name,
    missing_scores,
    open_truth,
    test_points_of,
)
from mmdiff.formats.errors import BadLabels, BadOption, CountMismatch, Missing, Parameter, call
from mmdiff.formats.storage.disk_errors import explaining
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import Draft, Publication
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.fusion.late import WEIGHTS, fuse, hits_by_weight, log_of_scores, rows_at_a_time
from mmdiff.fusion.rows import KeptClasses, Weighing, write_rows
from mmdiff.labels.classes import Classes
from mmdiff.runtime.find_or_make import Made, input_of, make
from mmdiff.runtime.parameters import MOST, flag, number, whole
from mmdiff.runtime.progress import Progress, silent
from mmdiff.runtime.staleness import require_current

DEFAULT_WEIGHT = 0.5
_TOPS = (1, 5)


@dataclass(frozen=True)
class Request:
    """Parameters of a fusion. `iteration` selects the scores of a diffusion; None is the last."""

    first: str = "scores/logreg"
    second: str = "scores/diffusion"
    weight: float | None = None
    tune: bool = False
    iteration: int | None = None
    name: str = "fusion"
    memory: int = 8 << 30
    command: str = "mmdiff fuse"


@dataclass(frozen=True)
class Outcome:
    """The fused scores, made now or found."""

    made: Made
    notes: list[str] = field(default_factory=list)

    def summary(self) -> Json:
        return {**self.made.summary(), "notes": self.notes}


@explaining
def fuse_scores(path: Path, request: Request, progress: Progress = silent) -> Outcome:
    """Makes the fused scores, unless they exist."""
    store = Store.open(path)
    request = _checked(request)
    artifacts = _open(store, request)
    names, used = [artifact.name for artifact in artifacts], [_iteration(artifact, request.iteration) for artifact in artifacts]
    if request.iteration is not None and used == [None, None]:
        raise BadOption(
            Parameter("iteration", request.iteration),
            f": neither {names[0]} nor {names[1]} comes from a diffusion. Leave it out.",
        )
    tests = [Scores.of(artifact) for artifact in artifacts] if all("scores" in artifact for artifact in artifacts) else []
    rows = _rows_of(store, artifacts, used) if all("top_classes" in artifact for artifact in artifacts) else ()
    if tests:
        _refuse_other_points(store, *tests)
    truth = open_truth(store, tests[0]) if tests else None
    labelled = truth is not None and bool(truth.labelled.any())
    weight = None if request.tune else DEFAULT_WEIGHT if request.weight is None else request.weight
    parameters: Json = {"method": "fusion", "weight": weight, "tune": request.tune}
    parameters["iteration"] = {name: iteration for name, iteration in zip(names, used, strict=True) if iteration is not None}
    inputs = {"first": input_of(artifacts[0]), "second": input_of(artifacts[1])} | ({"test": _test(store)} if tests else {})
    name = f"scores/{request.name}"
    with Publication(path, [name], request.command) as publication:
        recipe = Recipe("scores", SCHEMA, parameters, inputs)

        def weigh() -> Weighing:
            return Weighing.of(store, list(zip(artifacts, used, strict=True)), request.memory, request.command, progress)

        logs = [_Logs(scores, scores.after(iteration)) for scores, iteration in zip(tests, used, strict=False)]
        known = truth if labelled else None
        fusing = _Fusing(logs, rows, known, weight, Classes.of(artifacts[0]), None if labelled else weigh, progress)
        made = make(publication, name, recipe, request.command, fusing.fill)
    notes = (
        []
        if labelled or not tests or request.tune
        else ["the test points have no labels, so there is no curve over the weights."]
    )
    return Outcome(made, notes)


@dataclass(frozen=True)
class _Logs:
    """The log-probabilities of one classifier, block by block."""

    scores: Scores
    values: NDArray[np.float32]

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        block = self.values[start:stop]
        if not self.scores.has_iterations:
            return block
        try:
            return log_of_scores(block)
        except ValueError as error:
            raise BadOption(f"{self.scores.name}: {error}. {self.scores.artifact.remedy}") from None


@dataclass(frozen=True)
class _Fusing:
    """Computes the artifact: the curve, where there are labels, then the scores at the given or the best weight.

    `logs` are those of test points and `rows` those of the collection, of both classifiers or of none. Without `truth`, a
    weight is tuned on the held-out rows of `weigh`.
    """

    logs: Sequence[_Logs]
    rows: Sequence[KeptClasses]
    truth: Truth | None
    weight: float | None
    classes: Classes
    weigh: Callable[[], Weighing] | None
    progress: Progress

    def fill(self, draft: Draft) -> Json:
        facts: Json = {"tests": 0, "classes": len(self.classes), "planes": []}
        curve = None
        if self.truth is not None:
            curve, points, chosen_on = self.curve(self.truth), int(self.truth.labelled.sum()), "the labelled test points"
        elif self.weight is None and self.weigh is not None:
            weighing = self.weigh()
            curve, points, chosen_on = weighing.curve(), len(weighing.labels), "held-out labels"
        weight = self.weight if self.weight is not None else best_weight(curve or [])
        if self.logs:
            facts |= {"tests": self._write_tests(draft, weight), "planes": [0]}
        if self.rows:
            write_rows(draft, self.rows[0], self.rows[1], weight, self.progress)
        self.classes.write(draft)
        facts["weight"] = weight
        if curve is not None:
            facts |= {"curve": curve, "curve_points": points, "weight_chosen_on": chosen_on if self.weight is None else None}
        return facts

    def _write_tests(self, draft: Draft, weight: float) -> int:
        """Writes the scores of the test points; returns their number."""
        first, second = self.logs
        tests, classes = first.values.shape
        writer = draft.array("scores", (1, tests, classes), "float32")
        for chunk in writer.missing:
            start, stop = writer.spec.rows(chunk)
            fused = np.empty((stop - start, classes), np.float32)
            step = rows_at_a_time(classes)
            for low in range(start, stop, step):
                high = min(low + step, stop)
                fused[low - start : high - start] = fuse(first.rows(low, high), second.rows(low, high), weight)
            writer.write(chunk, fused)
        return int(tests)

    def curve(self, truth: Truth) -> list[Json]:
        """The accuracies at each weight. Points without labels are left out, points of classes without seeds are misses."""
        first, second = self.logs
        tests, classes = first.values.shape
        step = rows_at_a_time(classes)
        hits = np.zeros((len(WEIGHTS), len(_TOPS)), np.int64)
        with self.progress("fusing", tests, "rows") as advance:
            for start in range(0, tests, step):
                stop = min(start + step, tests)
                hits += hits_by_weight(first.rows(start, stop), second.rows(start, stop), truth.labels[start:stop])
                advance(stop - start)
        shares = hits / int(truth.labelled.sum())
        return [
            {"weight": weight} | {f"top{k}": round(float(share), 6) for k, share in zip(_TOPS, row, strict=True)}
            for weight, row in zip(WEIGHTS, shares, strict=True)
        ]


def best_weight(curve: list[Json]) -> float:
    """The weight with the highest top-5 accuracy; ties go to the higher top-1 accuracy, then to the smaller weight."""
    best = max(curve, key=lambda point: (point["top5"], point["top1"], -point["weight"]))
    return float(best["weight"])


# The scores that a command makes by default, and whether it needs a graph.
_MADE_BY = {"scores/logreg": (call("logreg"), False), "scores/diffusion": (call("diffuse"), True)}


def _open(store: Store, request: Request) -> list[Artifact]:
    names = [full_name(name) for name in (request.first, request.second)]
    missing = [name for name in names if store.id(name) is None]
    unknown = [name for name in missing if name not in _MADE_BY]
    if unknown:
        present = ", ".join(other for other in store.names() if other.startswith("scores/")) or "none"
        raise Missing(f"{unknown[0]}: no such scores in the store {store.path} ({present}). Name two of them.")
    if missing:
        needs_graph = any(_MADE_BY[name][1] for name in missing)
        steps = [_MADE_BY[name][0] for name in missing]
        raise missing_scores(store, " and ".join(missing), *steps, needs_graph=needs_graph)
    artifacts = [store.open_artifact(name) for name in names]
    for artifact in artifacts:
        require_current(store, artifact)
    if not all("top_classes" in artifact for artifact in artifacts):
        # Then both must have scores of test points, which `of` demands.
        artifacts = [Scores.of(artifact).artifact for artifact in artifacts]
    return artifacts


def _iteration(artifact: Artifact, wanted: int | None) -> int | None:
    """The iteration of a diffusion that is fused; None for other scores."""
    if artifact.manifest.parameters["method"] != "diffusion":
        return None
    return int(artifact.manifest.parameters["iterations"]) if wanted is None else wanted


def _rows_of(store: Store, artifacts: Sequence[Artifact], used: Sequence[int | None]) -> Sequence[KeptClasses]:
    """The best classes of the rows of the collection in both scores, which hold those of the last iteration."""
    for artifact, iteration in zip(artifacts, used, strict=True):
        if iteration not in (None, artifact.manifest.parameters["iterations"]):
            return ()
    rows = [KeptClasses.of(artifact) for artifact in artifacts]
    if len(rows[0]) != len(rows[1]) or not Classes.of(artifacts[0]).same_as(Classes.of(artifacts[1])):
        raise CountMismatch(
            f"{artifacts[0].name} ({len(rows[0]):,} rows, {rows[0].classes} classes) and {artifacts[1].name} "
            f"({len(rows[1]):,} rows, {rows[1].classes} classes) of the store {store.path} are of different rows or classes. "
            "Make both again."
        )
    return rows


def _test(store: Store) -> Json:
    return input_of(store.open_artifact(TEST))


def _checked(request: Request) -> Request:
    """The request with its values in Python's types. Refuses what no store could allow."""
    request = replace(request, tune=flag("tune", request.tune))
    if request.iteration is not None:
        request = replace(request, iteration=whole("iteration", request.iteration, 0, MOST))
    if request.tune and request.weight is not None:
        raise BadOption(Parameter("tune", True), " chooses ", Parameter("weight"), ". Leave out one or the other.")
    if request.weight is not None:
        weight = number("weight", request.weight, 0, 1, "0 is only the second, 1 only the first.")
        request = replace(request, weight=weight)
    names = [full_name(name) for name in (request.first, request.second)]
    if names[0] == names[1]:
        raise BadOption(f"{names[0]} twice: there is nothing to fuse. Name two different scores.")
    if f"scores/{request.name}" in names:
        raise BadOption(Parameter("name", request.name), ": one of the scores that are fused. Choose another name.")
    return request


def _refuse_other_points(store: Store, first: Scores, second: Scores) -> None:
    """Refuses scores of different test points or classes."""
    if first.tests != second.tests or test_points_of(store, first.artifact) != test_points_of(store, second.artifact):
        raise CountMismatch(
            f"{first.name} ({first.tests:,} test points) and {second.name} ({second.tests:,}) are of different test points. "
            "Make both again from the same descriptors/test."
        )
    if not first.classes.same_as(second.classes):
        raise BadLabels(
            f"{first.name} ({len(first.classes)} classes) and {second.name} ({len(second.classes)}) are of different classes. "
            "Make both again from the same descriptors/seeds."
        )

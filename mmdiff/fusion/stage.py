"""`mmdiff fuse`: two artifacts of scores -> scores/fusion, with the accuracy at every weight (paper, "Late fusion weights").

The curve over the weights is measured on the labelled test points. A weight tuned there is optimistically biased on these
points, and the artifact says so; for an unbiased accuracy, tune the weight on other data.
"""

from __future__ import annotations

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
    open_scores,
    open_truth,
    test_points_of,
)
from mmdiff.formats.errors import FILE, BadLabels, BadOption, CountMismatch, Missing, Parameter, call
from mmdiff.formats.storage.disk_errors import explaining
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import Draft, Publication
from mmdiff.formats.store.store import Store
from mmdiff.fusion.late import WEIGHTS, fuse, hits_by_weight, log_of_scores, rows_at_a_time
from mmdiff.runtime.find_or_make import Made, input_of, make
from mmdiff.runtime.parameters import MOST, flag, number, whole
from mmdiff.runtime.progress import Progress, silent

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
    first, second = _open(store, request)
    _refuse_other_points(store, first, second)
    pair = [_after(scores, request.iteration) for scores in (first, second)]
    if request.iteration is not None and not (first.has_iterations or second.has_iterations):
        raise BadOption(
            Parameter("iteration", request.iteration),
            f": neither {first.name} nor {second.name} comes from a diffusion. Leave it out.",
        )
    truth = open_truth(store, first)
    labelled = truth is not None and bool(truth.labelled.any())
    if request.tune and not labelled:
        raise BadLabels(
            Parameter("tune", True),
            ": the test points have no labels. Import them again with labels (",
            call("add", FILE, labels=FILE, role="test"),
            "), or give ",
            Parameter("weight"),
            ".",
        )
    weight = None if request.tune else DEFAULT_WEIGHT if request.weight is None else request.weight
    parameters: Json = {"method": "fusion", "weight": weight, "tune": request.tune}
    used = {scores.name: iteration for scores, (_, iteration) in zip((first, second), pair, strict=True)}
    parameters["iteration"] = {name: iteration for name, iteration in used.items() if iteration is not None}
    inputs = {"first": input_of(first.artifact), "second": input_of(second.artifact), "test": _test(store)}
    name = f"scores/{request.name}"
    with Publication(path, [name], request.command) as publication:
        recipe = Recipe("scores", SCHEMA, parameters, inputs)
        logs = [_Logs(scores, values) for scores, (values, _) in zip((first, second), pair, strict=True)]
        fill = _Fusing(logs[0], logs[1], truth if labelled else None, weight, first.classes.write, progress).fill
        made = make(publication, name, recipe, request.command, fill)
    return Outcome(made, [] if labelled else ["the test points have no labels, so there is no curve over the weights."])


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
    """Computes the artifact: the curve, where there are labels, then the scores at the given or the best weight."""

    first: _Logs
    second: _Logs
    truth: Truth | None
    weight: float | None
    write_classes: Any
    progress: Progress

    def fill(self, draft: Draft) -> Json:
        tests, classes = self.first.values.shape
        curve = None if self.truth is None else self.curve(self.truth)
        weight = self.weight if self.weight is not None else best_weight(curve or [])
        writer = draft.array("scores", (1, tests, classes), "float32")
        for chunk in writer.missing:
            start, stop = writer.spec.rows(chunk)
            fused = np.empty((stop - start, classes), np.float32)
            step = rows_at_a_time(classes)
            for low in range(start, stop, step):
                high = min(low + step, stop)
                fused[low - start : high - start] = fuse(self.first.rows(low, high), self.second.rows(low, high), weight)
            writer.write(chunk, fused)
        self.write_classes(draft)
        facts: Json = {"tests": tests, "classes": classes, "planes": [0], "weight": weight}
        if curve is not None and self.truth is not None:
            facts |= {"curve": curve, "curve_points": int(self.truth.labelled.sum())}
            facts["weight_chosen_on"] = "the labelled test points" if self.weight is None else None
        return facts

    def curve(self, truth: Truth) -> list[Json]:
        """The accuracies at each weight. Points without labels are left out, points of classes without seeds are misses."""
        tests, classes = self.first.values.shape
        step = rows_at_a_time(classes)
        hits = np.zeros((len(WEIGHTS), len(_TOPS)), np.int64)
        with self.progress("fusing", tests, "rows") as advance:
            for start in range(0, tests, step):
                stop = min(start + step, tests)
                hits += hits_by_weight(self.first.rows(start, stop), self.second.rows(start, stop), truth.labels[start:stop])
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


def _open(store: Store, request: Request) -> list[Scores]:
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
    return [open_scores(store, name) for name in names]


def _after(scores: Scores, iteration: int | None) -> tuple[NDArray[np.float32], int | None]:
    """The scores to fuse, and their iteration."""
    if not scores.has_iterations:
        return scores.after(), None
    return scores.after(iteration), scores.iterations[-1] if iteration is None else iteration


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

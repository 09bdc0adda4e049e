"""`mmdiff fuse`: two artifacts of scores -> scores/fusion, with the accuracy at every weight (paper, supplement's figure).

The curve is taken on the labelled test points. A weight that `--tune` chooses is chosen on them, so its accuracy there is no
estimate of what it does on others; the artifact says so, and for an honest figure the weight comes from other data.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.evaluation.scores import SCHEMA, TEST, Scores, Truth, open_scores, open_truth, test_points_of
from mmdiff.formats.errors import BadLabels, BadOption, CountMismatch, Missing
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import Draft, Publication
from mmdiff.formats.store.store import Store
from mmdiff.fusion.late import WEIGHTS, fuse, hits_by_weight, log_of_scores, rows_at_a_time
from mmdiff.runtime.find_or_make import Made, input_of, make
from mmdiff.runtime.progress import Progress, silent

DEFAULT_WEIGHT = 0.5
_TOPS = (1, 5)


@dataclass(frozen=True)
class Request:
    """What the user asked for. `iteration` is that of diffusions; None is the last."""

    first: str = "scores/logreg"
    second: str = "scores/diffusion"
    weight: float | None = None
    tune: bool = False
    iteration: int | None = None
    name: str = "fusion"
    command: str = "mmdiff fuse"


@dataclass(frozen=True)
class Outcome:
    made: Made
    notes: list[str] = field(default_factory=list)

    def summary(self) -> Json:
        return {**self.made.summary(), "notes": self.notes}


def fuse_scores(path: Path, request: Request, progress: Progress = silent) -> Outcome:
    """Makes the fused scores, unless they are there."""
    store = Store.open(path)
    _refuse_bad_options(request)
    first, second = (_open(store, name) for name in (request.first, request.second))
    _refuse_other_points(store, first, second)
    planes = [_plane(scores, request.iteration) for scores in (first, second)]
    if request.iteration is not None and not (first.has_iterations or second.has_iterations):
        raise BadOption(f"--iteration {request.iteration}: neither {first.name} nor {second.name} is a diffusion's.")
    truth = open_truth(store, first)
    labelled = truth is not None and bool(truth.labelled.any())
    if request.tune and not labelled:
        raise BadLabels("--tune: the test points have no labels. Import them with --labels FILE, or give --weight.")
    weight = None if request.tune else DEFAULT_WEIGHT if request.weight is None else request.weight
    parameters: Json = {"method": "fusion", "weight": weight, "tune": request.tune}
    used = {scores.name: iteration for scores, (_, iteration) in zip((first, second), planes, strict=True)}
    parameters["iteration"] = {name: iteration for name, iteration in used.items() if iteration is not None}
    inputs = {"first": input_of(first.artifact), "second": input_of(second.artifact), "test": _test(store)}
    name = f"scores/{request.name}"
    with Publication(path, [name], request.command) as publication:
        recipe = Recipe("scores", SCHEMA, parameters, inputs)
        logs = [_Logs(scores, plane) for scores, (plane, _) in zip((first, second), planes, strict=True)]
        fill = _Fusing(logs[0], logs[1], truth if labelled else None, weight, first.classes.write, progress).fill
        made = make(publication, name, recipe, request.command, fill)
    return Outcome(made, [] if labelled else ["the test points have no labels, so there is no curve over the weights."])


@dataclass(frozen=True)
class _Logs:
    """The log-probabilities of one classifier, block by block."""

    scores: Scores
    plane: NDArray[np.float32]

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        block = self.plane[start:stop]
        if not self.scores.has_iterations:
            return block
        try:
            return log_of_scores(block)
        except ValueError as error:
            raise BadOption(f"{self.scores.name}: {error}. {self.scores.artifact.remedy}") from None


@dataclass(frozen=True)
class _Fusing:
    """Fills the artifact: first the curve, where there are labels, then the scores at the weight that is given or best."""

    first: _Logs
    second: _Logs
    truth: Truth | None
    weight: float | None
    write_classes: Any
    progress: Progress

    def fill(self, draft: Draft) -> Json:
        tests, classes = self.first.plane.shape
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
        """The accuracies at each weight; points that are not labelled do not count, those of unknown classes are misses."""
        tests, classes = self.first.plane.shape
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
    """The weight with the highest top-5 accuracy, among equals the highest top-1, among those the smallest weight."""
    best = max(curve, key=lambda point: (point["top5"], point["top1"], -point["weight"]))
    return float(best["weight"])


def _open(store: Store, name: str) -> Scores:
    full = name if "/" in name else f"scores/{name}"
    if store.id(full) is None:
        commands = {"scores/logreg": "Run first: mmdiff logreg", "scores/diffusion": "Run first: mmdiff diffuse"}
        known = ", ".join(other for other in store.names() if other.startswith("scores/")) or "none"
        raise Missing(f"{full}: no such scores in the store {store.path} ({known}). {commands.get(full, 'Name two of them.')}")
    return open_scores(store, full)


def _plane(scores: Scores, iteration: int | None) -> tuple[NDArray[np.float32], int | None]:
    """The plane that takes part, and which iteration it is."""
    if not scores.has_iterations:
        return scores.plane(), None
    return scores.plane(iteration), scores.planes[-1] if iteration is None else iteration


def _test(store: Store) -> Json:
    return input_of(store.open_artifact(TEST))


def _refuse_bad_options(request: Request) -> None:
    if request.tune and request.weight is not None:
        raise BadOption("--tune chooses --weight. Leave out one or the other.")
    if request.weight is not None and not 0 <= request.weight <= 1:
        raise BadOption(f"--weight {request.weight:g}: a weight from 0 (only the second) to 1 (only the first) is needed.")
    names = [name if "/" in name else f"scores/{name}" for name in (request.first, request.second)]
    if names[0] == names[1]:
        raise BadOption(f"{names[0]} twice: there is nothing to fuse. Name two different scores.")
    if f"scores/{request.name}" in names:
        raise BadOption(f"--name {request.name}: one of the scores that are fused. Choose another name.")


def _refuse_other_points(store: Store, first: Scores, second: Scores) -> None:
    """Both must speak of the same test points and the same classes, in the same order."""
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

"""`mmdiff evaluate` without test points: the accuracy on held-out labels, and the number of iterations that it advises.

Every method is validated with the options of its scores or model in the store; without any, the diffusion with its defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mmdiff.diffusion.prepared import Request as DiffusionRequest
from mmdiff.diffusion.stage import prepare
from mmdiff.evaluation.metrics import checked_top
from mmdiff.evaluation.scores import Scores, Truth
from mmdiff.evaluation.stage import Comparison, Place, evaluate_all, read_classes, useless_tops
from mmdiff.formats.errors import BadOption
from mmdiff.formats.storage.disk_errors import explaining
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.logreg.training import Options
from mmdiff.runtime.executor import Executor
from mmdiff.runtime.find_or_make import Made
from mmdiff.runtime.progress import Progress, silent
from mmdiff.text import count
from mmdiff.validation.diffusing import Announce
from mmdiff.validation.held_out import HeldOut
from mmdiff.validation.stage import Scheme, validate_diffusion, validate_logreg

# Parameters of a diffusion's recipe that are options of a request.
_OPTIONS = ("iterations", "eta", "gamma", "alpha", "reset_seeds", "normalize_graph", "dtype", "plain", "classes", "prior")


Validation = Callable[..., Made]
"""Makes the held-out scores of a method in the store at a path, by a scheme."""


@dataclass(frozen=True)
class Request:
    """Parameters of an evaluation on held-out labels. Without names, all methods of the store are evaluated."""

    names: Sequence[str] = ()
    tops: Iterable[int] = (1, 5)
    novel: str | None = None
    per_class: bool = False
    scheme: Scheme = field(default_factory=Scheme)
    memory: int = 8 << 30
    command: str = "mmdiff evaluate"


@explaining
def evaluate_labels(
    path: Path,
    request: Request,
    progress: Progress = silent,
    announce: Announce = lambda _: None,
    executor: Executor | None = None,
) -> Json:
    """The evaluations of held-out scores, which are made where they are missing: under `scores`, with notes on them."""
    store, tops, scheme = Store.open(path), checked_top(request.tops), request.scheme.checked()
    wanted = None if request.novel is None else read_classes(request.novel)
    validations, left_out = _validations(store, request)
    made = [one(path, scheme=scheme, progress=progress, announce=announce, executor=executor) for one in validations]
    found = evaluate_held_out([HeldOut.of(one.artifact) for one in made], tops, wanted, request.per_class, progress)
    return found | {"notes": found["notes"] + left_out}


def evaluate_held_out(
    held_out: Sequence[HeldOut],
    tops: list[int],
    wanted: Sequence[tuple[str, Place]] | None,
    per_class: bool,
    progress: Progress = silent,
) -> Json:
    """The evaluations of held-out scores that are there: under `scores`, with notes on them."""
    compared = [_comparison(one, tops, wanted) for one in held_out]
    evaluations = evaluate_all(compared, per_class, progress)
    notes = dict.fromkeys(note for one in held_out for note in [*_notes(one), *useless_tops(tops, len(one.classes))])
    return {"scores": evaluations, "notes": list(notes)}


def _comparison(held_out: HeldOut, tops: list[int], wanted: Sequence[tuple[str, Place]] | None) -> Comparison:
    artifact, classes = held_out.artifact, held_out.classes
    facts, parameters = artifact.manifest.facts, artifact.manifest.parameters
    scores = Scores(artifact.name, artifact, classes, held_out.method, held_out.iterations, held_out.scores)
    truth = Truth.of(held_out.labels, classes, np.arange(len(classes)), np.ones(len(classes), bool))
    counts = {
        "scheme": parameters["scheme"],
        "folds": facts["folds"],
        "seed": parameters["seed"],
        "classes_never_held_out": facts["singletons"],
    }
    return Comparison.of(scores, truth, tops, wanted, "held_out", counts)


def _notes(held_out: HeldOut) -> list[str]:
    facts = held_out.artifact.manifest.facts
    rows, classes = count(facts["rows"], "labelled row"), count(facts["classes"], "class", "classes")
    if held_out.artifact.manifest.parameters["scheme"] == "holdout":
        notes = [f"{rows} whose labels are kept out were scored by the other labels."]
    else:
        notes = [
            f"{rows} were held out in {facts['folds']} folds, and each was scored without the labels of its fold. So each saw "
            "fewer labels than there are: with all of them the accuracy is likely to be a little higher."
        ]
    if facts["singletons"]:
        of = f"{facts['singletons']:,} of {classes}"
        notes.append(f"{of} never had a label held out, mostly because they have only one: the accuracy leaves them out.")
    notes.append("this is an estimate on rows that were chosen to be labelled; other rows may be harder, or of other classes.")
    return notes


def _validations(store: Store, request: Request) -> tuple[list[Validation], list[str]]:
    """The methods to validate, with the options of the store's scores and models, and notes on those that cannot be."""
    names = list(dict.fromkeys(name.rpartition("/")[2] for name in request.names))
    of_store = [name.partition("/")[2] for name in store.names() if name.startswith("scores/") or _is_logreg(store, name)]
    found: list[Validation] = []
    left_out = []
    for name in names or dict.fromkeys(of_store):
        model = f"models/{name}"
        if name == "logreg" and store.id(model) is None:
            found.append(_regression(Options(), name, request))
            continue
        if name == "diffusion" and store.id("scores/diffusion") is None:
            found.append(_default_diffusion(request))
            continue
        artifact = store.open_artifact(model if _is_logreg(store, model) else f"scores/{name}")
        problem = _why_not(artifact)
        if problem is None:
            found.append(
                _regression(options_of(artifact), name, request)
                if artifact.name == model
                else partial(validate_diffusion, request=request_of(artifact, request.memory, request.command))
            )
        elif names:
            raise BadOption(f"{artifact.name}: {problem}. Name other scores.")
        else:
            left_out.append(f"left out {artifact.name}: {problem}.")
    return found or [_default_diffusion(request)], left_out


def _is_logreg(store: Store, name: str) -> bool:
    return name.startswith("models/") and store.id(name) is not None and store.open_artifact(name).manifest.kind == "logreg"


def _why_not(artifact: Artifact) -> str | None:
    """Why a method cannot be validated on held-out labels; None where it can."""
    if artifact.manifest.parameters.get("method", "logreg") not in ("diffusion", "logreg"):
        return "only diffusions and logistic regressions are validated on held-out labels"
    if "source" in artifact.manifest.inputs.get("labels", {}):
        return "made from labels of a file, which are not in the store to be held out"
    return None


def request_of(artifact: Artifact, memory: int, command: str) -> DiffusionRequest:
    """The diffusion that made some scores."""
    parameters = artifact.manifest.parameters
    options = {name: parameters[name] for name in _OPTIONS if name in parameters}
    return DiffusionRequest(**options, name=artifact.name.partition("/")[2], memory=memory, command=command)


def _default_diffusion(request: Request) -> Validation:
    return partial(validate_diffusion, request=DiffusionRequest(memory=request.memory, command=request.command))


def options_of(model: Artifact) -> Options:
    """The options that a regression was trained with; those that were tuned are the chosen ones."""
    parameters, chosen = model.manifest.parameters, model.manifest.facts["chosen"]
    return Options(
        **chosen,
        iterations=parameters["iterations"],
        momentum=parameters["momentum"],
        seed=parameters["seed"],
        device="gpu" if parameters["device"] == "cuda" else "cpu",
    )


def _regression(options: Options, name: str, request: Request) -> Validation:
    def validate(path: Path, *, scheme: Scheme, progress: Progress, **_: Any) -> Made:
        return validate_logreg(path, options, scheme, name, request.command, progress)

    return validate


@dataclass(frozen=True)
class ChosenIterations:
    """The number of iterations with the highest accuracy on held-out labels, and the accuracies of all that were tried."""

    iterations: int
    curve: list[Json]
    made: Made

    def summary(self) -> Json:
        return {
            "iterations": self.iterations,
            "held_out": self.made.artifact.manifest.facts["rows"],
            "folds": self.made.artifact.manifest.facts["folds"],
            "curve": self.curve,
        }


@explaining
def choose_iterations(
    path: Path,
    request: DiffusionRequest,
    progress: Progress = silent,
    announce: Announce = lambda _: None,
    executor: Executor | None = None,
) -> ChosenIterations:
    """The best number of iterations from 1 to those of the request: the highest top-1, then top-5 accuracy, then the fewest.

    Only labels of nodes are used, never those of test points.
    """
    # Refuses what the diffusion would refuse, before the folds are computed.
    prepare(Store.open(path), request, 1 if executor is None else executor.workers)
    made = validate_diffusion(path, request, Scheme(), progress, announce, executor)
    facts = made.artifact.manifest.facts
    curve = [{"iteration": plane, **point} for plane, point in zip(facts["planes"], facts["curve"], strict=True) if plane > 0]
    best = max(curve, key=lambda point: (point["top1"], point["top5"], -point["iteration"]))
    return ChosenIterations(best["iteration"], curve, made)

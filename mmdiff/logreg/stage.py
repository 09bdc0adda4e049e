"""`mmdiff logreg`: logistic regression on the seeds, and log-probabilities of the test points (paper, section 4.1).

descriptors/seeds -> models/logreg
models/logreg + descriptors/test -> scores/logreg

Tuning chooses learning rate, batch size and L2 by the accuracy on held-out seeds. A class with one seed holds none out, but is
trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.evaluation.metrics import ranks_of
from mmdiff.evaluation.scores import SCHEMA as SCORES_SCHEMA
from mmdiff.evaluation.scores import SEEDS, TEST
from mmdiff.formats.errors import FILE, BadLabels, BadOption, Missing, Parameter, WidthMismatch, call, one_of
from mmdiff.formats.storage.disk_errors import explaining
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import Draft, Publication
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.labels.classes import Classes, labels_of
from mmdiff.logreg.model import from_safetensors, to_safetensors
from mmdiff.logreg.training import (
    DEVICES,
    MOST_BATCH,
    MOST_BATCHES,
    Device,
    Model,
    Options,
    Samples,
    choose_device,
    load_torch,
    train,
)
from mmdiff.runtime.find_or_make import Made, input_of, make
from mmdiff.runtime.memory import available_bytes
from mmdiff.runtime.parameters import flag, number, random_seed, whole
from mmdiff.runtime.progress import Progress, silent

LRS = (1.0, 5.0)
BATCH_SIZES = (128, 512)
WEIGHT_DECAYS = (1e-4, 3e-4, 1e-3, 3e-3)
HELD_OUT = 0.2


@dataclass(frozen=True)
class Tuned:
    """The best options, and the accuracies of all: means over classes, since training is balanced."""

    options: Options
    tried: list[Json]
    held_out: int


def tune(descriptors: NDArray[Any], samples: Samples, classes: int, options: Options, progress: Progress = silent) -> Tuned:
    """Tries the grid. The best has the highest top-5, then top-1 accuracy, then the largest L2, then comes first."""
    kept, out = samples.held_out(HELD_OUT, options.seed)
    if not len(out):
        raise BadLabels(
            Parameter("tune", True),
            ": no class has two seeds, so none can be held out. Import more seeds, or give ",
            Parameter("lr"),
            ", ",
            Parameter("batch_size"),
            " and ",
            Parameter("weight_decay"),
            ".",
        )
    grid = [
        replace(options, lr=lr, batch_size=size, weight_decay=decay)
        for decay, lr, size in product(sorted(WEIGHT_DECAYS, reverse=True), LRS, BATCH_SIZES)
    ]
    tried: list[Json] = []
    held_out = descriptors[out.rows]
    with progress("tuning", len(grid) * options.iterations, "batches") as advance:
        for candidate in grid:
            model = train(descriptors, kept, classes, candidate, advance)
            ranks = ranks_of(model.log_probabilities(held_out), out.classes[:, None])
            tops = {f"top{k}": round(_mean_over_classes(ranks <= k, out.classes), 6) for k in (1, 5)}
            tried.append(
                {"lr": candidate.lr, "batch_size": candidate.batch_size, "weight_decay": candidate.weight_decay} | tops
            )
    return Tuned(grid[best_of(tried)], tried, len(out))


def best_of(tried: Sequence[Json]) -> int:
    """The first of those with the highest top-5 accuracy and, among them, the highest top-1 accuracy."""
    return max(range(len(tried)), key=lambda i: (tried[i]["top5"], tried[i]["top1"], -i))


def _mean_over_classes(hits: NDArray[np.bool_], labels: NDArray[np.int64]) -> float:
    counts = np.bincount(labels)
    shares = np.bincount(labels, weights=hits)[counts > 0] / counts[counts > 0]
    return float(shares.mean())


SCHEMA = 1
_FLOAT_BYTES = 4
_TUNED = ("lr", "batch_size", "weight_decay")


@dataclass(frozen=True)
class Request:
    """Parameters of a logistic regression; None is the default, or with `tune` the best value."""

    lr: float | None = None
    batch_size: int | None = None
    weight_decay: float | None = None
    iterations: int = Options.iterations
    tune: bool = False
    device: Device = "auto"
    seed: int = 0
    name: str = "logreg"
    command: str = "mmdiff logreg"

    def options(self) -> Options:
        given = {key: getattr(self, key) for key in _TUNED if getattr(self, key) is not None}
        return Options(**given, iterations=self.iterations, seed=self.seed, device=self.device)


@dataclass(frozen=True)
class Outcome:
    """The model, and the scores where there are test points."""

    model: Made
    scores: Made | None
    notes: list[str] = field(default_factory=list)

    def summary(self) -> Json:
        made = [self.model] if self.scores is None else [self.model, self.scores]
        return {"artifacts": [one.summary() for one in made], "notes": self.notes}


@explaining
def logreg(path: Path, request: Request, progress: Progress = silent) -> Outcome:
    """Makes the model and its scores, where they are missing or stale."""
    store = Store.open(path)
    request = _checked(request)
    options = request.options()
    if store.id(SEEDS) is None:
        raise Missing(f"{store.path}: there are no seeds. Run first: ", call("add", FILE, labels=FILE, role="seeds"))
    seeds = store.open_artifact(SEEDS)
    test = store.open_artifact(TEST) if store.id(TEST) is not None else None
    if test is not None:
        _refuse_other_width(seeds, test)
    _refuse_large_batches(seeds, options)
    device = choose_device(load_torch(), request.device)
    model_name, scores_name = f"models/{request.name}", f"scores/{request.name}"
    parameters = _parameters(request, options, device)
    with Publication(path, [model_name] if test is None else [model_name, scores_name], request.command) as publication:
        recipe = Recipe("logreg", SCHEMA, parameters, {"seeds": input_of(seeds)})
        fill = _Training(seeds, options, request.tune, progress).fill
        disk = _disk(seeds, test)
        model = make(publication, model_name, recipe, request.command, fill, disk=sum(disk), torch=version("torch"))
        if test is None:
            return Outcome(model, None, ["no test points were imported, so there are no scores."])
        inputs = {"model": input_of(model.artifact), "seeds": input_of(seeds), "test": input_of(test)}
        recipe = Recipe("scores", SCORES_SCHEMA, {"method": "logreg", **parameters}, inputs)
        classify = from_safetensors(model.artifact)
        scores = make(
            publication,
            scores_name,
            recipe,
            request.command,
            lambda draft: _write_scores(draft, classify, Classes.of(seeds), test, progress),
            disk=disk[1],
        )
        return Outcome(model, scores)


def raw_descriptors(artifact: Artifact) -> NDArray[Any]:
    """The descriptors as they were imported; the vectors, where those are not kept separately."""
    return artifact.array("raw" if "raw" in artifact else "vectors")


@dataclass(frozen=True)
class _Training:
    """Trains the model on the seeds."""

    seeds: Artifact
    options: Options
    tuned: bool
    progress: Progress

    def fill(self, draft: Draft) -> Json:
        classes, descriptors = Classes.of(self.seeds), raw_descriptors(self.seeds)
        samples, options = Samples.of(labels_of(self.seeds, classes)), self.options
        facts: Json = {"classes": len(classes), "width": descriptors.shape[1], "samples": len(samples)}
        facts["classes_without_seeds"] = len(classes) - len(np.unique(samples.classes))
        if self.tuned:
            tuned = tune(descriptors, samples, len(classes), options, self.progress)
            options = tuned.options
            facts |= {"held_out": tuned.held_out, "tried": tuned.tried}
        with self.progress("training", options.iterations, "batches") as advance:
            model = train(descriptors, samples, len(classes), options, advance)
        draft.values("safetensors", to_safetensors(model, classes))
        classes.write(draft)
        return facts | {"chosen": {key: getattr(options, key) for key in _TUNED}}


def _write_scores(draft: Draft, model: Model, classes: Classes, test: Artifact, progress: Progress) -> Json:
    descriptors = raw_descriptors(test)
    writer = draft.array("scores", (1, len(descriptors), len(classes)), "float32")
    with progress("classifying", len(descriptors), "rows") as advance:
        for chunk in writer.missing:
            start, stop = writer.spec.rows(chunk)
            writer.write(chunk, model.log_probabilities(descriptors[start:stop]))
            advance(stop - start)
    classes.write(draft)
    return {"tests": len(descriptors), "classes": len(classes), "planes": [0]}


def _refuse_large_batches(seeds: Artifact, options: Options) -> None:
    """Refuses batches whose rows, logits and gradients do not fit the available memory."""
    each = _FLOAT_BYTES * (raw_descriptors(seeds).shape[1] + 3 * len(Classes.of(seeds)))
    available = available_bytes()
    if options.batch_size * each > available:
        raise BadOption(
            Parameter("batch_size", options.batch_size),
            f": batches need {options.batch_size * each >> 20}M, but {available >> 20}M of memory are available. Use at most ",
            Parameter("batch_size", max(1, available // each)),
            ".",
        )


def _disk(seeds: Artifact, test: Artifact | None) -> tuple[int, int]:
    """Bytes of the model, and of the scores."""
    classes = len(Classes.of(seeds))
    model = _FLOAT_BYTES * classes * (raw_descriptors(seeds).shape[1] + 1)
    return model, 0 if test is None else _FLOAT_BYTES * classes * raw_descriptors(test).shape[0]


def _parameters(request: Request, options: Options, device: str) -> Json:
    """All that decides the model. CPU and GPU round differently, so the device is part of it."""
    values = asdict(options) | {"device": device, "tune": request.tune}
    return {key: value for key, value in values.items() if not (request.tune and key in _TUNED)}


def _checked(request: Request) -> Request:
    """The request with its values in Python's types. Refuses what no store could allow."""
    one_of("device", request.device, DEVICES)
    given = [key for key in _TUNED if getattr(request, key) is not None]
    tuned = flag("tune", request.tune)
    if tuned and given:
        names = [part for key in given for part in (", ", Parameter(key))][1:]
        raise BadOption(Parameter("tune", True), " chooses ", *names, ". Leave out one or the other.")
    checks: dict[str, Callable[[Any], Any]] = {
        "batch_size": lambda size: whole("batch_size", size, 1, MOST_BATCH, f"For example {Options.batch_size}."),
        "lr": lambda rate: number("lr", rate, 1e-9, 1e9, f"For example {Options.lr:g}."),
        "weight_decay": lambda decay: number("weight_decay", decay, 0, 1e9, f"For example {Options.weight_decay:g}."),
    }
    return replace(
        request,
        tune=tuned,
        seed=random_seed(request.seed),
        iterations=whole("iterations", request.iterations, 1, MOST_BATCHES, f"For example {Options.iterations}."),
        **{key: check(getattr(request, key)) for key, check in checks.items() if key in given},
    )


def _refuse_other_width(seeds: Artifact, test: Artifact) -> None:
    """Refuses seeds and test points of which only one has raw descriptors, or of different widths."""
    own, other = (artifact.spec("raw" if "raw" in artifact else "vectors").shape[1] for artifact in (seeds, test))
    kept = ["raw" in artifact for artifact in (seeds, test)]
    if own != other or kept[0] != kept[1]:
        lacking = SEEDS if kept[1] and not kept[0] else TEST
        raise WidthMismatch(
            f"{SEEDS} has descriptors of {own} values ({'raw' if kept[0] else 'reduced'}), {TEST} of {other} "
            f"({'raw' if kept[1] else 'reduced'}). Import {lacking.partition('/')[2]} again, with ",
            Parameter("keep_raw", True),
            " like the other.",
        )

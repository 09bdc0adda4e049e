"""`mmdiff logreg`: from the seeds to a model, and from the model to log-probabilities of the test points.

descriptors/seeds -> models/logreg
models/logreg + descriptors/test -> scores/logreg
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.classes import Classes
from mmdiff.classify.logreg import Device, Model, Options, choose_device, load_torch, train
from mmdiff.classify.sampling import Samples
from mmdiff.classify.tuning import tune
from mmdiff.classify.weights import from_safetensors, to_safetensors
from mmdiff.formats.errors import BadOption, Missing, WidthMismatch
from mmdiff.formats.manifest import Json, Recipe
from mmdiff.formats.publish import Draft, Publication
from mmdiff.formats.store import Artifact, Store
from mmdiff.making import Made, input_of, make
from mmdiff.progress import Progress, silent
from mmdiff.scores import SCHEMA as SCORES_SCHEMA
from mmdiff.scores import SEEDS, TEST

SCHEMA = 1
_TUNED = ("lr", "batch_size", "weight_decay")


@dataclass(frozen=True)
class Request:
    """What the user asked for; None stands for the default, or with `tune` for what does best."""

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


def logreg(path: Path, request: Request, progress: Progress = silent) -> Outcome:
    """Makes what is missing of the model and its scores, or out of date."""
    store = Store.open(path)
    options = _checked(request)
    if store.id(SEEDS) is None:
        raise Missing(f"{store.path}: there are no seeds. Run first: mmdiff import FILE --labels FILE --role seeds")
    seeds = store.open_artifact(SEEDS)
    test = store.open_artifact(TEST) if store.id(TEST) is not None else None
    if test is not None:
        _refuse_other_width(seeds, test)
    device = choose_device(load_torch(), request.device)
    model_name, scores_name = f"models/{request.name}", f"scores/{request.name}"
    parameters = _parameters(request, options, device)
    with Publication(path, [model_name] if test is None else [model_name, scores_name], request.command) as publication:
        recipe = Recipe("logreg", SCHEMA, parameters, {"seeds": input_of(seeds)})
        fill = _Training(seeds, options, request.tune, progress).fill
        model = make(publication, model_name, recipe, request.command, fill, torch=version("torch"))
        if test is None:
            return Outcome(model, None, ["there are no test points, so there are no scores. Import them with --role test."])
        inputs = {"model": input_of(model.artifact), "seeds": input_of(seeds), "test": input_of(test)}
        recipe = Recipe("scores", SCORES_SCHEMA, {"method": "logreg", **parameters}, inputs)
        classify = from_safetensors(model.artifact)
        scores = make(
            publication,
            scores_name,
            recipe,
            request.command,
            lambda draft: _write_scores(draft, classify, Classes.of(seeds), test, progress),
        )
        return Outcome(model, scores)


def raw_descriptors(artifact: Artifact) -> NDArray[Any]:
    """Descriptors as they were; where they are not kept apart, the vectors are."""
    return artifact.array("raw" if "raw" in artifact else "vectors")


@dataclass(frozen=True)
class _Training:
    """Learns the model of the seeds."""

    seeds: Artifact
    options: Options
    tuned: bool
    progress: Progress

    def fill(self, draft: Draft) -> Json:
        classes, descriptors = Classes.of(self.seeds), raw_descriptors(self.seeds)
        samples, options = Samples.of(self.seeds.array("labels")), self.options
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


def _parameters(request: Request, options: Options, device: str) -> Json:
    """All that decides what the model will be. CPU and GPU round differently, so it matters which it is."""
    values = asdict(options) | {"device": device, "tune": request.tune}
    return {key: value for key, value in values.items() if not (request.tune and key in _TUNED)}


def _checked(request: Request) -> Options:
    given = [f"--{key.replace('_', '-')}" for key in _TUNED if getattr(request, key) is not None]
    if request.tune and given:
        raise BadOption(f"--tune chooses {', '.join(given)}. Leave out one or the other.")
    options = request.options()
    for name, value, least in (("--batch-size", options.batch_size, 1), ("--iterations", options.iterations, 1)):
        if value < least:
            raise BadOption(f"{name} {value}: at least {least} is needed.")
    if not 0 < options.lr < np.inf:
        raise BadOption(f"--lr {options.lr:g}: a learning rate above 0 is needed, such as {Options.lr:g}.")
    if not 0 <= options.weight_decay < np.inf:
        raise BadOption(f"--weight-decay {options.weight_decay:g}: 0 or more is needed, such as {Options.weight_decay:g}.")
    return options


def _refuse_other_width(seeds: Artifact, test: Artifact) -> None:
    """Seeds whose raw descriptors are kept and test points whose are not, or the other way round, cannot be compared."""
    own, other = (artifact.spec("raw" if "raw" in artifact else "vectors").shape[1] for artifact in (seeds, test))
    kept = ["raw" in artifact for artifact in (seeds, test)]
    if own != other or kept[0] != kept[1]:
        lacking = SEEDS if kept[1] and not kept[0] else TEST
        raise WidthMismatch(
            f"{SEEDS} has descriptors of {own} values ({'raw' if kept[0] else 'reduced'}), {TEST} of {other} "
            f"({'raw' if kept[1] else 'reduced'}). Import {lacking.partition('/')[2]} again, with --keep-raw like the other."
        )

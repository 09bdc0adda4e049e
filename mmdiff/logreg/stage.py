"""`mmdiff logreg`: logistic regression on the labelled rows, and its scores of other rows (paper, section 4.1).

descriptors/seeds -> models/logreg
models/logreg + descriptors/test -> scores/logreg, log-probabilities of the test points

Where rows of the collection have labels, it learns from all labelled rows, in the space of the graph, and the best classes of
every row of the collection are part of the scores.

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

from mmdiff.diffusion.engine.top_classes import BYTES_PER_NODE, write_top_classes
from mmdiff.evaluation.metrics import ranks_of
from mmdiff.evaluation.scores import SCHEMA as SCORES_SCHEMA
from mmdiff.evaluation.scores import SEEDS, TEST
from mmdiff.formats.errors import BadLabels, BadOption, Parameter, WidthMismatch, one_of
from mmdiff.formats.storage.disk_errors import explaining
from mmdiff.formats.store.array_writer import ArrayWriter
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import Draft, Publication
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.labels.classes import UNLABELLED, Classes, labels_of
from mmdiff.labels.label_set import read_label_set
from mmdiff.labels.rows_by_id import Part, RowsById
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
# Rows of the collection whose probabilities are in memory at a time.
_BLOCK_ROWS = 1 << 13
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
    training = TrainingSet.read(store)
    test = store.open_artifact(TEST) if store.id(TEST) is not None else None
    if test is not None and not training.of_collection:
        _refuse_other_width(store.open_artifact(SEEDS), test)
    _refuse_large_batches(training, options)
    device = choose_device(load_torch(), request.device)
    collection = RowsById.of(store).parts if training.of_collection else ()
    model_name, scores_name = f"models/{request.name}", f"scores/{request.name}"
    scored = test is not None or bool(collection)
    parameters = _parameters(request, options, device)
    with Publication(path, [model_name, scores_name] if scored else [model_name], request.command) as publication:
        recipe = Recipe("logreg", SCHEMA, parameters, training.inputs)
        fill = _Training(training, options, request.tune, progress).fill
        disk = _disk(training, test, collection)
        model = make(publication, model_name, recipe, request.command, fill, disk=sum(disk), torch=version("torch"))
        if not scored:
            return Outcome(model, None, ["no test points were imported, so there are no scores."])
        inputs = {"model": input_of(model.artifact), **training.inputs, **({} if test is None else {"test": input_of(test)})}
        recipe = Recipe("scores", SCORES_SCHEMA, {"method": "logreg", **parameters}, inputs)
        scoring = _Scoring(from_safetensors(model.artifact), training, test, collection, progress)
        scores = make(publication, scores_name, recipe, request.command, scoring.fill, disk=disk[1])
        return Outcome(model, scores, training.notes)


@dataclass(frozen=True)
class TrainingSet:
    """The rows that a regression learns from: their descriptors, labels, (rows, labels per row), and the table of classes.

    `of_collection` says that rows of the collection are among them; then descriptors are vectors, which all roles have.
    """

    descriptors: NDArray[Any]
    labels: NDArray[np.int32]
    classes: Classes
    inputs: Json
    of_collection: bool = False
    notes: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, store: Store) -> TrainingSet:
        """The seeds, as the paper has it; or all labelled rows, where rows of the collection have labels."""
        labelled, collection = read_label_set(store), RowsById.of(store)
        if labelled.rows[0] >= len(collection):
            seeds = store.open_artifact(SEEDS)
            classes = Classes.of(seeds)
            labels = np.array(labels_of(seeds, classes))
            labels[labelled.rows[labelled.held_out] - len(collection)] = UNLABELLED
            return cls(raw_descriptors(seeds), labels, classes, labelled.inputs)
        used = labelled.used()
        parts = [(part.artifact, part.first) for part in collection.parts]
        parts += [(store.open_artifact(SEEDS), len(collection))] if store.id(SEEDS) is not None else []
        inputs = used.inputs | {artifact.name.partition("/")[2]: input_of(artifact) for artifact, _ in parts}
        vectors = vectors_of(parts, used.rows)
        return cls(vectors, used.labels, used.classes, inputs, of_collection=True, notes=used.notes)

    @property
    def width(self) -> int:
        return int(self.descriptors.shape[1])


def vectors_of(parts: Sequence[tuple[Artifact, int]], rows: NDArray[np.int64]) -> NDArray[Any]:
    """The vectors of rows, by increasing number, in memory; each part has the number of its first row."""
    found = []
    for artifact, first in parts:
        vectors = artifact.array("vectors")
        found.append(np.asarray(vectors[rows[(rows >= first) & (rows < first + len(vectors))] - first]))
    return np.concatenate(found)


def raw_descriptors(artifact: Artifact) -> NDArray[Any]:
    """The descriptors as they were imported; the vectors, where those are not kept separately."""
    return artifact.array("raw" if "raw" in artifact else "vectors")


@dataclass(frozen=True)
class _Training:
    """Trains the model."""

    training: TrainingSet
    options: Options
    tuned: bool
    progress: Progress

    def fill(self, draft: Draft) -> Json:
        classes, descriptors = self.training.classes, self.training.descriptors
        samples, options = Samples.of(self.training.labels), self.options
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


@dataclass(frozen=True)
class _Scoring:
    """Scores the test points, and finds the best classes of every row of the collection."""

    model: Model
    training: TrainingSet
    test: Artifact | None
    collection: Sequence[Part]
    progress: Progress

    def fill(self, draft: Draft) -> Json:
        classes, tests = self.training.classes, 0
        if self.test is not None:
            vectors = self.test.array("vectors") if self.training.of_collection else raw_descriptors(self.test)
            tests = len(vectors)
            self._score(draft.array("scores", (1, tests, len(classes)), "float32"), vectors)
        if self.collection:
            self._find_best(draft)
        classes.write(draft)
        return {"tests": tests, "classes": len(classes), "planes": [0] if tests else []}

    def _score(self, writer: ArrayWriter, descriptors: NDArray[Any]) -> None:
        with self.progress("classifying", len(descriptors), "rows") as advance:
            for chunk in writer.missing:
                start, stop = writer.spec.rows(chunk)
                writer.write(chunk, self.model.log_probabilities(descriptors[start:stop]))
                advance(stop - start)

    def _find_best(self, draft: Draft) -> None:
        """Writes the best classes of the rows and their probabilities."""
        rows = sum(part.rows for part in self.collection)

        def probabilities(start: int, stop: int) -> NDArray[np.float32]:
            return np.exp(self.model.log_probabilities(self._vectors(start, stop)))

        with self.progress("classifying the collection", rows, "rows") as advance:
            write_top_classes(draft, rows, len(self.training.classes), probabilities, _BLOCK_ROWS, advance)

    def _vectors(self, start: int, stop: int) -> NDArray[Any]:
        """The vectors of rows start..stop-1 of the collection."""
        found = []
        for part in self.collection:
            low, high = max(start - part.first, 0), min(stop - part.first, part.rows)
            if low < high:
                found.append(part.artifact.array("vectors")[low:high])
        return found[0] if len(found) == 1 else np.concatenate(found)


def _refuse_large_batches(training: TrainingSet, options: Options) -> None:
    """Refuses batches whose rows, logits and gradients do not fit the available memory."""
    each = _FLOAT_BYTES * (training.width + 3 * len(training.classes))
    available = available_bytes()
    if options.batch_size * each > available:
        raise BadOption(
            Parameter("batch_size", options.batch_size),
            f": batches need {options.batch_size * each >> 20}M, but {available >> 20}M of memory are available. Use at most ",
            Parameter("batch_size", max(1, available // each)),
            ".",
        )


def _disk(training: TrainingSet, test: Artifact | None, collection: Sequence[Part]) -> tuple[int, int]:
    """Bytes of the model, and of the scores."""
    classes = len(training.classes)
    model = _FLOAT_BYTES * classes * (training.width + 1)
    best = BYTES_PER_NODE * sum(part.rows for part in collection)
    return model, best + (0 if test is None else _FLOAT_BYTES * classes * test.spec("vectors").shape[0])


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

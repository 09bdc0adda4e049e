"""Cross-validation over the labels of a store: publishes the held-out scores `folds/NAME` of a diffusion or a regression.

Labelled rows are held out in folds, or where the user keeps labels out for good, these rows are the one fold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.prepared import Request as DiffusionRequest
from mmdiff.diffusion.prepared import require_independent_classes
from mmdiff.diffusion.problem import choose_classes, open_graph
from mmdiff.diffusion.stage import parameters_of
from mmdiff.evaluation.scores import SEEDS
from mmdiff.formats.errors import BadLabels, BadOption, Parameter, Stale
from mmdiff.formats.storage.disk_errors import explaining
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import Draft, Publication
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.graph.graph import CsrGraph
from mmdiff.labels.classes import UNLABELLED, Classes
from mmdiff.labels.collection import APPENDED, BACKGROUND
from mmdiff.labels.label_set import read_label_set
from mmdiff.logreg.stage import raw_descriptors, vectors_of
from mmdiff.logreg.training import Options, Samples, choose_device, load_torch, train
from mmdiff.runtime.executor import Executor, LocalExecutor
from mmdiff.runtime.find_or_make import Made, Run, input_of, make
from mmdiff.runtime.parameters import random_seed
from mmdiff.runtime.progress import Progress, silent
from mmdiff.validation.diffusing import AllFolds, Announce, FoldsOfNodes, every_iteration
from mmdiff.validation.folds import Folds, checked_folds, kept_out, stratified
from mmdiff.validation.held_out import KIND, SCHEMA, full_name, write_rows


@dataclass(frozen=True)
class Scheme:
    """The rows to hold out: stratified folds by a random seed. None are FOLDS, fewer where there are not as many labels.

    With `holdout`, the labels that the user keeps out for good are the one fold, where there are any. Nothing may be chosen on
    those; what learns from held-out rows takes folds of the other labels.
    """

    folds: int | None = None
    seed: int = 0
    holdout: bool = False

    def checked(self) -> Scheme:
        folds = None if self.folds is None else checked_folds(self.folds)
        return Scheme(folds, random_seed(self.seed), self.holdout)


@dataclass(frozen=True)
class Labelled:
    """The labelled rows of a store in folds. `parameters` and `inputs` are the entries of a recipe that decide them."""

    graph: Artifact
    rows: NDArray[np.int64]
    labels: NDArray[np.int32]
    classes: Classes
    folds: Folds
    parameters: Json
    inputs: Json

    @classmethod
    def read(cls, store: Store, scheme: Scheme, chosen: str | Sequence[str] | None = None) -> Labelled:
        """The labels of the chosen classes; refused where too few can be held out."""
        scheme, graph = scheme.checked(), open_graph(store)
        found = read_label_set(store, graph)
        classes, labels = choose_classes(found.classes, found.labels, chosen)
        labelled = (labels != UNLABELLED).any(axis=1)
        if not labelled.any():
            raise BadLabels(
                "none of the chosen classes has a label to hold out. Choose others with ", Parameter("classes"), "."
            )
        if scheme.holdout and found.held_out[labelled].any():
            folds = kept_out(labels[labelled], found.held_out[labelled])
            parameters: Json = {"scheme": "holdout", "folds": folds.count, "seed": 0}
        else:
            labelled &= ~found.held_out
            folds = stratified(found.rows[labelled], labels[labelled], classes, scheme.folds, scheme.seed)
            parameters = {"scheme": "folds", "folds": folds.count, "seed": scheme.seed}
        return cls(graph, found.rows[labelled], labels[labelled], classes, folds, parameters, found.inputs)

    def write(self, draft: Draft, planes: list[int]) -> Json:
        """Writes the arrays beside the scores, and returns the facts."""
        return write_rows(draft, self.rows, self.labels, self.classes, self.folds, planes)


@explaining
def validate_diffusion(
    path: Path,
    request: DiffusionRequest,
    scheme: Scheme,
    progress: Progress = silent,
    announce: Announce = lambda _: None,
    executor: Executor | None = None,
) -> Made:
    """Makes `folds/NAME` of a diffusion, or finds it if it was made before from the same labels and options."""
    request = every_iteration(request)
    if request.labels is not None:
        raise BadOption(
            Parameter("labels", request.labels),
            ": labels of a file cannot be held out. Import them with the rows, and leave it out.",
        )
    store, executor = Store.open(path), executor or LocalExecutor()
    require_independent_classes(request, executor)
    found = Labelled.read(store, scheme, request.classes)
    graph = CsrGraph.from_artifact(found.graph)
    given = FoldsOfNodes(graph, found.graph, graph.node_of_row[found.rows], found.labels, found.classes, found.folds)
    work = AllFolds(request, given, executor.workers)
    parameters = parameters_of(work.first) | found.parameters
    if request.variant.takes_prior:
        parameters["prior"] = [[float(p) for p in prior] for prior in work.priors]
    recipe = Recipe(KIND, SCHEMA, parameters, {"W": input_of(found.graph), **found.inputs})
    name = full_name(request.name)
    with Publication(path, [name], request.command) as publication:

        def fill(draft: Draft) -> Json:
            work.write(draft, announce, progress, executor)
            return found.write(draft, request.kept_iterations)

        return make(publication, name, recipe, Run(request.command), fill, disk=work.disk)


@explaining
def validate_logreg(path: Path, options: Options, scheme: Scheme, name: str, command: str, progress: Progress = silent) -> Made:
    """Makes `folds/NAME` of a logistic regression, trained once for each fold, or finds it.

    It learns from the vectors of the labelled rows, as the graph does; where all of them are seeds, from the descriptors that
    `mmdiff logreg` takes.
    """
    store = Store.open(path)
    options = replace(options, device="gpu" if choose_device(load_torch(), options.device) == "cuda" else "cpu")
    found = Labelled.read(store, scheme)
    recipe = Recipe(
        KIND, SCHEMA, {"method": "logreg", "training": asdict(options)} | found.parameters, _descriptor_inputs(store, found)
    )

    def fill(draft: Draft) -> Json:
        descriptors = _descriptors(store, found)
        out, folds = found.folds.held_out, found.folds
        writer = draft.array("scores", (1, len(out), len(found.classes)), "float32")
        scores = np.empty(writer.spec.shape[1:], np.float32)
        with progress("training", folds.count * options.iterations, "batches") as advance:
            for fold in range(folds.count):
                mine = folds.fold[out] == fold
                labels = np.where(folds.training(fold)[:, None], found.labels, UNLABELLED)
                model = train(descriptors, Samples.of(labels), len(found.classes), options, advance)
                scores[mine] = model.log_probabilities(descriptors[out[mine]])
        for chunk in writer.missing:
            writer.write(chunk, scores[slice(*writer.spec.rows(chunk))])
        return found.write(draft, [0])

    with Publication(path, [full_name(name)], command) as publication:
        return make(publication, full_name(name), recipe, Run(command), fill)


def _roles(store: Store, found: Labelled) -> list[tuple[Artifact, int]]:
    """The artifacts of the rows, in their order, each with the number of its first row."""
    facts, first, roles = found.graph.manifest.facts, 0, []
    for name, rows in ((BACKGROUND, facts["background"]), (APPENDED, facts.get("appended", 0)), (SEEDS, facts["seeds"])):
        if rows:
            artifact = store.open_artifact(name)
            if artifact.spec("vectors").shape[0] != rows:
                raise Stale(f"{found.graph.name}: made of other rows than those of {name}, which a regression learns from.")
            roles.append((artifact, first))
        first += rows
    return roles


def _descriptor_inputs(store: Store, found: Labelled) -> Json:
    return {**found.inputs, **{artifact.name.partition("/")[2]: input_of(artifact) for artifact, _ in _roles(store, found)}}


def _descriptors(store: Store, found: Labelled) -> NDArray[Any]:
    """The descriptors of the labelled rows, in memory."""
    roles = _roles(store, found)
    artifact, first = roles[-1]
    if artifact.name == SEEDS and found.rows[0] >= first:
        return np.asarray(raw_descriptors(artifact)[found.rows - first])
    return vectors_of(roles, found.rows)

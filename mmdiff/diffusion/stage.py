"""`mmdiff diffuse`: spreads labels over `graph/W` and publishes `scores/NAME` (paper, section 3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from mmdiff.diffusion.engine.run import Diffusion
from mmdiff.diffusion.engine.top_classes import TopClasses
from mmdiff.diffusion.io.checkpoint import DraftCheckpoint
from mmdiff.diffusion.planning.memory_model import Footprint
from mmdiff.diffusion.prepared import Attempts, Prepared, Request, require_independent_classes, run_batches, write_scores
from mmdiff.diffusion.problem import read_problem
from mmdiff.evaluation.scores import missing_scores
from mmdiff.export.predictions import check_predictions, write_predictions
from mmdiff.formats.errors import call
from mmdiff.formats.storage.disk_errors import explaining
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import Draft, Publication
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.runtime.executor import Executor, LocalExecutor
from mmdiff.runtime.find_or_make import Run, make
from mmdiff.runtime.progress import Progress, silent

__all__ = ["Outcome", "Prepared", "Request", "diffuse", "parameters_of", "prepare"]

KIND, SCHEMA = "scores", 1


@dataclass(frozen=True)
class Outcome:
    """The published scores. `seconds` is the time of this run, `needs` its announced memory and disk."""

    artifact: Artifact
    reused: bool
    seconds: float
    needs: Footprint
    warnings: list[str] = field(default_factory=list)
    predictions: Json = field(default_factory=dict)
    chosen: Json = field(default_factory=dict)

    def summary(self) -> Json:
        manifest = self.artifact.manifest
        return {
            "artifact": self.artifact.name,
            "object": self.artifact.id,
            "reused": self.reused,
            "seconds": round(self.seconds, 3),
            "bytes": manifest.bytes_on_disk,
            "cols_per_batch": self.needs.width,
            "batches": self.needs.batches,
            "facts": manifest.facts,
            "steps": self.artifact.run["steps"],
            "warnings": self.warnings,
            **({"predictions": self.predictions} if self.predictions else {}),
            **({"iterations_chosen": self.chosen} if self.chosen else {}),
        }


def prepare(store: Store, request: Request, workers: int = 1) -> Prepared:
    """Reads and checks the inputs of a diffusion, and decides its batches, before anything is computed."""
    problem = read_problem(store, request.labels, request.classes)
    if problem.neighbors is None and request.predict_nodes is False:
        if not problem.collection:
            raise missing_scores(store, str(store), call("diffuse"))
        # Without test points the rows of the collection are all there is to classify.
        request = replace(request, predict_nodes=True)
    if request.predictions_file is not None:
        check_predictions(request.predictions_file, store, problem.collection)
    return Prepared.of(request, problem, request.prior_of(problem.seeds), workers)


@explaining
def diffuse(
    path: Path,
    request: Request,
    progress: Progress = silent,
    announce: Callable[[Footprint], None] = lambda _: None,
    executor: Executor | None = None,
) -> Outcome:
    """Makes `scores/NAME`, or finds it if it was made before from the same inputs and options.

    `announce` is called with the footprint of the run before anything is computed, and again if its batches have to be
    narrower than that. `executor` computes the batches.
    """
    run = Run(request.command)
    store = Store.open(path)
    executor = executor or LocalExecutor()
    require_independent_classes(request, executor)
    prepared = prepare(store, request, executor.workers)
    attempts = Attempts(prepared, announce)
    name = f"scores/{request.name}"
    with Publication(path, [name], request.command) as publication:

        def fill(draft: Draft) -> Json:
            def compute(taken: Prepared) -> Json:
                facts, run.entries["steps"] = _run(draft, taken, progress, executor)
                return facts

            return attempts.run(draft, compute)

        made = make(publication, name, _recipe(prepared), run, fill, before=attempts.begin, disk=prepared.needs.disk)
    predictions: Json = {}
    if request.predictions_file is not None:
        predictions = write_predictions(store, made.artifact, request.predictions_file, progress)
    return Outcome(
        made.artifact,
        made.reused,
        run.seconds,
        attempts.taken.needs,
        prepared.problem.warnings,
        predictions,
        request.chosen,
    )


def _recipe(prepared: Prepared) -> Recipe:
    """Everything that decides the result. The width of batches does not: each column is computed independently of it."""
    request, problem = prepared.request, prepared.problem
    parameters = parameters_of(prepared) | {
        "keep_scores": request.keep_scores,
        "predict_nodes": request.predict_nodes is not False,
    }
    if prepared.variant.takes_prior:
        parameters["prior"] = [float(p) for p in prepared.prior]
    return Recipe(KIND, SCHEMA, parameters, problem.inputs, problem.source_fingerprint)


def parameters_of(prepared: Prepared) -> Json:
    """The parameters of a recipe that decide the iterations of a diffusion, but for the prior."""
    request, classes = prepared.request, prepared.problem.classes
    parameters: Json = {
        "method": "diffusion",
        "iterations": request.iterations,
        **prepared.variant.parameters(),
        "plain": request.plain,
        "classes": None if request.classes is None else [classes.title(i) for i in range(len(classes))],
    }
    if prepared.variant.coupled:
        # Earlier versions applied eta a second time when they reported L; their scores are not taken for these.
        parameters["eta_applied"] = "once"
    return parameters


def _run(draft: Draft, prepared: Prepared, progress: Progress, executor: Executor) -> tuple[Json, list[Json]]:
    """Computes the batches that are missing; returns the facts, and the seconds and bytes read of each iteration."""

    def finish(diffusion: Diffusion, checkpoint: DraftCheckpoint) -> Json:
        _assemble(draft, diffusion, checkpoint)
        prepared.problem.classes.write(draft)
        if checkpoint.top_classes is not None:
            _write_top_classes(draft, checkpoint.top_classes, prepared)
        return _facts(prepared, diffusion, checkpoint)

    return run_batches(draft, prepared, progress, executor, finish)


def _assemble(draft: Draft, diffusion: Diffusion, checkpoint: DraftCheckpoint) -> None:
    """Writes the scores of all batches side by side, in the order of the classes, and the column sums."""
    classes = diffusion.seeds.classes
    if diffusion.neighbors is not None:
        tests = len(diffusion.neighbors)
        writer = draft.array("scores", (len(checkpoint.iterations), tests, classes), "float32")
        write_scores(writer, diffusion, checkpoint)
    sums = np.empty((diffusion.iterations + 1, classes), np.float32)
    for batch in range(len(diffusion.batches)):
        sums[:, diffusion.columns(batch)] = [step["sums"] for step in checkpoint.statistics[checkpoint.key(batch)]]
    draft.values("column_sums", sums)


def _write_top_classes(draft: Draft, top_classes: TopClasses, prepared: Prepared) -> None:
    """Writes the top classes of the collection, in the user's order."""
    node = prepared.problem.graph.node_of_row[: prepared.problem.collection]
    draft.values("top_classes", top_classes.classes[node])
    draft.values("top_scores", top_classes.scores[node])


def _facts(prepared: Prepared, diffusion: Diffusion, checkpoint: DraftCheckpoint) -> Json:
    """The facts of the manifest. The share of nonzero entries is that of the computed rows (paper, figure 4)."""
    steps = []
    for iteration in range(diffusion.iterations + 1):
        statistics = [
            (diffusion.columns(batch), checkpoint.statistics[checkpoint.key(batch)][iteration])
            for batch in range(len(diffusion.batches))
        ]
        entries = sum(len(columns) * step["rows"] for columns, step in statistics)
        nonzero = sum(step["nonzero"] for _, step in statistics)
        rows = statistics[0][1]["rows"]
        steps.append({"iteration": iteration, "nonzero": round(nonzero / entries, 9) if entries else 0.0, "rows": rows})
    return {
        "tests": prepared.problem.tests,
        "classes": diffusion.seeds.classes,
        "nodes": diffusion.stream.graph.nodes,
        "planes": checkpoint.iterations if prepared.problem.tests else [],
        "steps": steps,
        **({"iterations_chosen": prepared.request.chosen} if prepared.request.chosen else {}),
    }

"""`mmdiff diffuse`: labels spread over `graph/W`; `scores/NAME` is what test points see of them, and nodes' best classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.engine.independent import Buffers
from mmdiff.diffusion.engine.run import Diffusion
from mmdiff.diffusion.engine.top_classes import TopClasses
from mmdiff.diffusion.io.checkpoint import Kept, ProductsOnDisk
from mmdiff.diffusion.io.remote_batches import Batches, Computed, enter_all, stream_of
from mmdiff.diffusion.options import COLS_PER_BATCH, DiffusionOptions
from mmdiff.diffusion.planning.memory_model import Asked, Needs, needs
from mmdiff.diffusion.problem import Problem, read_problem
from mmdiff.diffusion.variant import Variant, class_prior, given_prior
from mmdiff.export.predictions import check_predictions, write_predictions
from mmdiff.formats.errors import BadOption, Missing
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import Draft, Publication
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.runtime.executor import Executor, LocalExecutor
from mmdiff.runtime.find_or_make import Run, make
from mmdiff.runtime.progress import Progress, silent

KIND, SCHEMA = "scores", 1


@dataclass(frozen=True)
class Request(DiffusionOptions):
    """A diffusion to run. Without `cols_per_batch` a batch has as many columns as fit, at most `most_cols`."""

    most_cols: int | None = COLS_PER_BATCH
    memory: int = 8 << 30
    classes: str | None = None
    labels: str | None = None
    predict_nodes: Path | None = None
    name: str = "diffusion"
    command: str = "mmdiff diffuse"

    @property
    def variant(self) -> Variant:
        return Variant.of(self)

    @property
    def fixed_width(self) -> int | None:
        """The columns of a batch where the user fixed them."""
        return None if self.cols_per_batch == "auto" else self.cols_per_batch

    @property
    def widest(self) -> int | None:
        """The most columns of a batch where the user did not fix them."""
        return None if self.cols_per_batch == "auto" else self.most_cols


@dataclass(frozen=True)
class Prepared:
    """A diffusion that can be run: its options make sense, its inputs go together, and it fits."""

    request: Request
    problem: Problem
    variant: Variant
    prior: NDArray[np.float64]
    needs: Needs


@dataclass(frozen=True)
class Outcome:
    """The scores, and what there is to say of them."""

    artifact: Artifact
    reused: bool
    seconds: float
    needs: Needs
    warnings: list[str] = field(default_factory=list)
    predictions: Json = field(default_factory=dict)

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
        }


def prepare(store: Store, request: Request, workers: int = 1) -> Prepared:
    """Reads and checks everything that a diffusion needs, before anything is computed, by so many workers."""
    variant = request.variant
    problem = read_problem(store, request.labels, request.classes)
    if problem.neighbors is None and request.predict_nodes is None:
        raise Missing(
            f"{store.path}: no test points to score. Import some with --role test and run mmdiff build-graph again, or ask for "
            "the labels of the nodes with --predict-nodes FILE.parquet."
        )
    if request.predict_nodes is not None:
        check_predictions(request.predict_nodes, store, problem.background)
    given, name = given_prior(request.prior, problem.seeds)
    prior = class_prior(variant, given, name, request.prior_power, problem.seeds.classes)
    every_row = request.predict_nodes is not None
    asked = Asked(
        cols_per_batch=request.fixed_width,
        memory=request.memory,
        iterations=request.iterations,
        planes=len(request.kept_iterations),
        every_row=every_row,
        workers=workers,
        plain=request.plain,
        most=request.widest,
    )
    return Prepared(request, problem, variant, prior, needs(problem, variant, asked))


def diffuse(
    path: Path,
    request: Request,
    progress: Progress = silent,
    announce: Callable[[Needs], None] = lambda _: None,
    executor: Executor | None = None,
) -> Outcome:
    """Makes `scores/NAME`; what was made before from the same inputs and options is left as it is.

    Before anything is computed, `announce` hears what the run will need. `executor` computes the batches.
    """
    run = Run(request.command)
    store = Store.open(path)
    executor = executor or LocalExecutor()
    if request.variant.coupled and not isinstance(executor, LocalExecutor):
        raise BadOption(
            f"--dask with --eta {request.eta}: it takes all classes of a node at once after every iteration, so batches of "
            "classes cannot be left to workers. Leave --dask out, or use another --eta."
        )
    prepared = prepare(store, request, executor.workers)
    name = f"scores/{request.name}"
    with Publication(path, [name], request.command) as publication:

        def fill(draft: Draft) -> Json:
            facts, run.entries["steps"] = _run(draft, prepared, progress, executor)
            return facts

        made = make(publication, name, _recipe(prepared), run, fill, before=lambda: announce(prepared.needs))
    predictions: Json = {}
    if request.predict_nodes is not None:
        predictions = write_predictions(store, made.artifact, request.predict_nodes, progress)
    return Outcome(made.artifact, made.reused, run.seconds, prepared.needs, prepared.problem.warnings, predictions)


def _recipe(prepared: Prepared) -> Recipe:
    """What decides the result. The width of batches does not: every column comes out the same."""
    request, problem = prepared.request, prepared.problem
    parameters: Json = {
        "method": "diffusion",
        "iterations": request.iterations,
        **prepared.variant.parameters(),
        "keep_scores": request.keep_scores,
        "predict_nodes": request.predict_nodes is not None,
        "plain": request.plain,
        "classes": None if request.classes is None else [problem.classes.title(i) for i in range(len(problem.classes))],
    }
    if prepared.variant.coupled:
        # Earlier versions applied eta a second time when they reported L; their scores are not taken for these.
        parameters["eta_applied"] = "once"
    if prepared.variant.takes_prior:
        parameters["prior"] = [float(p) for p in prepared.prior]
    return Recipe(KIND, SCHEMA, parameters, problem.inputs, problem.witness)


def _run(draft: Draft, prepared: Prepared, progress: Progress, executor: Executor) -> tuple[Json, list[Json]]:
    """Computes what is missing; returns the facts, and of each iteration the time it took and the bytes it read."""
    request, problem = prepared.request, prepared.problem
    every_row = request.predict_nodes is not None
    with stream_of(problem.graph, prepared.needs.memory, request.memory) as stream:
        diffusion = Diffusion(
            stream,
            problem.seeds,
            prepared.variant,
            prepared.prior,
            request.iterations,
            prepared.needs.width,
            problem.neighbors,
            every_row,
            request.plain,
        )
        with Kept(draft, diffusion, request.kept_iterations, every_row) as kept:
            steps = _compute(draft, prepared, diffusion, kept, progress, executor)
        _assemble(draft, diffusion, kept)
        problem.classes.write(draft)
        if kept.tops is not None:
            _write_top_classes(draft, kept.tops, prepared)
    return _facts(prepared, diffusion, kept), [{**step, "seconds": round(step["seconds"], 3)} for step in steps]


def _compute(
    draft: Draft, prepared: Prepared, diffusion: Diffusion, kept: Kept, progress: Progress, executor: Executor
) -> list[Json]:
    """All batches that are not kept yet: those whose classes are coupled together, the others by the executor."""
    needs, stream, iterations = prepared.needs, diffusion.stream, diffusion.iterations
    buffers = Buffers(needs.on_disk)
    with progress("diffusing", len(diffusion.batches) * iterations * stream.graph.edges, "edges") as advance:
        if diffusion.variant.coupled:
            reports = diffusion.reports(buffers, kept, ProductsOnDisk(draft, kept))
            return enter_all(reports, stream, iterations, kept, advance)

        def here(batch: int) -> Computed:
            steps = enter_all(diffusion.reports_of(batch, buffers, kept), stream, iterations, kept, advance)
            kept.finish(batch)
            return Computed(steps)

        def there() -> Batches:
            return Batches.of(draft, prepared.problem.W, diffusion, kept, needs, prepared.request.memory // executor.workers)

        steps: list[Json] = [{"iteration": t, "seconds": 0.0, "bytes": 0} for t in range(iterations + 1)]
        for batch, computed in executor.each(here, there, kept.todo, advance=advance):
            if not kept.is_done(batch):
                kept.take(batch, computed.notes, computed.scores, computed.tops)
            for total, step in zip(steps, computed.steps, strict=True):
                total["seconds"] += step["seconds"]
                total["bytes"] += step["bytes"]
        return steps


def _assemble(draft: Draft, diffusion: Diffusion, kept: Kept) -> None:
    """The scores of all batches, side by side in the order of the classes; and the sums of the columns."""
    classes = diffusion.seeds.classes
    if diffusion.neighbors is not None:
        tests = len(diffusion.neighbors)
        writer = draft.array("scores", (len(kept.planes), tests, classes), "float32")
        parts = [kept.part(batch).mapped() for batch in range(len(diffusion.batches))] if writer.missing else []
        for chunk in writer.missing:
            start, stop = writer.spec.rows(chunk)
            plane, first = divmod(start, tests)
            block = np.empty((stop - start, classes), np.float32)
            for batch, part in enumerate(parts):
                block[:, diffusion.columns(batch)] = part[plane, first : first + stop - start]
            writer.write(chunk, block)
    sums = np.empty((diffusion.iterations + 1, classes), np.float32)
    for batch in range(len(diffusion.batches)):
        sums[:, diffusion.columns(batch)] = [step["sums"] for step in kept.notes[kept.key(batch)]]
    draft.values("column_sums", sums)


def _write_top_classes(draft: Draft, tops: TopClasses, prepared: Prepared) -> None:
    """The best classes of the background, in the user's order."""
    problem = prepared.problem
    order = problem.graph.order
    node = np.arange(problem.background) if order is None else np.argsort(order)
    draft.values("top_classes", tops.classes[node])
    draft.values("top_scores", tops.scores[node])


def _facts(prepared: Prepared, diffusion: Diffusion, kept: Kept) -> Json:
    """The share of entries that are not zero is that of the rows which were computed (paper, figure 4)."""
    steps = []
    for iteration in range(diffusion.iterations + 1):
        notes = [(diffusion.columns(batch), kept.notes[kept.key(batch)][iteration]) for batch in range(len(diffusion.batches))]
        entries = sum(len(columns) * note["rows"] for columns, note in notes)
        nonzero = sum(note["nonzero"] for _, note in notes)
        rows = notes[0][1]["rows"]
        steps.append({"iteration": iteration, "nonzero": round(nonzero / entries, 9) if entries else 0.0, "rows": rows})
    return {
        "tests": prepared.problem.tests,
        "classes": diffusion.seeds.classes,
        "nodes": diffusion.stream.graph.nodes,
        "planes": kept.planes if prepared.problem.tests else [],
        "steps": steps,
    }

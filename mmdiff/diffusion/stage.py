"""`mmdiff diffuse`: spreads labels over `graph/W` and publishes `scores/NAME` (paper, section 3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.engine.frontier import Outgrown
from mmdiff.diffusion.engine.independent import Buffers
from mmdiff.diffusion.engine.needed_rows import Rows
from mmdiff.diffusion.engine.run import Diffusion
from mmdiff.diffusion.engine.top_classes import TopClasses
from mmdiff.diffusion.io.checkpoint import DraftCheckpoint, ProductsOnDisk
from mmdiff.diffusion.io.graph_stream import Stream
from mmdiff.diffusion.io.kept_rows import RowCache
from mmdiff.diffusion.io.remote_batches import Batches, FinishedBatch, record_all, stream_of
from mmdiff.diffusion.options import COLS_PER_BATCH, DiffusionOptions
from mmdiff.diffusion.planning.memory_model import Footprint, Limits, footprint, memory_bound, wide_footprint
from mmdiff.diffusion.problem import Problem, read_problem
from mmdiff.diffusion.variant import Variant, class_prior, given_prior
from mmdiff.evaluation.scores import missing_scores
from mmdiff.export.predictions import check_predictions, write_predictions
from mmdiff.formats.errors import BadOption, Missing, Parameter, Placeholder, call
from mmdiff.formats.storage.disk_errors import explaining
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
    predict_nodes: Path | bool = False
    name: str = "diffusion"
    command: str = "mmdiff diffuse"

    @property
    def variant(self) -> Variant:
        return Variant.of(self)

    @property
    def predictions_file(self) -> Path | None:
        """The file that predictions of nodes are written to, if they go to a file."""
        return self.predict_nodes if isinstance(self.predict_nodes, Path) else None

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
    """A diffusion whose options are valid, whose inputs fit together, and which fits in memory.

    `cache` keeps rows of W from the search for needed rows on.
    """

    request: Request
    problem: Problem
    variant: Variant
    prior: NDArray[np.float64]
    limits: Limits
    needs: Footprint
    cache: RowCache
    known_rows: Sequence[Rows | None] | None = None

    @property
    def every_row(self) -> bool:
        """Whether L is needed in all rows, for the predictions of nodes."""
        return self.request.predict_nodes is not False

    def stream(self, memory: int) -> Stream:
        """The graph, as it is read beside so much memory of the run."""
        return stream_of(self.problem.graph, memory, self.request.memory, self.cache)

    @cached_property
    def announced(self) -> Footprint:
        """The footprint with the bound that the run announces."""

        def find_bound() -> int:
            with self.stream(self.needs.most_memory) as stream:
                return memory_bound(self.problem, self.limits, self.diffusion(stream), self.needs)

        return replace(self.needs, find_bound=find_bound)

    @cached_property
    def widened(self) -> Prepared:
        """The same diffusion in wide batches, where S is expected to stay a frontier; else itself."""
        whole = -(-self.problem.seeds.classes // self.limits.workers)
        independent = self.variant.linear and not self.request.plain
        if self.request.fixed_width is None and self.needs.width < whole and independent and self.request.iterations:
            with self.stream(self.needs.most_memory) as stream:
                diffusion = replace(self.diffusion(stream), width=whole)
                wide = wide_footprint(self.problem, self.limits, self.needs, diffusion)
            if wide is not None:
                self.cache.limit(wide.kept)
                return replace(self, needs=wide, known_rows=self._needed_rows)
        return self

    def narrowed(self) -> Prepared:
        """This diffusion, after wide batches were given up."""
        self.cache.limit(self.needs.kept)
        return self

    @cached_property
    def _needed_rows(self) -> Sequence[Rows | None]:
        if self.known_rows is not None:
            return self.known_rows
        with self.stream(self.needs.most_memory) as stream:
            return self._diffusion(stream, None).find_needed_rows()

    def diffusion(self, stream: Stream) -> Diffusion:
        """The diffusion, on a stream of its graph."""
        return replace(self._diffusion(stream, self._needed_rows), most_bytes=self.needs.frontier)

    def _diffusion(self, stream: Stream, needed_rows: Sequence[Rows | None] | None) -> Diffusion:
        return Diffusion(
            stream=stream,
            seeds=self.problem.seeds,
            variant=self.variant,
            prior=self.prior,
            iterations=self.request.iterations,
            width=self.needs.width,
            neighbors=self.problem.neighbors,
            every_row=self.every_row,
            plain=self.request.plain,
            needed_rows=needed_rows,
        )


@dataclass(frozen=True)
class Outcome:
    """The published scores. `seconds` is the time of this run, `needs` its announced memory and disk."""

    artifact: Artifact
    reused: bool
    seconds: float
    needs: Footprint
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
    """Reads and checks the inputs of a diffusion, and decides its batches, before anything is computed."""
    variant = request.variant
    problem = read_problem(store, request.labels, request.classes)
    if problem.neighbors is None and request.predict_nodes is False:
        absent = missing_scores(store, str(store), call("diffuse"))
        raise Missing(
            *absent.parts, ". Or classify the background rows: ", call("diffuse", predict_nodes=Placeholder("FILE.parquet"))
        )
    if request.predictions_file is not None:
        check_predictions(request.predictions_file, store, problem.background)
    given, shown = given_prior(request.prior, problem.seeds)
    prior = class_prior(variant, given, shown, request.prior_power, problem.seeds.classes)
    limits = Limits(
        cols_per_batch=request.fixed_width,
        memory=request.memory,
        iterations=request.iterations,
        kept_iterations=len(request.kept_iterations),
        every_row=request.predict_nodes is not False,
        workers=workers,
        plain=request.plain,
        most_cols=request.widest,
    )
    needs = footprint(problem, variant, limits)
    cache = RowCache(needs.kept)
    return Prepared(request=request, problem=problem, variant=variant, prior=prior, limits=limits, needs=needs, cache=cache)


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
    if request.variant.coupled and not isinstance(executor, LocalExecutor):
        raise BadOption(
            Parameter("dask"),
            " with ",
            Parameter("eta", request.eta),
            ": the operator needs all classes of a node after every iteration, so workers cannot compute batches of classes "
            "independently. Leave ",
            Parameter("dask"),
            " out, or choose another ",
            Parameter("eta"),
            ".",
        )
    prepared = taken = prepare(store, request, executor.workers)
    name = f"scores/{request.name}"
    with Publication(path, [name], request.command) as publication:

        def compute(draft: Draft) -> Json:
            facts, run.entries["steps"] = _run(draft, taken, progress, executor)
            return facts

        def fill(draft: Draft) -> Json:
            nonlocal taken
            if taken is not prepared:
                # A run that fell back to narrow batches before it was killed does not try wide ones again.
                if draft.noted.get("width") != prepared.needs.width:
                    with suppress(Outgrown):
                        return compute(draft)
                taken = prepared.narrowed()
                announce(taken.announced)
            return compute(draft)

        def before() -> None:
            nonlocal taken
            taken = prepared.widened
            announce(taken.announced)

        made = make(publication, name, _recipe(prepared), run, fill, before=before, disk=prepared.needs.disk)
    predictions: Json = {}
    if request.predictions_file is not None:
        predictions = write_predictions(store, made.artifact, request.predictions_file, progress)
    return Outcome(made.artifact, made.reused, run.seconds, taken.needs, prepared.problem.warnings, predictions)


def _recipe(prepared: Prepared) -> Recipe:
    """Everything that decides the result. The width of batches does not: each column is computed independently of it."""
    request, problem = prepared.request, prepared.problem
    parameters: Json = {
        "method": "diffusion",
        "iterations": request.iterations,
        **prepared.variant.parameters(),
        "keep_scores": request.keep_scores,
        "predict_nodes": request.predict_nodes is not False,
        "plain": request.plain,
        "classes": None if request.classes is None else [problem.classes.title(i) for i in range(len(problem.classes))],
    }
    if prepared.variant.coupled:
        # Earlier versions applied eta a second time when they reported L; their scores are not taken for these.
        parameters["eta_applied"] = "once"
    if prepared.variant.takes_prior:
        parameters["prior"] = [float(p) for p in prepared.prior]
    return Recipe(KIND, SCHEMA, parameters, problem.inputs, problem.source_fingerprint)


def _run(draft: Draft, prepared: Prepared, progress: Progress, executor: Executor) -> tuple[Json, list[Json]]:
    """Computes the batches that are missing; returns the facts, and the seconds and bytes read of each iteration."""
    request, problem = prepared.request, prepared.problem
    with prepared.stream(prepared.announced.memory) as stream:
        diffusion = prepared.diffusion(stream)
        with DraftCheckpoint(draft, diffusion, request.kept_iterations, prepared.every_row) as checkpoint:
            steps = _compute(draft, prepared, diffusion, checkpoint, progress, executor)
        _assemble(draft, diffusion, checkpoint)
        problem.classes.write(draft)
        if checkpoint.top_classes is not None:
            _write_top_classes(draft, checkpoint.top_classes, prepared)
    return _facts(prepared, diffusion, checkpoint), [{**step, "seconds": round(step["seconds"], 3)} for step in steps]


def _compute(
    draft: Draft,
    prepared: Prepared,
    diffusion: Diffusion,
    checkpoint: DraftCheckpoint,
    progress: Progress,
    executor: Executor,
) -> list[Json]:
    """Computes all batches that are not done: coupled ones together, independent ones as work units of the executor."""
    needs, stream, iterations = prepared.needs, diffusion.stream, diffusion.iterations
    buffers = Buffers(needs.spills)
    with progress("diffusing", len(diffusion.batches) * iterations * stream.graph.edges, "edges") as advance:
        if diffusion.variant.coupled:
            results = diffusion.results(buffers, checkpoint, ProductsOnDisk(draft, checkpoint))
            return record_all(results, stream, iterations, checkpoint, advance)

        def here(batch: int) -> FinishedBatch:
            results = diffusion.batch_results(batch, buffers, checkpoint)
            steps = record_all(results, stream, iterations, checkpoint, advance)
            checkpoint.finish(batch)
            return FinishedBatch(steps)

        def there() -> Batches:
            return Batches.of(
                draft,
                W=prepared.problem.W,
                diffusion=diffusion,
                checkpoint=checkpoint,
                memory=prepared.announced.memory,
                kept=needs.kept,
                limit=prepared.request.memory // executor.workers,
                spills=needs.spills,
            )

        steps: list[Json] = [{"iteration": t, "seconds": 0.0, "bytes": 0} for t in range(iterations + 1)]
        for batch, finished in executor.each(here, there, checkpoint.todo, advance=advance):
            if not checkpoint.is_done(batch):
                checkpoint.take(batch, finished.statistics, finished.scores, finished.top_classes)
            for total, step in zip(steps, finished.steps, strict=True):
                total["seconds"] += step["seconds"]
                total["bytes"] += step["bytes"]
        return steps


def _assemble(draft: Draft, diffusion: Diffusion, checkpoint: DraftCheckpoint) -> None:
    """Writes the scores of all batches side by side, in the order of the classes, and the column sums."""
    classes = diffusion.seeds.classes
    if diffusion.neighbors is not None:
        tests = len(diffusion.neighbors)
        writer = draft.array("scores", (len(checkpoint.iterations), tests, classes), "float32")
        parts = [checkpoint.scores(batch).mapped() for batch in range(len(diffusion.batches))] if writer.missing else []
        for chunk in writer.missing:
            start, stop = writer.spec.rows(chunk)
            place, first = divmod(start, tests)
            block = np.empty((stop - start, classes), np.float32)
            for batch, part in enumerate(parts):
                block[:, diffusion.columns(batch)] = part[place, first : first + stop - start]
            writer.write(chunk, block)
    sums = np.empty((diffusion.iterations + 1, classes), np.float32)
    for batch in range(len(diffusion.batches)):
        sums[:, diffusion.columns(batch)] = [step["sums"] for step in checkpoint.statistics[checkpoint.key(batch)]]
    draft.values("column_sums", sums)


def _write_top_classes(draft: Draft, top_classes: TopClasses, prepared: Prepared) -> None:
    """Writes the top classes of the background, in the user's order."""
    problem = prepared.problem
    order = problem.graph.order
    node = np.arange(problem.background) if order is None else np.argsort(order)
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
    }

"""A diffusion that is ready to run: its request, its batches within the memory limit, and the run of all batches.

`mmdiff diffuse` and the cross-validation prepare and run their diffusions here; they differ in where the seeds are, in the rows
whose scores are read, and in what is published.
"""

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
from mmdiff.diffusion.io.checkpoint import DraftCheckpoint, ProductsOnDisk, Workspace
from mmdiff.diffusion.io.graph_stream import Stream
from mmdiff.diffusion.io.kept_rows import RowCache
from mmdiff.diffusion.io.remote_batches import Batches, FinishedBatch, record_all, stream_of
from mmdiff.diffusion.options import COLS_PER_BATCH, DiffusionOptions
from mmdiff.diffusion.planning.memory_model import Footprint, Limits, footprint, memory_bound, wide_footprint
from mmdiff.diffusion.problem import Problem
from mmdiff.diffusion.seeds import Seeds
from mmdiff.diffusion.variant import Variant, class_prior, given_prior
from mmdiff.formats.errors import BadOption, Parameter
from mmdiff.formats.store.array_writer import ArrayWriter
from mmdiff.formats.store.manifest import Json
from mmdiff.runtime.executor import Executor, LocalExecutor
from mmdiff.runtime.progress import Progress


@dataclass(frozen=True)
class Request(DiffusionOptions):
    """A diffusion to run. Without `cols_per_batch` a batch has as many columns as fit, at most `most_cols`.

    `chosen` tells how the number of iterations was chosen, where the user left it to the store.
    """

    most_cols: int | None = COLS_PER_BATCH
    memory: int = 8 << 30
    classes: str | Sequence[str] | None = None
    labels: str | None = None
    predict_nodes: Path | bool = False
    name: str = "diffusion"
    command: str = "mmdiff diffuse"
    chosen: Json = field(default_factory=dict)

    @property
    def variant(self) -> Variant:
        return Variant.of(self)

    def prior_of(self, seeds: Seeds) -> NDArray[np.float64]:
        """The prior of each class of the seeds; refused where it does not fit them."""
        given, shown = given_prior(self.prior, seeds)
        return class_prior(self.variant, given, shown, self.prior_power, seeds.classes)

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

    @classmethod
    def of(cls, request: Request, problem: Problem, prior: NDArray[np.float64], workers: int = 1) -> Prepared:
        """Decides the batches of a diffusion; refused where none fits in memory."""
        variant = request.variant
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
        return cls(request, problem, variant, prior, limits, needs, RowCache(needs.kept))

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


class Attempts:
    """Runs a diffusion in wide batches where S is expected to stay a frontier, and in narrow ones where it does not.

    `taken` is the diffusion as it runs. `announce` is called with its footprint, again if its batches become narrower.
    """

    def __init__(self, prepared: Prepared, announce: Callable[[Footprint], None]) -> None:
        self.prepared = self.taken = prepared
        self._announce = announce

    def begin(self) -> None:
        """Decides whether to begin with wide batches, and announces the run."""
        self.taken = self.prepared.widened
        self._announce(self.taken.announced)

    def run(self, workspace: Workspace, compute: Callable[[Prepared], Json]) -> Json:
        """The facts that `compute` returns for the wide batches, or for the narrow ones where frontiers outgrow the memory."""
        if self.taken is not self.prepared:
            # A run that fell back to narrow batches before it was killed does not try wide ones again.
            if workspace.noted.get("width") != self.prepared.needs.width:
                with suppress(Outgrown):
                    return compute(self.taken)
            self.taken = self.prepared.narrowed()
            self._announce(self.taken.announced)
        return compute(self.taken)


def require_independent_classes(request: Request, executor: Executor) -> None:
    """Refuses workers for an operator that couples the classes."""
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


def run_batches(
    workspace: Workspace,
    prepared: Prepared,
    progress: Progress,
    executor: Executor,
    finish: Callable[[Diffusion, DraftCheckpoint], Json],
) -> tuple[Json, list[Json]]:
    """Computes the batches that are missing, then calls `finish`; returns its facts and the cost of each iteration.

    The cost are the seconds and the bytes read.
    """
    with prepared.stream(prepared.announced.memory) as stream:
        diffusion = prepared.diffusion(stream)
        with DraftCheckpoint(workspace, diffusion, prepared.request.kept_iterations, prepared.every_row) as checkpoint:
            steps = _compute(workspace, prepared, diffusion, checkpoint, progress, executor)
        facts = finish(diffusion, checkpoint)
    return facts, [{**step, "seconds": round(step["seconds"], 3)} for step in steps]


def write_scores(writer: ArrayWriter, diffusion: Diffusion, checkpoint: DraftCheckpoint) -> None:
    """Writes the scores of all batches side by side, in the order of the columns: (iterations, test points, columns)."""
    _, tests, columns = writer.spec.shape
    parts = [checkpoint.scores(batch).mapped() for batch in range(len(diffusion.batches))] if writer.missing else []
    for chunk in writer.missing:
        start, stop = writer.spec.rows(chunk)
        place, first = divmod(start, tests)
        block = np.empty((stop - start, columns), np.float32)
        for batch, part in enumerate(parts):
            block[:, diffusion.columns(batch)] = part[place, first : first + stop - start]
        writer.write(chunk, block)


def _compute(
    workspace: Workspace,
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
            results = diffusion.results(buffers, checkpoint, ProductsOnDisk(workspace, checkpoint))
            return record_all(results, stream, iterations, checkpoint, advance)

        def here(batch: int) -> FinishedBatch:
            results = diffusion.batch_results(batch, buffers, checkpoint)
            steps = record_all(results, stream, iterations, checkpoint, advance)
            checkpoint.finish(batch)
            return FinishedBatch(steps)

        def there() -> Batches:
            return Batches.of(
                workspace,
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

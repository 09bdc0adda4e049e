"""Batches of a diffusion as units of work for this process or for workers; a unit is all iterations of one batch.

Workers map the graph from the store and the seeds and test points from the draft. They write the scores of a batch into the
draft and return its statistics.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.engine.independent import Buffers
from mmdiff.diffusion.engine.run import Diffusion, IterationResult
from mmdiff.diffusion.engine.top_classes import TopClasses
from mmdiff.diffusion.io.checkpoint import DraftCheckpoint, Recorder, Workspace
from mmdiff.diffusion.io.graph_stream import Stream, stored_bytes
from mmdiff.diffusion.io.kept_rows import RowCache
from mmdiff.diffusion.io.spill import SpillFile, rows_per_chunk
from mmdiff.diffusion.seeds import Seeds
from mmdiff.diffusion.variant import Variant
from mmdiff.formats.storage import seam
from mmdiff.formats.storage.arrays import ArraySpec
from mmdiff.formats.store.array_writer import ArrayWriter
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact
from mmdiff.formats.store.worker_chunks import WorkerChunk, WorkerTarget, WorkerWriter
from mmdiff.graph.graph import CsrGraph
from mmdiff.runtime.memory import available_bytes
from mmdiff.runtime.progress import Advance


@dataclass(frozen=True)
class FinishedBatch:
    """A finished batch: seconds and bytes of each iteration and, from a worker, statistics and the chunks it wrote."""

    steps: list[Json]
    statistics: list[Json] = field(default_factory=list)
    scores: list[WorkerChunk] = field(default_factory=list)
    top_classes: dict[str, list[WorkerChunk]] = field(default_factory=dict)


def record_all(
    results: Iterable[IterationResult], stream: Stream, iterations: int, recorder: Recorder, advance: Advance
) -> list[Json]:
    """Records results as they come; returns the seconds and the bytes read of each iteration.

    Progress counts all edges of the graph in each iteration, even where a shortcut visits fewer.
    """
    edges, counted = stream.graph.edges, 0
    steps: list[Json] = [{"iteration": t, "seconds": 0.0, "bytes": 0} for t in range(iterations + 1)]

    def count(done: int) -> None:
        nonlocal counted
        step = min(done, edges - counted)
        counted += step
        advance(step)

    stream.advance = count
    clock, read = time.perf_counter(), stream.bytes
    for result in results:
        recorder.record(result)
        now = time.perf_counter()
        step = steps[result.iteration]
        step["seconds"] += now - clock
        step["bytes"] += stream.bytes - read
        clock, read = now, stream.bytes
        if result.iteration:
            advance(edges - counted)
            counted = 0
    return steps


class WorkerRecorder(Recorder):
    """Records the results of a batch in a worker. Its spill file lies in a folder of its own."""

    def __init__(
        self,
        diffusion: Diffusion,
        iterations: list[int],
        top_classes: TopClasses | None,
        declare: Callable[..., ArrayWriter],
        folder: Path,
    ) -> None:
        super().__init__(diffusion, iterations, top_classes, declare)
        self._folder = folder

    def spill_file(self, batch: int) -> SpillFile:
        shape = (self.diffusion.stream.graph.nodes, len(self.diffusion.columns(batch)))
        dtype = self.diffusion.variant.stored_dtype
        spec = ArraySpec.fit(shape, dtype, rows_per_chunk(shape, dtype))

        def declare(_: int) -> ArrayWriter:
            self.clear()
            return ArrayWriter(self._folder, spec)

        return declare

    def clear(self) -> None:
        """Removes the spill file."""
        if self._folder.exists():
            seam.remove_folder(self._folder)


@dataclass(frozen=True)
class Batches:
    """A diffusion that can be sent to workers. `scores` are the arrays of batches by their number of columns.

    `memory` is the memory that a worker needs, `limit` what it may use; both decide how it reads the graph. `kept` bytes of it
    are for rows of the graph.
    """

    W: Artifact
    seeds: dict[str, ArrayWriter]
    classes: int
    neighbors: ArrayWriter | None
    variant: Variant
    prior: NDArray[np.float64]
    iterations: int
    width: int
    plain: bool
    kept_iterations: list[int]
    memory: int
    kept: int
    most_bytes: int | None
    limit: int
    spills: bool
    folder: Path
    scores: dict[int, WorkerTarget]
    top_classes: dict[str, WorkerTarget]

    @classmethod
    def of(
        cls,
        draft: Workspace,
        *,
        W: Artifact,
        diffusion: Diffusion,
        checkpoint: DraftCheckpoint,
        memory: int,
        kept: int,
        limit: int,
        spills: bool,
    ) -> Batches:
        """Writes the seeds and the lists of test points to the draft, and declares the arrays that workers fill."""
        arrays = {name: getattr(diffusion.seeds, name) for name in ("nodes", "offsets", "columns", "values")}
        top_classes = [checkpoint.worker_top_classes(batch) for batch in checkpoint.todo]
        return cls(
            W=W,
            seeds={name: _on_disk(draft, f"pass_seeds_{name}", values) for name, values in arrays.items()},
            classes=diffusion.seeds.classes,
            neighbors=None if diffusion.neighbors is None else _on_disk(draft, "pass_test", diffusion.neighbors),
            variant=diffusion.variant,
            prior=diffusion.prior,
            iterations=diffusion.iterations,
            width=diffusion.width,
            plain=diffusion.plain,
            kept_iterations=checkpoint.iterations,
            memory=memory,
            kept=kept,
            most_bytes=diffusion.most_bytes,
            limit=limit,
            spills=spills,
            folder=checkpoint.scores(checkpoint.todo[0]).folder.parent,
            scores={len(diffusion.columns(batch)): WorkerTarget.of(checkpoint.scores(batch)) for batch in checkpoint.todo},
            top_classes={name: WorkerTarget.of(writer) for name, writer in top_classes[0].items()},
        )

    @contextmanager
    def opened(self) -> Iterator[Callable[[int, Advance], FinishedBatch]]:
        graph = CsrGraph.from_artifact(self.W)
        # Read into memory: kernels would be compiled once more for read-only arrays.
        seeds = Seeds(**{name: np.array(writer.mapped()) for name, writer in self.seeds.items()}, classes=self.classes)
        neighbors = None if self.neighbors is None else self.neighbors.mapped()
        with stream_of(graph, self.memory, self.limit, RowCache(self.kept)) as stream:
            diffusion = Diffusion(
                stream=stream,
                seeds=seeds,
                variant=self.variant,
                prior=self.prior,
                iterations=self.iterations,
                width=self.width,
                neighbors=neighbors,
                every_row=bool(self.top_classes),
                plain=self.plain,
                most_bytes=self.most_bytes,
            )
            buffers = Buffers(self.spills)
            yield lambda batch, advance: self._compute(diffusion, batch, buffers, advance)

    def _compute(self, diffusion: Diffusion, batch: int, buffers: Buffers, advance: Advance) -> FinishedBatch:
        made: list[WorkerWriter] = []

        def declare(name: str, shape: tuple[int, ...], _: str) -> ArrayWriter:
            made.append(WorkerWriter(self.folder / name, self.scores[shape[-1]].spec))
            return made[-1]

        best = TopClasses.empty(diffusion.stream.graph.nodes, self.classes) if self.top_classes else None
        folder = self.folder / f"pass_spill_{uuid.uuid4().hex}"
        recorder = WorkerRecorder(diffusion, self.kept_iterations, best, declare, folder)
        results = diffusion.batch_results(batch, buffers, recorder)
        steps = record_all(results, diffusion.stream, self.iterations, recorder, advance)
        recorder.clear()
        top_classes: dict[str, list[WorkerChunk]] = {}
        for name, target in self.top_classes.items():
            writer = WorkerWriter(self.folder / f"pass_own_{name}_{recorder.key(batch)}", target.spec)
            writer.fill(getattr(best, name))
            top_classes[name] = writer.written
        scores = [chunk for writer in made for chunk in writer.written]
        return FinishedBatch(steps, recorder.statistics[recorder.key(batch)], scores, top_classes)


def stream_of(graph: CsrGraph, memory: int, limit: int, cache: RowCache | None = None) -> Stream:
    """The graph, beside `memory` bytes that are needed of `limit` that may be used.

    Its pages are released where the rest does not hold it, and it is read past the page cache where the machine's available
    memory does not hold it either; then rows are kept in the cache.
    """
    size = stored_bytes(graph)
    return Stream(graph, let_go=size > limit - memory, past_cache=size > available_bytes() - memory, cache=cache)


def _on_disk(draft: Workspace, name: str, values: NDArray[Any]) -> ArrayWriter:
    writer = draft.scratch(name, values.shape, values.dtype.name)
    writer.fill(values)
    return writer

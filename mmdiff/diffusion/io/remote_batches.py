"""Batches of a diffusion as units of work, for this process or for others: each batch is all of its iterations.

Others map the graph from the store and what else there is from the draft. They write the scores of a batch beside those of the
others, and return what is small.
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
from mmdiff.diffusion.engine.run import Diffusion, Report
from mmdiff.diffusion.engine.top_classes import TopClasses
from mmdiff.diffusion.io.checkpoint import Entering, Kept
from mmdiff.diffusion.io.graph_stream import Stream, bytes_of
from mmdiff.diffusion.io.spill import Sheet, rows_per_chunk
from mmdiff.diffusion.planning.memory_model import Needs
from mmdiff.diffusion.seeds import Seeds
from mmdiff.diffusion.variant import Variant
from mmdiff.formats.storage import seam
from mmdiff.formats.storage.arrays import ArraySpec
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.publish import ArrayWriter, Draft
from mmdiff.formats.store.store import Artifact
from mmdiff.formats.store.worker_chunks import WorkerChunk, WorkerTarget, WorkerWriter
from mmdiff.graph.graph import CsrGraph
from mmdiff.runtime.memory import available_bytes
from mmdiff.runtime.progress import Advance


@dataclass(frozen=True)
class Computed:
    """A batch that is done: what each of its iterations took, and where others have computed it, what they found."""

    steps: list[Json]
    notes: list[Json] = field(default_factory=list)
    scores: list[WorkerChunk] = field(default_factory=list)
    tops: dict[str, list[WorkerChunk]] = field(default_factory=dict)


def enter_all(reports: Iterable[Report], stream: Stream, iterations: int, entering: Entering, advance: Advance) -> list[Json]:
    """Enters reports as they come; returns of each iteration the seconds that it took and the bytes that it read.

    The bar moves by edges, as many for each iteration as if there were no shortcuts.
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
    for report in reports:
        entering.enter(report)
        now = time.perf_counter()
        step = steps[report.iteration]
        step["seconds"] += now - clock
        step["bytes"] += stream.bytes - read
        clock, read = now, stream.bytes
        if report.iteration:
            advance(edges - counted)
            counted = 0
    return steps


class Alone(Entering):
    """Enters the reports of a batch that is computed elsewhere. What it needs on disk on the way is in a folder of its own."""

    def __init__(
        self,
        diffusion: Diffusion,
        planes: list[int],
        tops: TopClasses | None,
        declare: Callable[..., ArrayWriter],
        folder: Path,
    ) -> None:
        super().__init__(diffusion, planes, tops, declare)
        self._folder = folder

    def sheet(self, batch: int) -> Sheet:
        shape = (self.diffusion.stream.graph.nodes, len(self.diffusion.columns(batch)))
        dtype = self.diffusion.variant.stored_dtype
        spec = ArraySpec.fit(shape, dtype, rows_per_chunk(shape, dtype))

        def declare(_: int) -> ArrayWriter:
            self.clear()
            return ArrayWriter(self._folder, spec)

        return declare

    def clear(self) -> None:
        """Gives up what lies on disk."""
        if self._folder.exists():
            seam.remove_folder(self._folder)


@dataclass(frozen=True)
class Batches:
    """A diffusion that can be sent. `parts` are the arrays of scores by their number of columns, whatever their names."""

    W: Artifact
    seeds: dict[str, ArrayWriter]
    classes: int
    neighbors: ArrayWriter | None
    variant: Variant
    prior: NDArray[np.float64]
    iterations: int
    width: int
    plain: bool
    planes: list[int]
    memory: int
    limit: int
    on_disk: bool
    folder: Path
    parts: dict[int, WorkerTarget]
    tops: dict[str, WorkerTarget]

    @classmethod
    def of(cls, draft: Draft, W: Artifact, diffusion: Diffusion, kept: Kept, needs: Needs, limit: int) -> Batches:
        """Puts what is not in the store yet where others find it, and makes room for what they find."""
        arrays = {name: getattr(diffusion.seeds, name) for name in ("nodes", "offsets", "columns", "values")}
        parts = {len(diffusion.columns(batch)): WorkerTarget.of(kept.part(batch)) for batch in kept.todo}
        tops = [kept.own_top_classes(batch) for batch in kept.todo]
        return cls(
            W,
            {name: _on_disk(draft, f"pass_seeds_{name}", values) for name, values in arrays.items()},
            diffusion.seeds.classes,
            None if diffusion.neighbors is None else _on_disk(draft, "pass_test", diffusion.neighbors),
            diffusion.variant,
            diffusion.prior,
            diffusion.iterations,
            diffusion.width,
            diffusion.plain,
            kept.planes,
            needs.memory,
            limit,
            needs.on_disk,
            kept.part(kept.todo[0]).folder.parent,
            parts,
            {name: WorkerTarget.of(writer) for name, writer in tops[0].items()},
        )

    @contextmanager
    def opened(self) -> Iterator[Callable[[int, Advance], Computed]]:
        graph = CsrGraph.from_artifact(self.W)
        # Read into memory, since kernels are compiled once more for arrays that cannot be written.
        seeds = Seeds(**{name: np.array(writer.mapped()) for name, writer in self.seeds.items()}, classes=self.classes)
        neighbors = None if self.neighbors is None else self.neighbors.mapped()
        with stream_of(graph, self.memory, self.limit) as stream:
            diffusion = Diffusion(
                stream,
                seeds,
                self.variant,
                self.prior,
                self.iterations,
                self.width,
                neighbors,
                bool(self.tops),
                self.plain,
            )
            buffers = Buffers(self.on_disk)
            yield lambda batch, advance: self._compute(diffusion, batch, buffers, advance)

    def _compute(self, diffusion: Diffusion, batch: int, buffers: Buffers, advance: Advance) -> Computed:
        made: list[WorkerWriter] = []

        def declare(name: str, shape: tuple[int, ...], _: str) -> ArrayWriter:
            made.append(WorkerWriter(self.folder / name, self.parts[shape[-1]].spec))
            return made[-1]

        tops = TopClasses.empty(diffusion.stream.graph.nodes, self.classes) if self.tops else None
        entering = Alone(diffusion, self.planes, tops, declare, self.folder / f"pass_sheet_{uuid.uuid4().hex}")
        reports = diffusion.reports_of(batch, buffers, entering)
        steps = enter_all(reports, diffusion.stream, self.iterations, entering, advance)
        entering.clear()
        best: dict[str, list[WorkerChunk]] = {}
        for name, site in self.tops.items():
            writer = WorkerWriter(self.folder / f"pass_own_{name}_{entering.key(batch)}", site.spec)
            writer.fill(getattr(tops, name))
            best[name] = writer.written
        scores = [laid for writer in made for laid in writer.written]
        return Computed(steps, entering.notes[entering.key(batch)], scores, best)


def stream_of(graph: CsrGraph, memory: int, limit: int) -> Stream:
    """The graph, beside so much memory that is needed and may be used.

    Its pages are given back where there is not that much left for it, and it is read past the page cache where the machine has
    not that much left either.
    """
    size = bytes_of(graph)
    return Stream(graph, let_go=size > limit - memory, past_cache=size > available_bytes() - memory)


def _on_disk(draft: Draft, name: str, values: NDArray[Any]) -> ArrayWriter:
    writer = draft.scratch(name, values.shape, values.dtype.name)
    writer.fill(values)
    return writer

"""What a diffusion keeps in its draft as it goes, so that a killed run loses at most one iteration of one batch.

Scores are kept batch by batch, each a scratch array of planes. S is kept after an iteration where that took long enough to be
worth it: what is not kept can be had again in less than KEEP_SECONDS. It goes to the disk while the next iteration reads it.
What others compute of a batch is kept when it is done.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import takewhile
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.engine.coupled import CoupledProducts
from mmdiff.diffusion.engine.independent import Step
from mmdiff.diffusion.engine.run import Diffusion, Keeper, Report
from mmdiff.diffusion.engine.states import Matrix
from mmdiff.diffusion.engine.top_classes import TopClasses
from mmdiff.diffusion.io.spill import Sheet, read_back, rows_per_chunk
from mmdiff.formats.storage.direct import page_aligned
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.publish import ArrayWriter, Draft
from mmdiff.formats.store.worker_chunks import WorkerChunk, adopt
from mmdiff.runtime.threads import in_threads

KEEP_SECONDS = 5.0


class Entering(Keeper):
    """Enters what reports say: the scores of a batch into its part, statistics into notes, the best classes into `tops`."""

    def __init__(
        self, diffusion: Diffusion, planes: list[int], tops: TopClasses | None, declare: Callable[..., ArrayWriter]
    ) -> None:
        self.diffusion, self.planes, self.tops, self._declare = diffusion, planes, tops, declare
        self.notes: dict[str, list[Json]] = {}
        self._parts: dict[int, ArrayWriter] = {}

    def key(self, batch: int) -> str:
        """Batches are known by their columns: a run with other batches does not mistake them for its own."""
        columns = self.diffusion.batches[batch]
        return f"{columns.start}_{columns.stop}"

    def enter(self, report: Report) -> None:
        """Keeps what a report says of the test points, and of all nodes after the last iteration."""
        key = self.key(report.batch)
        steps = self.notes.setdefault(key, [])
        del steps[report.iteration :]
        steps.append({"nonzero": report.nonzero, "rows": report.computed, "sums": report.sums.tolist()})
        if self.diffusion.neighbors is not None and report.iteration in self.planes:
            self._write_scores(report, self.diffusion.neighbors)
        if report.iteration == self.diffusion.iterations and self.tops is not None:
            self.tops.enter(report.block, self.diffusion.columns(report.batch))

    def part(self, batch: int) -> ArrayWriter:
        """The scores of a batch: planes, test points, columns."""
        if batch not in self._parts:
            tests = 0 if self.diffusion.neighbors is None else len(self.diffusion.neighbors)
            shape = (len(self.planes), tests, len(self.diffusion.columns(batch)))
            self._parts[batch] = self._declare(f"pass_scores_{self.key(batch)}", shape, "float32")
        return self._parts[batch]

    def _write_scores(self, report: Report, neighbors: NDArray[np.uint32]) -> None:
        writer = self.part(report.batch)
        plane = self.planes.index(report.iteration)
        tests, per_plane = len(neighbors), writer.spec.chunks_per_plane

        def write(chunk: int) -> None:
            first, stop = (row - plane * tests for row in writer.spec.rows(chunk))
            writer.write(chunk, report.scores(neighbors[first:stop]))

        own = range(plane * per_plane, (plane + 1) * per_plane)
        for _ in in_threads(write, [chunk for chunk in own if chunk not in writer.crcs]):
            pass


class Kept(Entering):
    """Scores, statistics and states of the batches, in the draft."""

    def __init__(self, draft: Draft, diffusion: Diffusion, planes: list[int], every_row: bool) -> None:
        super().__init__(diffusion, planes, None, draft.scratch)
        self.draft = draft
        # The best classes that were kept are those of all batches so far, whose borders must be the same.
        noted = draft.noted if draft.noted.get("width") == diffusion.width else {}
        self.notes = noted.get("steps", {})
        self.done: list[str] = self._still_whole(noted.get("done", []))
        self.tops = self._kept_top_classes() if every_row else None
        self._clock = time.perf_counter()
        self._sheets: dict[str, ArrayWriter] = {}
        self._pool, self._stopped = ThreadPoolExecutor(1), threading.Event()
        self._writing: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopped.set()
        self._pool.shutdown()

    @property
    def todo(self) -> list[int]:
        return [batch for batch in range(len(self.diffusion.batches)) if not self.is_done(batch)]

    def is_done(self, batch: int) -> bool:
        return self.key(batch) in self.done

    def resume(self, batch: int) -> tuple[int, NDArray[Any]] | None:
        self._clock = time.perf_counter()
        for iteration in range(self.diffusion.iterations - 1, 0, -1):
            name = self._state(batch, iteration)
            if self.draft.has(name) and self.knows(batch, iteration + 1):
                writer = self._declare_state(name, batch)
                if not writer.missing:
                    self.notes[self.key(batch)] = self.notes[self.key(batch)][: iteration + 1]
                    state = page_aligned((writer.spec.shape[0], writer.spec.shape[1]), writer.spec.dtype)
                    read_back(writer, state)
                    return iteration, state
        self.notes[self.key(batch)] = []
        return None

    def sheet(self, batch: int) -> Sheet:
        """What is on disk anyway is what a killed run continues from."""

        def declare(iteration: int) -> ArrayWriter:
            name = self._state(batch, iteration)
            # Of a run that was killed while it wrote it.
            self.draft.drop(name)
            self._sheets[name] = self._declare_state(name, batch)
            return self._sheets[name]

        return declare

    def keep(self, batch: int, step: Step) -> None:
        """Begins to write S, which nobody changes before the iteration after the next one, or this is called again."""
        self._settle()
        name = self._state(batch, step.iteration)
        quick = time.perf_counter() - self._clock < KEEP_SECONDS
        if not isinstance(step.state, Matrix) or (quick and name not in self._sheets):
            return
        writer = self._sheets.pop(name, None)
        by_way_of_disk = writer is not None
        if writer is not None and self.diffusion.variant.gamma is not None:
            # What was written is the product, before it was raised to a power.
            self.draft.drop(name)
            writer = None
        # What is said of the iteration comes first: S counts once all of it is there.
        self.note()
        self._writing = self._pool.submit(
            self._write_state, writer or self._declare_state(name, batch), step.state.values, batch, step.iteration
        )
        if by_way_of_disk:
            # There is only one matrix, and the next iteration ends in it.
            self._settle()
        self._clock = time.perf_counter()

    def _write_state(self, writer: ArrayWriter, values: NDArray[Any], batch: int, iteration: int) -> None:
        for chunk in writer.missing:
            if self._stopped.is_set():
                return
            writer.write(chunk, values[slice(*writer.spec.rows(chunk))], cached=False)
        for before in range(iteration):
            self.draft.drop(self._state(batch, before))

    def _settle(self) -> None:
        """Waits for what is being written: the matrix is needed."""
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def knows(self, batch: int, iterations: int) -> bool:
        """Whether all that there is to say of the first iterations of a batch is kept, and still whole."""
        if len(self.notes.get(self.key(batch), [])) < iterations:
            return False
        if self.diffusion.neighbors is None:
            return True
        writer = self.part(batch)
        behind = sum(plane < iterations for plane in self.planes) * writer.spec.chunks_per_plane
        return all(chunk >= behind for chunk in writer.missing)

    def note(self) -> None:
        self.draft.note({"width": self.diffusion.width, "steps": self.notes, "done": self.done})

    def finish(self, batch: int) -> None:
        """Notes that a batch is done."""
        self._settle()
        if self.tops is not None:
            for name, values in vars(self.tops).items():
                kept = f"pass_top_{name}_{self.key(batch)}"
                # Of a run that was killed before it noted it, when other batches may have been done.
                self.draft.drop(kept)
                self.draft.scratch(kept, values.shape, values.dtype.name).fill(values)
        self.done.append(self.key(batch))
        self.note()
        for iteration in range(1, self.diffusion.iterations + 1):
            self.draft.drop(self._state(batch, iteration))
        self._sheets.clear()
        if len(self.done) > 1 and self.tops is not None:
            for name in vars(self.tops):
                self.draft.drop(f"pass_top_{name}_{self.done[-2]}")

    def own_top_classes(self, batch: int) -> dict[str, ArrayWriter]:
        """Where those who compute one batch elsewhere write the best classes of it alone."""
        if self.tops is None:
            return {}
        arrays = vars(self.tops).items()
        return {
            name: self.draft.scratch(f"pass_own_{name}_{self.key(batch)}", values.shape, values.dtype.name)
            for name, values in arrays
        }

    def take(self, batch: int, notes: list[Json], scores: list[WorkerChunk], tops: dict[str, list[WorkerChunk]]) -> None:
        """Keeps a batch that was computed elsewhere."""
        self.notes[self.key(batch)] = notes
        adopt(self.part(batch), scores)
        own = self.own_top_classes(batch)
        for name, writer in own.items():
            adopt(writer, tops[name])
        if self.tops is not None:
            self.tops.merge(TopClasses(**{name: writer.mapped() for name, writer in own.items()}))
        self.finish(batch)
        for name in own:
            self.draft.drop(f"pass_own_{name}_{self.key(batch)}")

    def _still_whole(self, done: list[str]) -> list[str]:
        """Of the batches that are done, in the order in which they were, those before the first that is damaged."""
        batches = {self.key(batch): batch for batch in range(len(self.diffusion.batches))}
        after = self.diffusion.iterations + 1
        return list(takewhile(lambda key: key in batches and self.knows(batches[key], after), done))

    def _kept_top_classes(self) -> TopClasses:
        """The best classes of the batches that are done."""
        tops = TopClasses.empty(self.diffusion.stream.graph.nodes, self.diffusion.seeds.classes)
        for name, values in vars(tops).items() if self.done else ():
            kept = self.draft.scratch(f"pass_top_{name}_{self.done[-1]}", values.shape, values.dtype.name)
            if kept.missing:
                self.done = []
                return TopClasses.empty(len(values), self.diffusion.seeds.classes)
            values[:] = kept.mapped()
        return tops

    def _state(self, batch: int, iteration: int) -> str:
        return f"pass_state_{self.key(batch)}_{iteration}"

    def _declare_state(self, name: str, batch: int) -> ArrayWriter:
        width = self.diffusion.batches[batch].stop - self.diffusion.batches[batch].start
        shape, dtype = (self.diffusion.stream.graph.nodes, width), self.diffusion.variant.stored_dtype
        return self.draft.scratch(name, shape, dtype, rows_per_chunk(shape, dtype))


class ProductsOnDisk(CoupledProducts):
    """The products of coupled operators, as scratch arrays of the draft."""

    def __init__(self, draft: Draft, kept: Kept) -> None:
        self.draft, self.kept = draft, kept
        self._mapped: dict[tuple[int, int], NDArray[np.float32]] = {}

    def get(self, iteration: int, batch: int) -> NDArray[np.float32] | None:
        """A product is only taken for there if what came before it is known, since nobody will look at that again."""
        found = self._mapped.get((iteration, batch))
        if found is None and self.draft.has(self._name(iteration, batch)) and self.kept.knows(batch, iteration):
            writer = self._declare(iteration, batch)
            found = None if writer.missing else writer.mapped()
            if found is not None:
                self._mapped[iteration, batch] = found
        return found

    def put(self, iteration: int, batch: int, values: NDArray[np.float32]) -> None:
        writer = self._declare(iteration, batch)
        for _ in in_threads(lambda chunk: writer.write(chunk, values[slice(*writer.spec.rows(chunk))]), writer.missing):
            pass
        self.kept.note()

    def drop(self, iteration: int) -> None:
        for key in [key for key in self._mapped if key[0] == iteration]:
            del self._mapped[key]
            self.draft.drop(self._name(*key))

    def _name(self, iteration: int, batch: int) -> str:
        return f"pass_product_{self.kept.key(batch)}_{iteration}"

    def _declare(self, iteration: int, batch: int) -> ArrayWriter:
        columns = self.kept.diffusion.batches[batch]
        shape = (self.kept.diffusion.stream.graph.nodes, columns.stop - columns.start)
        return self.draft.scratch(self._name(iteration, batch), shape, "float32")

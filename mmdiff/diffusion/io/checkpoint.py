"""Checkpoints of a diffusion in its draft, so that a killed run repeats at most one iteration of one batch.

Scores are stored batch by batch, each a scratch array of (iterations, test points, columns). S, a matrix or a frontier, is
saved after an iteration that took long enough; work that is not saved takes less than CHECKPOINT_SECONDS to repeat. S is
written while the next iteration reads it. Batches that workers compute are saved when they are done.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import takewhile
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.engine.coupled import CoupledProducts
from mmdiff.diffusion.engine.independent import Step
from mmdiff.diffusion.engine.run import Checkpoint, Diffusion, IterationResult
from mmdiff.diffusion.engine.states import Frontier, Matrix, State
from mmdiff.diffusion.engine.top_classes import TopClasses
from mmdiff.diffusion.io.spill import SpillFile, read_back, rows_per_chunk
from mmdiff.formats.storage.direct import page_aligned
from mmdiff.formats.store.array_writer import ArrayWriter
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.worker_chunks import WorkerChunk, adopt
from mmdiff.runtime.threads import in_threads

CHECKPOINT_SECONDS = 5.0


class Workspace(Protocol):
    """Holds the scratch arrays and the noted progress of a diffusion: a draft, or a part of one."""

    def scratch(self, name: str, shape: tuple[int, ...], dtype: str, rows_per_chunk: int | None = None) -> ArrayWriter: ...

    def drop(self, scratch: str) -> None: ...

    def has(self, scratch: str) -> bool: ...

    def note(self, note: Json) -> None: ...

    @property
    def noted(self) -> Json: ...


class Recorder(Checkpoint):
    """Records results: the scores of each batch in an array, statistics in `statistics`, and the top classes of the nodes.

    `declare` makes the array of a batch. Scores are recorded for `iterations`.
    """

    def __init__(
        self,
        diffusion: Diffusion,
        iterations: list[int],
        top_classes: TopClasses | None,
        declare: Callable[..., ArrayWriter],
    ) -> None:
        self.diffusion, self.iterations, self.top_classes, self._declare = diffusion, iterations, top_classes, declare
        self.statistics: dict[str, list[Json]] = {}
        self._scores: dict[int, ArrayWriter] = {}

    def key(self, batch: int) -> str:
        """The name of a batch: its columns, so that a run with other batches does not take it for one of its own."""
        columns = self.diffusion.batches[batch]
        return f"{columns.start}_{columns.stop}"

    def record(self, result: IterationResult) -> None:
        """Records the scores and statistics of a result, and after the last iteration the top classes of the nodes."""
        steps = self.statistics.setdefault(self.key(result.batch), [])
        del steps[result.iteration :]
        steps.append({"nonzero": result.nonzero, "rows": result.computed, "sums": result.sums.tolist()})
        if self.diffusion.neighbors is not None and result.iteration in self.iterations:
            self._write_scores(result, self.diffusion.neighbors)
        if result.iteration == self.diffusion.iterations and self.top_classes is not None:
            self.top_classes.add(result.block, self.diffusion.columns(result.batch))

    def scores(self, batch: int) -> ArrayWriter:
        """The array of the scores of a batch: iterations, test points, columns."""
        if batch not in self._scores:
            tests = 0 if self.diffusion.neighbors is None else len(self.diffusion.neighbors)
            shape = (len(self.iterations), tests, len(self.diffusion.columns(batch)))
            self._scores[batch] = self._declare(f"pass_scores_{self.key(batch)}", shape, "float32")
        return self._scores[batch]

    def _write_scores(self, result: IterationResult, neighbors: NDArray[np.uint32]) -> None:
        writer = self.scores(result.batch)
        place = self.iterations.index(result.iteration)
        tests, per_iteration = len(neighbors), writer.spec.chunks_per_plane

        def write(chunk: int) -> None:
            first, stop = (row - place * tests for row in writer.spec.rows(chunk))
            writer.write(chunk, result.scores(neighbors[first:stop]))

        chunks = range(place * per_iteration, (place + 1) * per_iteration)
        for _ in in_threads(write, [chunk for chunk in chunks if chunk not in writer.crcs]):
            pass


class DraftCheckpoint(Recorder):
    """Records scores, statistics and states in the draft, and resumes from them."""

    def __init__(self, draft: Workspace, diffusion: Diffusion, iterations: list[int], every_row: bool) -> None:
        super().__init__(diffusion, iterations, None, draft.scratch)
        self.draft = draft
        # Saved top classes cover all finished batches together, so the batches must have the same borders.
        noted = draft.noted if draft.noted.get("width") == diffusion.width else {}
        self.statistics = noted.get("steps", {})
        self.done: list[str] = self._undamaged(noted.get("done", []))
        self.top_classes = self._saved_top_classes() if every_row else None
        self._clock = time.perf_counter()
        self._spilled: dict[str, ArrayWriter] = {}
        self._pool, self._stopped = ThreadPoolExecutor(1), threading.Event()
        self._writing: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopped.set()
        self._pool.shutdown()

    @property
    def todo(self) -> list[int]:
        """The batches that are not done."""
        return [batch for batch in range(len(self.diffusion.batches)) if not self.is_done(batch)]

    def is_done(self, batch: int) -> bool:
        return self.key(batch) in self.done

    def resume(self, batch: int) -> tuple[int, State] | None:
        self._clock = time.perf_counter()
        for iteration in range(self.diffusion.iterations - 1, 0, -1):
            if self.has_recorded(batch, iteration + 1):
                state = self._saved_matrix(batch, iteration) or self._saved_frontier(batch, iteration)
                if state is not None:
                    self.statistics[self.key(batch)] = self.statistics[self.key(batch)][: iteration + 1]
                    return iteration, state
        self.statistics[self.key(batch)] = []
        return None

    def _saved_matrix(self, batch: int, iteration: int) -> Matrix | None:
        name = self._state(batch, iteration)
        writer = self._declare_state(name, batch) if self.draft.has(name) else None
        if writer is None or writer.missing:
            return None
        values = page_aligned((writer.spec.shape[0], writer.spec.shape[1]), writer.spec.dtype)
        read_back(writer, values)
        return Matrix(values)

    def _saved_frontier(self, batch: int, iteration: int) -> Frontier | None:
        if not all(map(self.draft.has, self._frontier(batch, iteration))):
            return None
        writers = self._declare_frontier(batch, iteration, self.statistics[self.key(batch)][iteration]["nonzero"])
        if any(writer.missing for writer in writers):
            return None
        # Copies: kernels are compiled for arrays that may be written.
        offsets, columns, values = (np.array(writer.mapped()) for writer in writers)
        return Frontier(offsets, columns, values, len(self.diffusion.columns(batch)))

    def spill_file(self, batch: int) -> SpillFile:
        """The spill file doubles as the checkpoint."""

        def declare(iteration: int) -> ArrayWriter:
            name = self._state(batch, iteration)
            # A run that was killed may have left an incomplete one.
            self.draft.drop(name)
            self._spilled[name] = self._declare_state(name, batch)
            return self._spilled[name]

        return declare

    def save(self, batch: int, step: Step) -> None:
        """Starts writing S, which does not change before the iteration after the next, nor before the next call."""
        self._settle()
        name = self._state(batch, step.iteration)
        quick = time.perf_counter() - self._clock < CHECKPOINT_SECONDS
        if isinstance(step.state, Frontier) and step.nonzero and not quick:
            self.note()
            self._writing = self._pool.submit(self._write_frontier, step.state, batch, step.iteration)
            self._clock = time.perf_counter()
            return
        if not isinstance(step.state, Matrix) or (quick and name not in self._spilled):
            return
        writer = self._spilled.pop(name, None)
        spilled = writer is not None
        if writer is not None and self.diffusion.variant.gamma is not None:
            # The spill file holds the product before it was raised to a power.
            self.draft.drop(name)
            writer = None
        # Statistics come first: S is a checkpoint once all of it is written.
        self.note()
        self._writing = self._pool.submit(
            self._write_state, writer or self._declare_state(name, batch), step.state.values, batch, step.iteration
        )
        if spilled:
            # There is only one matrix, and the next iteration overwrites it.
            self._settle()
        self._clock = time.perf_counter()

    def _write_state(self, writer: ArrayWriter, values: NDArray[Any], batch: int, iteration: int) -> None:
        for chunk in writer.missing:
            if self._stopped.is_set():
                return
            writer.write(chunk, values[slice(*writer.spec.rows(chunk))], cached=False)
        self._drop_states(batch, range(iteration))

    def _write_frontier(self, frontier: Frontier, batch: int, iteration: int) -> None:
        parts: list[NDArray[Any]] = [frontier.offsets, frontier.columns, frontier.values]
        for writer, values in zip(self._declare_frontier(batch, iteration, len(frontier.values)), parts, strict=True):
            for chunk in writer.missing:
                if self._stopped.is_set():
                    return
                writer.write(chunk, values[slice(*writer.spec.rows(chunk))], cached=False)
        self._drop_states(batch, range(iteration))

    def _drop_states(self, batch: int, iterations: Iterable[int]) -> None:
        for iteration in iterations:
            self.draft.drop(self._state(batch, iteration))
            for name in self._frontier(batch, iteration):
                self.draft.drop(name)

    def _settle(self) -> None:
        """Waits until S is written, so that its matrix may be overwritten."""
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def has_recorded(self, batch: int, iterations: int) -> bool:
        """Whether statistics and scores of the first iterations of a batch are recorded and undamaged."""
        if len(self.statistics.get(self.key(batch), [])) < iterations:
            return False
        if self.diffusion.neighbors is None:
            return True
        writer = self.scores(batch)
        recorded = sum(iteration < iterations for iteration in self.iterations) * writer.spec.chunks_per_plane
        return all(chunk >= recorded for chunk in writer.missing)

    def note(self) -> None:
        """Writes the progress to the draft."""
        self.draft.note({"width": self.diffusion.width, "steps": self.statistics, "done": self.done})

    def finish(self, batch: int) -> None:
        """Marks a batch as done, saves the top classes, and removes its states."""
        self._settle()
        if self.top_classes is not None:
            for name, values in vars(self.top_classes).items():
                saved = f"pass_top_{name}_{self.key(batch)}"
                # A run that was killed before it noted this may have left one, made from other batches.
                self.draft.drop(saved)
                self.draft.scratch(saved, values.shape, values.dtype.name).fill(values)
        self.done.append(self.key(batch))
        self.note()
        self._drop_states(batch, range(1, self.diffusion.iterations + 1))
        self._spilled.clear()
        if len(self.done) > 1 and self.top_classes is not None:
            for name in vars(self.top_classes):
                self.draft.drop(f"pass_top_{name}_{self.done[-2]}")

    def worker_top_classes(self, batch: int) -> dict[str, ArrayWriter]:
        """The arrays that a worker writes the top classes of one batch to."""
        if self.top_classes is None:
            return {}
        arrays = vars(self.top_classes).items()
        return {
            name: self.draft.scratch(f"pass_own_{name}_{self.key(batch)}", values.shape, values.dtype.name)
            for name, values in arrays
        }

    def take(
        self, batch: int, statistics: list[Json], scores: list[WorkerChunk], top_classes: dict[str, list[WorkerChunk]]
    ) -> None:
        """Takes over a batch that a worker computed."""
        self.statistics[self.key(batch)] = statistics
        adopt(self.scores(batch), scores)
        written = self.worker_top_classes(batch)
        for name, writer in written.items():
            adopt(writer, top_classes[name])
        if self.top_classes is not None:
            self.top_classes.merge(TopClasses(**{name: writer.mapped() for name, writer in written.items()}))
        self.finish(batch)
        for name in written:
            self.draft.drop(f"pass_own_{name}_{self.key(batch)}")

    def _undamaged(self, done: list[str]) -> list[str]:
        """The finished batches, in the order in which they finished, before the first one that is damaged."""
        batches = {self.key(batch): batch for batch in range(len(self.diffusion.batches))}
        after = self.diffusion.iterations + 1
        return list(takewhile(lambda key: key in batches and self.has_recorded(batches[key], after), done))

    def _saved_top_classes(self) -> TopClasses:
        """The top classes of the finished batches."""
        best = TopClasses.empty(self.diffusion.stream.graph.nodes, self.diffusion.seeds.classes)
        for name, values in vars(best).items() if self.done else ():
            saved = self.draft.scratch(f"pass_top_{name}_{self.done[-1]}", values.shape, values.dtype.name)
            if saved.missing:
                self.done = []
                return TopClasses.empty(len(values), self.diffusion.seeds.classes)
            values[:] = saved.mapped()
        return best

    def _state(self, batch: int, iteration: int) -> str:
        return f"pass_state_{self.key(batch)}_{iteration}"

    def _frontier(self, batch: int, iteration: int) -> list[str]:
        """The arrays of a saved frontier."""
        return [f"pass_frontier_{self.key(batch)}_{iteration}_{name}" for name in ("offsets", "columns", "values")]

    def _declare_frontier(self, batch: int, iteration: int, entries: int) -> list[ArrayWriter]:
        arrays = ((self.diffusion.stream.graph.nodes + 1, "int64"), (entries, "int32"), (entries, "float32"))
        names = self._frontier(batch, iteration)
        return [self.draft.scratch(name, (size,), dtype) for name, (size, dtype) in zip(names, arrays, strict=True)]

    def _declare_state(self, name: str, batch: int) -> ArrayWriter:
        width = self.diffusion.batches[batch].stop - self.diffusion.batches[batch].start
        shape, dtype = (self.diffusion.stream.graph.nodes, width), self.diffusion.variant.stored_dtype
        return self.draft.scratch(name, shape, dtype, rows_per_chunk(shape, dtype))


class ProductsOnDisk(CoupledProducts):
    """Coupled products as scratch arrays of the draft."""

    def __init__(self, draft: Workspace, checkpoint: DraftCheckpoint) -> None:
        self.draft, self.checkpoint = draft, checkpoint
        self._mapped: dict[tuple[int, int], NDArray[np.float32]] = {}

    def get(self, iteration: int, batch: int) -> NDArray[np.float32] | None:
        """A product counts only if the results before it are recorded, since a resumed run does not compute those again."""
        found = self._mapped.get((iteration, batch))
        stored = found is None and self.draft.has(self._name(iteration, batch))
        if stored and self.checkpoint.has_recorded(batch, iteration):
            writer = self._declare(iteration, batch)
            found = None if writer.missing else writer.mapped()
            if found is not None:
                self._mapped[iteration, batch] = found
        return found

    def put(self, iteration: int, batch: int, values: NDArray[np.float32]) -> None:
        writer = self._declare(iteration, batch)
        for _ in in_threads(lambda chunk: writer.write(chunk, values[slice(*writer.spec.rows(chunk))]), writer.missing):
            pass
        self.checkpoint.note()

    def drop(self, iteration: int) -> None:
        for key in [key for key in self._mapped if key[0] == iteration]:
            del self._mapped[key]
            self.draft.drop(self._name(*key))

    def _name(self, iteration: int, batch: int) -> str:
        return f"pass_product_{self.checkpoint.key(batch)}_{iteration}"

    def _declare(self, iteration: int, batch: int) -> ArrayWriter:
        columns = self.checkpoint.diffusion.batches[batch]
        shape = (self.checkpoint.diffusion.stream.graph.nodes, columns.stop - columns.start)
        return self.draft.scratch(self._name(iteration, batch), shape, "float32")

"""What a diffusion keeps in its draft as it goes, so that a killed run loses at most one iteration of one batch.

Scores are kept batch by batch, each a scratch array of planes. S is kept after an iteration where that took long enough to be
worth it: what is not kept can be had again in less than KEEP_SECONDS.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.batch import Step
from mmdiff.diffusion.coupled import Plates
from mmdiff.diffusion.engine import Diffusion, Keeper, Report
from mmdiff.diffusion.states import Matrix
from mmdiff.diffusion.tops import Tops
from mmdiff.formats.manifest import Json
from mmdiff.formats.publish import ArrayWriter, Draft
from mmdiff.parallel import in_threads

KEEP_SECONDS = 5.0


class Kept(Keeper):
    """Scores, statistics and states of the batches, in the draft."""

    def __init__(self, draft: Draft, diffusion: Diffusion, planes: list[int], every_row: bool) -> None:
        self.draft, self.diffusion, self.planes = draft, diffusion, planes
        self.notes: dict[str, list[Json]] = draft.noted.get("steps", {})
        self.done: list[str] = draft.noted.get("done", [])
        self.tops = self._kept_tops() if every_row else None
        self._clock = time.perf_counter()

    def key(self, batch: int) -> str:
        """Batches are known by their columns: a run with other batches does not mistake them for its own."""
        columns = self.diffusion.batches[batch]
        return f"{columns.start}_{columns.stop}"

    def is_done(self, batch: int) -> bool:
        return self.key(batch) in self.done

    def resume(self, batch: int) -> tuple[int, NDArray[Any]] | None:
        self._clock = time.perf_counter()
        for iteration in range(self.diffusion.iterations - 1, 0, -1):
            name = self._state(batch, iteration)
            if self.draft.has(name) and len(self.notes.get(self.key(batch), [])) > iteration:
                writer = self._declare_state(name, batch)
                if not writer.missing:
                    self.notes[self.key(batch)] = self.notes[self.key(batch)][: iteration + 1]
                    return iteration, np.array(writer.mapped())
        self.notes[self.key(batch)] = []
        return None

    def keep(self, batch: int, step: Step) -> None:
        if not isinstance(step.state, Matrix) or time.perf_counter() - self._clock < KEEP_SECONDS:
            return
        writer = self._declare_state(self._state(batch, step.iteration), batch)
        values = step.state.values
        for _ in in_threads(lambda chunk: writer.write(chunk, values[slice(*writer.spec.rows(chunk))]), writer.missing):
            pass
        self._note()
        for before in range(step.iteration):
            self.draft.drop(self._state(batch, before))
        self._clock = time.perf_counter()

    def enter(self, report: Report) -> None:
        """Keeps what a report says of the test points, and of all nodes after the last iteration."""
        key = self.key(report.batch)
        steps = self.notes.setdefault(key, [])
        del steps[report.iteration :]
        steps.append({"nonzero": report.nonzero, "rows": report.computed, "sums": report.sums.tolist()})
        if self.diffusion.neighbors is not None and report.iteration in self.planes:
            self._write_scores(report, self.diffusion.neighbors)
        if report.iteration == self.diffusion.iterations:
            if self.tops is not None:
                self.tops.enter(report.block, self.diffusion.columns(report.batch))
            if not self.diffusion.variant.coupled:
                self._finish(report.batch)

    def part(self, batch: int) -> ArrayWriter:
        """The scores of a batch: planes, test points, columns."""
        tests = 0 if self.diffusion.neighbors is None else len(self.diffusion.neighbors)
        width = self.diffusion.batches[batch].stop - self.diffusion.batches[batch].start
        return self.draft.scratch(f"pass_scores_{self.key(batch)}", (len(self.planes), tests, width), "float32")

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

    def _finish(self, batch: int) -> None:
        if self.tops is not None:
            for name, values in vars(self.tops).items():
                self.draft.scratch(f"pass_{name}_{batch}", values.shape, values.dtype.name).fill(values)
        self.done.append(self.key(batch))
        self._note()
        for iteration in range(1, self.diffusion.iterations):
            self.draft.drop(self._state(batch, iteration))
        for name in ("classes", "scores"):
            self.draft.drop(f"pass_{name}_{batch - 1}")

    def _kept_tops(self) -> Tops:
        """The best classes of the batches that are done."""
        tops = Tops.empty(self.diffusion.stream.graph.nodes, self.diffusion.seeds.classes)
        finished = [batch for batch in range(len(self.diffusion.batches)) if self.is_done(batch)]
        for name, values in vars(tops).items() if finished else ():
            kept = self.draft.scratch(f"pass_{name}_{finished[-1]}", values.shape, values.dtype.name)
            if kept.missing:
                self.done = []
                return Tops.empty(len(values), self.diffusion.seeds.classes)
            values[:] = kept.mapped()
        return tops

    def _note(self) -> None:
        self.draft.note({"steps": self.notes, "done": self.done})

    def _state(self, batch: int, iteration: int) -> str:
        return f"pass_state_{self.key(batch)}_{iteration}"

    def _declare_state(self, name: str, batch: int) -> ArrayWriter:
        width = self.diffusion.batches[batch].stop - self.diffusion.batches[batch].start
        dtype = "float32" if self.diffusion.variant.dtype == "float32" else "uint16"
        return self.draft.scratch(name, (self.diffusion.stream.graph.nodes, width), dtype)


class OnDisk(Plates):
    """The products of coupled operators, as scratch arrays of the draft."""

    def __init__(self, draft: Draft, kept: Kept) -> None:
        self.draft, self.kept = draft, kept
        self._mapped: dict[tuple[int, int], NDArray[np.float32]] = {}

    def get(self, iteration: int, batch: int) -> NDArray[np.float32] | None:
        if (iteration, batch) not in self._mapped and self.draft.has(self._name(iteration, batch)):
            writer = self._declare(iteration, batch)
            if not writer.missing:
                self._mapped[iteration, batch] = writer.mapped()
        return self._mapped.get((iteration, batch))

    def put(self, iteration: int, batch: int, values: NDArray[np.float32]) -> None:
        writer = self._declare(iteration, batch)
        for _ in in_threads(lambda chunk: writer.write(chunk, values[slice(*writer.spec.rows(chunk))]), writer.missing):
            pass
        self.kept.draft.note({"steps": self.kept.notes, "done": []})

    def drop(self, iteration: int) -> None:
        for key in [key for key in self._mapped if key[0] == iteration]:
            del self._mapped[key]
            self.draft.drop(self._name(*key))

    def _name(self, iteration: int, batch: int) -> str:
        return f"pass_plate_{self.kept.key(batch)}_{iteration}"

    def _declare(self, iteration: int, batch: int) -> ArrayWriter:
        columns = self.kept.diffusion.batches[batch]
        shape = (self.kept.diffusion.stream.graph.nodes, columns.stop - columns.start)
        return self.draft.scratch(self._name(iteration, batch), shape, "float32")

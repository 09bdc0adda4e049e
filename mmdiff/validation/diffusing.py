"""The diffusion of all folds: held-out scores of labelled rows, each from the labels that are not in its fold.

Where columns are independent, all folds are columns of one diffusion: column (fold, class) starts from the labels of the class
that are not in the fold, so that each pass over the graph serves all folds. Operators that couple the classes of a node, and
seeds that are reset to their labels, depend on all columns of a diffusion; there each fold is a diffusion of its own, one after
the other, as it is where there are very many labels. Held-out rows are read like test points that are nodes: the list of each
is the node itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.engine.run import Diffusion
from mmdiff.diffusion.io.checkpoint import DraftCheckpoint
from mmdiff.diffusion.planning.memory_model import Footprint
from mmdiff.diffusion.prepared import Attempts, Prepared, Request, run_batches, write_scores
from mmdiff.diffusion.problem import Problem
from mmdiff.diffusion.seeds import Seeds
from mmdiff.formats.storage import seam
from mmdiff.formats.storage.arrays import ArraySpec
from mmdiff.formats.store.array_writer import ArrayWriter
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.publish import Draft
from mmdiff.formats.store.store import Artifact
from mmdiff.graph.graph import CsrGraph
from mmdiff.labels.classes import UNLABELLED, Classes
from mmdiff.runtime.executor import Executor
from mmdiff.runtime.progress import Progress
from mmdiff.validation.folds import Folds

Announce = Callable[[Footprint], None]

# The most bytes of scores that batches of all folds together may leave on disk before they are put together: each row has the
# columns of all folds there, of which it keeps those of its own. Folds of so many labels fill batches by themselves.
MOST_TOGETHER = 4 << 30


@dataclass(frozen=True)
class FoldsOfNodes:
    """Labelled nodes in folds, on a graph. `labels` are (nodes, labels per node), UNLABELLED for fewer."""

    graph: CsrGraph
    W: Artifact
    nodes: NDArray[np.int64]
    labels: NDArray[np.int32]
    classes: Classes
    folds: Folds

    @property
    def held_out(self) -> NDArray[np.int32]:
        """The fold of each held-out row."""
        return self.folds.fold[self.folds.held_out]

    def seeds(self, fold: int) -> Seeds:
        """Y of one fold: the labels that are not in it."""
        training = self.folds.training(fold)
        return Seeds.of(self.nodes[training], self.labels[training], len(self.classes))

    def all_seeds(self) -> Seeds:
        """Y of all folds side by side: column fold * classes + class."""
        count, classes = self.folds.count, len(self.classes)
        training = [self.folds.training(fold) for fold in range(count)]
        labels = [
            np.where(own == UNLABELLED, UNLABELLED, own + fold * classes)
            for fold, own in enumerate(self.labels[rows] for rows in training)
        ]
        nodes = np.concatenate([self.nodes[rows] for rows in training])
        return Seeds.of(nodes, np.concatenate(labels).astype(np.int32), count * classes)

    def problem(self, seeds: Seeds, read: NDArray[np.int64]) -> Problem:
        """The inputs of a diffusion from these seeds, whose scores are read at some of the labelled nodes."""
        return Problem(
            graph=self.graph,
            W=self.W,
            collection=self.W.manifest.facts["background"] + self.W.manifest.facts.get("appended", 0),
            seeds=seeds,
            classes=self.classes,
            neighbors=self.nodes[read].astype(np.uint32)[:, None],
            inputs={},
        )


@dataclass(frozen=True)
class AllFolds:
    """The diffusions of all folds: one for all of them, or one for each, where columns depend on each other."""

    request: Request
    given: FoldsOfNodes
    workers: int = 1

    @property
    def separate(self) -> bool:
        """Whether each fold is a diffusion of its own. Where it need not be, the scores are the same to the bit."""
        together = 4 * math.prod(self.shape) * self.given.folds.count
        return self.request.variant.coupled or self.request.reset_seeds or together > MOST_TOGETHER

    @cached_property
    def priors(self) -> list[NDArray[np.float64]]:
        """The prior of the classes in each fold."""
        return [self.request.prior_of(self.given.seeds(fold)) for fold in range(self.given.folds.count)]

    @cached_property
    def first(self) -> Prepared:
        """The diffusion of all folds, or of the first one; refused where it does not fit in memory. The others are alike."""
        if self.separate:
            return self._prepared(0)
        problem = self.given.problem(self.given.all_seeds(), self.given.folds.held_out)
        return Prepared.of(self.request, problem, np.concatenate(self.priors), self.workers)

    def _prepared(self, fold: int) -> Prepared:
        """The diffusion of one fold. It is prepared when it is needed, since it may keep rows of W in memory."""
        problem = self.given.problem(self.given.seeds(fold), np.flatnonzero(self.given.folds.fold == fold))
        return Prepared.of(self.request, problem, self.priors[fold], self.workers)

    @property
    def disk(self) -> int:
        """Bytes on disk at the peak: scores of batches and states of one diffusion, and the scores twice."""
        needs = self.first.needs
        return needs.parts + needs.states + 2 * ArraySpec.fit(self.shape, "float32").bytes_on_disk

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the held-out scores."""
        return len(self.request.kept_iterations), len(self.given.folds.held_out), len(self.given.classes)

    def write(self, draft: Draft, announce: Announce, progress: Progress, executor: Executor) -> None:
        """Announces the run, computes what is missing, and writes the array `scores` of the draft."""
        if not self.separate:
            attempts = Attempts(self.first, announce)
            attempts.begin()
            self._write_together(draft, attempts, progress, executor)
            return
        announce(self.first.announced)
        parts = [self._fold_scores(draft, fold, progress, executor) for fold in range(self.given.folds.count)]
        own, writer = self.given.held_out, draft.array("scores", self.shape, "float32")
        # The place of each held-out row among those of its fold.
        places = np.empty(len(own), np.int64)
        for fold in range(len(parts)):
            places[own == fold] = np.arange(np.count_nonzero(own == fold))
        for chunk in writer.missing:
            plane, rows = _rows_of(writer, chunk)
            block = np.empty((rows.stop - rows.start, self.shape[2]), np.float32)
            for fold, part in enumerate(parts):
                mine = own[rows] == fold
                block[mine] = part[plane, places[rows][mine]]
            writer.write(chunk, block)

    def _write_together(self, draft: Draft, attempts: Attempts, progress: Progress, executor: Executor) -> None:
        def finish(diffusion: Diffusion, checkpoint: DraftCheckpoint) -> Json:
            writer = draft.array("scores", self.shape, "float32")
            self._assemble(writer, diffusion, checkpoint)
            return {}

        attempts.run(draft, lambda taken: run_batches(draft, taken, progress, executor, finish)[0])

    def _assemble(self, writer: ArrayWriter, diffusion: Diffusion, checkpoint: DraftCheckpoint) -> None:
        """Keeps the columns of the own fold of each row."""
        own, classes = self.given.held_out, self.shape[2]
        parts = [checkpoint.scores(batch).mapped() for batch in range(len(diffusion.batches))] if writer.missing else []
        for chunk in writer.missing:
            plane, rows = _rows_of(writer, chunk)
            block = np.empty((rows.stop - rows.start, classes), np.float32)
            for batch, part in enumerate(parts):
                folds, columns = np.divmod(diffusion.columns(batch), classes)
                values = part[plane, rows]
                for fold in np.unique(folds):
                    mine, there = np.flatnonzero(own[rows] == fold), np.flatnonzero(folds == fold)
                    block[np.ix_(mine, columns[there])] = values[np.ix_(mine, there)]
            writer.write(chunk, block)

    def _fold_scores(self, draft: Draft, fold: int, progress: Progress, executor: Executor) -> NDArray[np.float32]:
        """The scores of the rows of one fold, from a diffusion of their own; found where an interrupted run made them."""
        rows = int(np.count_nonzero(self.given.held_out == fold))
        writer = draft.scratch(f"fold_scores_{fold}", (self.shape[0], rows, self.shape[2]), "float32")
        part = DraftPart(draft, f"fold_{fold}")

        def finish(diffusion: Diffusion, checkpoint: DraftCheckpoint) -> Json:
            write_scores(writer, diffusion, checkpoint)
            return {}

        if writer.missing:
            attempts = Attempts(self._prepared(fold), _silent)
            attempts.begin()
            attempts.run(part, lambda taken: run_batches(part, taken, progress, executor, finish)[0])
        draft.drop(part.name)
        return writer.mapped()


@dataclass(frozen=True)
class DraftPart:
    """A part of a draft, with scratch arrays and notes of its own, for one of several diffusions that make an artifact.

    Its arrays are in a folder of their own, where workers find them.
    """

    draft: Draft
    name: str

    def __post_init__(self) -> None:
        if self.draft.folder_of(self.name).is_symlink():
            # It would lead out of the draft.
            seam.remove_folder(self.draft.folder_of(self.name))

    def scratch(self, name: str, shape: tuple[int, ...], dtype: str, rows_per_chunk: int | None = None) -> ArrayWriter:
        return self.draft.scratch(f"{self.name}/{name}", shape, dtype, rows_per_chunk)

    def drop(self, scratch: str) -> None:
        self.draft.drop(f"{self.name}/{scratch}")

    def has(self, scratch: str) -> bool:
        return self.draft.has(f"{self.name}/{scratch}")

    def note(self, note: Json) -> None:
        self.draft.note(self.draft.noted | {self.name: note})

    @property
    def noted(self) -> Json:
        found = self.draft.noted.get(self.name)
        return found if isinstance(found, dict) else {}


def every_iteration(request: Request) -> Request:
    """The request of a cross-validation: it keeps all iterations, and needs no scores of other nodes."""
    return replace(request, keep_scores="all", predict_nodes=False)


def _rows_of(writer: ArrayWriter, chunk: int) -> tuple[int, slice]:
    """The plane of a chunk, and its rows in the plane."""
    start, stop = writer.spec.rows(chunk)
    plane, first = divmod(start, writer.spec.shape[1])
    return plane, slice(first, first + stop - start)


def _silent(_: Footprint) -> None:
    """Announces nothing."""

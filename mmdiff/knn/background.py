"""`knn/BB`: the neighbours of the background within the background, computed off-line (block W_BB of the paper, section 3.5).

Rows are in cell order. Each chunk of rows is an independent work unit; chunks on disk are not searched again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, field

import numpy as np

from mmdiff.formats.storage.arrays import page_unit
from mmdiff.formats.store.array_writer import ArrayWriter
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import Draft
from mmdiff.formats.store.store import Artifact
from mmdiff.formats.store.worker_chunks import WorkerChunk, WorkerTarget, adopt
from mmdiff.knn.cells.order import Cells
from mmdiff.knn.choice import choose
from mmdiff.knn.faiss_index.factory import Device, FactoryIndex
from mmdiff.knn.search.devices import CORES, PIECE_ROWS, Comparing
from mmdiff.knn.search.flat import Recall, draw
from mmdiff.knn.search.topk import Lists
from mmdiff.knn.search.work import (
    Chunks,
    Exactly,
    Find,
    InIndex,
    NeighboursNeighbours,
    Search,
    VisitedCells,
    chunk_of_lists,
    find_in,
)
from mmdiff.knn.targets import with_reached
from mmdiff.runtime.executor import Executor, LocalExecutor
from mmdiff.runtime.find_or_make import input_of
from mmdiff.runtime.progress import Progress

NAME = "knn/BB"
SCHEMA = 1

BLOCK_ROWS = 1 << 16
_FEWEST_BLOCKS = 16
_HELD_OUT = 1024
# The most passes over neighbours' neighbours; one that gains less recall than this is the last.
MOST_PASSES = 5
_LEAST_GAIN = 0.0005


def rows_per_chunk(rows: int, k: int) -> int:
    """Rows per chunk: up to BLOCK_ROWS, in whole pages, and few enough that all cores have chunks."""
    unit = page_unit((rows, k), "uint32")
    return max(1, min(BLOCK_ROWS, rows // _FEWEST_BLOCKS) // unit) * unit


@dataclass(frozen=True)
class Searchers:
    """The threads of this process, or the workers of an executor with `threads_of_each` threads, that search.

    Threads of this process share the `device`; workers use their cores.
    """

    threads: int
    executor: Executor = field(default_factory=LocalExecutor)
    threads_of_each: int = 1
    device: Comparing = CORES


@dataclass(frozen=True)
class ListWriter:
    """Writers of the two arrays of lists, chunk by chunk."""

    neighbors: ArrayWriter
    similarities: ArrayWriter

    @classmethod
    def declare(cls, declare: Callable[..., ArrayWriter], rows: int, k: int, prefix: str = "") -> ListWriter:
        block = rows_per_chunk(rows, k)
        return cls(
            declare(f"{prefix}neighbors", (rows, k), "uint32", block),
            declare(f"{prefix}similarities", (rows, k), "float32", block),
        )

    @classmethod
    def of_pass(cls, draft: Draft, rows: int, k: int, number: int) -> ListWriter:
        """The temporary lists of a pass; those of pass 0 are found in cells."""
        return cls.declare(draft.scratch, rows, k, f"pass{number}_")

    @property
    def missing(self) -> list[int]:
        return sorted({*self.neighbors.missing, *self.similarities.missing})

    def fill(
        self,
        find: Find,
        what: str,
        progress: Progress,
        searchers: Searchers,
        search: Callable[[], Search] | None = None,
    ) -> None:
        """Searches and writes all missing chunks: this process calls `find`, workers run what `search` makes."""
        todo, spec, writers = self.missing, self.neighbors.spec, (self.neighbors, self.similarities)

        def write(chunk: int) -> tuple[list[WorkerChunk], ...]:
            for writer, values in zip(writers, chunk_of_lists(find, spec.rows(chunk), spec.shape[1], PIECE_ROWS), strict=True):
                if chunk not in writer.crcs:
                    writer.write(chunk, values)
            return ()

        def there() -> Chunks:
            if search is None:
                raise TypeError(f"{what}: workers cannot run this search")
            targets = WorkerTarget.of(self.neighbors), WorkerTarget.of(self.similarities)
            return Chunks(search(), *targets, PIECE_ROWS, searchers.threads_of_each)

        with progress(what, spec.shape[0], "rows") as advance:
            advance(spec.shape[0] - sum(stop - start for start, stop in map(spec.rows, todo)))
            for chunk, written in searchers.executor.each(write, there, todo, searchers.threads):
                for writer, chunks in zip(writers, written, strict=False):
                    adopt(writer, chunks)
                start, stop = spec.rows(chunk)
                advance(stop - start)

    def sync(self) -> None:
        """Makes complete lists survive a power cut, so that those they were found from can go."""
        self.neighbors.sync()
        self.similarities.sync()

    def mapped(self) -> Lists:
        return self.neighbors.mapped(), self.similarities.mapped()


def recipe(cells: Artifact, k: int, recall: float, index: str, device: str, seed: int, *, always_cells: bool = False) -> Recipe:
    """The recipe of `knn/BB`. `always_cells` searches by cells even where exact search would be the better choice."""
    parameters = {"k": k, "recall": recall, "index": index, "device": device, "seed": seed}
    if always_cells:
        parameters["always_cells"] = True
    return Recipe("knn", SCHEMA, parameters, {"cells": input_of(cells)})


def make(draft: Draft, artifact: Artifact, searchers: Searchers, progress: Progress) -> Json:
    """Writes the lists of all background rows, given `models/cells`; returns the facts, including the measured recall."""
    parameters, cells = draft.recipe.parameters, Cells.of(artifact, searchers.device)
    facts: Json = {"nodes": len(cells.vectors), "rows": len(cells.vectors)}
    if parameters["index"] not in ("flat", "cells"):
        return facts | _by_factory(draft, artifact, cells, searchers, progress)
    search = _exactly if parameters["index"] == "flat" else _by_cells
    found = search(draft, artifact, cells, searchers, progress)
    return facts | found | ({"search": searchers.device.facts()} if searchers.device.on_gpus else {})


def _exactly(draft: Draft, artifact: Artifact, cells: Cells, searchers: Searchers, progress: Progress) -> Json:
    k = draft.recipe.parameters["k"]
    writer = ListWriter.declare(draft.array, len(cells.vectors), k)
    _fill(writer, Exactly(artifact, k), "searching, exactly", progress, searchers)
    return {"recall": 1.0, "exact": True, "reached": True}


def _fill(writer: ListWriter, search: Search, what: str, progress: Progress, searchers: Searchers) -> None:
    writer.fill(search.open(searchers.device), what, progress, searchers, lambda: search)


def _by_cells(draft: Draft, artifact: Artifact, cells: Cells, searchers: Searchers, progress: Progress) -> Json:
    """Searches the cells that rows visit, then refines by neighbours' neighbours until the recall is reached."""
    parameters, rows = draft.recipe.parameters, len(cells.vectors)
    k, target, seed = parameters["k"], parameters["recall"], parameters["seed"]
    with progress("choosing the search", 1, "choice") as advance:
        choice = choose(cells, k, target, seed + 1, always_cells="always_cells" in parameters)
        advance(1)
    if choice.exact:
        return {**_exactly(draft, artifact, cells, searchers, progress), "tuning": choice.to_json()}
    sample = draw(cells.vectors, k, _HELD_OUT, seed + 2, searchers.device.nearest)
    recalls, last = _finished_passes(draft, rows, k)
    while last is None or _another_pass(recalls, choice.passes, target):
        number = len(recalls)
        writer = ListWriter.of_pass(draft, rows, k, number)
        if last is None:
            _fill(writer, VisitedCells(artifact, choice.visits, k), "searching in cells", progress, searchers)
        else:
            search = NeighboursNeighbours(artifact, choice.visits, last)
            _fill(writer, search, f"neighbours' neighbours, pass {number}", progress, searchers)
        recalls.append(sample.recall(writer.mapped()[1][sample.rows]))
        writer.sync()
        draft.note({"recalls": [astuple(recall) for recall in recalls]})
        # Only this pass reads the lists of the one before; without them, disk does not grow with the number of passes.
        for name in ("neighbors", "similarities"):
            draft.drop(f"pass{number - 1}_{name}")
        last = writer
    draft.adopt(last.neighbors, "neighbors")
    draft.adopt(last.similarities, "similarities")
    steps = [round(recall.value, 5) for recall in recalls]
    measured = with_reached(recalls[-1].to_json(), target)
    return {**measured, "exact": False, "recall_by_pass": steps, "tuning": choice.to_json()}


def _another_pass(recalls: list[Recall], planned: int, target: float) -> bool:
    """Whether another pass follows those with these recalls; the first one visits cells."""
    if len(recalls) <= planned:
        return True
    gains = len(recalls) == 1 or recalls[-1].value - recalls[-2].value >= _LEAST_GAIN
    return recalls[-1].value < target and len(recalls) <= MOST_PASSES and gains


def _finished_passes(draft: Draft, rows: int, k: int) -> tuple[list[Recall], ListWriter | None]:
    """The recalls of the passes that an interrupted run has finished, and the lists of the last one.

    There are none where these lists are not complete, neither as those of a pass nor as those of the artifact.
    """
    recalls = [Recall(*figures) for figures in draft.noted.get("recalls", [])]
    if not recalls:
        return [], None
    last, adopted = ListWriter.of_pass(draft, rows, k, len(recalls) - 1), ListWriter.declare(draft.scratch, rows, k)
    pairs = (last.neighbors, adopted.neighbors), (last.similarities, adopted.similarities)
    return ([], None) if any(a.missing and b.missing for a, b in pairs) else (recalls, last)


def _by_factory(draft: Draft, artifact: Artifact, cells: Cells, searchers: Searchers, progress: Progress) -> Json:
    """Searches with the user's Faiss index, tuned for the recall on one sample of rows and measured on another."""
    parameters = draft.recipe.parameters
    k, device = parameters["k"], parameters["device"]
    tuning = draw(cells.vectors, k, _HELD_OUT // 4, parameters["seed"] + 1)
    index = FactoryIndex.build(cells.vectors, parameters["index"], _device(device), parameters["seed"], progress)
    tuned = index.tune(
        np.asarray(cells.vectors[tuning.rows], np.float32), tuning.neighbors.astype(np.int64), parameters["recall"]
    )

    def on_disk() -> InIndex:
        values = index.to_bytes()
        kept = draft.scratch("pass_index", values.shape, "uint8")
        # Every run rebuilds the index, not always to the same bytes.
        for chunk in range(kept.spec.chunks):
            kept.write(chunk, values[slice(*kept.spec.rows(chunk))])
        return InIndex(artifact, kept, tuned["parameters"], k)

    writer = ListWriter.declare(draft.array, len(cells.vectors), k)
    # Faiss uses all cores for one block of queries. An index on GPUs is searched by this process.
    alone = Searchers(1, LocalExecutor() if index.on_gpus else searchers.executor)
    writer.fill(find_in(index, cells.vectors, k), f"searching with {parameters['index']}", progress, alone, on_disk)
    sample = draw(cells.vectors, k, _HELD_OUT, parameters["seed"] + 2)
    measured = sample.recall(writer.mapped()[1][sample.rows]).to_json()
    return {**with_reached(measured, parameters["recall"]), "exact": False, "tuning": tuned, "search": index.parameters}


def _device(name: str) -> Device:
    return "gpu" if name == "gpu" else "cpu" if name == "cpu" else "auto"

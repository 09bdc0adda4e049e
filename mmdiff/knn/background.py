"""`knn/BB`: the neighbours of the background within the background, computed off-line (block W_BB of the paper, section 3.5).

Rows are in cell order. Each chunk of rows is an independent work unit; chunks on disk are not searched again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.storage.arrays import page_unit
from mmdiff.formats.store.array_writer import ArrayWriter
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import Draft
from mmdiff.formats.store.store import Artifact
from mmdiff.formats.store.worker_chunks import WorkerChunk, WorkerTarget, adopt
from mmdiff.knn.cells.forest import Tree
from mmdiff.knn.cells.order import MOST_PASSES, Cells
from mmdiff.knn.faiss_index.factory import Device, FactoryIndex
from mmdiff.knn.search.flat import Sample, draw
from mmdiff.knn.search.topk import Lists
from mmdiff.knn.search.work import (
    BestOf,
    Chunks,
    Exactly,
    Find,
    InIndex,
    NeighboursNeighbours,
    Search,
    WithinCells,
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
# A chunk is searched in pieces, because candidates take more memory than lists. The size of pieces does not depend on memory:
# the rows of a product decide how scores are rounded.
PIECE_ROWS = 1 << 13
_FEWEST_BLOCKS = 16
_HELD_OUT = 1024
# A pass that gains less recall than this is the last.
_LEAST_GAIN = 0.0005


def rows_per_chunk(rows: int, k: int) -> int:
    """Rows per chunk: up to BLOCK_ROWS, in whole pages, and few enough that all cores have chunks."""
    unit = page_unit((rows, k), "uint32")
    return max(1, min(BLOCK_ROWS, rows // _FEWEST_BLOCKS) // unit) * unit


@dataclass(frozen=True)
class Searchers:
    """The threads of this process, or the workers of an executor with `threads_of_each` threads, that search."""

    threads: int
    executor: Executor = field(default_factory=LocalExecutor)
    threads_of_each: int = 1


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

    def mapped(self) -> Lists:
        return self.neighbors.mapped(), self.similarities.mapped()


def recipe(cells: Artifact, k: int, recall: float, index: str, device: str, seed: int) -> Recipe:
    parameters = {"k": k, "recall": recall, "index": index, "device": device, "seed": seed}
    return Recipe("knn", SCHEMA, parameters, {"cells": input_of(cells)})


def make(draft: Draft, artifact: Artifact, searchers: Searchers, progress: Progress) -> Json:
    """Writes the lists of all background rows, given `models/cells`; returns the facts, including the measured recall."""
    parameters, cells = draft.recipe.parameters, Cells.of(artifact)
    k, index = parameters["k"], parameters["index"]
    nodes, vectors = len(cells.vectors), cells.vectors
    facts: Json = {"nodes": nodes, "rows": nodes}
    if index == "flat":
        _fill(ListWriter.declare(draft.array, nodes, k), Exactly(artifact, k), "searching, exactly", progress, searchers)
        return {**facts, "recall": 1.0, "exact": True, "reached": True}
    sample = draw(vectors, k, _HELD_OUT, parameters["seed"] + 2)
    search = _by_cells if index == "cells" else _by_factory
    return {**facts, **with_reached(search(draft, artifact, sample, searchers, progress), parameters["recall"])}


def _fill(writer: ListWriter, search: Search, what: str, progress: Progress, searchers: Searchers) -> None:
    writer.fill(search.open(), what, progress, searchers, lambda: search)


def _by_cells(draft: Draft, artifact: Artifact, sample: Sample, searchers: Searchers, progress: Progress) -> Json:
    """Searches within the cells of all partitions, then refines by neighbours' neighbours until the recall is reached."""
    k, target = draft.recipe.parameters["k"], draft.recipe.parameters["recall"]
    trees = Cells.of(artifact).forest.trees
    writer = _within_cells(draft, artifact, trees, k, searchers, progress)
    rows = writer.neighbors.spec.shape[0]
    recalls = [sample.recall(writer.mapped()[1][sample.rows])]
    while recalls[-1].value < target and len(recalls) <= MOST_PASSES:
        number, before = len(recalls), writer
        writer = ListWriter.declare(draft.scratch, rows, k, f"pass{number}_")
        what = f"neighbours' neighbours, pass {number}"
        _fill(writer, NeighboursNeighbours(artifact, before), what, progress, searchers)
        recalls.append(sample.recall(writer.mapped()[1][sample.rows]))
        if recalls[-1].value - recalls[-2].value < _LEAST_GAIN:
            break
    draft.adopt(writer.neighbors, "neighbors")
    draft.adopt(writer.similarities, "similarities")
    steps = [round(recall.value, 5) for recall in recalls]
    return {**recalls[-1].to_json(), "exact": False, "recall_by_pass": steps, "partitions": len(trees)}


def _within_cells(
    draft: Draft, artifact: Artifact, trees: Sequence[Tree], k: int, searchers: Searchers, progress: Progress
) -> ListWriter:
    """Searches each partition cell after cell, so that each cell is read once; then merges the partitions."""
    rows = len(trees[0].rows)
    found, places = [], []
    for number, tree in enumerate(trees):
        writer = ListWriter.declare(draft.scratch, rows, k, f"pass0_{number}_")
        what = f"searching within cells, {number + 1} of {len(trees)}"
        _fill(writer, WithinCells(artifact, number, k), what, progress, searchers)
        found.append(writer)
        place = draft.scratch(f"pass0_{number}_places", (rows,), "uint32")
        place.fill(_inverse(tree.rows))
        places.append(place)
    writer = ListWriter.declare(draft.scratch, rows, k, "pass0_")
    _fill(writer, BestOf(tuple(found), tuple(places)), "merging partitions", progress, searchers)
    return writer


def _inverse(order: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The place of each row in an order."""
    places = np.empty(len(order), np.uint32)
    for start in range(0, len(order), BLOCK_ROWS):
        some = order[start : start + BLOCK_ROWS]
        places[some] = np.arange(start, start + len(some), dtype=np.uint32)
    return places


def _by_factory(draft: Draft, artifact: Artifact, sample: Sample, searchers: Searchers, progress: Progress) -> Json:
    """Searches with the user's Faiss index, tuned for the recall on one sample of rows and measured on another."""
    parameters, cells = draft.recipe.parameters, Cells.of(artifact)
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
    measured = sample.recall(writer.mapped()[1][sample.rows])
    return {**measured.to_json(), "exact": False, "tuning": tuned, "search": index.parameters}


def _device(name: str) -> Device:
    return "gpu" if name == "gpu" else "cpu" if name == "cpu" else "auto"

"""`knn/BB`: the neighbours of the background in the background, the part of the graph that is computed off-line (paper, 3.5).

Rows are in cell order. Each chunk of rows is a unit of work of its own: what is on the disk is not searched again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.arrays import page_unit
from mmdiff.formats.manifest import Json, Recipe
from mmdiff.formats.publish import ArrayWriter, Draft
from mmdiff.formats.store import Artifact
from mmdiff.knn.cells import Cells
from mmdiff.knn.factory import Device, FactoryIndex
from mmdiff.knn.flat import search_flat
from mmdiff.knn.forest import Tree
from mmdiff.knn.lists import SPARE, Lists, merge, settle_candidates
from mmdiff.knn.recall import Sample, draw
from mmdiff.knn.refine import refine
from mmdiff.parallel import in_threads
from mmdiff.progress import Progress

NAME = "knn/BB"
SCHEMA = 1

BLOCK_ROWS = 1 << 16
# A chunk is searched in pieces, for candidates take more room than lists. They are the same whatever the memory: which rows
# are multiplied together decides how scores are rounded.
PIECE_ROWS = 1 << 13
_FEWEST_BLOCKS = 16
_HELD_OUT = 1024
MOST_PASSES = 5
# A pass that adds less than this is the last: more would not reach the target either.
_LEAST_GAIN = 0.0005


def rows_per_chunk(rows: int, k: int) -> int:
    """Up to BLOCK_ROWS that fill pages, and few enough that there are chunks for all cores."""
    unit = page_unit((rows, k), "uint32")
    return max(1, min(BLOCK_ROWS, rows // _FEWEST_BLOCKS) // unit) * unit


@dataclass(frozen=True)
class ListWriter:
    """The two arrays of lists, chunk by chunk."""

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

    def fill(self, search: Callable[[int, int], Lists], what: str, progress: Progress, threads: int) -> int:
        """Searches and writes what is missing; returns how many chunks there were already."""
        todo, rows = self.missing, self.neighbors.spec.rows

        def write(chunk: int) -> int:
            start, stop = rows(chunk)
            shape = stop - start, self.neighbors.spec.shape[1]
            neighbors, similarities = np.empty(shape, np.uint32), np.empty(shape, np.float32)
            for first in range(start, stop, PIECE_ROWS):
                piece = slice(first - start, min(first + PIECE_ROWS, stop) - start)
                neighbors[piece], similarities[piece] = search(first, start + piece.stop)
            for writer, values in ((self.neighbors, neighbors), (self.similarities, similarities)):
                if chunk not in writer.crcs:
                    writer.write(chunk, values)
            return stop - start

        with progress(what, self.neighbors.spec.shape[0], "rows") as advance:
            advance(self.neighbors.spec.shape[0] - sum(stop - start for start, stop in map(rows, todo)))
            for count in in_threads(write, todo, threads):
                advance(count)
        return self.neighbors.spec.chunks - len(todo)

    def mapped(self) -> Lists:
        return self.neighbors.mapped(), self.similarities.mapped()


def recipe(cells: Artifact, k: int, recall: float, index: str, device: str, seed: int) -> Recipe:
    parameters = {"k": k, "recall": recall, "index": index, "device": device, "seed": seed}
    return Recipe("knn", SCHEMA, parameters, {"cells": {"artifact": cells.name, "object": cells.id}})


def make(draft: Draft, cells: Cells, threads: int, progress: Progress) -> Json:
    """Writes the lists of all background rows; returns the facts, with the recall that was measured."""
    parameters = draft.recipe.parameters
    k, index = parameters["k"], parameters["index"]
    nodes, vectors = len(cells.vectors), cells.vectors
    facts: Json = {"nodes": nodes, "rows": nodes}
    if index == "flat":
        lists = ListWriter.declare(draft.array, nodes, k)
        lists.fill(lambda start, stop: search_flat(vectors[start:stop], vectors, k), "searching, exactly", progress, threads)
        return {**facts, "recall": 1.0, "exact": True}
    sample = draw(vectors, k, _HELD_OUT, parameters["seed"] + 2)
    if index == "cells":
        return {**facts, **_by_cells(draft, cells, sample, threads, progress)}
    return {**facts, **_by_factory(draft, cells, sample, progress)}


def _by_cells(draft: Draft, cells: Cells, sample: Sample, threads: int, progress: Progress) -> Json:
    """Search within the cells of all partitions, then passes over neighbours' neighbours until the recall is reached."""
    k, target = draft.recipe.parameters["k"], draft.recipe.parameters["recall"]
    writer = _within_cells(draft, cells, k, threads, progress)
    recalls = [sample.recall(writer.mapped()[1][sample.rows])]
    while recalls[-1].value < target and len(recalls) <= MOST_PASSES:
        writer = _one_pass(draft, cells.vectors, writer, len(recalls), threads, progress)
        recalls.append(sample.recall(writer.mapped()[1][sample.rows]))
        if recalls[-1].value - recalls[-2].value < _LEAST_GAIN:
            break
    draft.adopt(writer.neighbors, "neighbors")
    draft.adopt(writer.similarities, "similarities")
    steps = [round(recall.value, 5) for recall in recalls]
    return {**recalls[-1].to_json(), "exact": False, "recall_by_pass": steps, "partitions": len(cells.forest.trees)}


def _within_cells(draft: Draft, cells: Cells, k: int, threads: int, progress: Progress) -> ListWriter:
    """What the cells of each partition hold, cell after cell, so that each is read once; then the best of all partitions."""
    rows, trees = len(cells.vectors), cells.forest.trees
    found, places = [], []
    for number, tree in enumerate(trees):
        writer = ListWriter.declare(draft.scratch, rows, k, f"pass0_{number}_")
        what = f"searching within cells, {number + 1} of {len(trees)}"
        writer.fill(_searching(tree, cells.vectors, k), what, progress, threads)
        found.append(writer.mapped())
        place = draft.scratch(f"pass0_{number}_places", (rows,), "uint32")
        place.fill(_inverse(tree.rows))
        places.append(place.mapped())

    def of_partition(number: int, start: int, stop: int) -> Lists:
        some = places[number][start:stop]
        return found[number][0][some], found[number][1][some]

    def best(start: int, stop: int) -> Lists:
        return functools.reduce(merge, (of_partition(number, start, stop) for number in range(len(trees))))

    writer = ListWriter.declare(draft.scratch, rows, k, "pass0_")
    writer.fill(best, "merging what the partitions found", progress, threads)
    return writer


def _searching(tree: Tree, vectors: NDArray[Any], k: int) -> Callable[[int, int], Lists]:
    return lambda start, stop: tree.search(vectors, tree.rows[start:stop].astype(np.int64), k)


def _inverse(order: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Where each row stands in an order."""
    places = np.empty(len(order), np.uint32)
    for start in range(0, len(order), BLOCK_ROWS):
        some = order[start : start + BLOCK_ROWS]
        places[some] = np.arange(start, start + len(some), dtype=np.uint32)
    return places


def _one_pass(
    draft: Draft, vectors: NDArray[Any], before: ListWriter, number: int, threads: int, progress: Progress
) -> ListWriter:
    neighbors, similarities = before.mapped()
    writer = ListWriter.declare(draft.scratch, len(neighbors), neighbors.shape[1], f"pass{number}_")

    def search(start: int, stop: int) -> Lists:
        rows = slice(start, stop)
        return refine(vectors, vectors[rows], neighbors[rows], similarities[rows], neighbors)

    writer.fill(search, f"neighbours' neighbours, pass {number}", progress, threads)
    return writer


def _by_factory(draft: Draft, cells: Cells, sample: Sample, progress: Progress) -> Json:
    """Search with an index that the user chose, tuned for the recall on one sample of rows, measured on another."""
    parameters = draft.recipe.parameters
    k, device = parameters["k"], parameters["device"]
    tuning = draw(cells.vectors, k, _HELD_OUT // 4, parameters["seed"] + 1)
    index = FactoryIndex.build(cells.vectors, parameters["index"], _device(device), parameters["seed"], progress)
    tuned = index.tune(
        np.asarray(cells.vectors[tuning.rows], np.float32), tuning.neighbors.astype(np.int64), parameters["recall"]
    )

    def search(start: int, stop: int) -> Lists:
        queries = cells.vectors[start:stop]
        found = index.search(np.asarray(queries, np.float32), k + SPARE)[1]
        return settle_candidates(queries, cells.vectors, found, k)

    writer = ListWriter.declare(draft.array, len(cells.vectors), k)
    # Faiss uses all cores for one block of queries.
    writer.fill(search, f"searching with {parameters['index']}", progress, threads=1)
    measured = sample.recall(writer.mapped()[1][sample.rows])
    return {**measured.to_json(), "exact": False, "tuning": tuned, "search": index.parameters}


def _device(name: str) -> Device:
    return "gpu" if name == "gpu" else "cpu" if name == "cpu" else "auto"

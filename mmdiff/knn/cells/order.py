"""Cell order (`models/cells`): nodes are renumbered so that neighbours are close on disk and in cache.

Rows of a cell are consecutive, and similar cells are close. The descriptors rewritten in this order are also the inverted file
that the search reads, cell by cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import Damaged
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import Draft
from mmdiff.formats.store.store import Artifact
from mmdiff.knn.cells import partition
from mmdiff.knn.cells.partition import Quantizer
from mmdiff.knn.search.devices import CORES, Comparing
from mmdiff.knn.search.refine import Visited, refine
from mmdiff.knn.search.topk import Lists
from mmdiff.knn.search.visits import rank_cells
from mmdiff.runtime.find_or_make import input_of
from mmdiff.runtime.progress import Progress
from mmdiff.runtime.threads import in_threads

NAME = "models/cells"
SCHEMA = 2

# A row is compared with this many centroids for each cell that it visits, and at least so many: among fewer, near cells are
# missed (of the recall, 4 instead of 16 lose 0.03 on real descriptors).
CENTROIDS_COMPARED = 16
_FEWEST_COMPARED = 256

# Points whose cells are looked for at a time, and cells whose surroundings are looked for at a time.
_VISITING_ROWS = 1 << 11
_CELLS_RANKED = 1 << 8


@dataclass(frozen=True)
class Cells:
    """The background in cell order; node i is background row `order[i]`.

    Cell c holds the nodes `offsets[c]` to `offsets[c + 1] - 1`; `cell_of` has the cell of each node.
    """

    vectors: NDArray[Any]
    order: NDArray[np.uint32]
    cell_of: NDArray[np.uint32]
    offsets: NDArray[np.int64]
    quantizer: Quantizer
    device: Comparing = CORES

    @classmethod
    def of(cls, artifact: Artifact, device: Comparing = CORES) -> Cells:
        """The cells of an artifact, with all that kernels index with checked."""
        vectors, coarse, centroids = (artifact.array(name) for name in ("vectors", "coarse", "centroids"))
        rows, count = len(vectors), len(centroids)
        offsets, children = artifact.array("offsets"), artifact.array("children")
        for name, values, groups, entries in (("offsets", offsets, count, rows), ("children", children, len(coarse), count)):
            if len(values) != groups + 1 or values[0] != 0 or values[-1] != entries or np.any(values[1:] < values[:-1]):
                raise Damaged(f"{artifact.name}, array {name}: the cells do not follow each other. {artifact.remedy}")
        order, cell_of = artifact.index_array("order", below=rows), artifact.index_array("cell_of", below=max(1, count))
        return cls(vectors, order, cell_of, offsets, Quantizer(coarse, centroids, children), device)

    @property
    def count(self) -> int:
        return len(self.offsets) - 1

    def compared(self, visits: int) -> int:
        """The number of centroids that a row is compared with to find so many cells."""
        return min(max(_FEWEST_COMPARED, CENTROIDS_COMPARED * visits), self.count)

    def visits(self, queries: NDArray[Any], count: int) -> NDArray[np.uint32]:
        """The `count` cells nearest to each query, which is a point outside the background; the nearest one first."""
        found = np.empty((len(queries), min(count, self.count)), np.uint32)
        for start in range(0, len(queries), _VISITING_ROWS):
            some = slice(start, start + _VISITING_ROWS)
            found[some] = self.quantizer.near(np.asarray(queries[some], np.float32), found.shape[1], self.device)
        return found

    def visits_of(self, rows: NDArray[np.int64], count: int) -> NDArray[np.uint32]:
        """The `count` cells that each node visits: its own one first, then those nearest to it. Rows are in ascending order."""
        return self._ranked(self.vectors[rows], self.cell_of[rows], min(count, self.count))

    def _ranked(self, queries: NDArray[Any], own: NDArray[np.uint32], count: int) -> NDArray[np.uint32]:
        """The nearest cells of queries that are ordered by their own cell."""
        found = np.empty((len(queries), count), np.uint32)
        cells, starts, group = np.unique(own, return_index=True, return_inverse=True)
        starts = np.append(starts, len(queries))
        # Candidates take many times the memory of the cells around.
        for first in range(0, len(cells), _CELLS_RANKED):
            around = self.quantizer.around(cells[first : first + _CELLS_RANKED], self.compared(count), self.device)
            some = slice(starts[first], starts[min(first + _CELLS_RANKED, len(cells))])
            found[some] = rank_cells(queries[some], group[some] - first, around, self.quantizer.centroids, count)
        return found

    def search(self, queries: NDArray[Any], visits: NDArray[np.uint32], k: int) -> Lists:
        """The k nearest nodes in the visited cells."""
        return self.device.visited(queries, self.vectors, visits, self.offsets, k)

    def refine(self, queries: NDArray[Any], own: Lists, lists: NDArray[np.uint32], visits: NDArray[np.uint32]) -> Lists:
        """Lists after a pass over neighbours' neighbours; `own` were found in the visited cells."""
        return refine(self.vectors, queries, own, lists, Visited(visits, self.cell_of, self.count))


def recipe(background: Artifact, seed: int) -> Recipe:
    """The recipe of `models/cells`."""
    return Recipe("cells", SCHEMA, {"seed": seed, "cell_rows": partition.CELL_ROWS}, {"background": input_of(background)})


def make(draft: Draft, vectors: NDArray[Any], threads: int, progress: Progress, device: Comparing = CORES) -> Json:
    """Writes all arrays of the artifact; returns its facts."""
    with progress("assigning rows to cells", len(vectors), "rows") as advance:
        quantizer = partition.train(vectors, draft.recipe.parameters["seed"], device)
        assigned = partition.assign_all(vectors, quantizer, threads, advance, device)
    order, offsets = partition.by_cell(partition.cut_large(assigned))
    kept = assigned[order[offsets[:-1]]]
    draft.values("order", order)
    draft.values("offsets", offsets)
    draft.values("cell_of", np.repeat(np.arange(len(kept), dtype=np.uint32), np.diff(offsets)))
    draft.values("coarse", quantizer.coarse)
    draft.values("centroids", quantizer.centroids[kept])
    draft.values("children", np.searchsorted(kept, quantizer.children))
    _rewrite(draft, vectors, order, threads, progress)
    return {"cells": len(kept)}


def _rewrite(draft: Draft, vectors: NDArray[Any], order: NDArray[np.uint32], threads: int, progress: Progress) -> None:
    writer = draft.array("vectors", vectors.shape, vectors.dtype.name)

    def write(chunk: int) -> int:
        start, stop = writer.spec.rows(chunk)
        writer.write(chunk, vectors[order[start:stop]])
        return stop - start

    with progress("rewriting descriptors in cell order", len(vectors), "rows") as advance:
        for count in in_threads(write, writer.missing, threads):
            advance(count)

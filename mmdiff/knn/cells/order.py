"""Cell order (`models/cells`): nodes are renumbered so that neighbours are close on disk and in cache.

The cells of the first partition are ordered so that similar cells are close. The descriptors rewritten in this order are also
the inverted file of the search. The other partitions are only used to search `knn/BB`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import Damaged
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import Draft
from mmdiff.formats.store.store import Artifact
from mmdiff.kernels.constants import NONE
from mmdiff.knn.cells import partition
from mmdiff.knn.cells.forest import Forest, Tree, by_cell
from mmdiff.knn.choice import Costs, predict
from mmdiff.knn.search.flat import Sample, draw
from mmdiff.knn.search.topk import Lists, merge, settle_candidates
from mmdiff.runtime.find_or_make import input_of
from mmdiff.runtime.progress import Progress
from mmdiff.runtime.threads import in_threads

NAME = "models/cells"
SCHEMA = 1

FEWEST, MOST = 3, 16
# The most passes over neighbours' neighbours.
MOST_PASSES = 5
_TUNING_QUERIES = 128
_TRIAL_ROWS = 1024
# Tuning aims higher than the recall by this share of 1 - recall: one more partition is cheaper than one more pass.
_HIGHER = 0.2


@dataclass(frozen=True)
class Cells:
    """The background in cell order; node i is background row `order[i]`."""

    vectors: NDArray[Any]
    order: NDArray[np.uint32]
    centroids: NDArray[np.float32]
    forest: Forest

    @classmethod
    def of(cls, artifact: Artifact) -> Cells:
        """The cells of an artifact, with all that kernels index with checked."""
        vectors, offsets, centroids = (artifact.array(name) for name in ("vectors", "offsets", "centroids"))
        rows, entries = len(vectors), artifact.spec("members").shape[0]
        if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != entries or np.any(offsets[1:] < offsets[:-1]):
            raise Damaged(f"{artifact.name}, array offsets: the cells do not follow each other. {artifact.remedy}")
        order, members = (artifact.index_array(name, below=rows) for name in ("order", "members"))
        cell_of = artifact.index_array("cell_of", below=len(offsets) - 1)
        if len(order) != rows or len(cell_of) != entries or entries % max(1, rows):
            raise Damaged(f"{artifact.name}: its arrays do not fit each other. {artifact.remedy}")
        cells = len(centroids)
        # The cells of the first partition end with the last row.
        fitting = centroids.shape == (artifact.manifest.facts.get("cells"), *vectors.shape[1:])
        if not fitting or not 0 < cells < len(offsets) or offsets[cells] != rows:
            raise Damaged(
                f"{artifact.name}, array centroids: shape {centroids.shape}, not one for each cell of the first partition. "
                f"{artifact.remedy}"
            )
        return cls(vectors, order, centroids, Forest.of(cell_of, members, offsets, rows))


def recipe(background: Artifact, k: int, recall: float | None, seed: int, *, always: bool = False) -> Recipe:
    """The recipe of `models/cells`. With `recall` None there is one partition: the search does not use cells.

    `always` keeps the partitions even where exact search would be the better choice.
    """
    parameters: Json = {"k": k, "recall": recall, "seed": seed, "cell_rows": partition.CELL_ROWS}
    if always:
        parameters["always"] = True
    return Recipe("cells", SCHEMA, parameters, {"background": input_of(background)})


def make(draft: Draft, vectors: NDArray[Any], threads: int, progress: Progress) -> Json:
    """Writes all arrays of the artifact; returns its facts."""
    work = _Work(draft, vectors, threads, progress)
    first = work.first()
    trees, facts = [first], Json({"cells": len(first.offsets) - 1})
    if draft.recipe.parameters["recall"] is not None:
        facts["tuning"] = work.more_trees(trees)
        if facts["tuning"].get("exact", False):
            trees = [first]
    work.write(trees)
    return {**facts, "partitions": len(trees)}


def prefers_exact(cells: Artifact) -> bool:
    """Whether tuning found exact search to be the better choice."""
    return bool(cells.manifest.facts.get("tuning", {}).get("exact", False))


class _Work:
    """Makes `models/cells`. Only one partition at a time is in memory; the others are on disk and mapped."""

    def __init__(self, draft: Draft, vectors: NDArray[Any], threads: int, progress: Progress) -> None:
        self.draft, self.vectors, self.threads, self.progress = draft, vectors, threads, progress
        self.k, self.recall, self.seed = (draft.recipe.parameters[name] for name in ("k", "recall", "seed"))
        self.always = "always" in draft.recipe.parameters

    def first(self) -> Tree:
        """Makes the partition that defines cell order, and rewrites the vectors in this order."""
        order, offsets = self._order()
        self._rewrite(order)
        cell_of = np.repeat(np.arange(len(offsets) - 1, dtype=np.uint32), np.diff(offsets))
        every = np.arange(len(order), dtype=np.uint32)
        return self._on_disk(0, Tree(cell_of, every, every, offsets))

    def more_trees(self, trees: list[Tree]) -> Json:
        """Adds partitions until a sample of rows, refined once, reaches the recall, or exact search is the better choice."""
        sample = draw(self.vectors, self.k, _TUNING_QUERIES, self.seed + 1)
        trial = Trial(self.vectors, sample, self.k)
        recalls: list[float] = []
        target, exact = self.recall + _HIGHER * (1 - self.recall), False
        costs = Costs(len(self.vectors), self.k, _visited_rows(trees[0]))
        with self.progress("choosing partitions", MOST, "partitions") as advance:
            while len(trees) < FEWEST or (recalls[-1] < target and len(trees) < MOST and not exact):
                quantizer = partition.train(self.vectors, self.seed + 1000 * len(trees))
                cells = partition.cut_large(partition.assign_all(self.vectors, quantizer, self.threads, lambda _: None))
                trees.append(self._on_disk(len(trees), Tree.of(cells)))
                advance(1)
                if len(trees) >= FEWEST:
                    recalls.append(trial.recall(trees))
                    exact = not self.always and self._prefers_exact(costs, recalls, target)
        facts: Json = {"partitions": len(trees), "recall": round(recalls[-1], 4), "queries": len(sample.rows)}
        return facts if self.always else {**facts, "exact": exact}

    @staticmethod
    def _prefers_exact(costs: Costs, recalls: Sequence[float], target: float) -> bool:
        predicted = predict(costs, recalls, FEWEST, target, MOST, MOST_PASSES)
        return predicted is not None and costs.prefers_exact(predicted)

    def write(self, trees: list[Tree]) -> None:
        """Writes the partitions one after the other, with consecutive cell numbers."""
        counts = [len(tree.offsets) - 1 for tree in trees]
        begins = (np.cumsum(counts) - counts).astype(np.uint32)
        rows = len(self.vectors)

        self._join("cell_of", len(trees), lambda number, part: trees[number].cell_of[part] + begins[number])
        self._join("members", len(trees), lambda number, part: trees[number].rows[part])
        ends = [tree.offsets[1:] + number * rows for number, tree in enumerate(trees)]
        self.draft.values("offsets", np.concatenate([np.zeros(1, np.int64), *ends]))

    def _order(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Rows sorted by cell, with similar cells close to each other, and the offset of each cell."""
        with self.progress("assigning rows to cells", len(self.vectors), "rows") as advance:
            quantizer = partition.train(self.vectors, self.seed)
            cells = partition.assign_all(self.vectors, quantizer, self.threads, advance)
        near = partition.near_order(quantizer.centroids)
        rank = np.empty(len(near), np.uint32)
        rank[near] = np.arange(len(near))
        order, offsets = by_cell(partition.cut_large(rank[cells]))
        self.draft.values("order", order)
        self.draft.values("centroids", quantizer.centroids[cells[order[offsets[:-1]]]])
        return order, offsets

    def _join(self, name: str, parts: int, values: Callable[[int, slice], NDArray[np.uint32]]) -> None:
        """Writes an array of several parts, one entry per row each, chunk by chunk."""
        rows = len(self.vectors)
        writer = self.draft.array(name, (parts * rows,), "uint32")
        for chunk in writer.missing:
            start, stop = writer.spec.rows(chunk)
            numbers = range(start // rows, -(-stop // rows))
            pieces = [values(number, slice(max(0, start - number * rows), stop - number * rows)) for number in numbers]
            writer.write(chunk, np.concatenate(pieces))

    def _on_disk(self, number: int, tree: Tree) -> Tree:
        """Writes a partition as scratch arrays; returns it mapped."""
        names = {f"pass{number}_cell_of": tree.cell_of, f"pass{number}_members": tree.rows}
        writers = [self.draft.scratch(name, values.shape, "uint32") for name, values in names.items()]
        for writer, values in zip(writers, names.values(), strict=True):
            writer.fill(values)
        cell_of, rows = (writer.mapped() for writer in writers)
        return Tree(cell_of, rows, rows, tree.offsets)

    def _rewrite(self, order: NDArray[np.uint32]) -> None:
        vectors = self.vectors
        writer = self.draft.array("vectors", vectors.shape, vectors.dtype.name)

        def write(chunk: int) -> int:
            start, stop = writer.spec.rows(chunk)
            writer.write(chunk, vectors[order[start:stop]])
            return stop - start

        with self.progress("rewriting descriptors in cell order", len(vectors), "rows") as advance:
            for count in in_threads(write, writer.missing, self.threads):
                advance(count)
        self.vectors = writer.mapped()


def _visited_rows(tree: Tree) -> float:
    """The rows of the cell of a row, on average over rows."""
    sizes = np.diff(tree.offsets).astype(np.float64)
    return float((sizes**2).sum() / max(1.0, sizes.sum()))


class Trial:
    """Estimates the recall after one refinement pass on a sample, from the lists of the sample and of its neighbours."""

    def __init__(self, vectors: NDArray[Any], sample: Sample, k: int) -> None:
        self.vectors, self.sample, self.k = vectors, sample, k
        self.searched = 0
        self.rows = np.empty(0, np.int64)
        self.lists: Lists = np.empty((0, k), np.uint32), np.empty((0, k), np.float32)

    def recall(self, trees: Sequence[Tree]) -> float:
        """The recall with these partitions, which begin with those of the previous call: only the new ones are searched."""
        if len(self.rows):
            self.lists = merge(self.lists, self._search(trees[self.searched :], self.rows))
        self.searched = len(trees)
        self._look_up(trees, self.sample.rows)
        own = self._of(self.sample.rows)
        self._look_up(trees, own[own != NONE])
        # A missing neighbour has an empty list.
        theirs = np.where(own[:, :, None] == NONE, NONE, self._of(np.where(own == NONE, self.rows[0], own)))
        candidates = np.concatenate([own, theirs.reshape(len(own), -1)], axis=1).astype(np.int64)
        candidates[candidates == NONE] = -1
        found = settle_candidates(self.vectors[self.sample.rows], self.vectors, candidates, self.k)
        return self.sample.recall(found[1]).value

    def _look_up(self, trees: Sequence[Tree], rows: NDArray[Any]) -> None:
        """Searches the rows whose lists are not known yet."""
        new = np.setdiff1d(rows, self.rows).astype(np.int64)
        if len(new):
            neighbors, similarities = self._search(trees, new)
            known = np.concatenate([self.rows, new])
            order = np.argsort(known)
            self.rows = known[order]
            self.lists = np.concatenate([self.lists[0], neighbors])[order], np.concatenate([self.lists[1], similarities])[order]

    def _of(self, rows: NDArray[Any]) -> NDArray[np.uint32]:
        return self.lists[0][np.searchsorted(self.rows, rows)]

    def _search(self, trees: Sequence[Tree], rows: NDArray[np.int64]) -> Lists:
        forest, pieces = Forest(tuple(trees)), np.array_split(rows, max(1, len(rows) // _TRIAL_ROWS))
        found = list(in_threads(lambda piece: forest.search(self.vectors, piece, self.k), pieces))
        return np.concatenate([lists[0] for lists in found]), np.concatenate([lists[1] for lists in found])

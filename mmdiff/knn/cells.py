"""Cell order: nodes are renumbered so that neighbours are near each other on disk and in cache (`models/cells`).

Cells of the first partition are put in an order in which near cells are near; the descriptors are rewritten in that order and
are at the same time the inverted file that searches read. The other partitions only serve the search of `knn/BB`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.manifest import Json, Recipe
from mmdiff.formats.publish import Draft
from mmdiff.formats.store import Artifact
from mmdiff.knn import partition
from mmdiff.knn.forest import Forest
from mmdiff.knn.recall import Sample, draw
from mmdiff.knn.refine import refine
from mmdiff.parallel import in_threads
from mmdiff.progress import Progress

NAME = "models/cells"
SCHEMA = 1

_FEWEST, _MOST = 3, 16
_TUNING_QUERIES = 128
# The tuning aims this share of what is missing to 1 higher: one more partition costs less than one more pass.
_HIGHER = 0.2


@dataclass(frozen=True)
class Cells:
    """The background in cell order. `order` says which background row a node is."""

    vectors: NDArray[Any]
    order: NDArray[np.uint32]
    centroids: NDArray[np.float32]
    forest: Forest

    @classmethod
    def of(cls, artifact: Artifact) -> Cells:
        arrays = {name: artifact.array(name) for name in artifact.manifest.arrays}
        forest = Forest(arrays["cell_of"].reshape(-1, len(arrays["order"])), arrays["members"], arrays["offsets"])
        return cls(arrays["vectors"], arrays["order"], arrays["centroids"], forest)

    def members(self, cell: int) -> slice:
        """The nodes of a cell of the first partition, which follow each other."""
        return slice(int(self.forest.offsets[cell]), int(self.forest.offsets[cell + 1]))


def recipe(background: Artifact, k: int, recall: float | None, seed: int) -> Recipe:
    """`recall` None: one partition is enough, since the search does not go by cells."""
    parameters = {"k": k, "recall": recall, "seed": seed, "cell_rows": partition.CELL_ROWS}
    return Recipe("cells", SCHEMA, parameters, {"background": {"artifact": background.name, "object": background.id}})


def make(draft: Draft, vectors: NDArray[Any], progress: Progress) -> Json:
    """Writes all arrays of the artifact; returns its facts."""
    parameters = draft.recipe.parameters
    seed, k, recall = parameters["seed"], parameters["k"], parameters["recall"]
    with progress("putting rows into cells", len(vectors), "rows") as advance:
        quantizer = partition.train(vectors, seed)
        cells = partition.assign_all(vectors, quantizer, advance)
    near = partition.near_order(quantizer.centroids)
    rank = np.empty(len(near), np.int64)
    rank[near] = np.arange(len(near))
    pieces = partition.cut_large(rank[cells])
    order = np.argsort(pieces, kind="stable").astype(np.uint32)
    rewritten = _rewrite(draft, vectors, order, progress)
    first = pieces[order]
    facts: Json = {"cells": int(first[-1]) + 1}
    partitions = [first]
    if recall is not None:
        partitions, facts["tuning"] = _enough_partitions(rewritten, first, k, recall, seed, progress)
    forest = Forest.of(partitions)
    draft.values("order", order)
    draft.values("centroids", quantizer.centroids[near][rank[cells][order][np.searchsorted(first, np.arange(first[-1] + 1))]])
    for name, values in vars(forest).items():
        draft.values(name, values.reshape(-1))
    return {**facts, "partitions": forest.partitions}


def _rewrite(draft: Draft, vectors: NDArray[Any], order: NDArray[np.uint32], progress: Progress) -> NDArray[Any]:
    writer = draft.array("vectors", vectors.shape, vectors.dtype.name)

    def write(chunk: int) -> int:
        start, stop = writer.spec.rows(chunk)
        writer.write(chunk, vectors[order[start:stop]])
        return stop - start

    with progress("rewriting descriptors in cell order", len(vectors), "rows") as advance:
        for count in in_threads(write, writer.missing):
            advance(count)
    return writer.mapped()


def _enough_partitions(
    vectors: NDArray[Any], first: NDArray[np.int64], k: int, recall: float, seed: int, progress: Progress
) -> tuple[list[NDArray[np.int64]], Json]:
    """Partitions until a sample of rows, refined once, has the recall that is asked for."""
    sample = draw(vectors, k, _TUNING_QUERIES, seed + 1)
    partitions, reached = [first], 0.0
    target = recall + _HIGHER * (1 - recall)
    with progress("choosing partitions", _MOST, "partitions") as advance:
        while len(partitions) < _FEWEST or (reached < target and len(partitions) < _MOST):
            quantizer = partition.train(vectors, seed + 1000 * len(partitions))
            partitions.append(partition.cut_large(partition.assign_all(vectors, quantizer, lambda _: None)))
            advance(1)
            if len(partitions) >= _FEWEST:
                reached = _recall_after_one_pass(Forest.of(partitions), vectors, sample, k)
    return partitions, {"partitions": len(partitions), "recall": round(reached, 4), "queries": len(sample.rows)}


def _recall_after_one_pass(forest: Forest, vectors: NDArray[Any], sample: Sample, k: int) -> float:
    """What the whole graph would reach: for the sample, only the lists of its neighbours are needed."""
    own, own_similarities = forest.search(vectors, sample.rows, k)
    rows = np.unique(own[own < len(vectors)]).astype(np.int64)
    # Only the lists of these rows are ever touched, so the rest of this array takes no memory.
    lists = np.empty((len(vectors), k), np.uint32)
    pieces = np.array_split(rows, max(1, len(rows) // 1024))
    for piece, found in zip(pieces, in_threads(lambda piece: forest.search(vectors, piece, k), pieces), strict=True):
        lists[piece] = found[0]
    return sample.recall(refine(vectors, vectors[sample.rows], own, own_similarities, lists)[1]).value

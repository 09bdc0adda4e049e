"""The diffusion on arrays: labels and scores in memory, of a graph in memory or mapped from a store."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.engine.run import Diffusion, IterationResult
from mmdiff.diffusion.io.graph_stream import Stream
from mmdiff.diffusion.options import COLS_PER_BATCH, options_of
from mmdiff.diffusion.seeds import Seeds
from mmdiff.diffusion.variant import Variant, class_prior, given_prior
from mmdiff.formats.errors import BadLabels, CountMismatch, Parameter
from mmdiff.graph.graph import CsrGraph
from mmdiff.kernels.constants import NONE
from mmdiff.labels.classes import UNLABELLED

_BLOCK_ROWS = 1 << 12


def diffuse(
    graph: CsrGraph, labels: Any, *, classes: int | None = None, neighbors: Any = None, **options: Any
) -> NDArray[np.float32]:
    """Spreads labels over a graph.

    Rows and numbers of nodes are the user's. `labels` has one class number for each row, -1 for none (or several labels a row,
    in columns); `classes` is their number where it is not one more than the largest label. Without `neighbors` the result is L
    after the last iteration, (rows, classes). With `neighbors`, the nearest rows of each test point (-1 or 4294967295 where
    there are fewer), it is V L after each kept iteration, (iterations, test points, classes).

    The options are those of `DiffusionOptions`.
    """
    chosen = options_of(options)
    variant, iterations = Variant.of(chosen), chosen.iterations
    seeds = _seeds(graph, np.asarray(labels), classes)
    given, name = given_prior(chosen.prior, seeds)
    prior = class_prior(variant, given, name, chosen.prior_power, seeds.classes)
    lists = None if neighbors is None else _lists(graph, np.asarray(neighbors))
    # Batches of even width: coupled operators hold all batches and one more in memory.
    widest = seeds.classes if chosen.cols_per_batch == "auto" else chosen.cols_per_batch or COLS_PER_BATCH
    width = -(-seeds.classes // -(-seeds.classes // widest))
    with Stream(graph) as stream:
        diffusion = Diffusion(
            stream=stream,
            seeds=seeds,
            variant=variant,
            prior=prior,
            iterations=iterations,
            width=width,
            neighbors=lists,
            every_row=lists is None,
            plain=chosen.plain,
        )
        if lists is None:
            L = np.empty((graph.nodes, seeds.classes), np.float32)
            for result in diffusion.results():
                if result.iteration == iterations:
                    _fill(L, graph, result, diffusion.columns(result.batch), stream)
            return L
        kept = chosen.kept_iterations
        scores = np.empty((len(kept), len(lists), seeds.classes), np.float32)
        for result in diffusion.results():
            if result.iteration in kept:
                scores[kept.index(result.iteration)][:, diffusion.columns(result.batch)] = result.scores(lists)
        return scores


def _fill(L: NDArray[np.float32], graph: CsrGraph, result: IterationResult, columns: NDArray[np.int64], stream: Stream) -> None:
    """Writes a batch of L block by block into the user's rows, without a second copy of it."""

    def write(start: int) -> None:
        stop = min(start + _BLOCK_ROWS, len(L))
        L[graph.rows_of(np.arange(start, stop))[:, None], columns] = result.block(start, stop)

    for _ in stream.map(write, range(0, len(L), _BLOCK_ROWS)):
        pass


def _seeds(graph: CsrGraph, labels: NDArray[Any], classes: int | None) -> Seeds:
    if labels.ndim not in (1, 2) or len(labels) != graph.nodes:
        raise CountMismatch(f"labels of shape {labels.shape} for {graph.nodes:,} rows. Give one for each row, -1 for none.")
    if labels.dtype.kind not in "iu":
        raise BadLabels(f"labels of type {labels.dtype}. Give class numbers from 0, -1 for none.")
    most = int(labels.max()) if labels.size else UNLABELLED
    if most == UNLABELLED:
        raise BadLabels("no row has a label, so there is nothing to spread. Label at least one.")
    count = most + 1 if classes is None else classes
    if labels.min() < UNLABELLED or most >= count:
        raise BadLabels(f"labels from {labels.min()} to {most} for {count} classes. Classes are numbered from 0; -1 is none.")
    return Seeds.of(graph.node_of_row, labels.astype(np.int32), count)


def _lists(graph: CsrGraph, neighbors: NDArray[Any]) -> NDArray[np.uint32]:
    if neighbors.ndim != 2 or neighbors.dtype.kind not in "iu":
        raise CountMismatch(
            Parameter("neighbors"),
            f": shape {neighbors.shape} and type {neighbors.dtype}. Give row numbers, (test points, neighbours).",
        )
    none = (neighbors == -1) | (neighbors == NONE)
    bad = ~none & ((neighbors < 0) | (neighbors >= graph.nodes))
    if bad.any():
        row = int(bad.any(axis=1).argmax())
        raise CountMismatch(
            Parameter("neighbors"), f", row {row}: not a row of the graph, which has {graph.nodes:,}. Count rows from 0."
        )
    nodes = graph.node_of_row[np.where(none, 0, neighbors).astype(np.int64)]
    return np.where(none, NONE, nodes).astype(np.uint32)

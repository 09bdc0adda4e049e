"""`mmdiff.diffuse`: the diffusion in Python, of a graph in memory or mapped from a store."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.engine.run import Diffusion, Report
from mmdiff.diffusion.io.graph_stream import Stream
from mmdiff.diffusion.seeds import Seeds
from mmdiff.diffusion.variant import Eta, Normalization, Precision, Variant, class_prior
from mmdiff.formats.errors import BadLabels, BadOption, CountMismatch
from mmdiff.graph.graph import CsrGraph
from mmdiff.kernels.constants import NONE
from mmdiff.labels.classes import UNLABELLED

COLS_PER_BATCH = 96
_BLOCK_ROWS = 1 << 12


def diffuse(
    graph: CsrGraph,
    labels: Any,
    *,
    iterations: int = 5,
    eta: Eta = "column",
    prior: Any = None,
    prior_power: float | None = None,
    gamma: float | None = None,
    alpha: float | None = None,
    reset_seeds: bool = False,
    normalize_graph: Normalization = "row",
    dtype: Precision = "float32",
    classes: int | None = None,
    neighbors: Any = None,
    cols_per_batch: int = COLS_PER_BATCH,
    plain: bool = False,
) -> NDArray[np.float32]:
    """Spreads labels over a graph.

    `labels` has one class number for each node, -1 for none (or several a node, in columns). Without `neighbors` the result is
    L after the last iteration, (nodes, classes). With `neighbors`, the nearest nodes of each test point (-1 or 4294967295 where
    there are fewer), it is V L after every iteration, (iterations + 1, test points, classes). `prior` has one value a class.
    The options are those of `mmdiff diffuse`.
    """
    variant = Variant(eta, gamma, alpha, reset_seeds, normalize_graph, dtype)
    if iterations < 0:
        raise BadOption(f"iterations={iterations}: at least 0 are needed.")
    if cols_per_batch < 1:
        raise BadOption(f"cols_per_batch={cols_per_batch}: at least 1 is needed.")
    seeds = _seeds(graph, np.asarray(labels), classes)
    given = None if prior is None else np.asarray(prior, np.float64)
    p = class_prior(variant, given, "", prior_power, seeds.classes)
    lists = None if neighbors is None else _lists(graph, np.asarray(neighbors))
    # As even as possible: where classes are coupled, all of them and one batch more are in memory.
    width = -(-seeds.classes // -(-seeds.classes // cols_per_batch))
    with Stream(graph) as stream:
        diffusion = Diffusion(stream, seeds, variant, p, iterations, width, lists, lists is None, plain)
        if lists is None:
            L = np.empty((graph.nodes, seeds.classes), np.float32)
            for report in diffusion.reports():
                if report.iteration == iterations:
                    _fill(L, report, diffusion.columns(report.batch), stream)
            return L
        scores = np.empty((iterations + 1, len(lists), seeds.classes), np.float32)
        for report in diffusion.reports():
            scores[report.iteration][:, diffusion.columns(report.batch)] = report.scores(lists)
        return scores


def _fill(L: NDArray[np.float32], report: Report, columns: NDArray[np.int64], stream: Stream) -> None:
    """Enters a batch, block by block, so that there is no second copy of it."""

    def enter(start: int) -> None:
        stop = min(start + _BLOCK_ROWS, len(L))
        L[start:stop, columns] = report.block(start, stop)

    for _ in stream.map(enter, range(0, len(L), _BLOCK_ROWS)):
        pass


def _seeds(graph: CsrGraph, labels: NDArray[Any], classes: int | None) -> Seeds:
    if labels.ndim not in (1, 2) or len(labels) != graph.nodes:
        raise CountMismatch(f"labels of shape {labels.shape} for {graph.nodes:,} nodes. Give one for each node, -1 for none.")
    if labels.dtype.kind not in "iu":
        raise BadLabels(f"labels of type {labels.dtype}. Give class numbers from 0 on, -1 for none.")
    most = int(labels.max()) if labels.size else UNLABELLED
    if most == UNLABELLED:
        raise BadLabels("no node has a label, so there is nothing to spread. Label at least one.")
    count = most + 1 if classes is None else classes
    if labels.min() < UNLABELLED or most >= count:
        raise BadLabels(f"labels from {labels.min()} to {most} for {count} classes. Classes are numbered from 0; -1 is none.")
    return Seeds.of(np.arange(graph.nodes), labels.astype(np.int32), count)


def _lists(graph: CsrGraph, neighbors: NDArray[Any]) -> NDArray[np.uint32]:
    if neighbors.ndim != 2 or neighbors.dtype.kind not in "iu":
        raise CountMismatch(
            f"neighbors of shape {neighbors.shape} and type {neighbors.dtype}. Give a row of node numbers a point."
        )
    none = (neighbors == -1) | (neighbors == NONE)
    bad = ~none & ((neighbors < 0) | (neighbors >= graph.nodes))
    if bad.any():
        row = int(bad.any(axis=1).argmax())
        raise CountMismatch(
            f"neighbors, row {row}: a node beyond the {graph.nodes:,} of the graph. Give their numbers from 0 on."
        )
    return np.where(none, NONE, neighbors.astype(np.int64)).astype(np.uint32)

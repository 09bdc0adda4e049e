"""`mmdiff import-graph`: a graph that was made elsewhere."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mmdiff import text
from mmdiff.cli import show
from mmdiff.cli.build_graph import EdgeWeights, Lambda, Sigma, Weights
from mmdiff.cli.options import DEFAULT_STORE, AsJson, Memory, StorePlace, open_store


class Metric(StrEnum):
    """The numbers beside neighbours."""

    distance = "distance"
    similarity = "similarity"


def command(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="For each node the numbers of its neighbours, -1 for none (`.ivecs`, or integers in `.npy`); or a "
            "square matrix from `scipy.sparse.save_npz` (`.npz`, CSR). Nodes are the rows of the background in your order, "
            "then the seeds, then the test points if they are nodes.",
            show_default=False,
        ),
    ],
    distances: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Distance of each neighbour, for --edge-weights: `.fvecs` or `.npy`.", show_default=False
        ),
    ] = None,
    metric: Annotated[
        Metric, typer.Option(help="Content of --distances: Euclidean distances (not squared), or inner products.")
    ] = Metric.distance,
    edge_weights: EdgeWeights = Weights.constant,
    sigma: Sigma = None,
    lambda_: Lambda = None,
    memory: Memory = "8G",
    store: StorePlace = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Import a graph that was made elsewhere, instead of building one.

    Lists of neighbours, and matrices that are not symmetric, are symmetrised as A + A^T; a symmetric matrix is taken as it is.
    If interrupted, the same command continues; repeated, it does nothing.
    """
    summary = open_store(store, create=True, memory=memory).import_graph(
        file, distances=distances, metric=metric.value, edge_weights=edge_weights.value, sigma=sigma, lambda_=lambda_
    )
    for sentence in summary["notes"]:
        show.note(sentence)
    if json:
        show.as_json(summary)
    elif summary["reused"]:
        show.result(f"{summary['artifact']}: already imported, nothing to do")
    else:
        show.result(
            f"{summary['artifact']}: {text.count(summary['nodes'], 'node')}, {text.count(summary['edges'], 'edge')}, "
            f"{summary['reciprocal']:.1%} reciprocal, {text.size(summary['bytes'])} on disk, "
            f"in {text.duration(summary['seconds'])}"
        )

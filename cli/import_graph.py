"""`mmdiff import-graph`: a graph that was made elsewhere."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mmdiff.cli import show
from mmdiff.cli.options import DEFAULT_STORE, AsJson, Memory, StorePath, parse_bytes, this_command


class Metric(StrEnum):
    """What the numbers beside neighbours are."""

    distance = "distance"
    similarity = "similarity"


class Weights(StrEnum):
    """What edges weigh."""

    constant = "constant"
    gaussian = "gaussian"
    meaningful = "meaningful"


def command(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="For each node the numbers of its neighbours, -1 for none (`.ivecs`, or integers in `.npy`); or a "
            "square matrix from `scipy.sparse.save_npz` (`.npz`, CSR). Nodes are the background, then the seeds.",
            show_default=False,
        ),
    ],
    distances: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="How far each neighbour is, for --edge-weights: `.fvecs` or `.npy`.", show_default=False
        ),
    ] = None,
    metric: Annotated[
        Metric, typer.Option(help="What --distances holds: Euclidean distances (not squared), or inner products.")
    ] = Metric.distance,
    edge_weights: Annotated[Weights, typer.Option(help="What edges of lists weigh.")] = Weights.constant,
    sigma: Annotated[float | None, typer.Option(help="Of Gaussian weights.", show_default=False)] = None,
    lambda_: Annotated[
        float | None, typer.Option("--lambda", help="Of weights of meaningful neighbours.", show_default=False)
    ] = None,
    memory: Memory = "8G",
    store: StorePath = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Import a graph that was made elsewhere, instead of building one.

    Lists of neighbours, and matrices that are not symmetric, are symmetrised as A + A^T; a symmetric matrix is taken as it is.
    Interrupted, the same command continues; repeated, it does nothing.
    """
    from mmdiff.graph.import_graph import Request, import_graph

    request = Request(
        file=file,
        distances=distances,
        metric=metric.value,
        edge_weights=edge_weights.value,
        sigma=sigma,
        lambda_=lambda_,
        memory=parse_bytes("--memory", memory),
        command=this_command(),
    )
    outcome = import_graph(store, request, show.progress)
    summary = outcome.summary()
    if json:
        show.as_json(summary)
        return
    for text in outcome.notes:
        show.note(text)
    if outcome.reused:
        show.result(f"{summary['artifact']}: already imported, nothing to do")
        return
    show.result(
        f"{summary['artifact']}: {summary['nodes']:,} nodes, {summary['edges']:,} edges, "
        f"{summary['reciprocal']:.1%} reciprocal, {show.size(summary['bytes'])} on disk, in {show.duration(outcome.seconds)}"
    )

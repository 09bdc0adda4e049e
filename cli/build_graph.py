"""`mmdiff build-graph`: the k-nearest-neighbour graph of all descriptors."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from mmdiff import text
from mmdiff.cli import show
from mmdiff.cli.options import DEFAULT_STORE, AsJson, Dask, Memory, StorePlace, Threads, open_store


class Device(StrEnum):
    """Where searches run."""

    auto = "auto"
    cpu = "cpu"
    gpu = "gpu"


class Weights(StrEnum):
    """The weights of edges."""

    constant = "constant"
    gaussian = "gaussian"
    meaningful = "meaningful"


K = Annotated[int, typer.Option("--k", help="Neighbours of each node, itself included.")]
Transductive = Annotated[bool, typer.Option("--transductive", help="Make the test points nodes too.")]
EdgeWeights = Annotated[Weights, typer.Option(help="Weights of the edges.")]
Sigma = Annotated[float | None, typer.Option(help="Bandwidth of the Gaussian edge weights.", show_default=False)]
Lambda = Annotated[
    float | None, typer.Option("--lambda", help="Parameter of the meaningful-neighbour edge weights.", show_default=False)
]


def command(
    k: K = 30,
    recall: Annotated[float, typer.Option(help="Share of the true neighbours to find, measured on a sample.")] = 0.95,
    index: Annotated[
        str,
        typer.Option(
            help="`auto`: exact where that is cheapest, else small cells and neighbours' neighbours. `flat`: exact. "
            "Or a Faiss factory string such as `IVF4096,Flat`."
        ),
    ] = "auto",
    device: Annotated[
        Device, typer.Option(help="Device that compares descriptors. `auto`: the GPUs that Faiss sees, else the processor.")
    ] = Device.auto,
    edge_weights: EdgeWeights = Weights.constant,
    sigma: Sigma = None,
    lambda_: Lambda = None,
    transductive: Transductive = False,
    merge_appended: Annotated[
        bool,
        typer.Option("--merge-appended", help="Make appended rows part of the background first, and search all rows anew."),
    ] = False,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    memory: Memory = "8G",
    threads: Threads = None,
    dask: Dask = None,
    store: StorePlace = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Build the graph that labels spread over.

    The neighbours of the background are found once; appended rows, seeds and test points complete the graph without searching
    it again.
    If interrupted, the same command continues; repeated, it makes only what has changed. With `--dask` workers find the
    neighbours of the background and share `--memory`; everything else stays with this process.
    """
    summary = open_store(store, memory=memory, threads=threads, dask=dask).build_graph(
        k=k,
        recall=recall,
        index=index,
        device=device.value,
        edge_weights=edge_weights.value,
        sigma=sigma,
        lambda_=lambda_,
        transductive=transductive,
        merge_appended=merge_appended,
        seed=seed,
    )
    for stage in summary.values():
        for warning in stage["warnings"]:
            show.note(f"warning: {warning}")
    if json:
        show.as_json(summary)
        return
    for name, stage in summary.items():
        took = "unchanged" if stage["reused"] else f"in {text.duration(stage['seconds'])}"
        show.result(f"{name}: {_facts(stage['facts'])}, {text.size(stage['bytes'])} on disk, {took}")


def _facts(facts: dict[str, Any]) -> str:
    if "dropped" in facts:
        return f"{text.count(facts['rows'], 'row')}, appended ones among them"
    if "cells" in facts:
        return text.count(facts["cells"], "cell")
    if "edges" in facts:
        return f"{text.count(facts['nodes'], 'node')}, {text.count(facts['edges'], 'edge')}"
    measured = [facts, *(facts[block] for block in ("W_LB", "W_BL", "W_test") if block in facts)]
    recalls = [f"recall {found['recall']:.3f}" for found in measured if "recall" in found]
    return ", ".join([f"lists of {text.count(facts['rows'], 'row')}", *recalls[:1]])

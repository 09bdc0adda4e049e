"""`mmdiff build-graph`: the k-nearest-neighbour graph of all that was imported."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from mmdiff.cli import show
from mmdiff.cli.options import DEFAULT_STORE, AsJson, Dask, Memory, StorePath, for_workers, parse_bytes, this_command


class Device(StrEnum):
    """Where searches run."""

    auto = "auto"
    cpu = "cpu"
    gpu = "gpu"


class Weights(StrEnum):
    """What edges weigh."""

    constant = "constant"
    gaussian = "gaussian"
    meaningful = "meaningful"


def command(
    k: Annotated[int, typer.Option("--k", help="Neighbours of each node, itself among them.")] = 30,
    recall: Annotated[float, typer.Option(help="Share of the true neighbours to find, measured on a sample.")] = 0.95,
    index: Annotated[
        str,
        typer.Option(
            help="`auto`: exact for small sets, else overlapping cells and neighbours' neighbours. `flat`: exact. "
            "Or a Faiss factory string such as `IVF4096,Flat`."
        ),
    ] = "auto",
    device: Annotated[Device, typer.Option(help="Where a Faiss index is searched.")] = Device.auto,
    edge_weights: Annotated[Weights, typer.Option(help="What edges weigh.")] = Weights.constant,
    sigma: Annotated[float | None, typer.Option(help="Of Gaussian weights.", show_default=False)] = None,
    lambda_: Annotated[
        float | None, typer.Option("--lambda", help="Of weights of meaningful neighbours.", show_default=False)
    ] = None,
    transductive: Annotated[bool, typer.Option("--transductive", help="Make the test points nodes too.")] = False,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn at random.")] = 0,
    memory: Memory = "8G",
    dask: Dask = None,
    store: StorePath = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Build the graph that labels spread over.

    The neighbours of the background are found once; new seeds and test points complete the graph without searching it again.
    Interrupted, the same command continues; repeated, it makes only what has changed. With `--dask` the neighbours of the
    background are found by workers, which share `--memory`; all else stays with this process.
    """
    from mmdiff.building.stage import Request, build_graph
    from mmdiff.runtime.dask import executor_on

    request = Request(
        k=k,
        recall=recall,
        index=index,
        device=device.value,
        memory=parse_bytes("--memory", memory),
        seed=seed,
        edge_weights=edge_weights.value,
        sigma=sigma,
        lambda_=lambda_,
        transductive=transductive,
        command=this_command(),
    )
    place = for_workers(store, dask)
    with executor_on(dask, place) as executor:
        outcome = build_graph(place, request, show.progress, executor)
    summary = outcome.summary()
    if json:
        show.as_json(summary)
        return
    for name, stage in summary.items():
        took = "unchanged" if stage["reused"] else f"in {show.duration(stage['seconds'])}"
        show.result(f"{name}: {_in_words(stage['facts'])}, {show.size(stage['bytes'])} on disk, {took}")


def _in_words(facts: dict[str, Any]) -> str:
    if "cells" in facts:
        return f"{facts['cells']:,} cells, {facts['partitions']} partitions"
    if "edges" in facts:
        return f"{facts['nodes']:,} nodes, {facts['edges']:,} edges"
    measured = [facts, *(facts[block] for block in ("W_LB", "W_BL", "W_test") if block in facts)]
    recalls = [f"recall {found['recall']:.3f}" for found in measured if "recall" in found]
    return ", ".join([f"lists of {facts['rows']:,} rows", *recalls[:1]])

"""`mmdiff diffuse`: labels spread over the graph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmdiff.cli import show
from mmdiff.cli.generated import with_diffusion_options
from mmdiff.cli.options import DEFAULT_STORE, AsJson, Dask, Memory, StorePath, for_workers, parse_bytes, this_command

if TYPE_CHECKING:
    from mmdiff.diffusion.planning.memory_model import Footprint
    from mmdiff.diffusion.stage import Request

ChosenClasses = Annotated[
    str | None,
    typer.Option("--classes", metavar="LIST|FILE", help="Classes to diffuse, by number or name.", show_default="all"),
]
Labels = Annotated[
    str | None,
    typer.Option(
        "--labels", metavar="FILE", help="File with a label for each node, -1 for none.", show_default="those of the seeds"
    ),
]
PredictNodes = Annotated[
    Path | None,
    typer.Option(
        "--predict-nodes", metavar="FILE", help="Parquet file for the best classes of every node.", show_default=False
    ),
]
Name = Annotated[str, typer.Option("--name", help="Name of the scores: `scores/NAME`.")]


@with_diffusion_options
def command(
    options: dict[str, Any],
    classes: ChosenClasses = None,
    labels: Labels = None,
    predict_nodes: PredictNodes = None,
    name: Name = "diffusion",
    memory: Memory = "8G",
    dask: Dask = None,
    store: StorePath = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Spread the labels of the seeds over the graph, and score the test points.

    An interrupted run continues with the same command; a finished one is found again. `mmdiff plan diffuse` shows the memory,
    disk and time of a run. With `--dask` workers compute the batches of classes and share `--memory`; `--eta row` and
    `--eta sinkhorn` couple the batches and run on this machine only.
    """
    from mmdiff.diffusion.stage import diffuse
    from mmdiff.runtime.dask import executor_on

    request = request_of(options, memory, classes=classes, labels=labels, predict_nodes=predict_nodes, name=name)
    place = for_workers(store, dask)
    with executor_on(dask, place) as executor:
        outcome = diffuse(place, request, show.progress, lambda needs: _announce(needs, executor.workers), executor)
    summary = outcome.summary()
    for warning in outcome.warnings:
        show.note(warning)
    if json:
        show.as_json(summary)
        return
    facts = summary["facts"]
    took = "unchanged" if summary["reused"] else f"in {show.duration(summary['seconds'])}"
    tests = f"{facts['tests']:,} test points x {facts['classes']:,} classes"
    show.result(
        f"{summary['artifact']}: {tests}, {request.iterations} iterations, {show.size(summary['bytes'])} on disk, {took}"
    )
    reached = ", ".join(f"{100 * step['nonzero']:.3g} %" for step in facts["steps"])
    show.result(f"labels have reached {reached} of the entries of S after iterations 0 to {request.iterations}")
    if outcome.predictions:
        found = outcome.predictions
        show.result(f"{found['file']}: {found['rows']:,} nodes, {found['reached']:,} of which a label has reached")


def batches(count: int, width: int) -> str:
    """The batches of classes, in words."""
    return f"one batch of {width} classes" if count == 1 else f"{count} batches of {width} classes"


def _announce(needs: Footprint, workers: int) -> None:
    buffer = ", S through a spill file" if needs.spills else ""
    each = f" on each of {workers} workers" if workers > 1 else ""
    show.note(
        f"{batches(needs.batches, needs.width)}{buffer}; at most {show.size(needs.memory)} of memory{each} and "
        f"{show.size(needs.parts + needs.states + needs.artifact)} on disk"
    )


def request_of(options: dict[str, Any], memory: str, **more: Any) -> Request:
    """The request of `diffuse` and of `plan diffuse`."""
    from mmdiff.diffusion.stage import Request

    return Request(**options, memory=parse_bytes("--memory", memory), command=this_command(), **more)

"""`mmdiff diffuse`: labels spread over the graph."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmdiff.cli import show
from mmdiff.cli.options import DEFAULT_STORE, AsJson, Dask, Memory, StorePath, for_workers, parse_bytes, this_command

if TYPE_CHECKING:
    from mmdiff.diffusion.planning.memory_model import Needs
    from mmdiff.diffusion.stage import Request


class Eta(StrEnum):
    """What makes L of the state S."""

    column = "column"
    row = "row"
    none = "none"
    prior = "prior"
    sinkhorn = "sinkhorn"


class Normalization(StrEnum):
    """How the graph is normalised."""

    row = "row"
    symmetric = "symmetric"


class Precision(StrEnum):
    """How S is kept between iterations."""

    float32 = "float32"
    bfloat16 = "bfloat16"


class Keep(StrEnum):
    """Which iterations' scores are kept."""

    all = "all"
    last = "last"


Iterations = Annotated[int, typer.Option("--iterations", help="How often labels are passed on. The paper uses 2 to 7.")]
ColsPerBatch = Annotated[
    str | None,
    typer.Option(
        "--cols-per-batch",
        metavar="N|auto",
        help="Classes at a time; `auto`: as many as `--memory` allows.",
        show_default="as many as fit, at most 96",
    ),
]
EtaOption = Annotated[Eta, typer.Option("--eta", help="How L is normalised.")]
Prior = Annotated[
    str | None,
    typer.Option("--prior", metavar="FILE|uniform|seeds", help="Of `--eta prior` and `sinkhorn`.", show_default="uniform"),
]
PriorPower = Annotated[float | None, typer.Option("--prior-power", help="Raises the prior to a power.", show_default=False)]
Gamma = Annotated[
    float | None, typer.Option("--gamma", help="Raises entries to a power in each iteration.", show_default=False)
]
Alpha = Annotated[float | None, typer.Option("--alpha", help="Share of W S; the rest is Y (Zhou et al.).", show_default=False)]
ResetSeeds = Annotated[bool, typer.Option("--reset-seeds", help="Set seeds back to their labels (Zhu et al.).")]
NormalizeGraph = Annotated[Normalization, typer.Option("--normalize-graph", help="D^-1 A, or D^-1/2 A D^-1/2.")]
Dtype = Annotated[Precision, typer.Option("--dtype", help="How the labels are kept between iterations. bfloat16 is not exact.")]
ChosenClasses = Annotated[
    str | None,
    typer.Option("--classes", metavar="LIST|FILE", help="Only these classes, by number or name.", show_default="all"),
]
Labels = Annotated[
    str | None,
    typer.Option("--labels", metavar="FILE", help="A label for each node, -1 for none.", show_default="those of the seeds"),
]
KeepScores = Annotated[Keep, typer.Option("--keep-scores", help="The iterations whose scores are kept.")]
PredictNodes = Annotated[
    Path | None,
    typer.Option(
        "--predict-nodes", metavar="FILE", help="Write the best classes of every node to Parquet.", show_default=False
    ),
]
Name = Annotated[str, typer.Option("--name", help="The scores are `scores/NAME`.")]
Plain = Annotated[bool, typer.Option("--plain", help="Without shortcuts, which change nothing but the time.")]


def command(
    iterations: Iterations = 5,
    cols_per_batch: ColsPerBatch = None,
    eta: EtaOption = Eta.column,
    prior: Prior = None,
    prior_power: PriorPower = None,
    gamma: Gamma = None,
    alpha: Alpha = None,
    reset_seeds: ResetSeeds = False,
    normalize_graph: NormalizeGraph = Normalization.row,
    dtype: Dtype = Precision.float32,
    classes: ChosenClasses = None,
    labels: Labels = None,
    keep_scores: KeepScores = Keep.all,
    predict_nodes: PredictNodes = None,
    name: Name = "diffusion",
    plain: Plain = False,
    memory: Memory = "8G",
    dask: Dask = None,
    store: StorePath = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Spread the labels of the seeds over the graph, and score the test points.

    Interrupted, the same command continues; repeated, it finds what it made. `mmdiff plan diffuse` says what a run will need.
    With `--dask` each batch of classes is computed by one of the workers, which share `--memory`; not with `--eta row` or
    `sinkhorn`, for which batches need each other.
    """
    from mmdiff.diffusion.stage import diffuse
    from mmdiff.runtime.dask import executor_on

    request = request_of(
        iterations=iterations,
        cols_per_batch=cols_per_batch,
        memory=memory,
        eta=eta,
        prior=prior,
        prior_power=prior_power,
        gamma=gamma,
        alpha=alpha,
        reset_seeds=reset_seeds,
        normalize_graph=normalize_graph,
        dtype=dtype,
        classes=classes,
        labels=labels,
        keep_scores=keep_scores,
        predict_nodes=predict_nodes,
        name=name,
        plain=plain,
    )
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
    show.result(f"{summary['artifact']}: {tests}, {iterations} iterations, {show.size(summary['bytes'])} on disk, {took}")
    reached = ", ".join(f"{100 * step['nonzero']:.3g} %" for step in facts["steps"])
    show.result(f"labels have reached {reached} of the entries of S after iterations 0 to {iterations}")
    if outcome.predictions:
        found = outcome.predictions
        show.result(f"{found['file']}: {found['rows']:,} nodes, {found['reached']:,} of which a label has reached")


def batches(count: int, width: int) -> str:
    """How the classes are taken, in words."""
    return f"one batch of {width} classes" if count == 1 else f"{count} batches of {width} classes"


def _announce(needs: Needs, workers: int) -> None:
    buffer = ", S by way of the disk" if needs.on_disk else ""
    each = f" on each of {workers} workers" if workers > 1 else ""
    show.note(
        f"{batches(needs.batches, needs.width)}{buffer}; at most {show.size(needs.memory)} of memory{each} and "
        f"{show.size(needs.parts + needs.states + needs.artifact)} on disk"
    )


def request_of(cols_per_batch: str | None, memory: str, **options: object) -> Request:
    """What the options of `diffuse` and of `plan diffuse` ask for."""
    from mmdiff.diffusion.stage import COLS_PER_BATCH, Request
    from mmdiff.formats.errors import BadOption

    widest = cols_per_batch == "auto"
    if cols_per_batch is not None and not widest and not re.fullmatch(r"-?[0-9]+", cols_per_batch):
        raise BadOption(f"--cols-per-batch {cols_per_batch}: not a number of columns. Write a number, or auto.")
    plain = {key: value.value if isinstance(value, StrEnum) else value for key, value in options.items()}
    return Request(
        cols_per_batch=None if cols_per_batch is None or widest else int(cols_per_batch),
        most_cols=None if widest else COLS_PER_BATCH,
        memory=parse_bytes("--memory", memory),
        command=this_command(),
        **plain,  # type: ignore[arg-type]
    )

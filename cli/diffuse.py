"""`mmdiff diffuse`: labels spread over the graph."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mmdiff import text
from mmdiff.cli import show
from mmdiff.cli.generated import with_diffusion_options
from mmdiff.cli.options import DEFAULT_STORE, AsJson, Dask, Memory, StorePlace, Threads, open_store

ChosenClasses = Annotated[
    str | None,
    typer.Option("--classes", metavar="LIST|FILE", help="Classes to diffuse, by number or name.", show_default="all"),
]
Labels = Annotated[
    str | None,
    typer.Option(
        "--labels",
        metavar="FILE",
        help="A label for each node, -1 for none.",
        show_default="those of the store",
    ),
]
PredictNodes = Annotated[
    Path | None,
    typer.Option(
        "--predict-nodes", metavar="FILE", help="Write the best classes of every background row to Parquet.", show_default=False
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
    threads: Threads = None,
    dask: Dask = None,
    store: StorePlace = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Spread labels over the graph, and score the test points.

    With `--iterations auto` labelled rows are held out in folds first, and the number of iterations with the best accuracy on
    them is taken; labels of test points are never used for it.

    If interrupted, the same command continues; repeated, it finds what it made. `mmdiff plan diffuse` tells the memory and time
    of a run. With `--dask` each batch of classes is computed by one worker, and the workers share `--memory`; not with `--eta
    row` or `sinkhorn`, which need all classes at once.
    """
    scores = open_store(store, memory=memory, threads=threads, dask=dask).diffuse(
        classes=classes, labels=labels, predict_nodes=predict_nodes or False, name=name, announce=_announce, **options
    )
    summary = scores.summary
    for warning in summary["warnings"]:
        show.note(text.printable(warning))
    if json:
        show.as_json(summary)
        return
    facts = summary["facts"]
    iterations = len(facts["steps"]) - 1
    if "iterations_chosen" in summary:
        _show_choice(summary["iterations_chosen"])
    took = "unchanged" if summary["reused"] else f"in {text.duration(summary['seconds'])}"
    classes = text.count(facts["classes"], "class", "classes")
    # Without test points the best classes of all rows are kept.
    tests = f"{text.count(facts['tests'], 'test point')} x {classes}" if facts["tests"] else f"all rows x {classes}"
    size = text.size(summary["bytes"])
    show.result(f"{summary['artifact']}: {tests}, {text.count(iterations, 'iteration')}, {size} on disk, {took}")
    reached = ", ".join(f"{100 * step['nonzero']:.3g} %" for step in facts["steps"])
    show.result(f"non-zero entries of S after iterations 0 to {iterations}: {reached}")
    if "predictions" in summary:
        found = summary["predictions"]
        rows = f"{text.count(found['rows'], 'row')}, {found['reached']:,} reached by a label"
        show.result(f"{text.printable(found['file'])}: {rows}")


def _show_choice(chosen: dict[str, Any]) -> None:
    """The number of iterations that was chosen, and the accuracies that it was chosen by."""
    rows = f"{text.count(chosen['held_out'], 'labelled row')} held out in {text.count(chosen['folds'], 'fold')}"
    curve = ", ".join(f"{100 * point['top1']:.1f} %" for point in chosen["curve"])
    first, last = chosen["curve"][0]["iteration"], chosen["curve"][-1]["iteration"]
    show.result(f"{text.count(chosen['iterations'], 'iteration')} chosen on {rows}")
    show.result(f"top-1 accuracy on them after iterations {first} to {last}: {curve}")


def batches(count: int, width: int) -> str:
    """The batches of classes."""
    return f"{text.count(count, 'batch', 'batches')} of {text.count(width, 'class', 'classes')}"


def _announce(plan: dict[str, Any]) -> None:
    spill = ", S spilled to disk" if plan["spills"] else ""
    each = f" on each of {plan['workers']} workers" if plan["workers"] > 1 else ""
    show.note(
        f"{batches(plan['batches'], plan['cols_per_batch'])}{spill}; at most {text.size(plan['memory'])} of memory{each} and "
        f"{text.size(plan['disk'])} on disk"
    )

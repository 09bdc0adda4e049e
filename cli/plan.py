"""`mmdiff plan`: the memory, disk and time of a run, before it starts."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mmdiff import text
from mmdiff.cli import show
from mmdiff.cli.build_graph import K, Transductive
from mmdiff.cli.diffuse import ChosenClasses, Labels, PredictNodes, batches
from mmdiff.cli.generated import with_diffusion_options
from mmdiff.cli.options import DEFAULT_STORE, AsJson, Memory, StorePlace, Threads, open_store

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help="Predict the memory, disk and time of a run.")


@app.command("diffuse")
@with_diffusion_options
def diffuse(
    options: dict[str, Any],
    classes: ChosenClasses = None,
    labels: Labels = None,
    predict_nodes: PredictNodes = None,
    memory: Memory = "8G",
    threads: Threads = None,
    store: StorePlace = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Predict the memory, disk and time of `mmdiff diffuse` with the same options.

    Some blocks of the graph are timed, which takes seconds. A run that does not fit the memory is refused, with options
    that would fit.
    """
    plan = open_store(store, memory=memory, threads=threads).plan(
        "diffuse", classes=classes, labels=labels, predict_nodes=predict_nodes or False, **options
    )
    for sentence in plan["notes"]:
        show.note(text.printable(sentence))
    if json:
        show.as_json(plan)
        return
    spill = ", S spilled to disk" if plan["buffer_on_disk"] else ""
    show.result(f"{batches(plan['batches'], plan['cols_per_batch'])}{spill}")
    disk = [("temporary disk", text.size(plan["scratch"])), ("disk for the scores", text.size(plan["artifact"]))]
    if plan["read"]:
        disk.append(("reads of the graph", text.size(plan["read"])))
    _show_needs(plan, disk)
    steps = [
        (str(step["iteration"]), step["form"], f"{step['rows']:,}", text.duration(step["seconds"])) for step in plan["steps"]
    ]
    show.table(("iteration", "computed from", "rows", "time of a batch"), steps)


@app.command("build-graph")
def build_graph(
    k: K = 30,
    index: Annotated[str, typer.Option(help="`auto` or `flat`.")] = "auto",
    transductive: Transductive = False,
    memory: Memory = "8G",
    threads: Threads = None,
    store: StorePlace = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Predict the memory, disk and time of `mmdiff build-graph` with the same options. A search of seconds is timed."""
    opened = open_store(store, memory=memory, threads=threads)
    plan = opened.plan("build_graph", k=k, index=index, transductive=transductive)
    for sentence in plan["notes"]:
        show.note(text.printable(sentence))
    if json:
        show.as_json(plan)
        return
    show.result(f"{text.count(plan['nodes'], 'node')}, index {plan['index']}")
    _show_needs(plan, [("disk", text.size(plan["disk"]))])


def _show_needs(plan: dict[str, Any], disk: list[tuple[str, str]]) -> None:
    rows = [("memory", text.size(plan["memory"]), f"{text.size(plan['memory_limit'])} (--memory)")]
    for number, (what, needed) in enumerate(disk):
        rows.append((what, needed, f"{text.size(plan['disk_free'])} free" if number == 0 else ""))
    rows.append(("time", text.duration(plan["seconds"]), ""))
    show.table(("", "needed", "available"), rows)

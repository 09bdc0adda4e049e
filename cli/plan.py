"""`mmdiff plan`: memory, disk and time of a run, before it is started."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mmdiff.cli import show
from mmdiff.cli.diffuse import ChosenClasses, Labels, PredictNodes, batches, request_of
from mmdiff.cli.generated import with_diffusion_options
from mmdiff.cli.options import DEFAULT_STORE, AsJson, Memory, StorePath, parse_bytes

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help="Show the memory, disk and time that a run needs.")


@app.command("diffuse")
@with_diffusion_options
def diffuse(
    options: dict[str, Any],
    classes: ChosenClasses = None,
    labels: Labels = None,
    predict_nodes: PredictNodes = None,
    memory: Memory = "8G",
    store: StorePath = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Show the memory, disk and time of `mmdiff diffuse` with the same options.

    Some blocks of the graph are timed, which takes seconds. A run that does not fit is refused, with options that would fit.
    """
    from mmdiff.diffusion.planning.estimate import plan_diffuse

    request = request_of(options, memory, classes=classes, labels=labels, predict_nodes=predict_nodes)
    plan = plan_diffuse(store, request).summary()
    show.as_json(plan) if json else _show_diffuse(plan)


def _show_diffuse(plan: dict[str, Any]) -> None:
    where = ", S through a spill file" if plan["buffer_on_disk"] else ""
    show.result(f"{batches(plan['batches'], plan['cols_per_batch'])}{where}")
    table = show.table("", "needed", "available")
    table.add_row("memory", f"at most {show.size(plan['memory'])}", f"{show.size(plan['memory_limit'])} (--memory)")
    table.add_row("disk, temporary", show.size(plan["scratch"]), f"{show.size(plan['disk_free'])} free")
    table.add_row("disk, scores", show.size(plan["artifact"]), "")
    table.add_row("time", show.duration(plan["seconds"]), "")
    show.rich_result(table)
    steps = show.table("iteration", "form", "rows", "time of a batch")
    for step in plan["steps"]:
        steps.add_row(str(step["iteration"]), step["form"], f"{step['rows']:,}", show.duration(step["seconds"]))
    show.rich_result(steps)


@app.command("build-graph")
def build_graph(
    k: Annotated[int, typer.Option("--k", help="Neighbours of each node, itself among them.")] = 30,
    index: Annotated[str, typer.Option(help="`auto` or `flat`.")] = "auto",
    transductive: Annotated[bool, typer.Option("--transductive", help="Make the test points nodes too.")] = False,
    memory: Memory = "8G",
    store: StorePath = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """What `mmdiff build-graph` with the same options will need, all stages together. A search of seconds is timed."""
    from mmdiff.building.estimate import plan_build_graph
    from mmdiff.building.stage import Request

    request = Request(k=k, index=index, transductive=transductive, memory=parse_bytes("--memory", memory))
    plan = plan_build_graph(store, request).summary()
    if json:
        show.as_json(plan)
        return
    show.result(f"{plan['nodes']:,} nodes, index {plan['index']}")
    table = show.table("", "needed", "there is")
    table.add_row("memory", show.size(plan["memory"]), f"{show.size(plan['memory_limit'])} (--memory)")
    table.add_row("disk", show.size(plan["disk"]), f"{show.size(plan['disk_free'])} free")
    table.add_row("time", show.duration(plan["seconds"]), "")
    show.rich_result(table)

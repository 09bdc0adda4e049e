"""The command line: one file per command, each of which parses, calls the public API and shows the result."""

from __future__ import annotations

import atexit
from gc import freeze
from typing import Annotated

import typer

import mmdiff
from mmdiff.cli import (
    audit,
    browse,
    build_graph,
    describe,
    diffuse,
    doctor,
    evaluate,
    experiment,
    explain,
    export,
    fetch,
    fuse,
    gc,
    import_graph,
    importing,
    inspect,
    label,
    logreg,
    plan,
    predict,
    report,
    show,
    suggest,
    train_describer,
    verify,
)
from mmdiff.cli.errors import Commands

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Spread a few labels over up to 10^8 embeddings, on one workstation, from disk.",
)
app.command("import")(importing.command)
app.command("describe")(describe.command)
app.command("train-describer")(train_describer.command)
app.command("label")(label.command)
app.command("suggest")(suggest.command)
app.command("build-graph")(build_graph.command)
app.command("import-graph")(import_graph.command)
app.command("diffuse")(diffuse.command)
app.add_typer(plan.app, name="plan")
app.command("logreg")(logreg.command)
app.command("fuse")(fuse.command)
app.command("predict")(predict.command)
app.command("evaluate")(evaluate.command)
app.add_typer(experiment.app, name="experiment")
app.command("audit")(audit.command)
app.command("explain")(explain.command)
app.command("report")(report.command)
app.command("browse")(browse.command)
app.command("inspect")(inspect.command)
app.command("verify")(verify.command)
app.command("export")(export.command)
app.command("fetch")(fetch.command)
app.command("gc")(gc.command)
app.command("doctor")(doctor.command)


def _show_version(wanted: bool) -> None:
    if wanted:
        commit = f" (commit {mmdiff.__commit__})" if mmdiff.__commit__ else ""
        show.result(f"mmdiff {mmdiff.__version__}{commit}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version, with the commit where it is known, and exit.",
            callback=_show_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Spread a few labels over up to 10^8 embeddings, on one workstation, from disk."""
    del version


def main() -> None:
    """The console script `mmdiff`."""
    show.open_closed_streams()
    # Collecting the garbage of a process that ends would take a tenth of a second.
    atexit.register(freeze)
    app()

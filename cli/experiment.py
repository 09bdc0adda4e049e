"""`mmdiff experiment`: the paper's protocol as a grid of methods, on one's own data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mmdiff.cli import show
from mmdiff.cli.options import DEFAULT_STORE, AsJson, Dask, StorePath, for_workers, this_command

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown", help="Compare methods over draws of seeds, as the paper does."
)


@app.callback()
def group() -> None:
    """Compare methods over draws of seeds, as the paper does."""


@app.command("run")
def run(
    config: Annotated[Path, typer.Argument(help="A TOML file that says what to compare.", show_default=False)],
    dask: Dask = None,
    store: StorePath = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Run all methods of a config for every n, draw and background, and publish what came of it as `reports/NAME`.

    Hyper-parameters are chosen on the validation group and kept for the test group. Interrupted, the same command continues;
    what another report of the store has computed is not computed again. `docs/experiments.md` says how to write a config.
    With `--dask` cells are computed by workers, each of which reads the data of the config.
    """
    from mmdiff.experiment.stage import run_experiment
    from mmdiff.runtime.dask import executor_on

    with executor_on(dask, for_workers(config, dask)) as executor:
        summary = run_experiment(store, config, this_command(), show.progress, executor).summary()
    if json:
        show.as_json(summary)
        return
    took = "unchanged" if summary["reused"] else f"in {show.duration(summary['seconds'])}"
    found = f", {summary['cells_found']:,} of which were there" if summary["cells_found"] else ""
    show.result(f"{summary['artifact']}: {summary['cells']:,} cells{found}, {took}")
    lines = [line for line in summary["facts"]["lines"] if line["chosen"]]
    last = lines[-1]["group"]
    reported = [line for line in lines if line["group"] == last]
    points = summary["facts"]["tests"][last]
    for figure, title, count in (
        ("top5", "top-5 accuracy", points["all"]),
        ("novel_top5", "top-5 accuracy on novel classes", points["novel"]),
    ):
        show.result(f"\n{title}, {last} group ({count:,} test points), mean and standard deviation of draws, %")
        _show_table(reported, figure)
    if last == "validation":
        show.note("iterations and weights were chosen on these very test points, so these accuracies flatter the methods.")


def _show_table(lines: list[dict[str, Any]], figure: str) -> None:
    """One row for each method and background, one column for each n."""
    ns = list(dict.fromkeys(line["n"] for line in lines))
    table = show.table("method", "background", *(f"n = {n}" for n in ns))
    cells = {(_title(line), line["background"], line["n"]): line for line in lines}
    for name, background in dict.fromkeys((method, background) for method, background, _ in cells):
        row = [cells[name, background, n] for n in ns]
        table.add_row(name, background or "-", *(_figure(line, figure) for line in row))
    show.rich_result(table)


def _title(line: dict[str, Any]) -> str:
    """What to call the variant of a method."""
    options = ", ".join(f"{key} {value}" for key, value in line["variant"].items())
    return f"{line['method']} ({options})" if options else str(line["method"])


def _figure(line: dict[str, Any], figure: str) -> str:
    mean, std = (100 * line[which][figure][line["plane"]] for which in ("mean", "std"))
    return f"{mean:.2f} ± {std:.2f}{_at(line)}"


def _at(line: dict[str, Any]) -> str:
    """The iteration or the weight that was chosen."""
    place = line["planes"][line["plane"]]
    return {"diffusion": f" @{place}", "fusion": f" @{place:g}"}.get(line["kind"], "")

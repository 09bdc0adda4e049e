"""`mmdiff inspect`: what lies in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmdiff.cli import show
from mmdiff.cli.options import DEFAULT_PLACE, AsJson, StorePlace
from mmdiff.cli.reading import open_store

if TYPE_CHECKING:
    from rich.table import Table

_VALUES_SHOWN = 6


def command(
    artifact: Annotated[
        str | None, typer.Argument(help="Only this artifact, in detail, e.g. `descriptors/background`.", show_default=False)
    ] = None,
    rows: Annotated[
        str | None, typer.Option(metavar="A:B", help="Show rows A to B-1 of the artifact.", show_default=False)
    ] = None,
    store: StorePlace = DEFAULT_PLACE,
    json: AsJson = False,
) -> None:
    """Show the store as a tree, or one artifact in detail: what it is, what it was made from, whether that is still current."""
    from mmdiff.formats.errors import BadOption
    from mmdiff.inspection import stage as inspect
    from mmdiff.kinds import KINDS

    opened = open_store(store)
    if rows is not None and artifact is None:
        raise BadOption(f"--rows {rows}: of which artifact? Name it, e.g. mmdiff inspect descriptors/seeds --rows {rows}")
    if artifact is None:
        found = inspect.overview(opened, KINDS)
        show.as_json(found) if json else _show_overview(found)
    elif rows is not None:
        lines = inspect.rows(opened, artifact, rows)
        show.as_json(list(lines)) if json else _show_rows(lines)
    else:
        found = inspect.details(opened, artifact, KINDS)
        show.as_json(found) if json else _show_details(found)


def _show_overview(found: dict[str, Any]) -> None:
    table = show.table("artifact", "what", "on disk", "made", "from", "current")
    for number, line in enumerate(found["artifacts"]):
        last = number + 1 == len(found["artifacts"])
        table.add_row(
            f"{'└' if last else '├'} [bold]{line['artifact']}[/]",
            line["what"],
            show.size(line["bytes"]),
            show.age(line["made"]),
            ", ".join(line["made_from"]),
            f"[{'yellow' if line['stale'] else 'green'}]{_current(line)}[/]",
        )
    show.result(found["store"])
    show.rich_result(table)
    if not found["artifacts"]:
        show.result("no artifacts yet")
    for item in found["unnamed"]:
        show.note(f"{item['folder']}: {show.size(item['bytes'])}, {item['why']}; `mmdiff gc` removes it.")


def _show_details(found: dict[str, Any]) -> None:
    show.result(f"{found['artifact']}: {found['what']}")
    facts = show.table(header=False)
    run = found["run"]
    facts.add_row("object", f"{found['object']} (kind {found['kind']}, schema {found['schema']})")
    facts.add_row("made", f"{show.age(found['made'])}, in {show.duration(found['seconds'])}, by: {run['command']}")
    for key, value in found["inputs"].items():
        name = value.get("artifact") or f"{value['source']} ({show.size(value['bytes'])})"
        facts.add_row(f"from {key}", f"{name}, {value.get('object') or value['digest']}")
    facts.add_row("current", _current(found))
    for key, value in found["parameters"].items():
        facts.add_row(key.replace("_", " "), f"{value:g}" if isinstance(value, float) else _plain(value))
    for key, value in found["facts"].items():
        facts.add_row(key.replace("_", " "), _plain(value))
    facts.add_row("peak memory", show.size(run["peak_memory"]))
    facts.add_row("versions", _plain(run["versions"]))
    show.rich_result(facts)
    arrays = show.table("array", "shape", "dtype", "chunks", "on disk")
    for name, array in found["arrays"].items():
        arrays.add_row(name, show.shape(array["shape"]), array["dtype"], str(array["chunks"]), show.size(array["bytes"]))
    show.rich_result(arrays)
    statistics = show.table(header=False)
    _add_statistics(statistics, found["statistics"])
    show.rich_result(statistics)


def _add_statistics(table: Table, statistics: dict[str, Any]) -> None:
    for key, value in statistics.items():
        title = key.replace("_", " ")
        if isinstance(value, dict) and "histogram" in value:
            if len(value["histogram"]) == 1:
                table.add_row(title, f"all {value['median']:.4g}")
                continue
            table.add_row(
                title,
                f"{value['min']:.4g} [cyan]{show.histogram(value['histogram'])}[/] {value['max']:.4g}, "
                f"median {value['median']:.4g}, half between {value['quarter']:.4g} and {value['three_quarters']:.4g}",
            )
        elif key == "labels":
            _add_statistics(table, value)
        elif isinstance(value, dict):
            table.add_row(title, "; ".join(f"{name}: {_plain(count)}" for name, count in value.items()))
        else:
            table.add_row(title, _plain(value))


def _show_rows(lines: Any) -> None:
    table = show.table("row", "id", "labels", "values")
    for line in lines:
        values = " ".join(f"{value: .4f}" for value in line["values"][:_VALUES_SHOWN])
        more = " ..." if len(line["values"]) > _VALUES_SHOWN else ""
        table.add_row(str(line["row"]), str(line["id"]), ", ".join(line["labels"]) or "-", values + more)
    show.rich_result(table)


def _current(line: dict[str, Any]) -> str:
    if line["stale"]:
        return "no: " + "; ".join(line["stale"])
    return "yes" if not line["gone"] else f"yes ({', '.join(line['gone'])} gone)"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(inner)}" for key, inner in value.items()) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return f"{len(value)} entries, which --json shows"
    if isinstance(value, float):
        return f"{value:.1%}" if 0.01 <= value < 1 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)

"""`mmdiff inspect`: the artifacts of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmdiff import text
from mmdiff.cli import show
from mmdiff.cli.options import DEFAULT_STORE, AsJson, StorePlace, complete_artifacts, open_store

if TYPE_CHECKING:
    from rich.text import Text

_VALUES_SHOWN = 6


def command(
    artifact: Annotated[
        str | None,
        typer.Argument(
            help="Only this artifact, in detail, e.g. `descriptors/background`.",
            show_default=False,
            autocompletion=complete_artifacts,
        ),
    ] = None,
    rows: Annotated[
        str | None, typer.Option(metavar="A:B", help="Show rows A to B-1 of the artifact.", show_default=False)
    ] = None,
    store: StorePlace = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Show the store as a tree, or one artifact in detail: its content, its origin, and whether it is stale."""
    found = open_store(store).inspect(artifact, rows=rows)
    if json:
        show.as_json(found["rows"] if rows is not None else found)
    elif rows is not None:
        _show_rows(found["rows"])
    else:
        _show_overview(found) if artifact is None else _show_details(found)


def _show_overview(found: dict[str, Any]) -> None:
    lines = found["artifacts"]
    rows: list[list[str | Text]] = [
        [
            show.styled(f"{'└' if number + 1 == len(lines) else '├'} {line['artifact']}", "bold"),
            line["what"],
            text.size(line["bytes"]),
            show.age(line["made"]),
            ", ".join(line["made_from"]),
            show.styled(_currency(line), "yellow" if line["stale"] else "green"),
        ]
        for number, line in enumerate(lines)
    ]
    show.result(text.printable(found["store"]))
    if rows:
        show.table(("artifact", "content", "on disk", "made", "from", "current"), rows)
    else:
        show.result("no artifacts yet")
    for item in found["unnamed"]:
        show.note(f"{text.printable(item['folder'])}: {text.size(item['bytes'])}, {item['why']}; `mmdiff gc` removes it.")


def _show_details(found: dict[str, Any]) -> None:
    show.result(f"{found['artifact']}: {text.printable(found['what'])}")
    run = found["run"]
    facts: list[tuple[str, str]] = [
        ("object", f"{found['object']} (kind {found['kind']}, schema {found['schema']})"),
        ("made", f"{show.age(found['made'])}, in {text.duration(found['seconds'])}, by: {run['command']}"),
    ]
    for key, value in found["inputs"].items():
        name = value.get("artifact") or f"{value['source']} ({text.size(value['bytes'])})"
        facts.append((f"from {key}", f"{name}, {value.get('object') or value['digest']}"))
    facts.append(("current", _currency(found)))
    for key, value in found["parameters"].items():
        facts.append((key.replace("_", " "), f"{value:g}" if isinstance(value, float) else _plain(value)))
    facts += [(key.replace("_", " "), _plain(value)) for key, value in found["facts"].items()]
    facts.append(("peak memory", text.size(run["peak_memory"])))
    facts.append(("versions", _plain(run["versions"])))
    show.table(("fact", "value"), facts, header=False)
    arrays = [
        (name, show.shape(array["shape"]), array["dtype"], str(array["chunks"]), text.size(array["bytes"]))
        for name, array in found["arrays"].items()
    ]
    show.table(("array", "shape", "dtype", "chunks", "on disk"), arrays)
    show.table(("statistic", "value"), list(_statistics(found["statistics"])), header=False)


def _statistics(statistics: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for key, value in statistics.items():
        title = key.replace("_", " ")
        if isinstance(value, dict) and "histogram" in value:
            if len(value["histogram"]) == 1:
                rows.append((title, f"all {value['median']:.4g}"))
                continue
            spread = f"median {value['median']:.4g}, half between {value['quarter']:.4g} and {value['three_quarters']:.4g}"
            bars = show.histogram(value["histogram"])
            rows.append((title, f"{value['min']:.4g} {bars} {value['max']:.4g}, {spread}"))
        elif key == "labels":
            rows += _statistics(value)
        elif isinstance(value, dict):
            rows.append((title, "; ".join(f"{name}: {_plain(count)}" for name, count in value.items())))
        else:
            rows.append((title, _plain(value)))
    return rows


def _show_rows(lines: list[dict[str, Any]]) -> None:
    rows = []
    for line in lines:
        values = " ".join(f"{value: .4f}" for value in line["values"][:_VALUES_SHOWN])
        more = " ..." if len(line["values"]) > _VALUES_SHOWN else ""
        rows.append((str(line["row"]), str(line["id"]), ", ".join(line["labels"]) or "-", values + more))
    show.table(("row", "id", "labels", "values"), rows)


def _currency(line: dict[str, Any]) -> str:
    if line["stale"]:
        return "no: " + "; ".join(line["stale"])
    return "yes" if not line["gone"] else f"yes ({', '.join(line['gone'])} gone)"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(inner)}" for key, inner in value.items()) or "none"
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return f"{len(value)} entries, shown by --json"
    if isinstance(value, list):
        return ", ".join(map(_plain, value)) or "-"
    if isinstance(value, float):
        return f"{value:.1%}" if 0.01 <= value < 1 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)

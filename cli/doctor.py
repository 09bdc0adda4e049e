"""`mmdiff doctor`: is this machine fit, and what would a bug report have to say?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from mmdiff.cli import show
from mmdiff.cli.options import DEFAULT_STORE, AsJson, StorePath

if TYPE_CHECKING:
    from rich.table import Table

    from mmdiff.doctor.checks import Check

UNFIT = 1

Facts = dict[str, Any]

_MARKS = {"ok": "[green]ok[/]", "worth knowing": "[yellow]![/]", "problem": "[red]BAD[/]"}
_ABSENT = "[dim]-[/]"


def command(store: StorePath = DEFAULT_STORE, json: AsJson = False) -> None:
    """Look at the software, the machine and the store's disk: what a bug report should say. Takes a few seconds.

    Measures the disk on a temporary file of 256 MiB beside the store. Exit code 1 if there is a problem.
    """
    from mmdiff.doctor.checks import Verdict
    from mmdiff.doctor.stage import as_document, examine, worst

    checks = examine(store, show.progress)
    if json:
        show.as_json(as_document(checks))
    else:
        show.rich_result(table_of(checks))
        show.result(_conclusion(checks))
    if worst(checks) == Verdict.PROBLEM:
        raise typer.Exit(UNFIT)


def table_of(checks: list[Check]) -> Table:
    """One line for each check, under the name of its group; advice stands below what it is about."""
    from rich.markup import escape
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    group = ""
    for check in checks:
        if check.group != group:
            if group:
                table.add_row()
            group = check.group
            table.add_row(f"[bold]{group}[/]")
        absent = check.verdict == "ok" and (check.facts.get("version", "") is None or check.facts.get("missing"))
        table.add_row(f"  {check.name.replace('_', ' ')}", _ABSENT if absent else _MARKS[check.verdict], escape(_told(check)))
        if check.verdict != "ok":
            table.add_row("", "", escape(check.advice))
    return table


def _conclusion(checks: list[Check]) -> str:
    counts = {verdict: sum(check.verdict == verdict for check in checks) for verdict in ("problem", "worth knowing")}
    told = [f"{counts['problem']} {'problem' if counts['problem'] == 1 else 'problems'}"] if counts["problem"] else []
    told += [f"{counts['worth knowing']} worth knowing"] if counts["worth knowing"] else []
    return "\n" + (", ".join(told) or "all is well")


def _told(check: Check) -> str:
    """What was found, in a few words."""
    if check.group == "extras":
        return _extra(check)
    return _WORDS.get(check.name, _version)(check.facts)


def _version(facts: Facts) -> str:
    return facts["version"] or "not installed"


def _faiss(facts: Facts) -> str:
    return ", ".join(f"{name} {version}" for name, version in facts["distributions"].items()) or _version(facts)


def _extra(check: Check) -> str:
    facts = check.facts
    present = ", ".join(f"{name} {version}" for name, version in facts["present"].items())
    if not facts["missing"]:
        return present
    return (f"{present}; without {', '.join(facts['missing'])}: " if present else f"{facts['purpose']}: ") + check.advice


def _cores(facts: Facts) -> str:
    quota = "" if facts["quota"] is None else f", CPU quota {facts['quota']:g}"
    return f"{facts['threads']} {'thread' if facts['threads'] == 1 else 'threads'} (limited by: {facts['decided_by']}{quota})"


def _memory(facts: Facts) -> str:
    limited = " (a limit of the control group)" if facts["limit_bytes"] == facts["total_bytes"] else ""
    return f"{show.size(facts['total_bytes'])}{limited}, {show.size(facts['available_bytes'])} available"


def _speed(facts: Facts) -> str:
    if facts["read_bytes_per_second"] is None:
        return "not measured"
    return f"reads {show.size(facts['read_bytes_per_second'])}/s, writes {show.size(facts['write_bytes_per_second'])}/s"


def _folder(facts: Facts) -> str:
    found = "no store there yet" if facts["artifacts"] is None else f"{facts['artifacts']} artifacts"
    return f"{facts['path']} ({found})"


_WORDS: dict[str, Callable[[Facts], str]] = {
    "python": lambda facts: f"{facts['version']} on {facts['system']}",
    "faiss": _faiss,
    "cores": _cores,
    "memory": _memory,
    "gpus": lambda facts: ", ".join(facts["names"]) or "none",
    "crc32c": lambda facts: "in hardware" if facts["in_hardware"] else "in pure Python",
    "page_size": lambda facts: show.size(facts["bytes"]),
    "maps": lambda facts: f"{facts['max_map_count']:,} (vm.max_map_count), enough for {show.size(facts['mappable_bytes'])}",
    "folder": _folder,
    "free_space": lambda facts: show.size(facts["bytes"]),
    "filesystem": lambda facts: str(facts["type"]),
    "speed": _speed,
}

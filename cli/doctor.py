"""`mmdiff doctor`: whether this machine is fit, and what a bug report should say."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from mmdiff import text
from mmdiff.cli import show
from mmdiff.cli.options import DEFAULT_STORE, AsJson, StorePlace, open_store

if TYPE_CHECKING:
    from rich.text import Text

UNFIT = 1

Facts = dict[str, Any]

_MARKS = {"ok": ("ok", "green"), "worth knowing": ("!", "yellow"), "problem": ("BAD", "red")}
_ABSENT = ("-", "dim")


def command(store: StorePlace = DEFAULT_STORE, json: AsJson = False) -> None:
    """Check the software, the machine and the store's disk: what a bug report should say. Takes a few seconds.

    Measures the disk on a temporary file of 256 MiB beside the store. Exit code 1 if there is a problem.
    """
    found = open_store(store, create=True).doctor()
    if json:
        show.as_json(found)
    else:
        show_checks(found)
    if found["verdict"] == "problem":
        raise typer.Exit(UNFIT)


def show_checks(found: dict[str, Any]) -> None:
    """One line for each check, below the name of its group; advice stands below its check."""
    rows: list[list[str | Text]] = []
    for group, checks in found.items():
        if group == "verdict":
            continue
        rows += [["", "", ""]] if rows else []
        rows.append([show.styled(group, "bold"), "", ""])
        for name, check in checks.items():
            facts = {key: value for key, value in check.items() if key not in ("verdict", "advice")}
            absent = check["verdict"] == "ok" and (facts.get("version", "") is None or facts.get("missing"))
            mark = show.styled(*(_ABSENT if absent else _MARKS[check["verdict"]]))
            told = _extra(facts, check["advice"]) if group == "extras" else _WORDS.get(name, _version)(facts)
            rows.append([f"  {name.replace('_', ' ')}", mark, told])
            if check["verdict"] != "ok":
                rows.append(["", "", check["advice"]])
    show.table(("check", "", "found"), rows, header=False)
    show.result(_conclusion(found))


def _conclusion(found: dict[str, Any]) -> str:
    verdicts = [check["verdict"] for group, checks in found.items() if group != "verdict" for check in checks.values()]
    problems, notable = verdicts.count("problem"), verdicts.count("worth knowing")
    told = [text.count(problems, "problem")] if problems else []
    told += [f"{notable} worth knowing"] if notable else []
    return "\n" + (", ".join(told) or "all is well")


def _version(facts: Facts) -> str:
    return facts["version"] or "not installed"


def _faiss(facts: Facts) -> str:
    return ", ".join(f"{name} {version}" for name, version in facts["distributions"].items()) or _version(facts)


def _extra(facts: Facts, advice: str) -> str:
    present = ", ".join(f"{name} {version}" for name, version in facts["present"].items())
    if not facts["missing"]:
        return present
    return (f"{present}; without {', '.join(facts['missing'])}: " if present else f"{facts['purpose']}: ") + advice


def _cores(facts: Facts) -> str:
    quota = "" if facts["quota"] is None else f", CPU quota {facts['quota']:g}"
    return f"{text.count(facts['threads'], 'thread')} (limited by: {facts['decided_by']}{quota})"


def _memory(facts: Facts) -> str:
    limited = " (limited by the control group)" if facts["limit_bytes"] == facts["total_bytes"] else ""
    return f"{text.size(facts['total_bytes'])}{limited}, {text.size(facts['available_bytes'])} available"


def _speed(facts: Facts) -> str:
    if facts["read_bytes_per_second"] is None:
        return "not measured"
    return f"reads {text.size(facts['read_bytes_per_second'])}/s, writes {text.size(facts['write_bytes_per_second'])}/s"


def _folder(facts: Facts) -> str:
    found = "no store there yet" if facts["artifacts"] is None else text.count(facts["artifacts"], "artifact")
    return f"{facts['path']} ({found})"


_WORDS: dict[str, Callable[[Facts], str]] = {
    "mmdiff": lambda facts: f"{facts['version']} (commit {facts['commit']})" if facts["commit"] else facts["version"],
    "python": lambda facts: f"{facts['version']} on {facts['system']}",
    "faiss": _faiss,
    "cores": _cores,
    "memory": _memory,
    "gpus": lambda facts: ", ".join(facts["names"]) or "none",
    "crc32c": lambda facts: "in hardware" if facts["in_hardware"] else "in pure Python",
    "page_size": lambda facts: text.size(facts["bytes"]),
    "maps": lambda facts: f"{facts['max_map_count']:,} (vm.max_map_count), enough for {text.size(facts['mappable_bytes'])}",
    "folder": _folder,
    "free_space": lambda facts: text.size(facts["bytes"]),
    "filesystem": lambda facts: str(facts["type"]),
    "speed": _speed,
}

"""What was run: the artifacts of the store, how they were made, and what each took in time and memory."""

from __future__ import annotations

from collections.abc import Iterator

from mmdiff.formats.manifest import Json
from mmdiff.report.gathering import Findings
from mmdiff.report.html import Markup, table, tag
from mmdiff.report.words import duration, moment, size, value

_LEAST = 0.004


def run_section(findings: Findings) -> Iterator[Markup]:
    stages = sorted((line for line in findings.artifacts if line["seconds"] is not None), key=lambda line: line["started"])
    if not stages:
        yield tag("p", "Nothing yet. Begin with: mmdiff import FILE --role background")
        return
    longest = max(line["seconds"] for line in stages) or 1.0
    largest = max(line["peak_memory"] for line in stages) or 1
    slow = max(stages, key=lambda line: line["seconds"])
    yield tag(
        "p",
        f"All stages together took {duration(sum(line['seconds'] for line in stages))} on {_machine(stages[-1])}; the longest "
        f"was {slow['artifact']} with {duration(slow['seconds'])}. Peak memory was {size(largest)}. "
        "Stages of one command share its peak.",
    )
    rows = [
        [
            line["artifact"],
            _bar(line["seconds"] / longest),
            duration(line["seconds"]),
            _bar(line["peak_memory"] / largest),
            size(line["peak_memory"]),
            size(line["bytes"]),
        ]
        for line in stages
    ]
    head = ["artifact", "", "time", "", "peak memory", "on disk"]
    yield table(head, rows, "Time and memory of each stage", 1, "bars")
    yield tag("h3", "Commands")
    commands = dict.fromkeys(line["command"] for line in stages)
    lines = tag("code", "\n".join(commands))
    yield tag("pre", lines, class_="scroll", tabindex=0, role="region", aria_label="The commands that were run")
    yield tag("h3", "Parameters and facts")
    yield from (_details(line) for line in findings.artifacts)


def _machine(line: Json) -> str:
    return f"{line['cores']} core{'' if line['cores'] == 1 else 's'} of {line['host']}"


def _bar(share: float) -> Markup:
    return tag("span", class_="bar", style=f"--value:{max(share, _LEAST):.4f}", aria_hidden="true")


def _details(line: Json) -> Markup:
    shapes = ", ".join(f"{name} {' x '.join(f'{n:,}' for n in shape)}" for name, shape in line["shapes"].items())
    rows = [["made", moment(line["started"])], ["arrays", shapes]]
    rows += [[key.replace("_", " "), value(given)] for key, given in line["parameters"].items()]
    rows += [[key.replace("_", " "), value(given)] for key, given in line["facts"].items() if key not in ("lines", "curve")]
    if line["versions"]:
        rows.append(["versions", value(line["versions"])])
    stale = tag("span", "; ".join(line["stale"]), class_="stale") if line["stale"] else None
    return tag(
        "details",
        tag("summary", line["artifact"], [" ", stale] if stale else None),
        table(["what", "value"], rows, f"Parameters and facts of {line['artifact']}", 9, "facts"),
    )

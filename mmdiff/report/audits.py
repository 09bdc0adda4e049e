"""Section of the HTML report on audits: for each part its counts, its worst rows, and what the user should know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mmdiff.report.gathering import Findings
from mmdiff.report.html import Markup, sentence, shortened, table, tag

_PARTS = {
    "labels": "Labels that the graph contradicts",
    "duplicates": "Near-duplicates",
    "leaks": "Leaks into the evaluation",
    "outliers": "Outliers",
}
_TITLE = 34


def audit_section(findings: Findings) -> Iterator[Markup]:
    """The worst rows of each part that was audited."""
    for part, title in _PARTS.items():
        found = findings.audits.get(part)
        if found is None:
            continue
        yield tag("h3", title)
        yield tag("p", f"{sentence(found['headline'].partition(': ')[2])}.")
        for note in found["notes"]:
            yield tag("p", sentence(note), class_="note")
        if found["worst"]:
            head = [name.replace("_", " ") for name in found["worst"][0]]
            rows = [[_cell(value) for value in row.values()] for row in found["worst"]]
            yield table(head, rows, f"The worst of {found['rows']:,}: {part}", len(head))


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 0.001 else f"{value:.4g}"
    return shortened(str(value), _TITLE)

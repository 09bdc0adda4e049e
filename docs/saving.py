"""Writes the results of a measurement to docs/experiments/results, as JSON with a line for each entry of its lists."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def save(path: Path, head: dict[str, Any], **lists: Sequence[Any]) -> None:
    """Writes `head`, which holds the command that computes the results, and lists of results."""
    entries = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for name, found in lists.items():
        body = ",\n".join(f"  {json.dumps(entry)}" for entry in found)
        entries.append(f" {json.dumps(name)}: [\n{body}\n ]")
    text = ",\n".join(entries)
    path.write_text(f"{{\n{text}\n}}\n")

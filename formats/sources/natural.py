"""The order people expect of numbered files: part_2 before part_10."""

from __future__ import annotations

import re
from pathlib import Path


def natural_order(path: str | Path) -> tuple[list[str | int], str]:
    """A key for sorting. The parts alternate between text and number, so that like is compared with like."""
    text = str(path)
    return [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", text)], text

"""Which classes are novel: `--novel` names a file with one class a line, or lists them with commas between them.

A class goes by its number or its name, in the table of the seeds or in that of the test points.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmdiff.classes import Classes
from mmdiff.formats.errors import BadLabels, BadOption, UnreadableSource


def read_classes(text: str) -> list[tuple[str, str]]:
    """What the user wrote for each class, and where it stands."""
    path = Path(text)
    if path.is_file():
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            raise UnreadableSource(f"--novel {text}: not a text file. Write one class number or name a line.") from None
        found = [(line.strip(), f"{text}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    elif path.suffix == ".txt" or path.is_dir() or "/" in text:
        raise BadOption(f"--novel {text}: no such file. Name a file with one class a line, or list classes: 3,17,21.")
    else:
        found = [(part.strip(), f"--novel {text}") for part in text.split(",") if part.strip()]
    if not found:
        raise BadOption(f"--novel {text}: no classes in it. Write one class number or name a line.")
    return found


def find_classes(wanted: Sequence[tuple[str, str]], tables: Sequence[Classes]) -> list[NDArray[np.bool_]]:
    """For each table which of its classes are meant; every class must be in one of them."""
    found = [np.zeros(len(table), bool) for table in tables]
    for word, where in wanted:
        places = [table.find(word) for table in tables]
        if all(place is None for place in places):
            raise BadLabels(
                f"{where}: class {word!r} is neither among those of the seeds nor among those of the test points. "
                "Use class numbers or names as they were imported, or a file with one a line."
            )
        for marks, place in zip(found, places, strict=True):
            if place is not None:
                marks[place] = True
    return found

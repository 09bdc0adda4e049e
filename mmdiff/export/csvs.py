"""`.csv`: columns `id`, `label` (`label0`, `label1`, ... where rows have several) and `v0`, `v1`, ... for the vector."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO

import numpy as np

from mmdiff.classes import UNLABELLED
from mmdiff.export.table import Block, Table
from mmdiff.formats.store import Artifact
from mmdiff.progress import Progress

# Enough digits to read the same value back.
_NUMBERS = {"float32": "%.9g", "float16": "%.5g", "uint8": "%d", "int8": "%d"}

# Text is many times the size of what it says, so little of it is made at a time.
_LINES = 1024


def write_csv(artifact: Artifact, arrays: Sequence[str], stream: IO[bytes], progress: Progress) -> None:
    """Descriptors as text."""
    table = Table(artifact, arrays[0])
    titles = {index: cell(table.classes.title(index)) for index in range(len(table.classes))} | {UNLABELLED: ""}
    numbers = ",".join([_NUMBERS[table.dtype.name]] * table.width)
    stream.write((",".join(_header(table)) + "\n").encode())
    with progress(f"exporting {artifact.name}", table.rows, "rows") as advance:
        for block in table.blocks():
            for start in range(0, len(block.vectors), _LINES):
                lines = list(_lines(block, start, titles, numbers))
                stream.write("".join(lines).encode())
                advance(len(lines))


def cell(text: str) -> str:
    """Text as CSV wants it, in quotes where it needs them."""
    if any(special in text for special in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


def _header(table: Table) -> list[str]:
    several = table.labels_per_row > 1
    labels = [f"label{i}" if several else "label" for i in range(table.labels_per_row)]
    return ["id", *labels, *(f"v{i}" for i in range(table.width))]


def _lines(block: Block, start: int, titles: dict[int, str], numbers: str) -> Iterator[str]:
    vectors = block.vectors[start : start + _LINES].tolist()
    labels = (np.empty((len(vectors), 0), int) if block.labels is None else block.labels[start : start + _LINES]).tolist()
    for row, (vector, classes) in enumerate(zip(vectors, labels, strict=True), start):
        yield ",".join([cell(str(block.ids[row])), *(titles[index] for index in classes), numbers % tuple(vector)]) + "\n"

"""Descriptors as a table of ids, labels and vectors, in blocks of rows: what `.parquet` and `.csv` hold.

Here rows and classes go by what the user calls them, not by how they are stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.classes import Classes
from mmdiff.export.reading import CheckedArray, CheckedStrings, rows_per_block
from mmdiff.formats.errors import BadOption
from mmdiff.formats.store import Artifact
from mmdiff.formats.strings import Strings

MATRICES = ("vectors", "raw")


@dataclass(frozen=True)
class Block:
    """Some rows. `labels` are indices into the classes, -1 for none, as many a row as the table says."""

    ids: NDArray[np.int64] | Strings
    labels: NDArray[np.int32] | None
    vectors: NDArray[Any]


class Table:
    """The rows of an artifact of descriptors, with `matrix` (the vectors, or the raw ones) as their vectors."""

    def __init__(self, artifact: Artifact, matrix: str) -> None:
        if matrix not in MATRICES:
            present = " or ".join(name for name in MATRICES if name in artifact)
            raise BadOption(
                f"--array {matrix}: a table has a matrix as its vectors; ids and labels come along. Use --array {present}, "
                f"or export {matrix} to a .npy file."
            )
        self.rows, self.width = artifact.spec(matrix).shape
        self.dtype = np.dtype(artifact.spec(matrix).dtype)
        self.classes = Classes.of(artifact)
        self.string_ids = "ids_offsets" in artifact
        self._vectors = CheckedArray(artifact, matrix)
        self._labels = CheckedArray(artifact, "labels") if "labels" in artifact else None
        self._ids: CheckedStrings | CheckedArray | None = None
        if "ids" in artifact:
            self._ids = CheckedArray(artifact, "ids")
        elif self.string_ids:
            self._ids = CheckedStrings(artifact, "ids")

    @property
    def labels_per_row(self) -> int:
        """0 when there are no labels at all."""
        return 0 if self._labels is None else int(np.prod(self._labels.spec.shape[1:], dtype=int))

    def blocks(self) -> Iterator[Block]:
        size = rows_per_block(self._vectors.spec.row_bytes)
        for start in range(0, self.rows, size):
            stop = min(start + size, self.rows)
            labels = None if self._labels is None else self._labels.rows(start, stop).reshape(stop - start, -1)
            ids = np.arange(start, stop) if self._ids is None else self._ids.rows(start, stop)
            yield Block(ids, labels, self._vectors.rows(start, stop))

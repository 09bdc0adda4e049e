"""Reading an array from its first row to its last, with every chunk checked before anything of it is passed on.

Opening an artifact checks the content of small arrays only. An exported file has no checksums any more, so this is the last
chance to notice a damaged chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from mmdiff.formats.crc import crc32c
from mmdiff.formats.errors import Corrupt
from mmdiff.formats.store import Artifact
from mmdiff.formats.strings import Strings

BLOCK_BYTES = 32 << 20


class CheckedArray:
    """A mapped array that is read front to back."""

    def __init__(self, artifact: Artifact, name: str) -> None:
        self.spec = artifact.spec(name)
        self._artifact = artifact
        self._name = name
        self._values = artifact.array(name)
        self._chunks_checked = 0

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start..stop-1, straight from the map."""
        while self._chunks_checked * self.spec.rows_per_chunk < min(stop, self.spec.shape[0]):
            self._check(self._chunks_checked)
            self._chunks_checked += 1
        return self._values[start:stop]

    def blocks(self) -> Iterator[NDArray[Any]]:
        """All rows, those of the planes one below the other, in blocks of at most about BLOCK_BYTES."""
        size = rows_per_block(self.spec.row_bytes)
        for chunk in range(self.spec.chunks):
            rows = self._check(chunk)
            for start in range(0, len(rows), size):
                yield rows[start : start + size]

    def _check(self, chunk: int) -> NDArray[Any]:
        """The rows of a chunk."""
        start, stop = self.spec.rows(chunk)
        plane, first = divmod(start, self.spec.length)
        values = self._values if len(self.spec.shape) < 3 else self._values[plane]
        rows: NDArray[Any] = values[first : first + stop - start]
        padding = bytes(self.spec.chunk_bytes - rows.nbytes)
        if crc32c(padding, crc32c(rows)) != self._artifact.manifest.arrays[self._name].crcs[chunk]:
            raise Corrupt(
                f"{self._artifact.name}, array {self._name}: chunk {self.spec.chunk_file(chunk)} does not match its checksum. "
                f"{self._artifact.remedy}"
            )
        return rows


class CheckedStrings:
    """A column of strings that is read front to back."""

    def __init__(self, artifact: Artifact, column: str) -> None:
        self._offsets = CheckedArray(artifact, f"{column}_offsets")
        self._utf8 = CheckedArray(artifact, f"{column}_utf8")

    def rows(self, start: int, stop: int) -> Strings:
        offsets = self._offsets.rows(start, stop + 1)
        first, last = int(offsets[0]), int(offsets[-1])
        return Strings(offsets - first, self._utf8.rows(first, last))


def rows_per_block(row_bytes: int) -> int:
    return max(1, BLOCK_BYTES // row_bytes)

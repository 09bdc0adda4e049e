"""Chunks that helpers write: other processes, on other machines perhaps, that share the store's folder with the run they help.

A helper holds no lock. It writes a chunk under a name that nobody else uses and tells the run, which gives the chunk its own
name. So a helper that outlives its run, or that does what another has done already, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from mmdiff.formats.errors import ClusterError
from mmdiff.formats.storage import seam
from mmdiff.formats.storage.arrays import ArraySpec
from mmdiff.formats.store.publish import ArrayWriter


@dataclass(frozen=True)
class WorkerChunk:
    """A chunk that a helper has written, and the provisional name that it has."""

    chunk: int
    crc: int
    file: str


@dataclass(frozen=True)
class WorkerTarget:
    """Where an array is made, as a helper is told; the run has made the folder."""

    folder: Path
    spec: ArraySpec

    @classmethod
    def of(cls, writer: ArrayWriter) -> WorkerTarget:
        return cls(writer.folder, writer.spec)

    def helper(self) -> WorkerWriter:
        return WorkerWriter(self.folder, self.spec)


class WorkerWriter(ArrayWriter):
    """Writes chunks of an array that a run somewhere else is making."""

    def __post_init__(self) -> None:
        self.laid: list[WorkerChunk] = []

    def write(self, chunk: int, rows: NDArray[Any], cached: bool = True) -> None:
        pieces, crc = self.pieces(chunk, rows)
        file = seam.write_worker_chunk(self.folder / self.spec.chunk_file(chunk), *pieces, cached=cached)
        self.crcs[chunk] = crc
        self.laid.append(WorkerChunk(chunk, crc, file))


def take(writer: ArrayWriter, laid: Iterable[WorkerChunk]) -> None:
    """Makes chunks that a helper has written chunks of the array."""
    for each in laid:
        path = writer.folder / writer.spec.chunk_file(each.chunk)
        if not seam.adopt_worker_chunk(each.file, path):
            raise ClusterError(
                f"{path.with_name(each.file)}: a worker has written it, but it is not here. The workers need the folder of the "
                "store itself, at the same path, and not a copy of it."
            )
        writer.crcs[each.chunk] = each.crc

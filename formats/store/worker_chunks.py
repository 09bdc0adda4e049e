"""Chunks written by workers: other processes, possibly on other machines, that share the folder of the store with a run.

A worker holds no lock. It writes a chunk under a unique temporary name and reports it to the run, which renames it. So a worker
that outlives its run, or repeats finished work, changes nothing.
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
from mmdiff.formats.store.array_writer import ArrayWriter


@dataclass(frozen=True)
class WorkerChunk:
    """A chunk that a worker has written: its number, checksum and temporary file name."""

    chunk: int
    crc: int
    file: str


@dataclass(frozen=True)
class WorkerTarget:
    """The folder and layout of an array in a draft, sent to workers."""

    folder: Path
    spec: ArraySpec

    @classmethod
    def of(cls, writer: ArrayWriter) -> WorkerTarget:
        return cls(writer.folder, writer.spec)

    def writer(self) -> WorkerWriter:
        return WorkerWriter(self.folder, self.spec)


class WorkerWriter(ArrayWriter):
    """Writes chunks of an array whose draft belongs to a run in another process."""

    def __post_init__(self) -> None:
        self.written: list[WorkerChunk] = []

    def write(self, chunk: int, rows: NDArray[Any], cached: bool = True) -> None:
        pieces, crc = self.pieces(chunk, rows)
        file = seam.write_worker_chunk(self.folder / self.spec.chunk_file(chunk), *pieces, cached=cached)
        self.crcs[chunk] = crc
        self.written.append(WorkerChunk(chunk, crc, file))


def adopt(writer: ArrayWriter, written: Iterable[WorkerChunk]) -> None:
    """Renames chunks that a worker has written to chunks of the array."""
    for each in written:
        path = writer.folder / writer.spec.chunk_file(each.chunk)
        if not seam.adopt_worker_chunk(each.file, path):
            raise ClusterError(
                f"{path.with_name(each.file)}: a worker has written it, but it is not here. Workers need the store's folder "
                "itself, at the same path, and not a copy of it."
            )
        writer.crcs[each.chunk] = each.crc

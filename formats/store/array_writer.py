"""Arrays of a draft, written chunk by chunk; chunks that an interrupted run has written are found and kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import Corrupt, Damaged
from mmdiff.formats.storage import seam
from mmdiff.formats.storage.arrays import ArraySpec
from mmdiff.formats.storage.crc import crc32c, tail
from mmdiff.formats.storage.direct import read_pages
from mmdiff.formats.storage.disk_errors import disk_error
from mmdiff.formats.storage.mapping import Origin, map_chunks, touch_all
from mmdiff.formats.store.files import check_chunk, open_chunk
from mmdiff.formats.store.manifest import encode
from mmdiff.formats.store.store import Artifact
from mmdiff.formats.store.verify import crc_of_complete_chunk


@dataclass
class ArrayWriter:
    """An array of a draft. Chunks may be written in any order and from several threads."""

    folder: Path
    spec: ArraySpec
    crcs: dict[int, int] = field(default_factory=dict)
    _sent: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.folder.is_symlink():
            # It would lead out of the store.
            seam.remove_folder(self.folder)
        seam.make_folder(self.folder)
        for chunk in range(self.spec.chunks):
            crc = crc_of_complete_chunk(self._file(chunk), self.spec)
            if crc is not None:
                self.crcs[chunk] = crc

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_sent": True}

    @property
    def missing(self) -> list[int]:
        """The chunks that are not written yet."""
        return [chunk for chunk in range(self.spec.chunks) if chunk not in self.crcs]

    def write(self, chunk: int, rows: NDArray[Any], cached: bool = True) -> None:
        """Writes the rows of one chunk; with `cached=False` by direct I/O, past the page cache."""
        pieces, crc = self.pieces(chunk, rows)
        seam.write_file(self._file(chunk), *pieces, cached=cached)
        self.crcs[chunk] = crc

    def share(self, continued: Artifact) -> None:
        """Takes the missing chunks that the same array of an artifact has too, of the same rows: by hard links, or copies.

        A chunk is shared where it is full in both; its content is compared with its checksum first. Raises Damaged for one that
        does not match.
        """
        array = self.folder.name
        spec, crcs = continued.manifest.arrays[array].spec, continued.manifest.arrays[array].crcs
        folder = continued.folder / array
        if (spec.rows_per_chunk, spec.dtype, spec.shape[1:]) != (
            self.spec.rows_per_chunk,
            self.spec.dtype,
            self.spec.shape[1:],
        ):
            return
        full = min(spec.shape[0], self.spec.shape[0]) // spec.rows_per_chunk
        for chunk in (chunk for chunk in self.missing if chunk < full):
            try:
                check_chunk(folder, spec, chunk, crcs[chunk])
            except Corrupt as error:
                raise Damaged(f"{continued.name}, array {array}: ", *error.parts, f" {continued.remedy}") from None
            file = folder / spec.chunk_file(chunk)
            if seam.link_file(file, self._file(chunk)):
                self.crcs[chunk] = crcs[chunk]
                continue
            start, stop = spec.rows(chunk)
            rows = np.empty((stop - start, *spec.shape[1:]), spec.dtype)
            _read(open_chunk(folder, spec, chunk, crcs[chunk]), file, rows)
            self.write(chunk, rows, cached=False)

    def read(self, chunk: int, out: NDArray[Any]) -> None:
        """Reads the rows of a written chunk into an array, by direct I/O."""
        _read(self._open(chunk), self._file(chunk), out)

    def pieces(self, chunk: int, rows: NDArray[Any]) -> tuple[tuple[seam.Bytes, ...], int]:
        """The bytes of a chunk file in pieces, and the checksum of the chunk."""
        start, stop = self.spec.rows(chunk)
        expected = (stop - start, *self.spec.table[1:])
        if rows.shape != expected:
            raise ValueError(f"{self.folder.name}: chunk {chunk} takes rows of shape {expected}, not {rows.shape}")
        data = np.ascontiguousarray(rows, np.dtype(self.spec.dtype).newbyteorder("<"))
        padding = bytes(self.spec.chunk_bytes - data.nbytes)
        crc = crc32c(padding, crc32c(data))
        return (data, padding, tail(crc)), crc

    def fill(self, values: NDArray[Any]) -> None:
        """Writes the missing chunks from an array in memory."""
        rows = values.reshape(self.spec.table)
        for chunk in self.missing:
            start, stop = self.spec.rows(chunk)
            self.write(chunk, rows[start:stop])

    def mapped(self) -> NDArray[Any]:
        """The array as readers will see it. All chunks must be written.

        The process that wrote or found them has their checksums from the bytes themselves; one that it was sent to checks them.
        """
        crcs = [self.crcs[chunk] for chunk in range(self.spec.chunks)] if self._sent else None
        origin = Origin(f"{self.folder}", lambda: "Run the same command again.", self._file, crcs)
        return touch_all(map_chunks(self.spec, self._descriptors(), self._open, origin))

    def sync(self) -> None:
        """Flushes the names of the chunks to disk; their bytes are there when they get their names."""
        seam.sync_folder(self.folder)

    def moved_to(self, folder: Path) -> ArrayWriter:
        """This array in another folder; the one that is there, if an interrupted run has moved it."""
        seam.remove_empty_folder(folder)
        if not seam.move_folder(self.folder, folder):
            found = ArrayWriter(folder, self.spec)
            if not found.missing:
                return found
            # A power cut has left part of it.
            seam.remove_folder(folder)
            seam.move_folder(self.folder, folder)
        # Its chunks were checked as they were written or found, and need not be read again.
        self.folder = folder
        return self

    def _file(self, chunk: int) -> Path:
        return self.folder / self.spec.chunk_file(chunk)

    def _open(self, chunk: int) -> int:
        return open_chunk(self.folder, self.spec, chunk, self.crcs[chunk])

    def _descriptors(self) -> Iterator[int]:
        for chunk in range(self.spec.chunks):
            descriptor = self._open(chunk)
            try:
                yield descriptor
            finally:
                os.close(descriptor)

    def finish(self) -> None:
        """Writes the metadata of the array, and removes surplus files from its folder."""
        expected = {"zarr.json", *(self.spec.chunk_file(chunk) for chunk in range(self.spec.chunks))}
        for path in self.folder.iterdir():
            if path.name not in expected:
                seam.remove_file(path)
        seam.write_file(self.folder / "zarr.json", encode(self.spec.zarr_json()))
        seam.sync_folder(self.folder)


def _read(descriptor: int, file: Path, out: NDArray[Any]) -> None:
    """Reads the rows of an open chunk file into an array, by direct I/O, and closes it."""
    try:
        read_pages(descriptor, out)
    except EOFError as error:
        raise Corrupt(f"{file}: cannot be read ({error}). Run the same command again.") from None
    except OSError as error:
        raise disk_error(error, file, "read the file") from error
    finally:
        os.close(descriptor)

"""Arrays whose length is only known at their end: values are appended, and go to the disk behind the caller's back.

Arrays of a draft that grow together (the offsets and columns of a graph) share checkpoints. A checkpoint says how far each of
them has come; a run that was interrupted continues from the last of them. The chunk that an array ends in is a `.part` file
until it is full, so that nothing is kept in memory.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.storage import arrays, seam
from mmdiff.formats.storage.arrays import ArraySpec, even_rows_per_chunk, page_unit
from mmdiff.formats.storage.crc import TAIL_BYTES, crc32c, tail
from mmdiff.formats.store.manifest import Json, encode
from mmdiff.formats.store.publish import ArrayWriter, Draft
from mmdiff.formats.store.verify import chunk_is_whole

# Pieces that may wait for the disk before the caller has to.
WAITING = 24

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Place:
    """How far an array has come: its length, and the checksum of what is in the chunk that is not full."""

    length: int = 0
    crc: int = 0


class GrowingArray(ArrayWriter):
    """One array; `spec` is that of its full chunks until it is closed. Pieces must come one after the other."""

    def __init__(self, folder: Path, dtype: str) -> None:
        itemsize, unit = np.dtype(dtype).itemsize, page_unit((0,), dtype)
        rows = max(1, arrays.CHUNK_BYTES // itemsize // unit) * unit
        super().__init__(folder, ArraySpec.fit((0,), dtype, rows))
        self.part: seam.Part | None = None
        self._filled = 0
        self._crc = 0

    @property
    def place(self) -> Place:
        return Place(self.spec.shape[0] + self._filled, self._crc)

    def append(self, values: NDArray[Any]) -> Iterator[Sealing]:
        """Writes values behind those that are there; yields each chunk that is full now."""
        done = 0
        while done < len(values):
            piece = np.ascontiguousarray(values[done : done + self.spec.rows_per_chunk - self._filled])
            part = self.part = self.part or seam.Part(self._file(self.spec.chunks))
            part.write(piece, self._filled * piece.itemsize)
            self._crc = crc32c(piece, self._crc)
            self._filled += len(piece)
            done += len(piece)
            if self._filled == self.spec.rows_per_chunk:
                yield self._seal(part)

    def end(self) -> Iterator[Sealing]:
        """Fills the last chunk with zeros. An array that does not fill one chunk gets a smaller one."""
        if self.spec.shape[0] == 0:
            shape = (self._filled,)
            self.spec = ArraySpec.fit((0,), self.spec.dtype, even_rows_per_chunk((shape, self.spec.dtype)))
        if self.part is not None:
            yield self._seal(self.part)

    def leave(self) -> None:
        """Gives up for now what is not whole."""
        if self.part is not None:
            self.part.close()

    def restore(self, place: Place) -> bool:
        """Continues from a place, if all before it is on the disk as it was."""
        full, self._filled = divmod(place.length, self.spec.rows_per_chunk)
        spec = replace(self.spec, shape=(full * self.spec.rows_per_chunk,))
        found = {chunk: chunk_is_whole(self._file(chunk), spec) for chunk in range(full)}
        self.spec, self.crcs = spec, {chunk: crc for chunk, crc in found.items() if crc is not None}
        if len(self.crcs) < full:
            return False
        if self._filled:
            self.part = seam.Part(self._file(full))
            self._crc = place.crc
            return _take_up(self.part, self._filled * np.dtype(spec.dtype).itemsize, place.crc)
        return True

    def reset(self) -> None:
        """Begins anew."""
        self.leave()
        self.part, self._filled, self._crc = None, 0, 0
        self.spec, self.crcs = replace(self.spec, shape=(0,)), {}

    def _seal(self, part: seam.Part) -> Sealing:
        """Takes leave of the chunk in the making."""
        size = self._filled * np.dtype(self.spec.dtype).itemsize
        sealing = Sealing(self, self.spec.chunks, size, self._crc, part)
        self.spec = replace(self.spec, shape=(self.spec.shape[0] + self._filled,))
        self.part, self._filled, self._crc = None, 0, 0
        return sealing

    def _file(self, chunk: int) -> Path:
        return self.folder / self.spec.chunk_file(chunk)


@dataclass(frozen=True)
class Sealing:
    """A chunk whose values are all written, and that still has to become a file of its own."""

    array: GrowingArray
    chunk: int
    size: int
    crc: int
    part: seam.Part

    def finish(self) -> None:
        """Gives the chunk its name, unless an interrupted run has left the very same."""
        spec, crc = self.array.spec, self.crc
        # The zeros behind the values are a hole in the file: there is nothing to write, and nothing to keep.
        zeros = np.zeros(_BLOCK_BYTES, np.uint8)
        for start in range(self.size, spec.chunk_bytes, _BLOCK_BYTES):
            crc = crc32c(zeros[: spec.chunk_bytes - start], crc)
        self.part.cut(self.size)
        if chunk_is_whole(self.part.path, spec) == crc:
            self.part.discard()
        else:
            self.part.write(tail(crc), spec.chunk_bytes)
            self.part.finish(spec.chunk_bytes + TAIL_BYTES)
        self.array.crcs[self.chunk] = crc


class Growth:
    """Arrays of a draft that grow together. `note` is what the caller wrote down at the last checkpoint, empty at the start."""

    def __init__(self, draft: Draft, dtypes: Mapping[str, str]) -> None:
        self._checkpoint = draft.checkpoint
        self.arrays = {name: GrowingArray(draft.folder_of(name), dtype) for name, dtype in dtypes.items()}
        draft.writers.update(self.arrays)
        # One thread writes, in order; another waits for the disk to confirm full chunks.
        self._writer, self._sealer = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self._pieces: deque[Future[list[Future[None]]]] = deque()
        self._sealed: list[Future[None]] = []
        self.note: Json = self._restore()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._writer.shutdown(cancel_futures=True)
        self._sealer.shutdown()
        for array in self.arrays.values():
            array.leave()

    def append(self, name: str, values: NDArray[Any]) -> None:
        """Adds values behind those that are there; waits where the disk cannot keep up."""
        self._pieces.append(self._writer.submit(self._write, self.arrays[name], values))
        if len(self._pieces) > WAITING:
            self._sealed += self._pieces.popleft().result()

    def checkpoint(self, note: Json) -> None:
        """Makes this the place to continue from, as soon as all before it is on the disk; the caller need not wait for that."""
        self._pieces.append(self._writer.submit(self._mark, note))

    def close(self) -> None:
        """Ends all arrays where they are now."""
        self._settle()
        # All at once: the disk confirms them together.
        with ThreadPoolExecutor(len(self.arrays)) as pool:
            list(pool.map(Sealing.finish, [sealing for array in self.arrays.values() for sealing in array.end()]))

    def _write(self, array: GrowingArray, values: NDArray[Any]) -> list[Future[None]]:
        return [self._sealer.submit(sealing.finish) for sealing in array.append(values)]

    def _mark(self, note: Json) -> list[Future[None]]:
        """Takes down how far arrays have come; what is written meanwhile is of no importance to them."""
        content = {"places": {name: [*astuple(array.place)] for name, array in self.arrays.items()}, "note": note}
        parts = [array.part for array in self.arrays.values() if array.part is not None]

        def confirm() -> None:
            for part in parts:
                part.sync()
            seam.write_file(self._checkpoint, encode({**content, "crc32c": crc32c(encode(content))}))

        return [self._sealer.submit(confirm)]

    def _settle(self) -> None:
        """Waits until everything is on its way, and every full chunk has its name."""
        while self._pieces:
            self._sealed += self._pieces.popleft().result()
        while self._sealed:
            self._sealed.pop().result()

    def _restore(self) -> Json:
        """Takes up the last checkpoint; where it is damaged, or what was before it is, all begins anew."""
        try:
            found = json.loads(self._checkpoint.read_bytes())
            content = {"places": found["places"], "note": found["note"]}
            intact = found["crc32c"] == crc32c(encode(content))
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        note: Json = content["note"]
        if intact and all(array.restore(Place(*content["places"][name])) for name, array in self.arrays.items()):
            return note
        for array in self.arrays.values():
            array.reset()
        return {}


def _take_up(part: seam.Part, size: int, crc: int) -> bool:
    """Whether the last chunk has what it had: as a part, or as the whole chunk that has become of it since."""
    if _crc_of(part.unfinished, size) == crc:
        return True
    if _crc_of(part.path, size) != crc:
        return False
    for start, block in _blocks(part.path, size):
        part.write(block, start)
    return True


def _crc_of(file: Path, size: int) -> int | None:
    crc = 0
    try:
        for _, block in _blocks(file, size):
            crc = crc32c(block, crc)
    except OSError:
        return None
    return crc


def _blocks(file: Path, size: int) -> Iterator[tuple[int, bytes]]:
    """The first bytes of a file, in pieces, each with its position."""
    with file.open("rb", buffering=0) as stream:
        for start in range(0, size, _BLOCK_BYTES):
            yield start, os.pread(stream.fileno(), min(_BLOCK_BYTES, size - start), start)

"""Growing arrays: arrays of unknown length, to which values are appended and written in the background.

Arrays of a draft that grow together (the offsets and columns of a graph) share checkpoints. A checkpoint holds the length of
each array; an interrupted run continues from the last checkpoint. The last chunk of an array is a `.part` file until it is
full, so that nothing is buffered in memory.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import StoreError
from mmdiff.formats.storage import arrays, seam
from mmdiff.formats.storage.arrays import ArraySpec, even_rows_per_chunk, page_unit
from mmdiff.formats.storage.crc import TAIL_BYTES, crc32c, tail
from mmdiff.formats.storage.metadata import read_json
from mmdiff.formats.store.array_writer import ArrayWriter
from mmdiff.formats.store.manifest import Json, encode
from mmdiff.formats.store.publish import Draft
from mmdiff.formats.store.verify import crc_of_complete_chunk

# Pieces in the queue to the disk before `append` blocks.
WAITING = 24

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Place:
    """The length of a growing array, and the checksum of the values in its last, partial chunk."""

    length: int = 0
    crc: int = 0


class GrowingArray(ArrayWriter):
    """One array, of values or of rows of `width` values. Until it is closed, `spec` describes its full chunks.

    Values are appended by one thread at a time.
    """

    def __init__(self, folder: Path, dtype: str, width: int | None = None) -> None:
        self._row = () if width is None else (width,)
        empty = (0, *self._row)
        unit = page_unit(empty, dtype)
        rows = max(1, arrays.CHUNK_BYTES // arrays.row_bytes(empty, dtype) // unit) * unit
        super().__init__(folder, ArraySpec.fit(empty, dtype, rows))
        self.part: seam.Part | None = None
        self._filled = 0
        self._crc = 0

    @property
    def place(self) -> Place:
        return Place(self.spec.shape[0] + self._filled, self._crc)

    def append(self, values: NDArray[Any]) -> Iterator[Sealing]:
        """Writes values at the end; yields each chunk that becomes full."""
        done = 0
        while done < len(values):
            piece = np.ascontiguousarray(values[done : done + self.spec.rows_per_chunk - self._filled])
            part = self.part = self.part or seam.Part(self._file(self.spec.chunks))
            part.write(piece, self._filled * self.spec.row_bytes)
            self._crc = crc32c(piece, self._crc)
            self._filled += len(piece)
            done += len(piece)
            if self._filled == self.spec.rows_per_chunk:
                yield self._seal(part)

    def end(self) -> Iterator[Sealing]:
        """Pads the last chunk with zeros. An array of less than one chunk gets a smaller chunk."""
        if self.spec.shape[0] == 0:
            shape = (self._filled, *self._row)
            self.spec = ArraySpec.fit((0, *self._row), self.spec.dtype, even_rows_per_chunk((shape, self.spec.dtype)))
        if self.part is not None:
            yield self._seal(self.part)

    def leave(self) -> None:
        """Closes the partial chunk; a later run may continue it."""
        if self.part is not None:
            self.part.close()

    def restore(self, place: Place) -> bool:
        """Continues from a place; False unless everything before it is intact on disk."""
        full, self._filled = divmod(place.length, self.spec.rows_per_chunk)
        spec = replace(self.spec, shape=(full * self.spec.rows_per_chunk, *self._row))
        found = {chunk: crc_of_complete_chunk(self._file(chunk), spec) for chunk in range(full)}
        self.spec, self.crcs = spec, {chunk: crc for chunk, crc in found.items() if crc is not None}
        if len(self.crcs) < full:
            return False
        if self._filled:
            self.part = seam.Part(self._file(full))
            self._crc = place.crc
            return _restore_part(self.part, self._filled * spec.row_bytes, place.crc)
        return True

    def reset(self) -> None:
        """Starts again with an empty array."""
        self.leave()
        self.part, self._filled, self._crc = None, 0, 0
        self.spec, self.crcs = replace(self.spec, shape=(0, *self._row)), {}

    def _seal(self, part: seam.Part) -> Sealing:
        """Ends the current chunk."""
        size = self._filled * self.spec.row_bytes
        sealing = Sealing(self, self.spec.chunks, size, self._crc, part)
        self.spec = replace(self.spec, shape=(self.spec.shape[0] + self._filled, *self._row))
        self.part, self._filled, self._crc = None, 0, 0
        return sealing


@dataclass(frozen=True)
class Sealing:
    """A chunk whose values are all written; `finish` pads, checksums and renames its file."""

    array: GrowingArray
    chunk: int
    size: int
    crc: int
    part: seam.Part

    def finish(self) -> None:
        """Gives the chunk its name, unless an interrupted run left the same chunk."""
        spec, crc = self.array.spec, self.crc
        # The padding is a hole in the file: nothing is written for it.
        zeros = np.zeros(_BLOCK_BYTES, np.uint8)
        for start in range(self.size, spec.chunk_bytes, _BLOCK_BYTES):
            crc = crc32c(zeros[: spec.chunk_bytes - start], crc)
        try:
            self.part.cut(self.size)
            known = crc_of_complete_chunk(self.part.path, spec) == crc
            if not known:
                self.part.write(tail(crc), spec.chunk_bytes)
        except BaseException:
            self.part.close()
            raise
        if known:
            self.part.discard()
        else:
            self.part.finish(spec.chunk_bytes + TAIL_BYTES)
        self.array.crcs[self.chunk] = crc


class Growth:
    """Arrays of a draft that grow together. `note` is the caller's note in the last checkpoint, empty at the start.

    `widths` has the row length of each array that is a matrix.
    """

    def __init__(self, draft: Draft, dtypes: Mapping[str, str], widths: Mapping[str, int] | None = None) -> None:
        self._checkpoint, widths = draft.checkpoint, widths or {}
        self.arrays = {name: GrowingArray(draft.folder_of(name), dtype, widths.get(name)) for name, dtype in dtypes.items()}
        draft.writers.update(self.arrays)
        # One thread writes in order; another syncs full chunks.
        self._writer, self._sealer = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self._pieces: deque[Future[list[Future[None]]]] = deque()
        self._sealed: list[Future[None]] = []
        self._failure: BaseException | None = None
        try:
            self.note: Json = self._restore()
        except BaseException:
            self._leave()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._writer.shutdown(cancel_futures=True)
        self._sealer.shutdown()
        self._leave()

    def append(self, name: str, values: NDArray[Any]) -> None:
        """Appends values to an array; blocks where the disk cannot keep up."""
        self._pieces.append(self._writer.submit(self._write, self.arrays[name], values))
        if len(self._pieces) > WAITING:
            self._sealed += self._pieces.popleft().result()

    def checkpoint(self, note: Json) -> None:
        """Writes a checkpoint in the background, once everything before it is on disk."""
        self._pieces.append(self._writer.submit(self._mark, note))

    def close(self) -> None:
        """Ends all arrays at their present length."""
        self._settle()
        # In parallel: the disk syncs them together.
        with ThreadPoolExecutor(len(self.arrays)) as pool:
            sealed = [pool.submit(sealing.finish) for array in self.arrays.values() for sealing in array.end()]
        for future in sealed:
            future.result()

    @contextmanager
    def _in_order(self) -> Iterator[None]:
        """A step of the background threads. After a failed step every later one fails too.

        Pieces behind a piece that was not written would close the gap, and a checkpoint would vouch for the wrong array.
        """
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except BaseException as error:
            self._failure = error
            raise

    def _write(self, array: GrowingArray, values: NDArray[Any]) -> list[Future[None]]:
        with self._in_order():
            return [self._sealer.submit(self._finish, sealing) for sealing in array.append(values)]

    def _finish(self, sealing: Sealing) -> None:
        """Finishes a full chunk. It is whole, even if a later step has failed in the meantime."""
        try:
            sealing.finish()
        except BaseException as error:
            self._failure = error
            raise

    def _mark(self, note: Json) -> list[Future[None]]:
        """Queues a checkpoint at the present length of the arrays; later appends do not affect it."""
        if self._failure is not None:
            raise self._failure
        content = {"places": {name: [*astuple(array.place)] for name, array in self.arrays.items()}, "note": note}
        parts = [array.part for array in self.arrays.values() if array.part is not None]

        def confirm() -> None:
            with self._in_order():
                for part in parts:
                    part.sync()
                seam.write_file(self._checkpoint, encode({**content, "crc32c": crc32c(encode(content))}))

        return [self._sealer.submit(confirm)]

    def _leave(self) -> None:
        for array in self.arrays.values():
            array.leave()

    def _settle(self) -> None:
        """Waits until all pieces are written and every full chunk has its name."""
        while self._pieces:
            self._sealed += self._pieces.popleft().result()
        while self._sealed:
            self._sealed.pop().result()

    def _restore(self) -> Json:
        """Continues from the last checkpoint and returns its note; starts again if the checkpoint or its data is damaged."""
        try:
            found = read_json(self._checkpoint)
            content = {"places": found["places"], "note": found["note"]}
            intact = found["crc32c"] == crc32c(encode(content))
            places = {name: Place(*content["places"][name]) for name in self.arrays}
        except (ValueError, KeyError, TypeError, RecursionError):
            return {}
        note: Json = content["note"]
        possible = all(type(number) is int and number >= 0 for place in places.values() for number in astuple(place))
        if intact and possible and all(array.restore(places[name]) for name, array in self.arrays.items()):
            return note
        for array in self.arrays.values():
            array.reset()
        return {}


def _restore_part(part: seam.Part, size: int, crc: int) -> bool:
    """Restores the partial chunk of a checkpoint, from its part or the full chunk that replaced it; False if both differ."""
    if _crc_of(part.unfinished, size) == crc:
        return True
    if _crc_of(part.path, size) != crc:
        return False
    try:
        for start, block in _blocks(part.path, size):
            part.write(block, start)
    except StoreError:
        raise
    except OSError:
        return False
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
    """The first `size` bytes of a file in blocks, each with its position."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        for start in range(0, size, _BLOCK_BYTES):
            yield start, os.pread(descriptor, min(_BLOCK_BYTES, size - start), start)
    finally:
        os.close(descriptor)

"""Arrays in numpy's `.npz` archives, read by position. Pickles are never loaded.

A member that `numpy.savez` stored as it is lies in the archive as a `.npy` file. One that `numpy.savez_compressed` deflated can
only be decompressed from its beginning: the state of the decompressor is kept at regular distances, so that any range of rows
is read from the nearest state before it, in bounded memory and from any thread. The first pass checks the checksum.
"""

from __future__ import annotations

import struct
import threading
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.sources.limits import FREE_BYTES, readable
from mmdiff.formats.sources.members import Member, Members
from mmdiff.formats.sources.npy import read_header
from mmdiff.formats.sources.rawfile import RawFile, ReadInto

_ENDING = ".npy"
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_LOCAL_MAGIC = b"PK\3\4"
_ENCRYPTED = 1

# deflate cannot expand more: a promise beyond that is a lie.
_MOST_EXPANSION = 1032

# Bytes that are read, and bytes that are decompressed, at a time.
_BLOCK = 1 << 16
_MOST_BLOCK = 1 << 20
# A state takes about 50 kB.
_STATES = 1024
_LEAST_DISTANCE = 4 << 20


def read_npz(path: Path) -> Members:
    """All arrays of an archive by name, without their values."""
    file = RawFile(path)
    file.check_unchanged()
    with readable(str(path), "an .npz archive"), zipfile.ZipFile(path) as archive:
        infos = [info for info in archive.infolist() if info.filename.endswith(_ENDING)]
    members: Members = {}
    for info in infos:
        name = info.filename.removesuffix(_ENDING)
        if name in members:
            raise UnreadableSource(f"{path}: two arrays are named {name!r}. Write it again.")
        try:
            members[name] = _member(file, info, f"{path}::{name}")
        except UnreadableSource as error:
            members[name] = error
    return members


def _member(file: RawFile, info: zipfile.ZipInfo, name: str) -> Member:
    if info.flag_bits & _ENCRYPTED or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UnreadableSource(f"{name}: encrypted, or compressed in another way than numpy does. Write it with numpy.savez.")
    local = np.empty(_LOCAL_HEADER.size, np.uint8)
    header_end = info.header_offset + len(local)
    if not 0 <= info.header_offset <= header_end <= file.size:
        raise UnreadableSource(f"{name}: begins beyond the end of the archive. It is damaged: copy or write it again.")
    file.read_into(local, info.header_offset)
    magic, name_length, extra_length = _LOCAL_HEADER.unpack(local.tobytes())
    if magic != _LOCAL_MAGIC:
        raise UnreadableSource(f"{name}: does not begin where the archive says. It is damaged: copy or write it again.")
    stored = file.within(header_end + name_length + extra_length, info.compress_size, name)
    if info.compress_type == zipfile.ZIP_STORED:
        if info.file_size != info.compress_size:
            raise UnreadableSource(
                f"{name}: {info.file_size:,} bytes that take {info.compress_size:,}, although they are not compressed. It is "
                "damaged: copy or write it again."
            )
        return Member(stored, read_header(stored))
    if info.file_size > _MOST_EXPANSION * (info.compress_size + 1):
        raise UnreadableSource(
            f"{name}: {info.compress_size:,} bytes that expand to {info.file_size:,}, which is impossible. It is damaged: "
            "copy or write it again."
        )
    inflated = Inflated(stored, info.file_size, info.CRC)
    header = read_header(inflated)
    if header.fortran and len(header.shape) > 1 and info.file_size > FREE_BYTES:
        raise UnreadableSource(
            f"{name}: a compressed array in Fortran order, whose rows lie scattered over {info.file_size:,} bytes. Save it "
            "with numpy.savez, or as numpy.ascontiguousarray(X)."
        )
    return Member(inflated, header, stored=info.compress_size)


class _Inflating:
    """A decompressor on its way: `done` bytes have come out of the first `taken` stored bytes but those that are `pending`."""

    def __init__(self, stored: RawFile) -> None:
        self._stored = stored
        self._decompressor = zlib.decompressobj(-zlib.MAX_WBITS)
        self._taken = self.done = 0
        self._pending = b""

    def copy(self) -> _Inflating:
        """The same state, without the pending bytes, which are read again."""
        other = _Inflating(self._stored)
        other._decompressor = self._decompressor.copy()
        other._taken, other.done = self._taken - len(self._pending), self.done
        return other

    def next(self, read: ReadInto, most: int) -> bytes:
        """The next bytes, at least one and at most `most`."""
        while True:
            ended = self._taken == self._stored.size
            if not self._pending and not ended:
                block = np.empty(min(_BLOCK, self._stored.size - self._taken), np.uint8)
                read(block, self._taken)
                self._taken += len(block)
                self._pending = block.tobytes()
            found = self._decompressor.decompress(self._pending, min(most, _MOST_BLOCK))
            self._pending = self._decompressor.unconsumed_tail
            self.done += len(found)
            if found:
                return found
            if self._decompressor.eof or (ended and not self._pending):
                raise EOFError(f"it ends after {self.done:,} bytes")

    def is_complete(self, read: ReadInto) -> bool:
        """Whether nothing follows what has come out."""
        rest = np.empty(self._stored.size - self._taken, np.uint8) if self._stored.size - self._taken < _BLOCK else None
        if rest is None:
            return False
        read(rest, self._taken)
        more = self._decompressor.decompress(self._pending + rest.tobytes(), 1)
        return not more and self._decompressor.eof and not self._decompressor.unused_data


class Inflated:
    """The content of a deflated member, of `size` bytes. Implements `Bytes`."""

    def __init__(self, stored: RawFile, size: int, crc: int) -> None:
        self.name, self.size = stored.name, size
        self._stored, self._expected = stored, crc
        self._distance = max(_LEAST_DISTANCE, size // _STATES)
        self._lock = threading.Lock()
        self._first_pass, self._crc, self._checked = _Inflating(stored), 0, False
        # State i is that before byte i * distance.
        self._states = [self._first_pass.copy()]

    def read_into(self, array: NDArray[Any], offset: int) -> None:
        """Fills a C-contiguous array with the bytes at `offset`."""
        flat = array.reshape(-1).view(np.uint8)
        with readable(self.name, "an array"), self._stored.reading() as read:
            with self._lock:
                self._pass_through(read, offset + len(flat))
                state = self._states[min(offset // self._distance, len(self._states) - 1)].copy()
            while state.done < offset:
                state.next(read, offset - state.done)
            filled = 0
            while filled < len(flat):
                block = state.next(read, len(flat) - filled)
                flat[filled : filled + len(block)] = np.frombuffer(block, np.uint8)
                filled += len(block)

    @contextmanager
    def reading(self) -> Iterator[ReadInto]:
        """`read_into`, which opens the file each time."""
        yield self.read_into

    def _pass_through(self, read: ReadInto, end: int) -> None:
        """Continues the first pass to `end`. It keeps states on its way, and compares the checksum after the last byte."""
        passing = self._first_pass
        while passing.done < end:
            following = len(self._states) * self._distance
            self._crc = zlib.crc32(passing.next(read, min(following, self.size) - passing.done), self._crc)
            if passing.done == following:
                self._states.append(passing.copy())
        if passing.done == self.size and not self._checked:
            if self._crc != self._expected or not passing.is_complete(read):
                raise ValueError("its checksum or its end is not the one in the archive")
            self._checked = True

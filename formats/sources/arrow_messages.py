"""Messages of Arrow's IPC formats: places and numbers of rows of the record batches in a file, from their metadata alone.

A file (`.arrow`, `.feather` version 2) is a stream between two marks with a footer behind it, so both are read as streams. The
metadata are flatbuffers, of which the few fields that tell sizes are read here: every size is compared with the file before
Arrow allocates anything. A stream without the mark of its end is refused: it was cut short, or is still being written.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.sources.limits import FREE_BYTES, readable
from mmdiff.formats.sources.rawfile import RawFile, ReadInto

_FILE_MAGIC = b"ARROW1"
_FEATHER_1 = b"FEA1"
_CONTINUATION = 0xFFFFFFFF
_PREFIX = struct.Struct("<II")
_ALIGNMENT = 8
# Prefix and metadata of a batch usually fit, so that one read is enough.
_FIRST_READ = 4096
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_MOST_ROWS = 1 << 48
_CUT_SHORT = "the mark of its end is missing: it was cut short, or is still being written"


@dataclass(frozen=True)
class Message:
    """A message at byte `start` of the file: prefix and metadata take `head` bytes, the body that follows takes `body`."""

    start: int
    head: int
    body: int

    @property
    def size(self) -> int:
        return self.head + self.body

    @property
    def stop(self) -> int:
        return self.start + self.size


@dataclass(frozen=True)
class Batch:
    """A record batch, and the number of dictionaries before it in the file."""

    message: Message
    rows: int
    dictionaries: int


@dataclass(frozen=True)
class Dictionary:
    """The values of a dictionary-encoded column; a `delta` adds to those before it, others replace them."""

    message: Message
    number: int
    delta: bool


@dataclass(frozen=True)
class Stream:
    """The messages of a file."""

    schema: Message
    batches: list[Batch]
    dictionaries: list[Dictionary]

    def dictionaries_of(self, batch: Batch) -> list[Message]:
        """The messages that the dictionaries of a batch are made from."""
        in_force: dict[int, list[Message]] = {}
        for dictionary in self.dictionaries[: batch.dictionaries]:
            if not dictionary.delta:
                in_force[dictionary.number] = []
            in_force.setdefault(dictionary.number, []).append(dictionary.message)
        return [message for messages in in_force.values() for message in messages]


class Table:
    """A table of a flatbuffer. Its fields are read by number, each within the bounds of the buffer."""

    def __init__(self, content: bytes, at: int) -> None:
        self._content, self._at = content, at
        self._fields = at - self._number("<i", at)
        self._count = (self._number("<H", self._fields) - 4) // 2

    @classmethod
    def root(cls, content: bytes) -> Table:
        return cls(content, _unpacked("<I", content, 0))

    def _number(self, code: str, at: int) -> int:
        return _unpacked(code, self._content, at)

    def place(self, field: int) -> int | None:
        """The position of a field; None where it has its default."""
        offset = self._number("<H", self._fields + 4 + 2 * field) if field < self._count else 0
        return self._at + offset if offset else None

    def number(self, field: int, code: str) -> int:
        place = self.place(field)
        return 0 if place is None else self._number(code, place)

    def table(self, field: int) -> Table | None:
        place = self.place(field)
        return None if place is None else Table(self._content, place + self._number("<I", place))

    def pairs(self, field: int) -> tuple[int, list[tuple[int, int]]]:
        """A vector of structs of two 64-bit integers: the position of the first, and all of them."""
        place = self.place(field)
        if place is None:
            return 0, []
        at = place + self._number("<I", place)
        count = self._number("<I", at)
        if at + 4 + 16 * count > len(self._content):
            raise ValueError("a list beyond the end of the metadata")
        return at + 4, list(struct.iter_unpack("<qq", self._content[at + 4 : at + 4 + 16 * count]))


def _unpacked(code: str, content: bytes, at: int) -> int:
    # `struct` counts negative positions from the end.
    if not 0 <= at <= len(content) - struct.calcsize(code):
        raise ValueError("metadata that point beyond their end")
    return int(struct.unpack_from(code, content, at)[0])


def scan(file: RawFile) -> Stream:
    """The schema, batches and dictionaries of a file, in order."""
    with readable(file.name, "Arrow IPC"), file.reading() as read:
        start, stop = _bounds(file, read)
        found = _next(read, start, stop)
        if found is None or found[1] != _SCHEMA:
            raise ValueError("it does not begin with a schema")
        stream = Stream(found[0], [], [])
        at, total = found[0].stop, 0
        while found := _next(read, at, stop):
            message, kind, header = found
            at = message.stop
            if kind == _BATCH:
                rows = header.number(0, "<q")
                total += rows
                if rows < 0 or total > _MOST_ROWS:
                    raise ValueError(f"a batch of {rows:,} rows")
                stream.batches.append(Batch(message, rows, len(stream.dictionaries)))
            elif kind == _DICTIONARY:
                stream.dictionaries.append(Dictionary(message, header.number(0, "<q"), bool(header.number(2, "<B"))))
            else:
                raise ValueError(f"a message of type {kind} among the batches")
        # Behind the last message lies the mark of the end.
        if at + _PREFIX.size != stop:
            raise ValueError(f"{stop - at - _PREFIX.size:,} bytes follow its end; only one stream is read from a file")
        return stream


def read_schema_message(file: RawFile) -> Message:
    """The schema alone, without a look at the rest of the file."""
    with readable(file.name, "Arrow IPC"), file.reading() as read:
        found = _next(read, *_bounds(file, read))
        if found is None or found[1] != _SCHEMA:
            raise ValueError("it does not begin with a schema")
        return found[0]


@dataclass(frozen=True)
class Extract:
    """A message with some of its buffers, each as (position in the file, bytes, place in the new body).

    `head` announces them at their new places. The new body takes `body` bytes.
    """

    head: bytes
    buffers: list[tuple[int, int, int]]
    body: int
    compressed: bool

    @property
    def stored(self) -> int:
        return sum(size for _, size, _ in self.buffers)


def extract(read: ReadInto, message: Message, wanted: slice) -> Extract:
    """The message of a batch or dictionary with the `wanted` buffers only; the others are announced as empty."""
    head = bytearray(_bytes(read, message.start, message.head))
    metadata = bytes(head[_PREFIX.size :])
    root = Table.root(metadata)
    header = root.table(2)
    batch = header.table(1) if header is not None and root.number(1, "<B") == _DICTIONARY else header
    if batch is None:
        raise ValueError("a message without a header")
    first, pairs = batch.pairs(2)
    buffers, body = [], 0
    for index in range(len(pairs))[wanted]:
        start, size = pairs[index]
        if not 0 <= start <= start + size <= message.body or body + size > message.body + _ALIGNMENT * len(pairs):
            raise ValueError(f"buffers that overlap, or lie beyond the {message.body:,} bytes of their message")
        buffers.append((message.start + message.head + start, size, body))
        pairs[index] = (body, size)
        body += -(-size // _ALIGNMENT) * _ALIGNMENT
    chosen = set(range(len(pairs))[wanted])
    for index in range(len(pairs)):
        struct.pack_into("<qq", head, _PREFIX.size + first + 16 * index, *(pairs[index] if index in chosen else (0, 0)))
    if pairs and (place := root.place(3)) is not None:
        struct.pack_into("<q", head, _PREFIX.size + place, body)
    return Extract(bytes(head), buffers, body, batch.table(3) is not None)


def _bounds(file: RawFile, read: ReadInto) -> tuple[int, int]:
    """First and last byte of the stream."""
    start = _bytes(read, 0, min(file.size, _ALIGNMENT))
    if start.startswith(_FEATHER_1):
        raise UnreadableSource(
            f"{file.name}: Feather version 1, expected version 2. Write it again with pyarrow.feather.write_feather."
        )
    if not start.startswith(_FILE_MAGIC):
        return 0, file.size
    trailer = 4 + len(_FILE_MAGIC)
    end = _bytes(read, file.size - trailer, trailer) if file.size >= trailer + _ALIGNMENT else b""
    if not end.endswith(_FILE_MAGIC):
        raise ValueError(_CUT_SHORT)
    footer = int.from_bytes(end[:4], "little")
    if footer > file.size - trailer - _ALIGNMENT:
        raise ValueError("a footer longer than the file")
    return _ALIGNMENT, file.size - trailer - footer


def _next(read: ReadInto, at: int, stop: int) -> tuple[Message, int, Table] | None:
    """The message at a position with its type and header; None at the mark of the end."""
    if at + _PREFIX.size > stop:
        raise ValueError(_CUT_SHORT)
    start = _bytes(read, at, min(_FIRST_READ, stop - at))
    mark, size = _PREFIX.unpack_from(start)
    if mark != _CONTINUATION:
        raise ValueError(f"no message at byte {at:,}")
    if not size:
        return None
    head = _PREFIX.size + size
    if size % _ALIGNMENT or size > FREE_BYTES or at + head > stop:
        raise ValueError(f"metadata of {size:,} bytes at byte {at:,} of {stop:,}")
    message = Table.root(start[_PREFIX.size : head] if head <= len(start) else _bytes(read, at + _PREFIX.size, size))
    body, header = message.number(3, "<q"), message.table(2)
    if not 0 <= body <= stop - at - head:
        raise ValueError(f"the message at byte {at:,} promises {body:,} bytes, but {stop - at - head:,} follow")
    if header is None:
        raise ValueError("a message without a header")
    return Message(at, head, body), message.number(1, "<B"), header


def _bytes(read: ReadInto, start: int, size: int) -> bytes:
    content = np.empty(size, np.uint8)
    read(content, start)
    return content.tobytes()

"""The user's ids, unique within a role. Rows without ids are identified by their row number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import CountMismatch, DuplicateIds
from mmdiff.formats.sources.base import Column
from mmdiff.formats.sources.columns.integers import integers_or_strings
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.store import Artifact
from mmdiff.kernels.jit import kernel

Ids = NDArray[np.int64] | Strings

# Rows whose ids are compared at a time.
_BLOCK = 1 << 20


def check(ids: Column, where: str, unit: str = "row", number: Callable[[int], int | str] = int) -> Ids:
    """The ids of a column, refused unless each row has exactly one and no two are equal.

    `unit` and `number` say how rows are counted in messages: the lines of a text file, for example.
    """
    if ids.per_row != 1:
        raise CountMismatch(f"{where}: {ids.per_row} ids for each row. Give one id per row.")
    values = ids.values
    missing = np.diff(values.offsets) == 0 if isinstance(values, Strings) else values == -1
    if missing.any():
        raise CountMismatch(f"{where}, {unit} {number(int(missing.argmax()))}: no id. Give every row an id.")
    keys = hash_strings(values.offsets, values.utf8) if isinstance(values, Strings) else values
    order = np.argsort(keys, kind="stable")
    alike = np.flatnonzero(keys[order][1:] == keys[order][:-1])
    for first, second in sorted(zip(order[alike].tolist(), order[alike + 1].tolist(), strict=True)):
        if values[first] == values[second]:
            raise DuplicateIds(
                f"{where}: {unit}s {number(first)} and {number(second)} have the same id {values[first]!s}. Make ids unique."
            )
    return values


def ids_of(artifact: Artifact, column: str = "ids") -> Ids | range:
    """The id of each row of an artifact, or another column of ids."""
    if column in artifact:
        return artifact.array(column)
    if f"{column}_offsets" in artifact:
        return artifact.strings(column)
    return range(artifact.spec("vectors").shape[0])


def has_ids(artifact: Artifact) -> bool:
    """Whether the user gave ids to the rows of an artifact."""
    return "ids" in artifact or "ids_offsets" in artifact


def take(ids: Ids | range, rows: NDArray[np.int64]) -> Ids:
    """The ids of some rows."""
    if isinstance(ids, range):
        return rows + ids.start
    return ids.take(rows) if isinstance(ids, Strings) else ids[rows]


def groups(ids: Ids) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first entry of each distinct id, in order, and for each entry the number of its id among them."""
    if isinstance(ids, Strings):
        numbers: dict[str, int] = {}
        codes = np.array([numbers.setdefault(text, len(numbers)) for text in ids], np.int64)
    else:
        _, codes = np.unique(ids, return_inverse=True)
    _, first = np.unique(codes, return_index=True)
    return first.astype(np.int64), codes.astype(np.int64)


def joined(before: Ids, after: Ids) -> Ids:
    """Ids one after the other; numbers among strings are written as text."""
    if not isinstance(before, Strings) and not isinstance(after, Strings):
        return np.concatenate([before, after])
    first, second = _as_strings(before), _as_strings(after)
    return Strings(
        np.concatenate([first.offsets, second.offsets[1:] + first.offsets[-1]]), np.concatenate([first.utf8, second.utf8])
    )


def find_rows(ids: Ids | range, wanted: Ids) -> NDArray[np.int64]:
    """The row of each wanted id among `ids`, -1 where none has it. Neither has an id twice.

    A number and its text are the same id: files of strings that all look like numbers are read as numbers.
    """
    if isinstance(ids, Strings):
        return _find_strings(ids, _as_strings(wanted))
    numbers, possible = _as_numbers(wanted)
    if isinstance(ids, range):
        return np.where(possible & (numbers >= ids.start) & (numbers < ids.stop), numbers - ids.start, -1)
    return np.where(possible, _find_numbers(ids, numbers), -1)


def _find_numbers(ids: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    rows = np.full(len(wanted), -1, np.int64)
    order = np.argsort(wanted, kind="stable")
    for row, place in _hits(lambda start, stop: ids[start:stop], len(ids), wanted[order]):
        rows[order[place]] = row
    return rows


def _find_strings(ids: Strings, wanted: Strings) -> NDArray[np.int64]:
    rows = np.full(len(wanted), -1, np.int64)
    keys = hash_strings(wanted.offsets, wanted.utf8)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]

    def hashes(start: int, stop: int) -> NDArray[np.uint64]:
        block = ids.span(start, stop)
        return hash_strings(block.offsets, block.utf8)

    for found, places in _hits(hashes, len(ids), keys):
        for row, place in zip(found.tolist(), places.tolist(), strict=True):
            text, at = ids[row], place
            # Different strings may have the same hash; they are next to each other.
            while at < len(keys) and keys[at] == keys[place]:
                if wanted[int(order[at])] == text:
                    rows[order[at]] = row
                at += 1
    return rows


def _hits(
    keys: Callable[[int, int], NDArray[Any]], length: int, wanted: NDArray[Any]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Rows whose key is wanted, with the first place of the key in the sorted array `wanted`, a block of rows at a time."""
    if not len(wanted):
        return
    for start in range(0, length, _BLOCK):
        block = keys(start, min(start + _BLOCK, length))
        places = np.searchsorted(wanted, block)
        hits = np.flatnonzero(wanted[np.minimum(places, len(wanted) - 1)] == block)
        yield start + hits, places[hits]


def _as_strings(ids: Ids) -> Strings:
    return ids if isinstance(ids, Strings) else Strings.of(map(str, ids.tolist()))


def _as_numbers(ids: Ids) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The numbers that ids are, and which of them are numbers at all."""
    if not isinstance(ids, Strings):
        return ids, np.ones(len(ids), bool)
    texts = [integers_or_strings(Strings.of([text])) for text in ids]
    numbers = np.array([-1 if isinstance(number, Strings) else number[0] for number in texts], np.int64)
    return numbers, np.array([not isinstance(number, Strings) for number in texts], bool)


@kernel
def hash_strings(offsets: NDArray[np.int64], utf8: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """FNV-1a hash of each string."""
    hashes = np.empty(len(offsets) - 1, np.uint64)
    for i in range(len(hashes)):
        value = np.uint64(14695981039346656037)
        for j in range(offsets[i], offsets[i + 1]):
            value = (value ^ np.uint64(utf8[j])) * np.uint64(1099511628211)
        hashes[i] = value
    return hashes

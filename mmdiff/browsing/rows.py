"""Rows of a store as the page shows them, a page at a time: ids, given labels, predictions, the search by id.

Rows have the user's numbers: the collection (the background, then the rows appended to it), then the seeds; test points are
numbered on their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmdiff.explain.nodes import plain
from mmdiff.formats.storage.mapped_array import MappedArray
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.labels.ids import Ids, ids_of
from mmdiff.labels.rows_by_id import SEEDS, RowsById

TEST = "descriptors/test"
ROLES = ("background", "appended", "seeds", "test")

# Ids that are compared at a time.
_BLOCK = 1 << 18

# Digits of the longest number that an id may be.
_MOST_DIGITS = 19


class Place(NamedTuple):
    """A row: its number among the collection and the seeds, or among the test points."""

    row: int
    test: bool = False


@dataclass(frozen=True)
class Span:
    """The rows of an artifact, the first of which has number `first`."""

    role: str
    artifact: Artifact
    ids: Ids | range
    first: int

    @cached_property
    def vectors(self) -> MappedArray:
        return self.artifact["vectors"]

    @property
    def rows(self) -> int:
        return int(self.artifact.spec("vectors").shape[0])


@dataclass(frozen=True)
class AllRows:
    """All rows of a store by their number. `collection` counts those of the background and those appended to it."""

    spans: tuple[Span, ...]
    test: Span | None
    collection: int

    @classmethod
    def of(cls, store: Store) -> AllRows:
        spans: list[Span] = []
        found = RowsById.of(store)
        for role, part in zip(ROLES, found.parts, strict=False):
            spans.append(Span(role, part.artifact, part.ids, part.first))
        if store.id(SEEDS) is not None:
            seeds = store.open_artifact(SEEDS)
            spans.append(Span("seeds", seeds, ids_of(seeds), len(found)))
        test = None
        if store.id(TEST) is not None:
            artifact = store.open_artifact(TEST)
            test = Span("test", artifact, ids_of(artifact), 0)
        return cls(tuple(spans), test, len(found))

    @property
    def dims(self) -> int | None:
        """The width of the descriptors; None where there are none."""
        spans = [*self.spans, *([] if self.test is None else [self.test])]
        return int(spans[0].artifact.spec("vectors").shape[1]) if spans else None

    def counts(self) -> dict[str, int]:
        """The rows of each role."""
        counts = dict.fromkeys(ROLES, 0)
        for span in [*self.spans, *([] if self.test is None else [self.test])]:
            counts[span.role] = span.rows
        return counts

    def total(self, test: bool) -> int:
        """The number of rows, or of test points."""
        if test:
            return 0 if self.test is None else self.test.rows
        return sum(span.rows for span in self.spans)

    def span(self, place: Place) -> tuple[Span, int]:
        """The artifact with a row, which must exist, and the place of the row in it."""
        if place.test:
            assert self.test is not None
            return self.test, place.row
        span = next(each for each in reversed(self.spans) if each.first <= place.row)
        return span, place.row - span.first

    def identity(self, place: Place) -> int | str:
        """The user's id of a row."""
        span, row = self.span(place)
        return plain(span.ids, row)

    def vectors(self, places: Sequence[Place]) -> NDArray[np.float32]:
        """The descriptors of some rows."""
        found = []
        for place in places:
            span, row = self.span(place)
            found.append(np.asarray(span.vectors[row], np.float32))
        return np.stack(found)

    def search(self, wanted: str, start: int, count: int) -> Found:
        """The rows whose id is `wanted`, then those whose id begins with it; all rows for an empty text, in their order.

        The search ends when the rows that were asked for are found, and then only knows that there are more.
        """
        if not wanted:
            total = self.total(False)
            return Found(list(range(min(start, total), min(start + count, total))), total, start + count < total)
        exact = [row for span in self.spans for row in _equal(span, wanted)]
        found, seen = exact[start : start + count], len(exact)
        for row in self._beginning(wanted):
            if row in exact:
                continue
            if seen >= start + count:
                return Found(found, seen, True)
            if seen >= start:
                found.append(row)
            seen += 1
        return Found(found, seen, False)

    def _beginning(self, wanted: str) -> Iterator[int]:
        for span in self.spans:
            for first in range(0, span.rows, _BLOCK):
                last = min(first + _BLOCK, span.rows)
                yield from (np.flatnonzero(_begin(span.ids, first, last, wanted)) + (span.first + first)).tolist()


class Found(NamedTuple):
    """The rows of a page of a search; `total` counts those that have been seen, and there may be more."""

    rows: list[int]
    total: int
    more: bool


def _equal(span: Span, wanted: str) -> list[int]:
    """The row of a span with exactly this id, if any."""
    ids, first = span.ids, span.first
    if not isinstance(ids, Strings):
        number = _number(wanted)
        if number is None:
            return []
        if isinstance(ids, range):
            return [first + ids.index(number)] if number in ids else []
    for start in range(0, span.rows, _BLOCK):
        stop = min(start + _BLOCK, span.rows)
        if isinstance(ids, Strings):
            hits = np.flatnonzero(_strings_begin(ids, start, stop, wanted, whole=True))
        else:
            hits = np.flatnonzero(ids[start:stop] == number)
        if len(hits):
            return [first + start + int(hits[0])]
    return []


def _begin(ids: Ids | range, start: int, stop: int, wanted: str) -> NDArray[np.bool_]:
    """Whether ids start..stop-1 begin with a text."""
    if isinstance(ids, Strings):
        return _strings_begin(ids, start, stop, wanted, whole=False)
    number = _number(wanted)
    values = np.asarray(ids[start:stop], np.int64)
    found = np.zeros(len(values), bool)
    if number is None or number < 0:
        return found
    while len(values):
        found |= values == number
        # A number that begins with 0 is 0.
        if not number or values.max() <= number:
            break
        values = np.where(values > 0, values // 10, 0)
    return found


def _strings_begin(ids: Strings, start: int, stop: int, wanted: str, *, whole: bool) -> NDArray[np.bool_]:
    text = np.frombuffer(wanted.encode(errors="surrogateescape"), np.uint8)
    first, lengths = ids.offsets[start:stop], np.diff(ids.offsets[start : stop + 1])
    alike = np.flatnonzero(lengths == len(text) if whole else lengths >= len(text))
    for place, byte in enumerate(text):
        alike = alike[ids.utf8[first[alike] + place] == byte]
    found = np.zeros(stop - start, bool)
    found[alike] = True
    return found


def _number(text: str) -> int | None:
    """The number that a text spells as numbers are shown."""
    if not text.removeprefix("-").isdigit() or not text.isascii() or len(text) > _MOST_DIGITS:
        return None
    return int(text) if str(int(text)) == text else None

"""Lists of suggested rows, one for each way to choose: how long each should be, and whether it is that of the store as it is.

A list begins short, so that it is there soon after a label. It is made longer, which keeps its order, where that is quick or
where its end was asked for.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from mmdiff.formats.errors import Part
from mmdiff.formats.store.manifest import Json

BY = ("coverage", "uncertainty", "mixed")

SIZES = (200, 2000, 10_000)
"""Rows of a list at first, and of those that follow."""

# Seconds in which a list is made longer without being asked for.
_QUICK = 20.0


@dataclass(frozen=True)
class Listed:
    """Suggested rows, best first, with their figures; `inputs` are what they were found for. A note says why there are none.

    `asked` rows were asked for, and took so many seconds. All longer lists of the same inputs have the same version.
    """

    inputs: Hashable
    version: int
    entries: list[Json]
    note: tuple[Part, ...] | None
    asked: int
    seconds: float

    @property
    def next_size(self) -> int | None:
        """The size of the next longer list; None where there are no more rows."""
        return next((size for size in SIZES if size > self.asked), None) if len(self.entries) >= self.asked else None


class Lists:
    """The lists that were asked for."""

    def __init__(self) -> None:
        self._lists: dict[str, Listed] = {}
        self._wanted = {BY[0]: SIZES[0]}

    def get(self, by: str) -> Listed | None:
        return self._lists.get(by)

    def want(self, by: str, last: int) -> bool:
        """Notes that the list is wanted up to its row `last`; returns whether that is news."""
        before = self._wanted.get(by, 0)
        self._wanted[by] = max(before, SIZES[0], min(last, SIZES[-1]))
        return self._wanted[by] > before

    def missing(self, inputs: Hashable) -> dict[str, int]:
        """The lists to make for inputs, with their sizes."""
        found = {}
        for by, wanted in self._wanted.items():
            listed = self._lists.get(by)
            if listed is None or listed.inputs != inputs:
                found[by] = SIZES[0]
            elif (size := listed.next_size) is not None:
                quick = listed.seconds * size / listed.asked <= _QUICK
                if wanted > listed.asked or quick:
                    found[by] = size
        return found

    def put(self, by: str, inputs: Hashable, version: int, message: Json, note: tuple[Part, ...] | None) -> None:
        """Takes a list that was made; a longer one keeps the version of the shorter."""
        before = self._lists.get(by)
        if before is not None and before.inputs == inputs:
            version = before.version
        elif by in self._wanted:
            self._wanted[by] = SIZES[0]
        self._lists[by] = Listed(inputs, version, message["suggestions"], note, message["asked"], message["seconds"])

"""Rows of the collection by id: lookups over all artifacts that hold rows of it, in bounded memory.

Rows are numbered through, over all parts; the rows of a part without ids are identified by these numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.store.store import Artifact, Store
from mmdiff.labels.collection import Collection
from mmdiff.labels.ids import Ids, find_rows, has_ids, ids_of, joined, take

SEEDS = "descriptors/seeds"


@dataclass(frozen=True)
class Part:
    """An artifact with rows of the collection, the first of which has number `first`."""

    artifact: Artifact
    first: int

    @property
    def rows(self) -> int:
        return self.artifact.spec("vectors").shape[0]

    @property
    def has_ids(self) -> bool:
        """Whether the user gave ids to these rows."""
        return has_ids(self.artifact)

    @property
    def ids(self) -> Ids | range:
        """The id of each row."""
        return ids_of(self.artifact) if self.has_ids else range(self.first, self.first + self.rows)


@dataclass(frozen=True)
class RowsById:
    """All rows of the collection, by number and by id."""

    parts: tuple[Part, ...]

    @classmethod
    def of(cls, store: Store) -> RowsById:
        """The collection of a store; without parts where there is none."""
        parts: list[Part] = []
        for artifact in Collection.of(store).parts:
            parts.append(Part(artifact, parts[-1].first + parts[-1].rows if parts else 0))
        return cls(tuple(parts))

    def __len__(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def has_ids(self) -> bool:
        """Whether the user gave ids to the rows; otherwise they are numbers that mean nothing elsewhere."""
        # Appended rows store the numbers that follow where the background has no ids.
        return bool(self.parts) and self.parts[0].has_ids

    def find(self, wanted: Ids) -> NDArray[np.int64]:
        """The row of each wanted id, -1 where no row has it. No id is wanted twice."""
        rows = np.full(len(wanted), -1, np.int64)
        for part in self.parts:
            found = find_rows(part.ids, wanted)
            rows[found >= 0] = found[found >= 0] + part.first
        return rows

    def find_dropped(self, wanted: Ids) -> NDArray[np.bool_]:
        """Whether each wanted id is that of a row which was left out when the rows were imported."""
        dropped = np.zeros(len(wanted), bool)
        for part in self.parts:
            if "dropped_ids" in part.artifact or "dropped_ids_offsets" in part.artifact:
                dropped |= find_rows(ids_of(part.artifact, "dropped_ids"), wanted) >= 0
        return dropped

    def ids(self, rows: NDArray[np.int64]) -> Ids:
        """The ids of some rows, by increasing number."""
        found: Ids = np.empty(0, np.int64)
        for part in self.parts:
            inside = rows[(rows >= part.first) & (rows < part.first + part.rows)] - part.first
            if len(inside):
                found = joined(found, take(part.ids, inside)) if len(found) else take(part.ids, inside)
        return found

"""Groups of near-duplicates, as an audit of the store found them: the other rows of the group of a row."""

from __future__ import annotations

import numpy as np

from mmdiff.browsing.rows import AllRows, Place
from mmdiff.formats.store.store import Store
from mmdiff.runtime.staleness import stale_artifacts

NAME = "audit/duplicates"

MOST_SHOWN = 100


class Duplicates:
    """The groups by row. The audit numbers test points after all other rows."""

    def __init__(self, store: Store, rows: AllRows) -> None:
        self._rows, self._others = np.empty(0, np.int64), rows.total(False)
        if store.id(NAME) is None:
            return
        artifact = store.open_artifact(NAME)
        if stale_artifacts(store, artifact):
            return
        found = artifact.index_array("rows", below=self._others + rows.total(True))
        order = np.argsort(found, kind="stable")
        self._rows, self._group = found[order], np.asarray(artifact.array("group"))[order]
        self._by_group = np.argsort(self._group, kind="stable")
        self._sorted = self._group[self._by_group]

    def group(self, place: Place) -> int | None:
        """The number of the group of a row; None where it is in none."""
        number = place.row + (self._others if place.test else 0)
        at = int(np.searchsorted(self._rows, number))
        return int(self._group[at]) if at < len(self._rows) and int(self._rows[at]) == number else None

    def others(self, place: Place) -> list[Place]:
        """The first other rows of the group of a row."""
        group = self.group(place)
        if group is None:
            return []
        first, last = np.searchsorted(self._sorted, (group, group + 1)).tolist()
        members = self._rows[self._by_group[first : min(last, first + MOST_SHOWN + 1)]].tolist()
        found = [Place(row - self._others, True) if row >= self._others else Place(row) for row in members]
        return [each for each in found if each != place]

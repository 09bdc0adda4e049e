"""The collection: the rows that labels spread over, those of `descriptors/background` and then those appended to them later.

`descriptors/appended` belongs to the background that it was made for. Where the background is another one now, because it was
replaced or the appended rows were merged into it, these rows are no longer part of the collection.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.publish import Publication
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.labels.ids import Ids, ids_of, joined

BACKGROUND, APPENDED = "descriptors/background", "descriptors/appended"


def appended_rows(store: Store) -> Artifact | None:
    """The rows that were appended to the background as it is now; None where there are none."""
    if store.id(BACKGROUND) is None or store.id(APPENDED) is None:
        return None
    appended = store.open_artifact(APPENDED)
    made_for = appended.manifest.inputs.get("background", {}).get("object")
    return appended if made_for == store.id(BACKGROUND) else None


def has_leftover(store: Store) -> bool:
    """Whether the store has the name of appended rows that are not part of the collection."""
    return store.id(APPENDED) is not None and appended_rows(store) is None


def remove_leftover(publication: Publication) -> None:
    """Takes the name of appended rows away whose background was replaced; a killed run may have left it."""
    if has_leftover(publication.store):
        publication.remove_name(APPENDED)


@dataclass(frozen=True)
class Collection:
    """The artifacts of the collection: the background, and the rows appended to it; none where there is no background."""

    parts: tuple[Artifact, ...]

    @classmethod
    def of(cls, store: Store) -> Collection:
        if store.id(BACKGROUND) is None:
            return cls(())
        appended = appended_rows(store)
        background = store.open_artifact(BACKGROUND)
        return cls((background,) if appended is None else (background, appended))

    @property
    def rows(self) -> int:
        return sum(rows_of(part) for part in self.parts)

    def ids(self, start: int, stop: int) -> Ids:
        """The ids of rows start..stop-1."""
        found, first = [], 0
        for part in self.parts:
            rows = rows_of(part)
            low, high = max(start - first, 0), min(stop - first, rows)
            if low < high:
                found.append(span_of_ids(ids_of(part), low, high))
            first += rows
        return reduce(joined, found) if found else np.empty(0, np.int64)


def rows_of(artifact: Artifact) -> int:
    """The rows of descriptors."""
    return artifact.spec("vectors").shape[0]


def span_of_ids(ids: Ids | range, start: int, stop: int) -> Ids:
    """Ids start..stop-1."""
    return ids.span(start, stop) if isinstance(ids, Strings) else np.asarray(ids[start:stop], np.int64)

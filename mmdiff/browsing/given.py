"""The labels that rows were given: those of `labels/current`, and those that rows were imported with where it names them not.

Labels of a page are looked up row by row. The counts of all labels are kept: those of imported labels from one pass over them,
the journal's from its entries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from mmdiff.browsing.rows import AllRows, Place, Span
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact
from mmdiff.labels.classes import UNLABELLED, Classes, labels_of
from mmdiff.labels.ids import Ids, take
from mmdiff.labels.journal import Journal
from mmdiff.labels.rows_by_id import RowsById

IMPORTED = "import"
"""The source of labels that rows were imported with, in a history."""


@dataclass(frozen=True)
class Imported:
    """The labels that the rows of an artifact were imported with: how many rows have some, and the rows of each class."""

    classes: Classes
    labels: Any
    labelled: int
    counts: Counter[str]

    @classmethod
    def of(cls, artifact: Artifact) -> Imported | None:
        if "labels" not in artifact:
            return None
        classes = Classes.of(artifact)
        labels = labels_of(artifact, classes)
        table = labels if labels.ndim == 2 else labels[:, None]
        used = np.bincount(table[table != UNLABELLED], minlength=len(classes))
        counts = Counter({classes.title(place): int(count) for place, count in enumerate(used.tolist())})
        return cls(classes, table, int((table != UNLABELLED).any(axis=1).sum()), counts)

    def titles(self, row: int) -> list[str]:
        return [self.classes.title(int(label)) for label in self.labels[row] if label != UNLABELLED]


@dataclass(frozen=True)
class Version:
    """The labels that a batch gave a row."""

    batch: int
    labels: tuple[str, ...]


class Recorded:
    """The journal by id: for each row that it names what the batches said, the last of which holds."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.versions: dict[str, list[Version]] = {}
        every = journal.versions()
        for place, batch in enumerate(every.batch.tolist()):
            titles = [journal.classes.title(int(label)) for label in every.labels[place] if label != UNLABELLED]
            self.versions.setdefault(str(every.ids[place]), []).append(Version(batch, tuple(titles)))
        self.ids: Ids = journal.current().ids

    def history(self, identity: int | str) -> list[Json]:
        """The labels that batches gave a row, oldest first."""
        times, sources = self.journal.times, self.journal.sources
        return [
            {
                "batch": version.batch,
                "time": datetime.fromtimestamp(int(times[version.batch]), UTC).isoformat(),
                "source": sources[version.batch],
                "labels": list(version.labels),
            }
            for version in self.versions.get(str(identity), [])
        ]


class RowNumbers:
    """The numbers of rows of the collection by id; those that were asked for before are remembered."""

    def __init__(self, by_id: RowsById) -> None:
        self._by_id = by_id
        self._known: dict[str, int] = {}

    def find(self, ids: Ids) -> list[int]:
        """The row of each id, -1 where no row has it."""
        texts = [str(each) for each in ids]
        new = np.array([place for place, text in enumerate(texts) if text not in self._known], np.int64)
        if len(new):
            self._known.update(zip((texts[place] for place in new), self._by_id.find(take(ids, new)).tolist(), strict=True))
        return [self._known[text] for text in texts]


class Given:
    """The labels of all rows as they are now."""

    def __init__(self, rows: AllRows, imported: Sequence[Imported | None], recorded: Recorded, numbers: RowNumbers) -> None:
        self._rows, self._recorded = rows, recorded
        self._imported = dict(zip((span.role for span in rows.spans), imported, strict=True))
        self.counts: Counter[str] = Counter()
        self.labelled = 0
        for each in imported:
            if each is not None:
                self.counts.update(each.counts)
                self.labelled += each.labelled
        for identity, row in zip(recorded.ids, numbers.find(recorded.ids), strict=True):
            # Rows that are no longer in the collection keep their labels in the journal, without effect.
            if row < 0:
                continue
            before, now = self._at_import(Place(row)), recorded.versions[str(identity)][-1].labels
            self.counts.subtract(dict.fromkeys(before, 1))
            self.counts.update(dict.fromkeys(now, 1))
            self.labelled += bool(now) - bool(before)

    def titles(self, place: Place) -> list[str]:
        """The labels of a row now."""
        found = None if self._is_outside(place) else self._recorded.versions.get(str(self._rows.identity(place)))
        return self._at_import(place) if found is None else list(found[-1].labels)

    def history(self, place: Place) -> list[Json]:
        """The history of the row's labels, oldest first."""
        before = self._at_import(place)
        first = [{"batch": None, "time": None, "source": IMPORTED, "labels": before}] if before else []
        return first if self._is_outside(place) else first + self._recorded.history(self._rows.identity(place))

    def _is_outside(self, place: Place) -> bool:
        """Whether a row is no row of the collection, which alone the journal names."""
        return place.test or place.row >= self._rows.collection

    def _at_import(self, place: Place) -> list[str]:
        span, row = self._rows.span(place)
        if place.test:
            return _titles(span, row)
        found = self._imported[span.role]
        return [] if found is None else found.titles(row)


def _titles(span: Span, row: int) -> list[str]:
    """The labels of a test point."""
    if "labels" not in span.artifact:
        return []
    classes = Classes.of(span.artifact)
    own = np.atleast_1d(span.artifact["labels"][row])
    return [classes.title(int(label)) for label in own if 0 <= label < len(classes)]

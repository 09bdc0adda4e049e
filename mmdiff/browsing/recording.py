"""Labels that the page records: in `labels/current`, on disk before it answers, as `mmdiff label` does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from mmdiff.browsing.reading import Reader
from mmdiff.browsing.rows import Place
from mmdiff.formats.errors import BadLabels
from mmdiff.formats.sources.columns.label_files import label_table
from mmdiff.formats.store.manifest import Json
from mmdiff.labelling.stage import record_labels, undo_labels
from mmdiff.labels.journal import NAME as LABELS

SOURCE = "browse"
"""The source of the batches that are labelled here."""


class Recorder:
    """Changes the labels of a store; `replaced` is called with the object of the labels before, None for none."""

    def __init__(self, reader: Reader, command: str, replaced: Callable[[str | None], None]) -> None:
        self._reader, self._command, self._replaced = reader, command, replaced
        self._path = reader.store.path
        self._one_at_a_time = threading.Lock()

    def label(self, labels: Mapping[int, Sequence[str]]) -> Json:
        """Labels rows of the collection in one batch; the labels of a row without any are removed."""
        reader = self._reader
        with self._one_at_a_time:
            collection = reader.rows.collection
            outside = [row for row in labels if row >= collection]
            if outside:
                if reader.has(Place(outside[0])):
                    raise BadLabels(f"Row {outside[0]:,} is a seed: labels of seeds come with their import.")
                raise BadLabels(f"There is no row {outside[0]:,}: the collection has {collection:,} rows.")
            before = reader.store.object_name(LABELS)
            given = {reader.rows.identity(Place(row)): list(titles) or None for row, titles in labels.items()}
            outcome = record_labels(self._path, label_table(given, "labels"), SOURCE, self._command)
            self._replaced(before)
            return {"batch": len(outcome.journal.sources) - 1, "changed": outcome.changed, **self.counts()}

    def undo(self) -> Json:
        """Takes the last batch back, which must be of a page."""
        reader = self._reader
        with self._one_at_a_time:
            if not reader.journal.sources:
                return {"undone": None, "batches": 0, **self.counts()}
            before = reader.store.object_name(LABELS)
            outcome = undo_labels(self._path, self._command, SOURCE)
            self._replaced(before)
            rows = [row for row in reader.numbers.find(outcome.taken_back) if row >= 0]
            return {"undone": {"rows": rows}, "batches": len(outcome.journal.sources), **self.counts()}

    def counts(self) -> Json:
        """The rows that have labels, and the classes that rows have."""
        given = self._reader.given
        return {"labelled": given.labelled, "classes": sum(count > 0 for count in given.counts.values())}

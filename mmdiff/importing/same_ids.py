"""Rows of other roles whose ids stand in the collection: one row must not be two nodes, nor be tested on its own label.

Seeds with such ids are refused, or used for their labels only: these are recorded in `labels/current`, and the rows stay out of
the seeds. Ids can only be compared where both the collection and the imported rows have some.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadOption, Corrupt, DuplicateIds, Parameter
from mmdiff.formats.sources.base import Column
from mmdiff.formats.sources.columns.integers import integers_or_strings
from mmdiff.formats.sources.columns.label_files import LabelTable
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.publish import Publication
from mmdiff.formats.store.store import Store
from mmdiff.importing.columns import Columns
from mmdiff.importing.rows import Kept
from mmdiff.labelling.stage import publish_journal, with_batch
from mmdiff.labels.classes import UNLABELLED, Classes
from mmdiff.labels.ids import Ids, take
from mmdiff.labels.journal import Journal
from mmdiff.labels.label_set import stored_classes
from mmdiff.labels.rows_by_id import RowsById
from mmdiff.runtime.find_or_make import Made, Run

# The reason for which these rows are left out, as the facts of descriptors count it.
IN_COLLECTION = "in_the_collection"

_SHOWN = 3


@dataclass(frozen=True)
class SameIds:
    """The rows of a source, by number, whose ids stand in the collection; ids and labels are those of all its rows."""

    rows: NDArray[np.int64]
    ids: Ids
    labels: NDArray[np.int32]
    classes: Classes
    source: str

    @property
    def digest(self) -> str:
        """Identifies the rows, for the recipe of what is left."""
        return hashlib.blake2b(self.rows.tobytes(), digest_size=12).hexdigest()

    def left_out_of(self, kept: Kept) -> Kept:
        """The rows of a source without these."""
        before = np.arange(kept.source.rows) if kept.kept is None else kept.kept
        left = np.setdiff1d(before, self.rows, assume_unique=True)
        return Kept(kept.source, left, {**kept.reasons, IN_COLLECTION: len(before) - len(left)})

    def record(self, publication: Publication, run: Run) -> tuple[Made | None, list[str]]:
        """Publishes the labels of the rows as a batch of labels/current, which gets its name later; None if it has them."""
        labelled = self.rows[(self.labels[self.rows].reshape(len(self.rows), -1) != UNLABELLED).any(axis=1)]
        rows = "1 seed is a row" if len(self.rows) == 1 else f"{len(self.rows):,} seeds are rows"
        note = f"{rows} of the collection, by id; only the labels are used, and recorded in labels/current."
        if not len(labelled):
            return None, [note]
        journal = Journal.read(publication.store)
        labels = self._labels(publication.store, labelled)
        table = LabelTable(self.source, Column(take(self.ids, labelled)), labels, "row", labelled.tolist())
        following = with_batch(publication.store, journal, table, self.source).journal
        made = None if following is None else publish_journal(publication, following, run, named=False)
        return made, [note]

    def _labels(self, store: Store, rows: NDArray[np.int64]) -> Column:
        """The labels of rows as the user gave them: names, unless the classes of the store have numbers only."""
        classes, stored = self.classes, stored_classes(store)
        table = self.labels[rows].reshape(len(rows), -1)
        by_number = classes.names is None or (len(stored) > 0 and stored.names is None and classes.numbers is not None)
        if by_number and classes.numbers is not None:
            return Column(np.append(classes.numbers, UNLABELLED)[table].reshape(-1), table.shape[1])
        titles = [*(classes.title(index) for index in range(len(classes))), ""]
        return Column(integers_or_strings(Strings.of(titles[label] for label in table.reshape(-1))), table.shape[1])


def find_same_ids(store: Store, role: str, columns: Columns, source: str, same_ids: bool) -> SameIds | None:
    """The rows whose ids stand in the collection; None where there are none. Refused unless `same_ids` says to use labels."""
    if same_ids and role != "seeds":
        raise BadOption(Parameter("same_ids", True), " goes with ", Parameter("role", "seeds"), ". Leave it out.")
    if role == "background" or columns.ids is None:
        return None
    rows = np.empty(0, np.int64)
    # A damaged collection is no reason to refuse another role: either can be repaired first.
    with suppress(Corrupt):
        collection = RowsById.of(store)
        if collection.has_ids:
            rows = np.flatnonzero(collection.find(columns.ids) >= 0)
    if not len(rows):
        return None
    if not same_ids:
        raise DuplicateIds(*_refusal(role, columns.ids, rows, source))
    if columns.labels is None or columns.classes is None:
        return None
    return SameIds(rows, columns.ids, columns.labels, columns.classes, source)


def _refusal(role: str, ids: Ids, rows: NDArray[np.int64], source: str) -> tuple[str | Parameter, ...]:
    shown = ", ".join([*(str(ids[int(row)]) for row in rows[:_SHOWN]), *(["..."] if len(rows) > _SHOWN else [])])
    count = "1 row has the id of a row" if len(rows) == 1 else f"{len(rows):,} rows have the ids of rows"
    found = f"{source}, row {int(rows[0])}: {count} of the collection ({shown})"
    if role == "test":
        return (
            f"{found}. A row that is a node is answered by its own label and those near it, so it cannot test anything. Leave "
            "these rows out, or give other images other ids.",
        )
    return (
        f"{found}. As seeds they would be nodes twice. Use only their labels with ",
        Parameter("same_ids", True),
        ", or give other images other ids.",
    )

"""`mmdiff label`: adds batches of labels to the journal `labels/current`, takes the last one back, and lists what holds.

The journal is read, changed and published under its lock, so that of two processes that label at the same time neither loses a
batch. A change that is refused leaves it as it was.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import FILE, BadLabels, CountMismatch, Locked, Missing, call, shortened
from mmdiff.formats.sources.columns.label_files import LabelTable
from mmdiff.formats.storage.disk_errors import explaining
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.publish import Publication
from mmdiff.formats.store.store import Store
from mmdiff.labelling.naming import named_classes
from mmdiff.labels.classes import UNLABELLED
from mmdiff.labels.ids import Ids, check, find_rows, groups, has_ids, ids_of, take
from mmdiff.labels.journal import NAME, Holdout, Journal
from mmdiff.labels.label_set import stored_classes
from mmdiff.labels.rows_by_id import SEEDS, RowsById
from mmdiff.runtime.find_or_make import Made, Run, make
from mmdiff.runtime.parameters import number, random_seed

# Labels are recorded within milliseconds: a process that finds the lock taken tries again for so long.
_PATIENCE_SECONDS = 10.0
_PAUSE_SECONDS = 0.05

# The largest share of labels that can be held out.
MOST_HELD_OUT = 0.9

_SHOWN = 3


@dataclass(frozen=True)
class Outcome:
    """The journal after a change. `rows` have got labels, `removed` have lost them; a batch that says nothing new is none.

    `taken_back` are the ids that a batch named which was taken back.
    """

    journal: Journal
    made: Made | None
    rows: int = 0
    removed: int = 0
    changed: bool = True
    notes: list[str] = field(default_factory=list)
    taken_back: Ids = field(default_factory=lambda: np.empty(0, np.int64))

    def summary(self) -> Json:
        current = self.journal.current()
        return {
            "artifact": NAME,
            "object": None if self.made is None else self.made.artifact.id,
            "changed": self.changed,
            "rows": self.rows,
            "removed": self.removed,
            "labelled": int(current.labelled.sum()),
            "classes": len(self.journal.classes),
            "batches": len(self.journal.sources),
            "holdout": self.journal.holdout.share,
            "notes": self.notes,
        }


@explaining
def record_labels(path: Path, table: LabelTable, source: str, command: str) -> Outcome:
    """Adds a batch to the journal: the labels of each row of the table replace those that it had; without any it has none."""
    run = Run(command)
    store = Store.open(path)
    with _locked(path, command) as publication:
        journal = Journal.read(store)
        batch = with_batch(store, journal, table, source)
        if batch.journal is None:
            return Outcome(journal, None, batch.rows, batch.removed, changed=False)
        return Outcome(batch.journal, publish_journal(publication, batch.journal, run), batch.rows, batch.removed)


@dataclass(frozen=True)
class Batch:
    """A journal with another batch, and the numbers of rows that get labels and lose them.

    The journal is None where it would say nothing new, so that a repeated call changes nothing.
    """

    journal: Journal | None
    rows: int
    removed: int


def with_batch(store: Store, journal: Journal, table: LabelTable, source: str) -> Batch:
    """The journal with the labels of a table; refused where ids or labels are not those of the store."""
    if len(table.labels) != len(table.ids):
        raise CountMismatch(f"{table.name}: {len(table.labels)} labels for {len(table.ids)} ids. Give one for each.")
    ids = check(table.ids, table.name, table.unit, lambda row: table.numbers[row])
    refuse_unknown(store, ids, table)
    journal, labels, classes = named_classes(stored_classes(store), journal, table)
    labelled = (labels != UNLABELLED).any(axis=1)
    following = None if _says(journal, ids, labels) else journal.followed_by(ids, labels, classes, source, _now())
    return Batch(following, int(labelled.sum()), int((~labelled).sum()))


def publish_journal(publication: Publication, journal: Journal, run: Run, *, named: bool = True) -> Made:
    """Publishes a journal as `labels/current`; without `named` it gets its name later, together with other artifacts."""
    return make(publication, NAME, journal.recipe(), run, journal.write, named_with={} if named else None)


def refuse_unknown(store: Store, ids: Ids, table: LabelTable) -> None:
    """Refuses ids that no row of the collection has, with the first of them and where they stand."""
    collection = RowsById.of(store)
    if not len(collection):
        raise Missing(f"{store.path}: no collection whose rows could be labelled. Import it first: ", call("add", FILE))
    unknown = np.flatnonzero(collection.find(ids) < 0)
    if not len(unknown):
        return
    first = int(unknown[0])
    if collection.find_dropped(take(ids, unknown[:1]))[0]:
        raise BadLabels(
            f"{table.place(first)}: the row with id {ids[first]!s} was left out when the collection was imported, since its "
            "values are not finite or all zero. Leave it out here too, or import the collection with a row that is mended."
        )
    more = "" if len(unknown) == 1 else f" There are {len(unknown) - 1:,} more such ids: {_examples(ids, unknown[1:])}."
    seeds = store.open_artifact(SEEDS) if store.id(SEEDS) is not None else None
    if seeds is not None and has_ids(seeds) and find_rows(ids_of(seeds), take(ids, unknown[:1]))[0] >= 0:
        advice = "It is the id of a seed: labels of seeds come with their import."
    elif collection.has_ids:
        advice = "Check the id."
    else:
        advice = f"Rows were imported without ids, so that their numbers identify them: 0 to {len(collection) - 1:,}."
    raise BadLabels(f"{table.place(first)}: no row of the collection has the id {ids[first]!s}.{more} {advice}")


def _examples(ids: Ids, rows: NDArray[np.int64]) -> str:
    shown = [str(ids[int(row)]) for row in rows[:_SHOWN]]
    return ", ".join([*shown, *(["..."] if len(rows) > _SHOWN else [])])


def _says(journal: Journal, ids: Ids, labels: NDArray[np.int32]) -> bool:
    """Whether the journal gives exactly these labels to the rows already."""
    current = journal.current()
    places = find_rows(current.ids, ids)
    if (places < 0).any():
        return False
    now = current.labels[places]
    return all(set(now[row].tolist()) | {-1} == set(labels[row].tolist()) | {-1} for row in range(len(labels)))


@explaining
def undo_labels(path: Path, command: str, source: str | None = None) -> Outcome:
    """Takes the last batch back; with a `source`, only if the batch is from there."""
    run = Run(command)
    store = Store.open(path)
    with _locked(path, command) as publication:
        journal = Journal.read(store)
        if not len(journal):
            raise Missing(
                f"{store.path}: no labels were recorded, so there is nothing to undo. Record some: ", call("label", FILE)
            )
        if source is not None and journal.sources[-1] != source:
            raise BadLabels(
                f"The last labels came from {shortened(journal.sources[-1], str)}, not from here. Take them back with ",
                call("undo_label"),
                ".",
            )
        before = journal.without_last()
        last = take(journal.ids, np.flatnonzero(journal.batch == len(journal.sources) - 1))
        return Outcome(before, publish_journal(publication, before, run), taken_back=take(last, groups(last)[0]))


def holdout_of(share: float, seed: int) -> Holdout:
    """A share of labels to hold out, refused where it is impossible."""
    return Holdout(number("share", share, 0, MOST_HELD_OUT), random_seed(seed))


@explaining
def hold_out(path: Path, holdout: Holdout, command: str) -> Outcome:
    """Keeps a share of the labels out for good; a share of 0 ends it."""
    run = Run(command)
    store = Store.open(path)
    with _locked(path, command) as publication:
        journal = Journal.read(store)
        following = replace(journal, holdout=holdout)
        if holdout == journal.holdout:
            return Outcome(journal, None, changed=False)
        return Outcome(following, publish_journal(publication, following, run))


def list_labels(store: Store) -> Json:
    """The labels that hold, by row, with the batch that each is from and the ones it has replaced; and all batches."""
    journal = Journal.read(store)
    versions, count = journal.versions(), len(journal.sources)
    times = [datetime.fromtimestamp(seconds, UTC).isoformat() for seconds in journal.times.tolist()]
    rows: dict[str, Json] = {}
    for place, batch in enumerate(versions.batch.tolist()):
        identity, labels = versions.ids[place], _titles(journal, versions.labels[place])
        # Versions are by batch, so that a later one replaces an earlier one.
        before = rows.pop(str(identity), None)
        replaced = [] if before is None else [*before["replaced"], {"labels": before["labels"], "batch": before["batch"]}]
        rows[str(identity)] = {
            "id": identity if isinstance(identity, str) else int(identity),
            "labels": labels,
            "batch": batch,
            "time": times[batch],
            "source": journal.sources[batch],
            "replaced": replaced,
        }
    counted = {
        "entries": np.bincount(journal.batch, minlength=count),
        "rows": np.bincount(versions.batch, minlength=count),
        "removed": np.bincount(versions.batch[~versions.labelled], minlength=count),
    }
    batches = [
        {"batch": batch, "time": times[batch], "source": source, **{key: int(each[batch]) for key, each in counted.items()}}
        for batch, source in enumerate(journal.sources)
    ]
    return {
        "labels": list(rows.values()),
        "batches": batches,
        "holdout": journal.holdout.share,
        "seed": journal.holdout.seed,
    }


def _titles(journal: Journal, labels: NDArray[np.int32]) -> list[str]:
    return [journal.classes.title(int(label)) for label in labels if label != UNLABELLED]


def _now() -> int:
    """The time of a batch, in seconds since 1970, UTC."""
    return int(time.time())


@contextmanager
def _locked(path: Path, command: str) -> Iterator[Publication]:
    """The right to publish the journal; another process that labels is waited for."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    with ExitStack() as stack:
        while True:
            try:
                publication = stack.enter_context(Publication(path, [NAME], command))
                break
            except Locked:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_SECONDS)
        yield publication

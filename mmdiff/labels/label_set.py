"""The labels of a store as one set: those of the seeds, those the collection was imported with, and those of `labels/current`.

Rows are the user's, in the order of the nodes of the graph: the collection, then the seeds. Where there are seeds they define
the first classes; classes that only the collection has follow, then those that only `labels/current` has. Labels of
`labels/current` replace those that rows of the collection were imported with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import FILE, BadLabels, Missing, Parameter, Stale, call
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.labels.classes import UNLABELLED, Classes, labels_of
from mmdiff.labels.ids import Ids, find_rows, has_ids, ids_of, joined, take
from mmdiff.labels.journal import NAME as LABELS
from mmdiff.labels.journal import Journal
from mmdiff.labels.rows_by_id import SEEDS, RowsById
from mmdiff.runtime.find_or_make import input_of

# Examples that a note gives.
_SHOWN = 3


@dataclass(frozen=True)
class LabelSet:
    """The labelled rows of a store, by increasing row, and their labels, (rows, labels per row), UNLABELLED for fewer.

    Every row has at least one label. `held_out` marks the rows whose labels are kept out for good: nothing learns from them,
    and `used` leaves them out. `inputs` are the artifacts that the labels come from, as inputs of a recipe; `notes` tell the
    user about them.
    """

    rows: NDArray[np.int64]
    labels: NDArray[np.int32]
    classes: Classes
    inputs: Json = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    held_out: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))

    def take(self, places: NDArray[np.bool_] | NDArray[np.int64]) -> LabelSet:
        """Some of the rows, over the same classes."""
        return replace(self, rows=self.rows[places], labels=self.labels[places], held_out=self.held_out[places])

    def used(self) -> LabelSet:
        """The rows whose labels may be learned from."""
        return self.take(~self.held_out)

    def counts(self) -> NDArray[np.int64]:
        """The number of rows of each class."""
        return np.bincount(self.labels[self.labels != UNLABELLED], minlength=len(self.classes))


def read_label_set(store: Store, graph: Artifact | None = None) -> LabelSet:
    """The labels of the nodes of a graph, or of all rows; refused where there are none, or where they do not fit together."""
    found = find_label_set(store, graph)
    if not len(found.rows):
        raise no_labels(store)
    if found.held_out.all():
        raise BadLabels(
            f"all {len(found.rows):,} labelled rows are held out, so there is nothing to spread. Label more rows, or end it: ",
            call("hold_out", 0),
        )
    return found


def find_label_set(store: Store, graph: Artifact | None = None) -> LabelSet:
    """The same, where having no labels, or none to learn from, is no mistake."""
    collection, journal, notes = RowsById.of(store), Journal.read(store), []
    first = len(collection)
    if graph is not None:
        facts = graph.manifest.facts
        first = facts["background"] + facts.get("appended", 0)
        if len(collection) != first:
            # An imported graph may be made of other rows than those in the store.
            if len(journal):
                notes = [f"{LABELS} is not used: {graph.name} was made of other rows than those of the collection."]
            collection, journal = RowsById(()), replace(Journal.EMPTY, holdout=journal.holdout)
    seeds = _seeds(store, graph, first)
    found = _merged([*([] if seeds is None else [seeds]), *_given(collection)])
    if len(journal):
        found = _overlaid(found, journal, collection)
    if not len(found.rows):
        return found
    inputs = found.inputs if journal.is_blank else found.inputs | {"labels": input_of(store.open_artifact(LABELS))}
    inside = int(np.searchsorted(found.rows, first))
    if seeds is not None:
        notes += _contradictions(found, inside, collection, store.open_artifact(SEEDS), first)
    ids = collection.ids(found.rows[:inside])
    if inside < len(found.rows):
        of_seeds = take(ids_of(store.open_artifact(SEEDS)), found.rows[inside:] - first)
        ids = joined(ids, of_seeds) if inside else of_seeds
    held_out = journal.holdout.chosen(ids)
    return replace(found, classes=found.classes.numbered(), inputs=inputs, notes=found.notes + notes, held_out=held_out)


def no_labels(store: Store) -> Missing:
    """The error for a store without labels, which names the ways to give some."""
    return Missing(
        f"{store.path}: no row has a label, so there are no labels to spread. Label rows of the collection: ",
        call("label", FILE),
        "; or import rows with their labels: ",
        call("add", FILE, labels=FILE),
    )


def stored_classes(store: Store) -> Classes:
    """The classes that labels of a store were imported with: those of the seeds, then those that only the collection has."""
    names = [name for name in (SEEDS, *(part.artifact.name for part in RowsById.of(store).parts)) if store.id(name)]
    tables = [Classes.of(artifact) for artifact in map(store.open_artifact, names) if "labels" in artifact]
    classes = tables[0] if tables else Classes(None, None)
    for other in tables[1:]:
        classes, _ = classes.extended_by(other)
    return classes


def _seeds(store: Store, graph: Artifact | None, first: int) -> LabelSet | None:
    if store.id(SEEDS) is None:
        return None
    seeds = store.open_artifact(SEEDS)
    if "labels" not in seeds:
        raise BadLabels(
            f"{SEEDS}: no labels, so there is nothing to spread. Import the seeds again with ", Parameter("labels", FILE), "."
        )
    rows = seeds.spec("vectors").shape[0]
    if graph is not None and rows != graph.manifest.facts["seeds"]:
        made = graph.manifest.facts["seeds"]
        raise Stale(f"{graph.name}: made with {made:,} seeds, but {SEEDS} has {rows:,}. Run again: {graph.run['command']}")
    return _labelled(seeds, first)


def _given(collection: RowsById) -> list[LabelSet]:
    """The labels that rows of the collection were imported with."""
    found = [_labelled(part.artifact, part.first) for part in collection.parts if "labels" in part.artifact]
    return [part for part in found if len(part.rows)]


def _labelled(artifact: Artifact, first: int) -> LabelSet:
    """The labelled rows of an artifact, whose rows begin with number `first`."""
    classes = Classes.of(artifact)
    stored = labels_of(artifact, classes)
    table = stored if stored.ndim == 2 else stored[:, None]
    rows = np.flatnonzero((table != UNLABELLED).any(axis=1))
    key = artifact.name.split("/")[1]
    return LabelSet(first + rows, table[rows], classes, {key: input_of(artifact)})


def _merged(parts: Sequence[LabelSet]) -> LabelSet:
    """Sets over different rows as one, by increasing row; the classes of the first part come first."""
    found = LabelSet(np.empty(0, np.int64), np.empty((0, 1), np.int32), Classes(None, None))
    for part in parts:
        classes, columns = found.classes.extended_by(part.classes) if len(found.classes) else (part.classes, None)
        labels = part.labels if columns is None else _translated(part.labels, columns)
        rows = np.concatenate([found.rows, part.rows])
        order = np.argsort(rows, kind="stable")
        together = _stacked(found.labels, labels)[order]
        found = LabelSet(rows[order], together, classes, found.inputs | part.inputs, found.notes + part.notes)
    return found


def _overlaid(given: LabelSet, journal: Journal, collection: RowsById) -> LabelSet:
    """The set with the labels of the journal in place of those that its rows were imported with."""
    current = journal.current()
    rows = collection.find(current.ids)
    notes = [] if (rows >= 0).all() else [_gone(current.ids, rows)]
    used = np.unique(current.labels[current.labels != UNLABELLED]).astype(np.int64)
    classes, labels = given.classes, np.full_like(current.labels, UNLABELLED)
    if len(used):
        own = journal.classes.take(used)
        try:
            classes, columns = classes.extended_by(own) if len(classes) else (own, np.arange(len(own)))
        except BadLabels as error:
            raise BadLabels(f"{LABELS}: ", *error.parts) from None
        place = np.zeros(len(journal.classes), np.int64)
        place[used] = columns
        labels = _translated(current.labels, place)
    named = np.flatnonzero(rows >= 0)
    named = named[np.argsort(rows[named], kind="stable")]
    rows, labels = rows[named], labels[named]
    replaced = np.flatnonzero(np.isin(given.rows, rows))
    notes += _replaced(given, replaced, rows, labels, classes, collection)
    labelled = (labels != UNLABELLED).any(axis=1)
    kept = np.delete(np.arange(len(given.rows)), replaced)
    together = np.concatenate([given.rows[kept], rows[labelled]])
    order = np.argsort(together, kind="stable")
    stacked = _stacked(given.labels[kept], labels[labelled])[order]
    return LabelSet(together[order], stacked, classes, given.inputs, given.notes + notes)


def _replaced(
    given: LabelSet,
    replaced: NDArray[np.int64],
    rows: NDArray[np.int64],
    labels: NDArray[np.int32],
    classes: Classes,
    collection: RowsById,
) -> list[str]:
    """A note on rows whose labels in the journal differ from those that they were imported with; removals are meant."""
    before, now = given.labels[replaced], labels[np.searchsorted(rows, given.rows[replaced])]
    differing = np.flatnonzero(_differ(before, now) & (now != UNLABELLED).any(axis=1))
    if not len(differing):
        return []
    ids = collection.ids(given.rows[replaced[differing[:_SHOWN]]])
    examples = [
        f"{ids[at]}: {_titles(classes, now[place])} instead of {_titles(classes, before[place])}"
        for at, place in enumerate(differing[:_SHOWN].tolist())
    ]
    rows_have = "1 row has another label" if len(differing) == 1 else f"{len(differing):,} rows have other labels"
    return [f"{LABELS} replaces imported labels: {rows_have} there ({_list(examples, len(differing))})."]


def _contradictions(found: LabelSet, inside: int, collection: RowsById, seeds: Artifact, first: int) -> list[str]:
    """A note on seeds with the id of a row of the collection that has another label. The first `inside` rows are of it."""
    if not collection.has_ids or not has_ids(seeds) or not 0 < inside < len(found.rows):
        return []
    ids = take(ids_of(seeds), found.rows[inside:] - first)
    twins = find_rows(collection.ids(found.rows[:inside]), ids)
    own = np.flatnonzero(twins >= 0)
    before, now = found.labels[twins[own]], found.labels[inside + own]
    differing = np.flatnonzero(_differ(before, now))
    if not len(differing):
        return []
    classes = found.classes
    examples = [
        f"{ids[int(own[place])]}: {_titles(classes, now[place])}, in the collection {_titles(classes, before[place])}"
        for place in differing[:_SHOWN].tolist()
    ]
    seeds_have = "1 seed has" if len(differing) == 1 else f"{len(differing):,} seeds have"
    return [
        f"{seeds_have} the id of a row of the collection with another label ({_list(examples, len(differing))}); both are used."
    ]


def _gone(ids: Ids, rows: NDArray[np.int64]) -> str:
    gone = np.flatnonzero(rows < 0)
    shown = _list([str(ids[int(at)]) for at in gone[:_SHOWN]], len(gone), ", ")
    rows_are = "1 row that is" if len(gone) == 1 else f"{len(gone):,} rows that are"
    return f"{LABELS} names {rows_are} not in the collection ({shown}); these labels are not used."


def _list(examples: Sequence[str], count: int, separator: str = "; ") -> str:
    return separator.join([*examples, *(["..."] if count > len(examples) else [])])


def _titles(classes: Classes, labels: NDArray[np.int32]) -> str:
    return " and ".join(classes.title(int(label)) for label in labels if label != UNLABELLED)


def _differ(first: NDArray[np.int32], second: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Whether rows have different sets of labels."""
    width = max(first.shape[1], second.shape[1])
    both = [np.sort(_padded(labels, width), axis=1) for labels in (first, second)]
    return np.asarray((both[0] != both[1]).any(axis=1))


def _padded(labels: NDArray[np.int32], width: int) -> NDArray[np.int32]:
    return np.pad(labels, ((0, 0), (0, width - labels.shape[1])), constant_values=UNLABELLED)


def _stacked(first: NDArray[np.int32], second: NDArray[np.int32]) -> NDArray[np.int32]:
    width = max(first.shape[1], second.shape[1])
    return np.concatenate([_padded(first, width), _padded(second, width)])


def _translated(labels: NDArray[np.int32], columns: NDArray[np.int64]) -> NDArray[np.int32]:
    """Labels in other columns. The entry appended to the columns is the one that index -1, no label, finds."""
    return np.append(columns, UNLABELLED)[labels].astype(np.int32)

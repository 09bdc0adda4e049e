"""The journal of labels, `labels/current`: batches of labels that the user gave to rows of the collection, by id.

Every version holds the whole journal. The labels of a row are those of the last batch that names it; an entry without a label
says that the row has none, even where it was imported with one. Classes are either names or numbers: names, where the classes
of the store have any.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import Draft
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.labels.classes import UNLABELLED, Classes, labels_of
from mmdiff.labels.ids import Ids, groups, hash_strings, joined, take

NAME = "labels/current"
KIND, SCHEMA = "labels", 1

# Constants of splitmix64, which spreads keys that are close to each other over all 64 bits.
_STEP, _FIRST, _SECOND = (np.uint64(value) for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True)
class Holdout:
    """The share of labels that is kept out for good, decided by a hash of each row's id; 0 keeps none out."""

    share: float = 0.0
    seed: int = 0

    def chosen(self, ids: Ids) -> NDArray[np.bool_]:
        """Whether each id is held out. It depends on the id alone, so it stays as labels come and go."""
        keys = hash_strings(ids.offsets, ids.utf8) if isinstance(ids, Strings) else ids.astype(np.uint64)
        mixed = _mixed(keys ^ _mixed(np.array([self.seed], np.uint64)))
        return np.asarray((mixed >> np.uint64(11)).astype(np.float64) < self.share * 2.0**53)


def _mixed(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The splitmix64 hash of each key."""
    keys = keys + _STEP
    keys = (keys ^ (keys >> np.uint64(30))) * _FIRST
    keys = (keys ^ (keys >> np.uint64(27))) * _SECOND
    return keys ^ (keys >> np.uint64(31))


@dataclass(frozen=True)
class Named:
    """Rows by id with their labels, (rows, labels per row), UNLABELLED for fewer; `batch` is the batch that each is from."""

    ids: Ids
    labels: NDArray[np.int32]
    batch: NDArray[np.int32]

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """Whether each row has a label, and is not one whose label was removed."""
        return np.asarray((self.labels != UNLABELLED).any(axis=1))


@dataclass(frozen=True)
class Journal:
    """Entries by batch: an id, and an index into `classes` or UNLABELLED. `sources` and `times` describe the batches."""

    ids: Ids
    labels: NDArray[np.int32]
    batch: NDArray[np.int32]
    classes: Classes
    sources: tuple[str, ...]
    times: NDArray[np.int64]
    holdout: Holdout

    EMPTY: ClassVar[Journal]

    @classmethod
    def of(cls, artifact: Artifact) -> Journal:
        """The journal of an artifact, its indices checked."""
        classes, parameters = Classes.of(artifact), artifact.manifest.parameters
        return cls(
            artifact.array("ids") if "ids" in artifact else artifact.strings("ids"),
            labels_of(artifact, classes),
            artifact.index_array("batch", below=artifact.facts["batches"]),
            classes,
            tuple(artifact.strings("batch_sources")),
            artifact.array("batch_times"),
            Holdout(float(parameters["holdout"]), parameters["seed"]),
        )

    @classmethod
    def read(cls, store: Store) -> Journal:
        """The journal of a store; an empty one where there is none."""
        return cls.EMPTY if store.id(NAME) is None else cls.of(store.open_artifact(NAME))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def is_blank(self) -> bool:
        """Whether the journal says nothing, so that results do not depend on it."""
        return not len(self) and not self.holdout.share

    def followed_by(self, ids: Ids, labels: NDArray[np.int32], classes: Classes, source: str, time: int) -> Journal:
        """The journal with another batch: an entry for each label of each row, or one that says that it has none.

        `classes` begins with those of the journal, in the same order.
        """
        absent = (labels == UNLABELLED).all(axis=1)
        rows, places = np.nonzero((labels != UNLABELLED) | (absent[:, None] & (np.arange(labels.shape[1]) == 0)))
        batch = np.full(len(rows), len(self.sources), np.int32)
        return replace(
            self,
            ids=joined(self.ids, take(ids, rows)) if len(self) else take(ids, rows),
            labels=np.append(self.labels, labels[rows, places]).astype(np.int32),
            batch=np.append(self.batch, batch).astype(np.int32),
            classes=classes,
            sources=(*self.sources, source),
            times=np.append(self.times, time).astype(np.int64),
        )

    def without_last(self) -> Journal:
        """The journal before its last batch, with the classes that are still in use."""
        kept = np.flatnonzero(self.batch < len(self.sources) - 1)
        labels = self.labels[kept]
        used = np.unique(labels[labels != UNLABELLED]).astype(np.int64)
        if not len(kept):
            return replace(self.EMPTY, holdout=self.holdout)
        place = np.full(len(self.classes) + 1, UNLABELLED, np.int32)
        place[used] = np.arange(len(used))
        return replace(
            self,
            ids=take(self.ids, kept),
            labels=place[labels],
            batch=self.batch[kept],
            classes=self.classes.take(used),
            sources=self.sources[:-1],
            times=self.times[:-1],
        )

    def versions(self) -> Named:
        """The labels of each row in each batch that names it, by batch; a row that several batches name is there as often."""
        first, rows = groups(self.ids)
        _, starts, versions = np.unique(
            self.batch.astype(np.int64) * max(1, len(first)) + rows, return_index=True, return_inverse=True
        )
        if not len(starts):
            return Named(self.ids, np.empty((0, 1), np.int32), self.batch)
        order = np.argsort(versions, kind="stable")
        firsts = np.searchsorted(versions[order], np.arange(len(starts)))
        places = np.arange(len(order)) - firsts[versions[order]]
        labels = np.full((len(starts), int(places.max()) + 1), UNLABELLED, np.int32)
        labels[versions[order], places] = self.labels[order]
        return Named(take(self.ids, starts), labels, self.batch[starts])

    def current(self) -> Named:
        """The labels of each row in the last batch that names it."""
        every = self.versions()
        first, rows = groups(every.ids)
        last = np.zeros(len(first), np.int64)
        # Versions are by batch, so that the last one has the largest number.
        np.maximum.at(last, rows, np.arange(len(rows)))
        last.sort()
        return Named(take(every.ids, last), every.labels[last], every.batch[last])

    def recipe(self) -> Recipe:
        """The recipe is the content itself: a journal has no inputs that could change."""
        digest = hashlib.blake2b(digest_size=12)
        ids = (self.ids.offsets, self.ids.utf8) if isinstance(self.ids, Strings) else (self.ids,)
        names = Strings.of(self.classes.names or ())
        sources = Strings.of(self.sources)
        numbers = np.empty(0, np.int64) if self.classes.numbers is None else self.classes.numbers
        for values in (
            *ids,
            self.labels,
            self.batch,
            numbers,
            names.offsets,
            names.utf8,
            sources.offsets,
            sources.utf8,
            self.times,
        ):
            digest.update(f"{values.dtype.name} {len(values)} ".encode())
            digest.update(np.ascontiguousarray(values).tobytes())
        parameters = {"digest": digest.hexdigest(), "holdout": self.holdout.share, "seed": self.holdout.seed}
        return Recipe(KIND, SCHEMA, parameters, {})

    def write(self, draft: Draft) -> Json:
        """Writes the arrays; returns the facts."""
        if isinstance(self.ids, Strings):
            draft.strings("ids", self.ids)
        else:
            draft.values("ids", self.ids)
        draft.values("labels", self.labels)
        draft.values("batch", self.batch)
        self.classes.write(draft)
        draft.strings("batch_sources", Strings.of(self.sources))
        draft.values("batch_times", self.times)
        return {"entries": len(self), "batches": len(self.sources), "classes": len(self.classes)}


Journal.EMPTY = Journal(
    ids=np.empty(0, np.int64),
    labels=np.empty(0, np.int32),
    batch=np.empty(0, np.int32),
    classes=Classes(None, None),
    sources=(),
    times=np.empty(0, np.int64),
    holdout=Holdout(),
)


def what_labels(artifact: Artifact) -> str:
    """One line for `inspect`."""
    facts, share = artifact.facts, artifact.manifest.parameters["holdout"]
    entries = f"{facts['entries']:,} {'entry' if facts['entries'] == 1 else 'entries'}"
    parts = [f"{entries} in {facts['batches']:,} {'batch' if facts['batches'] == 1 else 'batches'}"]
    if facts["classes"]:
        parts.append(f"{facts['classes']:,} {'class' if facts['classes'] == 1 else 'classes'}")
    if share:
        parts.append(f"{share:.1%} of the labels held out")
    return ", ".join(parts)


def journal_statistics(artifact: Artifact) -> Json:
    """The rows that have labels and that have lost them, and the classes with the most rows, for `inspect`."""
    journal = Journal.of(artifact)
    current = journal.current()
    counts = np.bincount(current.labels[current.labels != UNLABELLED], minlength=len(journal.classes))
    order = np.argsort(-counts, kind="stable")[:3]
    return {
        "labelled": int(current.labelled.sum()),
        "removed": int((~current.labelled).sum()),
        "largest": {journal.classes.title(int(column)): int(counts[column]) for column in order},
    }

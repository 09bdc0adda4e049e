"""Suggestions as a table: each with the reasons for it.

| column | Arrow type | content |
|---|---|---|
| `rank` | int32 | 1 for the best |
| `id` | string or int64 | the user's id, else the row number |
| `reaches` | int64 | rows that its label would newly reach, within two iterations |
| `gain` | float32 | the coverage that it adds to that of labels and of earlier suggestions |
| `nearest` | as `id` | the most similar labelled row; null for none |
| `nearest_label` | string or int64 | its label |
| `similarity` | float32 | its similarity |
| `label` | string or int64 | the class that is predicted now; null for none |
| `margin` | float32 | its share minus that of the second class; null for none |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmdiff.export.columns import Column
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.labels.classes import UNLABELLED, Classes
from mmdiff.labels.ids import ids_of, take
from mmdiff.labels.label_set import LabelSet
from mmdiff.labels.rows_by_id import SEEDS
from mmdiff.prediction.sources import ids_of_collection
from mmdiff.suggestion.nearest import Vectors, nearest_labelled
from mmdiff.suggestion.predictions import PresentScores


class Chosen(NamedTuple):
    """A chosen row of the collection, the rows that it newly reaches, and the coverage that it adds."""

    row: int
    reaches: int
    gain: float


def columns_of(
    store: Store, graph: Artifact, chosen: Sequence[Chosen], labels: LabelSet, scores: PresentScores | None
) -> tuple[list[Column], list[str]]:
    """The table of some suggestions, and notes on it."""
    rows = np.array([each.row for each in chosen], np.int64)
    ids = _Ids(store, graph)
    near, similarities, notes = _nearest(store, graph, rows, labels)
    own = np.flatnonzero(near >= 0)
    nearest, nearest_labels = _empty(rows), _empty(rows)
    for place, value, label in zip(own, ids.of(labels.rows[near[own]]), labels.labels[near[own]], strict=True):
        nearest[place] = value
        # The first of several labels.
        nearest_labels[place] = _title(labels.classes, int(label[label != UNLABELLED][0]))
    predicted, margins = _empty(rows), _empty(rows)
    if scores is not None:
        found = scores.of(rows)
        for place in np.flatnonzero(found.label != UNLABELLED):
            predicted[place], margins[place] = _title(scores.classes, int(found.label[place])), float(found.margin[place])
    titles = Classes(None, None) if scores is None else scores.classes
    return [
        Column("rank", "int32", range(1, len(rows) + 1)),
        Column("id", ids.type, ids.of(rows)),
        Column("reaches", "int64", [each.reaches for each in chosen]),
        Column("gain", "float32", [float(np.float32(each.gain)) for each in chosen]),
        Column("nearest", ids.type, nearest),
        Column("nearest_label", _type(labels.classes), nearest_labels),
        Column(
            "similarity",
            "float32",
            [float(each) if place >= 0 else None for each, place in zip(similarities, near, strict=True)],
        ),
        Column("label", _type(titles), predicted),
        Column("margin", "float32", margins),
    ], notes


def _nearest(
    store: Store, graph: Artifact, rows: NDArray[np.int64], labels: LabelSet
) -> tuple[NDArray[np.int64], NDArray[np.float32], list[str]]:
    """The nearest labelled row of each row, as its place among the labels, -1 for none; similarities, and notes."""
    vectors = Vectors.of(store)
    facts = graph.manifest.facts
    if len(vectors) != facts["background"] + facts.get("appended", 0) + facts["seeds"]:
        return np.full(len(rows), -1), np.zeros(len(rows), np.float32), []
    found = nearest_labelled(vectors, rows, labels.rows)
    total = len(labels.rows)
    notes = [] if found.compared in (0, total) else [f"nearest is among {found.compared:,} of the {total:,} labelled rows."]
    return found.places, found.similarities, notes


class _Ids:
    """The ids of the rows of a graph: the collection, then the seeds."""

    def __init__(self, store: Store, graph: Artifact) -> None:
        facts = graph.manifest.facts
        rows = facts["background"] + facts.get("appended", 0)
        self._parts = ids_of_collection(store, graph, rows)
        if facts["seeds"]:
            self._parts.append(ids_of(store.open_artifact(SEEDS)))
        self.type = "string" if any(isinstance(part, Strings) for part in self._parts) else "int64"

    def of(self, rows: NDArray[np.int64]) -> list[Any]:
        """The ids of some rows."""
        found, first = _empty(rows), 0
        for part in self._parts:
            own = np.flatnonzero((rows >= first) & (rows < first + len(part)))
            for place, value in zip(own, take(part, rows[own] - first), strict=True):
                found[place] = str(value) if self.type == "string" else int(value)
            first += len(part)
        return found


def _empty(rows: NDArray[np.int64]) -> list[Any]:
    return [None] * len(rows)


def _title(classes: Classes, index: int) -> Any:
    return int(classes.numbers[index]) if classes.names is None and classes.numbers is not None else classes.title(index)


def _type(classes: Classes) -> str:
    return "int64" if classes.names is None else "string"

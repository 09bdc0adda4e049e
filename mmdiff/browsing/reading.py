"""Answers to the requests of the page, a page at a time: rows with their labels, neighbours, paths, search, classes.

Reads take no locks. What was opened is kept as long as the names of the store lead to the same objects; whatever another
process publishes is seen with the next request, and artifacts that are replaced meanwhile stay readable as they were.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mmdiff.browsing.duplicates import NAME as DUPLICATES
from mmdiff.browsing.duplicates import Duplicates
from mmdiff.browsing.given import Given, Imported, Recorded, RowNumbers
from mmdiff.browsing.neighbourhoods import Neighbourhoods
from mmdiff.browsing.paths import Traced, trace
from mmdiff.browsing.pictures import Pictures
from mmdiff.browsing.predicted import NAME as SCORES
from mmdiff.browsing.predicted import NOTHING, Predicted
from mmdiff.browsing.rows import TEST, AllRows, Place
from mmdiff.browsing.texts import LONG, SHORT, Texts
from mmdiff.formats.errors import FILE, MmdiffError, Part, call
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Store
from mmdiff.graph.graph import NAME as GRAPH
from mmdiff.labels.collection import APPENDED, BACKGROUND
from mmdiff.labels.journal import NAME as LABELS
from mmdiff.labels.journal import Journal
from mmdiff.labels.label_set import stored_classes
from mmdiff.labels.rows_by_id import SEEDS, RowsById
from mmdiff.prediction.calibration import Calibration

Kept = TypeVar("Kept")

_ROLES = (BACKGROUND, APPENDED, SEEDS, TEST)

# Names of roles in files of pictures, where one row is called otherwise.
_CALLED = {"seeds": "seed", "appended": "background"}


@dataclass
class Reader:
    """The store, the pictures and the texts of its rows; `calibration` is the last one that was found."""

    store: Store
    memory: int
    pictures: Pictures | None = None
    texts: Texts | None = None
    calibration: Calibration | None = None
    _kept: dict[str, tuple[Hashable, Any]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def _keep(self, what: str, names: Sequence[str], make: Callable[[], Kept]) -> Kept:
        """The value made before from the same objects, else a new one."""
        with self._lock:
            key = tuple(self.store.object_name(name) for name in names)
            if what not in self._kept or self._kept[what][0] != key:
                self._kept[what] = (key, make())
            found: Kept = self._kept[what][1]
            return found

    def names(self) -> tuple[tuple[str, str | None], ...]:
        """The names of the store, and the objects that they refer to now."""
        return tuple((name, self.store.object_name(name)) for name in self.store.names())

    @property
    def rows(self) -> AllRows:
        return self._keep("rows", _ROLES, lambda: AllRows.of(self.store))

    @property
    def journal(self) -> Journal:
        return self._keep("journal", (LABELS,), lambda: Journal.read(self.store))

    @property
    def given(self) -> Given:
        def make() -> Given:
            imported = self._keep("imported", _ROLES, lambda: [Imported.of(span.artifact) for span in self.rows.spans])
            return Given(self.rows, imported, Recorded(self.journal), self.numbers)

        return self._keep("given", (*_ROLES, LABELS), make)

    @property
    def numbers(self) -> RowNumbers:
        """The rows of the collection by id."""
        return self._keep("numbers", _ROLES, lambda: RowNumbers(RowsById.of(self.store)))

    @property
    def predicted(self) -> Predicted | None:
        return self._keep("predicted", (GRAPH, SCORES), lambda: Predicted.of(self.store))

    @property
    def neighbourhoods(self) -> Neighbourhoods | None:
        names = (*_ROLES, GRAPH, "knn/test")
        return self._keep("neighbourhoods", names, lambda: Neighbourhoods.of(self.store, self.rows))

    @property
    def duplicates(self) -> Duplicates:
        names = (*_ROLES, GRAPH, "knn/BB", "knn/W0", "knn/test", DUPLICATES)
        return self._keep("duplicates", names, lambda: Duplicates(self.store, self.rows))

    @property
    def has_names(self) -> bool:
        """Whether classes have names, and not only numbers."""
        stored = self._keep("classes", _ROLES, lambda: stored_classes(self.store))
        first = stored if len(stored) else self.journal.classes
        return first.names is not None or not len(first)

    def missing(self) -> tuple[Part, ...] | None:
        """The stage to run before labels can spread; None where nothing is missing."""
        if not self.rows.collection:
            return "There are no rows yet. Import them first: ", call("add", FILE), "; then ", call("build_graph")
        if self.store.id(GRAPH) is None:
            return "There is no graph yet that labels could spread over. Run first: ", call("build_graph")
        if self.neighbourhoods is None:
            return f"{GRAPH} was made of other rows than those of the store. Run again: ", call("build_graph")
        return None

    def has(self, place: Place) -> bool:
        """Whether there is such a row."""
        return 0 <= place.row < self.rows.total(place.test)

    def describe(self, places: Sequence[Place], most_text: int = SHORT) -> list[Json]:
        """The rows as lists of the page show them."""
        rows, given = self.rows, self.given
        predicted = [dict(NOTHING) for _ in places]
        if self.predicted is not None:
            predicted = self.predicted.of_rows(places, rows.collection, self.calibration)
        found = []
        for place, guess in zip(places, predicted, strict=True):
            span, _ = rows.span(place)
            identity, own = rows.identity(place), given.titles(place)
            source = "predicted" if guess["label"] is not None else None
            if own and not place.test:
                guess = guess | {"label": own[0], "confidence": 1.0, "margin": 1.0}
                source = "given"
            found.append(
                {
                    "row": place.row,
                    "id": identity,
                    "role": span.role,
                    "given": own,
                    "label": guess["label"],
                    "confidence": guess["confidence"],
                    "margin": guess["margin"],
                    "second": guess["second"],
                    "second_confidence": guess["second_confidence"],
                    "source": source,
                    "text": None if self.texts is None or span.role == "test" else self.texts.text(place.row, most_text),
                    "image": self.picture(place) is not None,
                }
            )
        return found

    def picture(self, place: Place) -> Any:
        """The file of the picture of a row; None where there is none."""
        if self.pictures is None:
            return None
        span, row = self.rows.span(place)
        number = place.row if span.role != "seeds" else row
        return self.pictures.find(_CALLED.get(span.role, span.role), self.rows.identity(place), number)

    def row(self, place: Place, *, with_path: bool) -> Json:
        """One row with its neighbours, its history and the path of its label."""
        found = self.describe([place], LONG)[0]
        near = [] if self.neighbourhoods is None else self.neighbourhoods.of_row(place)
        shown = self.describe([each.place for each in near])
        traced = self.path(place) if with_path else Traced()
        return found | {
            "neighbours": [row | {"similarity": each.similarity} for row, each in zip(shown, near, strict=True)],
            "path": None
            if traced.steps is None
            else [
                row | {"weight": step.weight}
                for row, step in zip(self.describe([step.place for step in traced.steps]), traced.steps, strict=True)
            ],
            "path_label": traced.label,
            "path_note": traced.note,
            "history": self.given.history(place),
            "duplicates": self.describe(self.duplicates.others(place)),
            "group": self.duplicates.group(place),
        }

    def path(self, place: Place) -> Traced:
        """The path on which the predicted label came to a row."""
        near = self.neighbourhoods
        if near is None:
            return Traced()
        try:
            return trace(self.store, place, near.place_of_node, self.memory)
        except MmdiffError as error:
            return Traced(note=error.parts)

    def classes(self, predicted: dict[str, int] | None) -> list[Json]:
        """All classes by title, with the rows that have them and those that are predicted to."""
        counts = self.given.counts
        titles = sorted({*(title for title, count in counts.items() if count > 0), *(predicted or {})}, key=_in_order)
        return [
            {"label": title, "given": counts[title], "predicted": None if predicted is None else predicted.get(title, 0)}
            for title in titles
        ]


def _in_order(title: str) -> tuple[int, int, str]:
    """Numbers by their value, then names."""
    return (0, int(title), "") if title.isascii() and title.isdigit() and len(title) < 19 else (1, 0, title.lower() + title)

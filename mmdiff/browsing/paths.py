"""The path on which a label came to a row: that of `explain`, in rows of the page."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from mmdiff.browsing.rows import Place
from mmdiff.explain.paths import Question, find_paths
from mmdiff.explain.stage import Explainer
from mmdiff.formats.errors import Part
from mmdiff.formats.store.store import Store
from mmdiff.graph.graph import NAME as GRAPH
from mmdiff.labels.classes import UNLABELLED

_SCORES = "diffusion"

# One at a time: each iterates the diffusion of a class over the whole graph.
_one_at_a_time = threading.Lock()


@dataclass(frozen=True)
class TracedStep:
    """A row on a path, and the share of its term in the sum that the next step follows."""

    place: Place
    weight: float


@dataclass(frozen=True)
class Traced:
    """A path from a labelled row, for a label; None where no label has come. A note says why there is none."""

    steps: list[TracedStep] | None = None
    label: str | None = None
    note: tuple[Part, ...] | None = None


def trace(store: Store, place: Place, place_of: Callable[[int], Place], memory: int) -> Traced:
    """The path of the predicted label of a row of the collection, or of a test point. `place_of` gives the row of a node."""
    with _one_at_a_time:
        facts = store.open_artifact(GRAPH).manifest.facts
        needed = 4 * int(facts["nodes"]) * 12
        if needed > memory // 2:
            return Traced(note=(f"Paths of this graph take {needed:,} bytes of memory, more than half of what is allowed.",))
        explainer = Explainer(store, _SCORES, of_collection=not place.test)
        if place.row >= len(explainer.ids):
            return Traced()
        column = explainer.points.predicted([place.row])[0]
        if column == UNLABELLED:
            return Traced()
        question = Question(place.row, column)
        path = find_paths(explainer.spreading, [question])[question]
        label = explainer.classes.title(column)
        if path is None:
            return Traced(label=label)
        return Traced([TracedStep(place_of(step.node), round(step.share, 6)) for step in path.steps], label)

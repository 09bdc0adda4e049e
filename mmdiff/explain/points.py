"""The points that explanations are about: test points with their scores, or rows of the collection with their best classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.problem import Problem
from mmdiff.evaluation.metrics import predictions, ranks_by_label
from mmdiff.evaluation.scores import Scores, Truth, open_truth
from mmdiff.explain.nodes import role_ids
from mmdiff.formats.errors import BadLabels, Missing, Parameter
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.labels.classes import UNLABELLED, Classes, labels_of
from mmdiff.labels.collection import Collection
from mmdiff.labels.ids import Ids

# Rows of the collection that typical ones are chosen from.
_SAMPLE_ROWS = 1 << 16


class Points(Protocol):
    """Points by their row, as an explanation shows them. Columns are those of the scores."""

    role: str
    ids: Ids | range
    neighbors: NDArray[np.uint32]

    def predicted(self, rows: Sequence[int]) -> list[int]:
        """The best class of each row, UNLABELLED where there is none."""

    def standing(self, row: int, column: int) -> tuple[float | None, int | None]:
        """The score of a class and its rank; None where they were not kept."""

    def true(self, row: int) -> list[int]:
        """The columns of the true classes, as far as they have any."""

    def titles(self, row: int) -> list[str]:
        """The names of the true classes."""

    def notes(self, row: int, predicted: int) -> list[str]:
        """Sentences on the point."""

    def decisions(self) -> Decisions:
        """The decisions for all points, or for many of them."""


class Decisions(NamedTuple):
    """Rows of points, the class predicted for each with its margin, and where it is known whether that is right.

    `kinds` are the true classes where they are known, else the predicted ones.
    """

    rows: NDArray[np.int64]
    predicted: NDArray[np.int64]
    margins: NDArray[np.float32]
    kinds: NDArray[np.int64]
    right: NDArray[np.bool_] | None = None
    wrong: NDArray[np.bool_] | None = None


class TestPoints:
    """Test points: the scores of all classes are stored, and the true classes come from the user."""

    role = "test"

    def __init__(self, store: Store, scores: Scores, neighbors: NDArray[np.uint32]) -> None:
        self.neighbors, self.ids = neighbors, role_ids(store, "test", scores.tests)
        self._classes, self._scores = scores.classes, scores.after()
        self._truth, self._no_truth = _truth(store, scores)

    def predicted(self, rows: Sequence[int]) -> list[int]:
        found: list[int] = predictions(self._scores[list(rows)])[0].tolist()
        return found

    def standing(self, row: int, column: int) -> tuple[float | None, int | None]:
        scores = self._scores[row]
        return float(scores[column]), int(ranks_by_label(scores[None], np.array([[column]]))[0, 0])

    def true(self, row: int) -> list[int]:
        return [] if self._truth is None else [int(label) for label in self._truth.labels[row] if label != UNLABELLED]

    def titles(self, row: int) -> list[str]:
        return [] if self._truth is None else titles_of(self._truth, self._classes, row)

    def notes(self, row: int, predicted: int) -> list[str]:
        notes = []
        if self._no_truth is not None:
            notes.append(self._no_truth)
        elif self._truth is None or not self._truth.labelled[row]:
            notes.append("the test point has no label, so its true class is unknown.")
        elif not self._truth.known[row]:
            own = ", ".join(self.titles(row))
            notes.append(f"the point's true class ({own}) has no seed, so no path begins there.")
        if predicted == UNLABELLED:
            notes.append("several classes are best, so none is predicted.")
        return notes

    def decisions(self) -> Decisions:
        predicted, margins = predictions(self._scores)
        rows = np.arange(len(predicted))
        if self._truth is None:
            return Decisions(rows, predicted, margins, predicted)
        labels = self._truth.labels
        right = (predicted != UNLABELLED) & (labels == predicted[:, None]).any(axis=1)
        wrong = (predicted != UNLABELLED) & self._truth.known & ~right
        return Decisions(rows, predicted, margins, labels[:, 0], right, wrong)


class CollectionRows:
    """Rows of the collection: the best few classes of each are stored, and the true classes are the labels it was given."""

    role = "background"

    def __init__(self, store: Store, artifact: Artifact, problem: Problem) -> None:
        if "top_classes" not in artifact:
            raise Missing(
                f"{artifact.name}: made without predictions for the rows of the collection. Diffuse again with ",
                Parameter("predict_nodes", True),
                ".",
            )
        self._classes = Classes.of(artifact)
        self._top, self._scores = labels_of(artifact, self._classes, "top_classes"), artifact.array("top_scores")
        self._problem = problem
        self._nodes = problem.graph.node_of_row[: len(self._top)]
        self.neighbors = self._nodes.astype(np.uint32)[:, None]
        collection = Collection.of(store)
        # Those of the background alone are mapped; those of several parts are put together.
        several = len(collection.parts) > 1
        self.ids = collection.ids(0, len(self._top)) if several else role_ids(store, "background", len(self._top))

    def predicted(self, rows: Sequence[int]) -> list[int]:
        found: list[int] = self._top[list(rows), 0].tolist()
        return found

    def standing(self, row: int, column: int) -> tuple[float | None, int | None]:
        places = np.flatnonzero(self._top[row] == column)
        return (float(self._scores[row, places[0]]), int(places[0]) + 1) if len(places) else (None, None)

    def true(self, row: int) -> list[int]:
        columns = [self._classes.find(title) for title in self.titles(row)]
        return [column for column in columns if column is not None]

    def titles(self, row: int) -> list[str]:
        seeds, node = self._problem.seeds, self._nodes[row]
        place = int(np.searchsorted(seeds.nodes, node))
        if place == len(seeds.nodes) or seeds.nodes[place] != node:
            return []
        own = seeds.columns[seeds.offsets[place] : seeds.offsets[place + 1]]
        return [self._problem.classes.title(column) for column in own.tolist()]

    def notes(self, row: int, predicted: int) -> list[str]:
        notes = [] if predicted != UNLABELLED else ["no label reaches the row, so no class is predicted."]
        if self.titles(row):
            notes.append("the row has a label of its own, which is part of its scores.")
        return notes

    def decisions(self) -> Decisions:
        """Decisions for rows without labels of their own, evenly spread over the collection."""
        unlabelled = np.ones(len(self._top), bool)
        unlabelled[np.isin(self._nodes, self._problem.seeds.nodes)] = False
        rows = np.flatnonzero(unlabelled)
        rows = rows[:: max(1, -(-len(rows) // _SAMPLE_ROWS))]
        scores, predicted = np.asarray(self._scores[rows]), self._top[rows, 0].astype(np.int64)
        second = scores[:, 1] if scores.shape[1] > 1 else np.float32(0)
        return Decisions(rows, predicted, scores[:, 0] - second, predicted)


def titles_of(truth: Truth, classes: Classes, row: int) -> list[str]:
    """The names of the true classes of a test point, as the seeds have them where they do."""
    pairs = zip(truth.own[row].tolist(), truth.labels[row].tolist(), strict=True)
    return [
        truth.classes.title(own) if column == UNLABELLED else classes.title(column)
        for own, column in pairs
        if own != UNLABELLED
    ]


def _truth(store: Store, scores: Scores) -> tuple[Truth | None, str | None]:
    """The labels of the test points, or why they do not fit the scores: paths do not need labels."""
    try:
        return open_truth(store, scores), None
    except BadLabels as error:
        return None, str(error)

"""Predictions of rows in blocks: the best two classes of a row, with its margin and confidences; in bounded memory.

Rows whose label is given have that label, with confidence 1 and margin 1. Of several given labels the first two, in the order
of the class table, are `label` and `second`, each with confidence 1. A row that no label has reached has no class, and
confidence 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.engine.top_classes import TopClasses
from mmdiff.formats.storage.strings import Strings
from mmdiff.labels.classes import UNLABELLED
from mmdiff.labels.ids import Ids
from mmdiff.prediction.calibration import Calibration
from mmdiff.prediction.class_shift import PredictionCounts

# Rows of a block; fixed, so that files have the same bytes whatever the memory.
BLOCK_ROWS = 1 << 16

# Bytes of full scores whose best classes are found at a time.
_SCORE_BYTES = 32 << 20

Values = Callable[[int, int], NDArray[np.float32]]
"""Scores of rows start..stop-1 for all classes."""


def best_classes(values: Values, rows: int, classes: int) -> TopClasses:
    """The best few classes of each row, cut off as a diffusion stores them for the nodes of its graph."""
    best = TopClasses.empty(rows, classes)
    step = max(1, _SCORE_BYTES // (4 * max(1, classes)))
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        block = values(start, stop)
        part = TopClasses(best.classes[start:stop], best.scores[start:stop])
        part.add(lambda first, last, block=block: block[first:last], np.arange(classes))  # type: ignore[misc]
    return best


def shares_of(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    """The scores of the best classes of each row, divided by their sum; zeros where there are none."""
    total = scores.sum(axis=1, dtype=np.float64, keepdims=True)
    return np.asarray(np.divide(scores, total, out=np.zeros(scores.shape), where=total > 0))


def margins_of(shares: NDArray[np.float64]) -> NDArray[np.float32]:
    """The first share minus the second; 1 for a row that one class has reached, 0 for a row that none has."""
    second = shares[:, 1] if shares.shape[1] > 1 else 0.0
    return np.asarray(shares[:, 0] - second, np.float32)


@dataclass(frozen=True)
class Block:
    """Predictions of some rows. `label` and `second` are columns of the class table, UNLABELLED for none."""

    ids: Ids
    label: NDArray[np.int32]
    confidence: NDArray[np.float32]
    margin: NDArray[np.float32]
    second: NDArray[np.int32]
    second_confidence: NDArray[np.float32]
    given: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.label)

    def with_min_confidence(self, least: float) -> Block:
        """The same block, where predictions of less confidence have no label."""
        label = np.where(self.given | (self.confidence >= least), self.label, UNLABELLED).astype(np.int32)
        return Block(self.ids, label, self.confidence, self.margin, self.second, self.second_confidence, self.given)


@dataclass(frozen=True)
class Given:
    """The given labels of some rows, by increasing row: (rows, labels per row), UNLABELLED for fewer."""

    rows: NDArray[np.int64]
    labels: NDArray[np.int32]

    @classmethod
    def none(cls) -> Given:
        return cls(np.empty(0, np.int64), np.empty((0, 1), np.int32))

    def between(self, first: int, last: int) -> Given:
        """Those of rows first..last-1, counted from `first`."""
        part = slice(*np.searchsorted(self.rows, (first, last)))
        return Given(self.rows[part] - first, self.labels[part])

    def of(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The labelled rows among start..stop-1, counted from `start`, and the first two labels of each."""
        part = self.between(start, stop)
        # As an unsigned number UNLABELLED comes after every class. A class that is given twice counts once.
        labels = np.sort(part.labels.astype(np.uint32), axis=1)
        labels[:, 1:][labels[:, 1:] == labels[:, :-1]] = np.uint32(UNLABELLED % (1 << 32))
        two = np.full((len(labels), 2), UNLABELLED, np.int32)
        two[:, : labels.shape[1]] = np.sort(labels, axis=1)[:, :2].astype(np.int32)
        return part.rows, two


@dataclass(frozen=True)
class Part:
    """Rows of one role: their ids, the best classes of rows start..stop-1, and their given labels."""

    ids: Ids | range
    best: Callable[[int, int], TopClasses]
    given: Given

    @property
    def rows(self) -> int:
        return len(self.ids)

    def blocks(self, calibration: Calibration, string_ids: bool) -> Iterator[Block]:
        for start in range(0, self.rows, BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, self.rows)
            yield _block(self._ids(start, stop, string_ids), self.best(start, stop), calibration, self.given.of(start, stop))

    def count(self, counts: PredictionCounts) -> None:
        """Counts the predictions of rows without a given label."""
        for start in range(0, self.rows, BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, self.rows)
            best = self.best(start, stop)
            predicted = best.classes[:, 0] != UNLABELLED
            predicted[self.given.of(start, stop)[0]] = False
            counts.add(best.classes[predicted, 0], margins_of(shares_of(best.scores[predicted])))

    def _ids(self, start: int, stop: int, string_ids: bool) -> Ids:
        if isinstance(self.ids, Strings):
            return self.ids.span(start, stop)
        numbers = np.asarray(self.ids[start:stop], np.int64)
        return Strings.of(map(str, numbers.tolist())) if string_ids else numbers


def has_string_ids(parts: Sequence[Part]) -> bool:
    """Whether ids are strings. Where those of one part are, the numbers of another are written as strings too."""
    return any(isinstance(part.ids, Strings) for part in parts)


def _block(ids: Ids, best: TopClasses, calibration: Calibration, given: tuple[NDArray[np.int64], NDArray[np.int32]]) -> Block:
    shares = shares_of(best.scores)
    label, margin, rows = best.classes[:, 0].copy(), margins_of(shares), len(shares)
    confidence = np.where(label == UNLABELLED, 0, calibration.confidence(margin)).astype(np.float32)
    second, second_confidence = np.full(rows, UNLABELLED, np.int32), np.zeros(rows, np.float32)
    if shares.shape[1] > 1:
        second = best.classes[:, 1].copy()
        second_confidence = second_confidences(confidence, shares)
    at, labels = given
    label[at], second[at] = labels.T
    confidence[at] = margin[at] = 1
    second_confidence[at] = labels[:, 1] != UNLABELLED
    marks = np.zeros(rows, bool)
    marks[at] = True
    return Block(ids, label, confidence, margin, second, second_confidence, marks)


def second_confidences(confidence: NDArray[np.float32], shares: NDArray[np.float64]) -> NDArray[np.float32]:
    """The share of the second class among those after the first, of the probability that the first is wrong.

    It is at most the confidence of the first: the second class is never called the more probable one.
    """
    rest = shares[:, 1:].sum(axis=1)
    part = np.divide(shares[:, 1], rest, out=np.zeros(len(shares)), where=rest > 0)
    return np.asarray(np.minimum((1 - confidence) * part, confidence), np.float32)


class Tally:
    """Counts of predictions as they are written."""

    def __init__(self) -> None:
        self.rows = self.given = self.unreached = self.labelled = 0
        self._confidence = 0.0

    def add(self, block: Block) -> None:
        labelled = (block.label != UNLABELLED) & ~block.given
        self.rows += len(block)
        self.given += int(block.given.sum())
        self.unreached += int(((block.confidence == 0) & ~block.given).sum())
        self.labelled += int(labelled.sum())
        self._confidence += float(block.confidence[labelled].sum(dtype=np.float64))

    @property
    def expected_precision(self) -> float | None:
        """The mean confidence of the predicted labels; None where there are none."""
        return self._confidence / self.labelled if self.labelled else None

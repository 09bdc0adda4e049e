"""The best classes of every node, collected batch by batch for the predictions of nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.store.publish import Draft
from mmdiff.kernels.jit import kernel
from mmdiff.labels.classes import UNLABELLED
from mmdiff.runtime.progress import Advance
from mmdiff.runtime.threads import in_threads

_BLOCK_ROWS = 1 << 14
TOP = 5
BYTES_PER_NODE = 8 * TOP

Rows = Callable[[int, int], NDArray[np.float32]]


def block_bytes(nodes: int, width: int) -> int:
    """Bytes of a block of L, of which some are in work."""
    return 4 * min(nodes, _BLOCK_ROWS) * width


def write_top_classes(draft: Draft, rows: int, classes: int, scores: Rows, step: int, advance: Advance) -> None:
    """Writes the best classes of rows and their scores into an artifact, chunk by chunk; `step` rows are scored at a time."""
    shape = (rows, min(TOP, classes))
    writers = draft.array("top_classes", shape, "int32"), draft.array("top_scores", shape, "float32")
    for chunk in sorted({*writers[0].missing, *writers[1].missing}):
        start, stop = writers[0].spec.rows(chunk)
        best = TopClasses.empty(stop - start, classes)
        for low in range(start, stop, step):
            high = min(low + step, stop)
            part = TopClasses(best.classes[low - start : high - start], best.scores[low - start : high - start])
            block = scores(low, high)
            part.add(lambda first, last, block=block: block[first:last], np.arange(classes))  # type: ignore[misc]
            advance(high - low)
        for writer, values in zip(writers, (best.classes, best.scores), strict=True):
            if chunk not in writer.crcs:
                writer.write(chunk, values)


@dataclass(frozen=True)
class TopClasses:
    """The best classes of each node so far, best first, and their scores, padded with UNLABELLED and 0."""

    classes: NDArray[np.int32]
    scores: NDArray[np.float32]

    @classmethod
    def empty(cls, nodes: int, classes: int) -> TopClasses:
        shape = (nodes, min(TOP, classes))
        return cls(np.full(shape, UNLABELLED, np.int32), np.zeros(shape, np.float32))

    def merge(self, other: TopClasses) -> None:
        """Merges the best of other classes."""
        nodes = len(self.classes)

        def work(start: int) -> None:
            part = slice(start, min(start + _BLOCK_ROWS, nodes))
            _merge(other.classes[part], other.scores[part], self.classes[part], self.scores[part])

        for _ in in_threads(work, range(0, nodes, _BLOCK_ROWS)):
            pass

    def add(self, rows: Rows, columns: NDArray[np.int64]) -> None:
        """Adds a batch of columns of L. Of equal scores the lower class number is better, however classes are batched."""
        nodes = len(self.classes)
        classes = columns.astype(np.int32)

        def work(start: int) -> None:
            stop = min(start + _BLOCK_ROWS, nodes)
            _add(rows(start, stop), classes, self.classes[start:stop], self.scores[start:stop])

        for _ in in_threads(work, range(0, nodes, _BLOCK_ROWS)):
            pass


@kernel
def _offer(score: np.float32, column: int, classes: NDArray[np.int32], scores: NDArray[np.float32]) -> None:
    """Inserts a class among the best of one node, if it belongs there."""
    most = len(classes)
    if score <= 0 or score < scores[most - 1]:
        return
    place = most
    while place > 0 and (score > scores[place - 1] or (score == scores[place - 1] and column < classes[place - 1])):
        place -= 1
    if place == most:
        return
    for q in range(most - 1, place, -1):
        classes[q], scores[q] = classes[q - 1], scores[q - 1]
    classes[place], scores[place] = column, score


@kernel
def _add(
    block: NDArray[np.float32], columns: NDArray[np.int32], classes: NDArray[np.int32], scores: NDArray[np.float32]
) -> None:
    last = classes.shape[1] - 1
    for i in range(len(block)):
        row, own, best = block[i], classes[i], scores[i]
        # Most scores are zero or too small: they are passed over without a call.
        least = best[last]
        for c in range(len(columns)):
            if row[c] > 0 and row[c] >= least:
                _offer(row[c], columns[c], own, best)
                least = best[last]


@kernel
def _merge(
    others: NDArray[np.int32], their_scores: NDArray[np.float32], classes: NDArray[np.int32], scores: NDArray[np.float32]
) -> None:
    for i in range(len(others)):
        for c in range(others.shape[1]):
            _offer(their_scores[i, c], others[i, c], classes[i], scores[i])

"""The present predictions of the rows of the collection: their best class, and how far it is ahead of the second."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadOption, Missing, Placeholder, Stale, call
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.labels.classes import UNLABELLED, Classes
from mmdiff.prediction.rows import BLOCK_ROWS, margins_of, shares_of
from mmdiff.prediction.sources import Source, read_source

NAME = "scores/diffusion"


@dataclass(frozen=True)
class Predictions:
    """The best class of some rows, as a column of the class table, UNLABELLED for none; and its margin."""

    label: NDArray[np.int32]
    margin: NDArray[np.float32]


class PresentScores:
    """The scores of a store, for the rows of its collection."""

    def __init__(self, source: Source) -> None:
        self._source = source

    @property
    def classes(self) -> Classes:
        return self._source.classes

    @property
    def artifact(self) -> Artifact:
        return self._source.scores

    def of(self, rows: NDArray[np.int64]) -> Predictions:
        """The predictions of some rows."""
        found = [self._between(row, row + 1) for row in rows.tolist()]
        none = Predictions(np.empty(0, np.int32), np.empty(0, np.float32))
        return _joined([none, *found])

    def all(self) -> Predictions:
        """The predictions of all rows of the collection."""
        total = self._source.rows
        return _joined([self._between(start, min(start + BLOCK_ROWS, total)) for start in range(0, total, BLOCK_ROWS)])

    def _between(self, start: int, stop: int) -> Predictions:
        parts, first = [], 0
        for part in self._source.parts:
            low, high = max(start - first, 0), min(stop - first, part.rows)
            if low < high:
                best = part.best(low, high)
                parts.append(Predictions(best.classes[:, 0], margins_of(shares_of(best.scores))))
            first += part.rows
        return _joined(parts)


def read_scores(store: Store, required: bool) -> PresentScores | None:
    """The current scores; None where there are none that are current, unless they are required."""
    if required and store.id(NAME) is not None and "top_classes" not in store.open_artifact(NAME):
        raise Missing(
            f"{NAME}: made without predictions of the rows of the collection, so none can be called unsure. Run: ",
            call("diffuse", predict_nodes=Placeholder("FILE.parquet")),
        )
    try:
        return PresentScores(read_source(store, NAME, "collection"))
    except (Missing, Stale, BadOption):
        if required:
            raise
        return None


def unsure(predictions: Predictions) -> NDArray[np.float32]:
    """The doubt about each prediction, 0 to 1: what its margin lacks; 1 for a row that no label has reached."""
    return np.where(predictions.label == UNLABELLED, 1, 1 - predictions.margin).astype(np.float32)


def _joined(parts: list[Predictions]) -> Predictions:
    return Predictions(np.concatenate([part.label for part in parts]), np.concatenate([part.margin for part in parts]))

"""Y: the indicator matrix of the seeds' labels, from which a diffusion starts (paper, section 3.3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmdiff.labels.classes import UNLABELLED


@dataclass(frozen=True)
class Seeds:
    """Y in rows: the labelled nodes in order, the columns of each, and one value for all of its entries.

    `values` are 1, or 1/sqrt(degree) of the node in sqrt-degree units (symmetric graphs).
    """

    nodes: NDArray[np.int64]
    offsets: NDArray[np.int64]
    columns: NDArray[np.int32]
    values: NDArray[np.float32]
    classes: int

    @classmethod
    def of(cls, nodes: NDArray[np.int64], labels: NDArray[np.int32], classes: int) -> Seeds:
        """Seeds from nodes and their labels, one or several each, UNLABELLED for none. A repeated label counts once."""
        table = labels if labels.ndim == 2 else labels[:, None]
        rows, places = np.nonzero(table != UNLABELLED)
        pairs = np.unique(np.stack([nodes[rows], table[rows, places]], axis=1).astype(np.int64), axis=0)
        labelled, starts = np.unique(pairs[:, 0], return_index=True)
        offsets = np.append(starts, len(pairs)).astype(np.int64)
        return cls(labelled, offsets, pairs[:, 1].astype(np.int32), np.ones(len(labelled), np.float32), classes)

    def in_units_of(self, sqrt_degrees: NDArray[np.float32] | None) -> Seeds:
        """The same Y in sqrt-degree units."""
        if sqrt_degrees is None:
            return self
        values = (1 / sqrt_degrees[self.nodes].astype(np.float64)).astype(np.float32)
        return Seeds(self.nodes, self.offsets, self.columns, values, self.classes)

    def select(self, columns: NDArray[np.int64]) -> Seeds:
        """Some columns, in the given order. All nodes stay seeds, even those without a label in these columns."""
        place = np.full(self.classes, -1, np.int32)
        place[columns] = np.arange(len(columns), dtype=np.int32)
        chosen = place[self.columns]
        rows = np.repeat(np.arange(len(self.nodes)), np.diff(self.offsets))[chosen >= 0]
        offsets = np.append(0, np.cumsum(np.bincount(rows, minlength=len(self.nodes))))
        return Seeds(self.nodes, offsets.astype(np.int64), chosen[chosen >= 0], self.values, len(columns))

    @property
    def entries(self) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
        """Node, column and value of each entry."""
        counts = np.diff(self.offsets)
        return np.repeat(self.nodes, counts), self.columns, np.repeat(self.values, counts)

    def per_class(self) -> NDArray[np.int64]:
        """The number of seeds of each class."""
        return np.bincount(self.columns, minlength=self.classes)

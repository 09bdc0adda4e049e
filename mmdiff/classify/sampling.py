"""Which rows a batch of the logistic regression has: a class is drawn first, then one of its seeds (paper, section 4.1).

So a class of one seed is seen as often as one of a thousand. Draws depend on the seed alone, not on the machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmdiff.classes import UNLABELLED

# Batches that are drawn at a time.
_AHEAD = 64


@dataclass(frozen=True)
class Samples:
    """Seeds by class: row `rows[i]` is of class `classes[i]`, and `classes` never decreases. A row with two labels is two."""

    rows: NDArray[np.int64]
    classes: NDArray[np.int64]

    @classmethod
    def of(cls, labels: NDArray[np.integer]) -> Samples:
        """From labels of shape (n) or (n, m), UNLABELLED where there is none."""
        table = labels.reshape(len(labels), -1)
        rows, places = np.nonzero(table != UNLABELLED)
        classes = table[rows, places].astype(np.int64)
        order = np.argsort(classes, kind="stable")
        return cls(rows[order], classes[order])

    def __len__(self) -> int:
        return len(self.rows)

    def batches(self, size: int, count: int, seed: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """`count` batches of rows and their classes."""
        draw = np.random.default_rng(seed)
        _, first, members = np.unique(self.classes, return_index=True, return_counts=True)
        for start in range(0, count, _AHEAD):
            drawn = draw.integers(0, len(first), (_AHEAD, size))
            among = (draw.random((_AHEAD, size)) * members[drawn]).astype(np.int64)
            picked = first[drawn] + among
            for batch in picked[: count - start]:
                yield self.rows[batch], self.classes[batch]

    def held_out(self, share: float, seed: int) -> tuple[Samples, Samples]:
        """Samples to learn from, and a share of those of each class that has two or more, at least one and never all."""
        draw = np.random.default_rng(seed)
        out = np.zeros(len(self), bool)
        for label in np.unique(self.classes):
            of_class = np.flatnonzero(self.classes == label)
            if len(of_class) > 1:
                count = min(max(1, round(share * len(of_class))), len(of_class) - 1)
                out[draw.choice(of_class, count, replace=False)] = True
        return Samples(self.rows[~out], self.classes[~out]), Samples(self.rows[out], self.classes[out])

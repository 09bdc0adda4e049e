"""Stratified folds: which labelled rows are held out together.

A class with m labels spreads over min(m, folds) folds, so that each of its labels is held out once and the others of its class
stay, as far as possible. A class with one label is never held out: without it the class could not be predicted. Folds have
equal sizes, up to one row. Rows with several labels count for their first.

A fold follows from the row, the random seed and the titles of the classes, not from the order in which labels were given.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadLabels, BadOption, Parameter
from mmdiff.labels.classes import UNLABELLED, Classes
from mmdiff.runtime.parameters import MOST, whole

FOLDS = 5
NEVER = -1
"""The fold of rows that are never held out."""


@dataclass(frozen=True)
class Folds:
    """The fold of each labelled row, NEVER for rows that are in none.

    `singletons` are the classes that have labels but no row in a fold.
    """

    fold: NDArray[np.int32]
    count: int
    singletons: int

    @property
    def held_out(self) -> NDArray[np.int64]:
        """The rows that are in a fold, as places among the labelled rows."""
        return np.flatnonzero(self.fold != NEVER)

    def training(self, fold: int) -> NDArray[np.bool_]:
        """Marks the labelled rows whose labels may be used for the rows of a fold."""
        return np.asarray(self.fold != fold)


def checked_folds(folds: int) -> int:
    """A number of folds that can be made of some labels."""
    return whole("folds", folds, 2, MOST, f"For example {FOLDS}.")


def first_labels(labels: NDArray[np.int32]) -> NDArray[np.int32]:
    """The first label of each row, of (rows, labels per row) with at least one each."""
    return np.asarray(labels[np.arange(len(labels)), (labels != UNLABELLED).argmax(axis=1)])


def stratified(rows: NDArray[np.int64], labels: NDArray[np.int32], classes: Classes, folds: int | None, seed: int) -> Folds:
    """Divides labelled rows into folds; refused where there are too few labels.

    None are FOLDS, or as many as there are labels to hold out.
    """
    first = first_labels(labels)
    counts = np.bincount(first, minlength=len(classes))
    by_title = sorted(range(len(classes)), key=classes.title)
    rank = np.empty(len(classes), np.int64)
    rank[by_title] = np.arange(len(classes))
    order = np.lexsort((_shuffled(rows, seed), rank[first]))
    # Rows of a class are neighbours in this order, so that they go to different folds.
    out = order[counts[first[order]] > 1]
    if not len(out):
        raise BadLabels(
            f"each of the {int((counts > 0).sum()):,} classes has one label, so that none can be held out: the class could not "
            "be predicted without it. Label at least two rows of a class."
        )
    folds = min(FOLDS, len(out)) if folds is None else folds
    if folds > len(out):
        raise BadOption(
            Parameter("folds", folds),
            f": more folds than labels that can be held out, of which there are {len(out):,}. Use at most ",
            Parameter("folds", len(out)),
            ", or label more rows.",
        )
    fold = np.full(len(rows), NEVER, np.int32)
    fold[out] = np.arange(len(out)) % folds
    return Folds(fold, folds, int((counts == 1).sum()))


def kept_out(labels: NDArray[np.int32], held_out: NDArray[np.bool_]) -> Folds:
    """The one fold of the rows that the user keeps out; refused where no label would be left."""
    if held_out.all():
        raise BadLabels("all labels are held out, so that there is nothing to learn from. Label rows that are not held out.")
    first = first_labels(labels)
    absent = np.setdiff1d(first, first[held_out])
    return Folds(np.where(held_out, 0, NEVER).astype(np.int32), 1, len(absent))


def _shuffled(rows: NDArray[np.int64], seed: int) -> NDArray[np.uint64]:
    """A number for each row that is random, but follows from the row and the seed (splitmix64)."""
    values = rows.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15 * (seed + 1) % (1 << 64))
    with np.errstate(over="ignore"):
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
    return values ^ (values >> np.uint64(31))

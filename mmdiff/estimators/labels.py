"""Labels as scikit-learn passes them: numbers or names, or a matrix with a column for each of several labels; some are unknown.

One label a row: L has a column for each class. Several labels a row: each label is a diffusion of its own between the rows that
are known to have it and those that are known not to, so L has two columns for each label, the first for rows that have it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadLabels, CountMismatch, Parameter
from mmdiff.formats.extras import load
from mmdiff.labels.classes import UNLABELLED

_NONE_KNOWN = ": no row has a label, so there is nothing to spread. Label at least one."


@dataclass(frozen=True)
class Targets:
    """The columns of L that each row has a one in, -1 for none: (rows) or (rows, labels); and what the columns stand for.

    `shares` is the share of each class among the labelled rows, or of the rows that have each of several labels.
    """

    columns: NDArray[np.int32]
    classes: NDArray[Any]
    shares: NDArray[np.float64]
    several: bool

    @property
    def width(self) -> int:
        """The number of columns of L."""
        return len(self.classes) * (2 if self.several else 1)

    def distributions(self, scores: NDArray[Any]) -> NDArray[np.float64]:
        """Rows of L as shares of the classes, which sum to 1; as the share of "has it", for each of several labels.

        They are 0 where no label has arrived.
        """
        values = np.asarray(scores, np.float64)
        if self.several:
            total = values[:, 0::2] + values[:, 1::2]
            values = values[:, 0::2]
        else:
            total = values.sum(axis=1, keepdims=True)
        shares: NDArray[np.float64] = np.divide(values, total, out=np.zeros_like(values), where=total > 0)
        return shares

    def probabilities(self, scores: NDArray[Any]) -> NDArray[np.float64]:
        """The same, with the shares among the labelled rows where no label has arrived."""
        found = self.distributions(scores)
        reached = scores[:, 0::2] + scores[:, 1::2] > 0 if self.several else (scores > 0).any(axis=1, keepdims=True)
        return np.where(reached, found, self.shares)

    def chosen(self, probabilities: NDArray[np.float64]) -> NDArray[Any]:
        """The class of each row, the first of equals; or a matrix of 0 and 1, for several labels."""
        if self.several:
            return (probabilities > 0.5).astype(np.int64)
        return np.asarray(self.classes[probabilities.argmax(axis=1)])

    def transduced(self, scores: NDArray[Any]) -> NDArray[Any]:
        """The best class of each row of L; where no label has arrived -1, or None where classes have names."""
        if self.several:
            return self.chosen(self.distributions(scores))
        best, reached = self.classes[scores.argmax(axis=1)], (scores > 0).any(axis=1)
        if reached.all():
            return np.asarray(best)
        if self.classes.dtype.kind in "iuf":
            return np.where(reached, best, UNLABELLED)
        return np.asarray(np.where(reached, best.astype(object), np.array(None, object)))


def targets_of(y: Any, rows: int) -> Targets:
    """The targets of a fit with so many rows. Refuses what is no label, and labels that are all unknown."""
    values = given(y)
    if len(values) != rows:
        message = f": {len(values):,} labels for {rows:,} rows. Give one for each row, -1 or None where there is none."
        raise CountMismatch(Parameter("y"), message)
    return _several(values) if values.ndim == 2 else _one(values)


def given(y: Any) -> NDArray[Any]:
    """Labels as an array of one dimension, or of two where there are several labels a row."""
    if y is None:
        message = "LabelDiffusion requires y to be passed, but the target y is None. Give a label for each row, -1 for none."
        raise BadLabels(message)
    values = y.toarray() if hasattr(y, "toarray") else np.asarray(y)
    if isinstance(y, list | tuple) and values.dtype.kind in "US" and values.ndim == 1:
        # numpy has turned numbers among names into names.
        values = np.array(y, object)
    if values.ndim not in (1, 2):
        raise BadLabels(Parameter("y"), f": an array of shape {values.shape}. Give a label for each row.")
    if values.ndim == 2 and values.shape[1] == 1:
        return np.asarray(load("sklearn.utils", "LabelDiffusion").column_or_1d(values, warn=True))
    return values


def known_rows(y: Any) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The rows whose labels are all given, and these labels."""
    values = given(y)
    known = known_of(values)
    rows = np.flatnonzero(known.all(axis=1) if values.ndim == 2 else known)
    if not len(rows):
        raise BadLabels(Parameter("y"), ": no row has a label, so there is nothing to compare with.")
    found = values[rows]
    if values.dtype.kind == "O":
        found = _alike(found) if values.ndim == 1 else found.astype(np.int64)
    return rows, found


def known_of(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Where labels are given: not -1, None, NaN, NA or an empty name."""
    match values.dtype.kind:
        case "b":
            return np.ones(values.shape, bool)
        case "i" | "u":
            return np.asarray(values != UNLABELLED)
        case "f":
            return np.asarray(~np.isnan(values) & (values != UNLABELLED))
        case "U" | "S":
            return np.asarray(values != values.dtype.type())
        case "O":
            return np.array([_is_label(value) for value in values.ravel()], bool).reshape(values.shape)
    raise BadLabels(Parameter("y"), f": labels of type {values.dtype}. Give class numbers or names.")


def _is_label(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return False
    if isinstance(value, str):
        return value != ""
    return bool(value == value and value != UNLABELLED)


def _one(values: NDArray[Any]) -> Targets:
    if values.dtype.kind == "f":
        load("sklearn.utils", "LabelDiffusion").assert_all_finite(values, allow_nan=True, input_name="y")
    known = known_of(values)
    if not known.any():
        raise BadLabels(Parameter("y"), _NONE_KNOWN)
    labels = _alike(values[known]) if values.dtype.kind == "O" else values[known]
    load("sklearn.utils.multiclass", "LabelDiffusion").check_classification_targets(labels)
    classes, places, counts = np.unique(labels, return_inverse=True, return_counts=True)
    columns = np.full(len(values), UNLABELLED, np.int32)
    columns[known] = places
    return Targets(columns, classes, counts / counts.sum(), several=False)


def _alike(labels: NDArray[Any]) -> NDArray[Any]:
    """Objects that are all names, as they are; or all numbers, as an array of numbers."""
    names = [isinstance(value, str) for value in labels]
    if all(names):
        return labels
    numbers = np.array(labels.tolist())
    if any(names) or numbers.ndim != 1 or numbers.dtype.kind not in "biuf":
        odd = next(value for value, name in zip(labels, names, strict=True) if not name)
        message = f": found {odd!r} among class names. Give numbers or names, and -1 or None where there is none."
        raise BadLabels(Parameter("y"), message)
    return numbers


def _several(values: NDArray[Any]) -> Targets:
    known = known_of(values)
    if not known.any():
        raise BadLabels(Parameter("y"), _NONE_KNOWN)
    has = np.zeros(values.shape, bool)
    has[known] = values[known] == 1
    other = known & ~has
    other[other] = values[other] != 0
    if other.any():
        row, column = np.argwhere(other)[0]
        found = f": found {values[row, column]!r} in row {row}, column {column}. With several labels a row, give a matrix of 1 "
        raise BadLabels(Parameter("y"), found + "(has the label), 0 (has it not) and -1 (unknown).")
    pairs = 2 * np.arange(values.shape[1]) + ~has
    columns = np.where(known, pairs, UNLABELLED).astype(np.int32)
    shares = has.sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return Targets(columns, np.arange(values.shape[1]), shares, several=True)

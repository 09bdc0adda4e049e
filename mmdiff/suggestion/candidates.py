"""Candidates: the rows that may be suggested, which are the unlabelled rows of the collection, or those that the user names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import FILE, Missing, call
from mmdiff.formats.sources.base import Column
from mmdiff.formats.sources.columns.in_memory import column_of
from mmdiff.formats.sources.columns.label_files import LabelTable
from mmdiff.formats.sources.columns.reading import read_column
from mmdiff.formats.store.store import Store
from mmdiff.graph.graph import CsrGraph
from mmdiff.labelling.stage import refuse_unknown
from mmdiff.labels.ids import check
from mmdiff.labels.label_set import LabelSet
from mmdiff.labels.rows_by_id import RowsById
from mmdiff.text import count

Given = str | Path | Sequence[Any] | NDArray[Any]
"""Candidates as the user names them: a file with a column of ids, or the ids."""


def candidate_rows(store: Store, rows: int, labels: LabelSet, given: Given | None) -> tuple[NDArray[np.bool_], list[str]]:
    """Whether each of the first `rows` rows, the collection, may be suggested, and notes on those left out."""
    allowed, notes = np.ones(rows, bool), []
    if given is not None:
        allowed = np.zeros(rows, bool)
        allowed[_named(store, given)] = True
    known = labels.rows[labels.rows < rows]
    labelled = int(allowed[known].sum())
    if given is not None and labelled:
        notes.append(f"{count(labelled, 'candidate')} of {int(allowed.sum()):,} left out: labelled already.")
    allowed[known] = False
    if not allowed.any():
        raise _none_left(store, rows, labelled, given)
    return allowed, notes


def in_nodes(graph: CsrGraph, values: NDArray[Any]) -> NDArray[Any]:
    """Values of the first rows of a graph, in the order of its nodes."""
    if graph.order is None:
        return values
    inside = len(graph.order)
    return np.concatenate([values[:inside][graph.order], values[inside:]])


def _named(store: Store, given: Given) -> NDArray[np.int64]:
    """The rows of the candidates that the user names."""
    if isinstance(given, str | Path):
        name, unit, ids = str(given), "row", read_column(str(given))
    else:
        name, unit, ids = "candidates", "place", column_of(given, "candidates")
    values = check(ids, name, unit)
    refuse_unknown(store, values, LabelTable(name, ids, Column(ids.values), unit, range(len(values))))
    return RowsById.of(store).find(values)


def _none_left(store: Store, rows: int, labelled: int, given: Given | None) -> Missing:
    if not rows:
        return Missing(f"{store.path}: no collection whose rows could be labelled. Import it first: ", call("add", FILE))
    which = "rows of the collection" if given is None else "candidates"
    return Missing(f"{store.path}: all {labelled:,} {which} are labelled already, so there is none left to suggest.")

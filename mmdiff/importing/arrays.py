"""Arrays as input of an import: what Python users pass to `Store.add` instead of the names of files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mmdiff.formats.errors import BadLabels, Parameter, UnreadableSource
from mmdiff.formats.sources.base import Source
from mmdiff.formats.sources.columns.in_memory import column_of
from mmdiff.formats.sources.in_memory import ArraySource, source_of
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.fingerprint import fingerprint_of_array
from mmdiff.formats.store.manifest import Json
from mmdiff.importing.columns import Given


def given_source(source: Any) -> tuple[Sequence[str] | Source, Json | None]:
    """Paths as they are; an array as a source, with its fingerprint unless it is the map of a file."""
    if isinstance(source, (str, Path)):
        return [str(source)], None
    if isinstance(source, (list, tuple)) and source and all(isinstance(entry, (str, Path)) for entry in source):
        return [str(entry) for entry in source], None
    values = np.asanyarray(source)
    if values.ndim != 2:
        raise UnreadableSource(
            Parameter("source"),
            f": an array of shape {values.shape}. Give one row of numbers for each image or text.",
        )
    opened = source_of(values)
    return opened, fingerprint_of_array("array", values) if isinstance(opened, ArraySource) else None


def given_column(values: Any, what: str) -> str | Given | None:
    """Labels or ids: a file by its name, None as it is, anything else as a column of values."""
    if values is None or isinstance(values, (str, Path)):
        return None if values is None else str(values)
    column = column_of(values, what)
    stored = (column.values.offsets, column.values.utf8) if isinstance(column.values, Strings) else (column.values,)
    return Given(column=column, fingerprint=fingerprint_of_array("array", *stored), name=what)


def given_class_names(names: Any) -> str | Mapping[int, str] | None:
    """Names of class numbers: a file by its name, a dict, or a list whose entry i names class i."""
    if names is None or isinstance(names, (str, Path)):
        return None if names is None else str(names)
    table = dict(names) if isinstance(names, Mapping) else dict(enumerate(names))
    if not all(isinstance(number, (int, np.integer)) and isinstance(name, str) and name for number, name in table.items()):
        raise BadLabels(Parameter("class_names"), ": give a name for each class number, as a dict or a list of strings.")
    if len(set(table.values())) < len(table):
        raise BadLabels(Parameter("class_names"), ": two classes have the same name. Give each its own.")
    return {int(number): name for number, name in table.items()}

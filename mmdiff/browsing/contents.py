"""Artifacts of a store as the page shows them: what each is and comes from, pages of its arrays, histograms of some values.

Never more than a page of an array is read: histograms of long arrays are of a sample, from a few parts of the array.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import Missing, did_you_mean
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.kinds import Kinds
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.inspection.stage import line
from mmdiff.kernels.constants import COLUMN

MOST_ROWS, MOST_VALUES = 100, 32
"""Rows of a page of an array, and values of each."""

# Values that a histogram is of, from at most so many places of the array.
_SAMPLE, _PLACES = 1 << 16, 4
_BINS = 40

# Characters of a string in an array.
_TEXT = 200

DEGREES = "degrees"


def overview(store: Store, kinds: Kinds) -> Json:
    """A line for each artifact."""
    now = datetime.now(UTC)
    found = []
    for name in store.names():
        entry = line(store, name, kinds)
        found.append(
            {
                "name": name,
                "kind": entry["kind"],
                "bytes": entry["bytes"],
                "age": max(0.0, (now - datetime.fromisoformat(entry["made"])).total_seconds()),
                "created": entry["made"],
                "stale": "; ".join(entry["stale"]) or None,
                "summary": entry["what"],
            }
        )
    return {"artifacts": found}


def details(store: Store, name: str, kinds: Kinds) -> Json:
    """One artifact: its origin, parameters, facts and arrays."""
    artifact, entry = store.open_artifact(name), line(store, name, kinds)
    manifest, run = artifact.manifest, artifact.run
    inputs = []
    for given in manifest.inputs.values():
        source = given.get("artifact")
        stale = source is not None and store.id(source) != given["object"]
        inputs.append({"name": source or given["source"], "stale": stale})
    return {
        "name": name,
        "kind": manifest.kind,
        "schema": manifest.schema,
        "summary": entry["what"],
        "stale": "; ".join(entry["stale"]) or None,
        "command": run["command"],
        "created": run["started"],
        "seconds": run["seconds"],
        "bytes": manifest.bytes_on_disk,
        "parameters": manifest.parameters,
        "facts": manifest.facts,
        "inputs": inputs,
        "software": run["versions"],
        "arrays": _arrays(artifact),
        "histograms": _histograms(artifact),
    }


def _arrays(artifact: Artifact) -> list[Json]:
    """The arrays, a column of strings as one."""
    found = []
    for name, entry in artifact.manifest.arrays.items():
        shape, dtype, size = list(entry.spec.shape), entry.spec.dtype, entry.spec.bytes_on_disk
        column = name.removesuffix("_utf8")
        if name != column and f"{column}_offsets" in artifact:
            continue
        column = name.removesuffix("_offsets")
        if name != column and f"{column}_utf8" in artifact:
            name, shape, dtype = column, [shape[0] - 1], "string"
            size += artifact.spec(f"{column}_utf8").bytes_on_disk
        found.append({"name": name, "dtype": dtype, "shape": shape, "bytes": size})
    return found


def _histograms(artifact: Artifact) -> list[str]:
    numbers = [each["name"] for each in _arrays(artifact) if each["dtype"] != "string" and each["shape"] and min(each["shape"])]
    return [*([DEGREES] if artifact.manifest.kind == "graph" else []), *numbers]


def page(artifact: Artifact, array: str, start: int, count: int) -> Json:
    """Rows of an array as it is stored; of three dimensions the planes follow one another."""
    entry = _entry(artifact, array)
    if entry["dtype"] == "string":
        return _page_of_strings(artifact, array, entry["shape"][0], start, count)
    values, shape = artifact[array], entry["shape"]
    length = math.prod(shape[:-1]) if len(shape) > 1 else shape[0]
    width = shape[-1] if len(shape) > 1 else 1
    rows = []
    for row in range(min(start, length), min(start + count, length)):
        place = np.unravel_index(row, shape[:-1]) if len(shape) > 1 else (row,)
        key = (*map(int, place), slice(0, MOST_VALUES)) if len(shape) > 1 else slice(row, row + 1)
        rows.append([_plain(value) for value in np.asarray(values[key]).tolist()])
    columns = [str(column) for column in range(min(width, MOST_VALUES))] if len(shape) > 1 else [array]
    return {"start": start, "total": length, "rows": rows, "columns": columns, "truncated": width > MOST_VALUES}


def _page_of_strings(artifact: Artifact, array: str, length: int, start: int, count: int) -> Json:
    start, stop = min(start, length), min(start + count, length)
    offsets, utf8 = np.asarray(artifact[f"{array}_offsets"][start : stop + 1]), artifact[f"{array}_utf8"]
    rows = []
    for first, last in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        shown = Strings(np.array([0, min(last - first, 4 * _TEXT)]), np.asarray(utf8[first : min(last, first + 4 * _TEXT)]))
        rows.append([shown.utf8.tobytes().decode(errors="replace")[:_TEXT]])
    return {"start": start, "total": length, "rows": rows, "columns": [array], "truncated": False}


def histogram(artifact: Artifact, array: str) -> Json:
    """The distribution of the values of an array; of a graph also that of the degrees."""
    if array == DEGREES and artifact.manifest.kind == "graph":
        offsets = artifact["indptr"]
        values, whole = _sample(lambda start, stop: np.diff(offsets[start : stop + 1]), len(offsets) - 1)
        return _counted(values, whole)
    entry = _entry(artifact, array)
    if entry["dtype"] == "string":
        raise Missing(f"{artifact.name}, array {array}: strings have no histogram.")
    stored, shape = artifact[array], entry["shape"]
    width = max(1, math.prod(shape[1:]))
    if len(shape) == 3:
        # The last plane: the scores after the last iteration.
        stored, width, length = artifact[array], shape[2], shape[1]
        values, whole = _sample(lambda start, stop: stored[-1, start:stop].reshape(-1), length, width)
    else:
        values, whole = _sample(lambda start, stop: stored[start:stop].reshape(-1), shape[0], width)
    if artifact.manifest.kind == "graph" and array == "indices":
        values = values & COLUMN
    return _counted(values, whole)


def _sample(read: Callable[[int, int], NDArray[Any]], rows: int, width: int = 1) -> tuple[NDArray[Any], bool]:
    """Values of some rows, and whether these are all; of many rows some from the beginning, the end and between."""
    wanted = max(1, _SAMPLE // width)
    if rows <= wanted:
        return read(0, rows), True
    each = max(1, wanted // _PLACES)
    starts = np.linspace(0, rows - each, _PLACES).astype(np.int64)
    return np.concatenate([read(start, start + each) for start in starts.tolist()]), False


def _counted(values: NDArray[Any], whole: bool) -> Json:
    sampled = None if whole else len(values)
    numbers = values[np.isfinite(values)].astype(np.float64)
    if not len(numbers):
        return {"edges": [0.0, 1.0], "counts": [0], "sampled": sampled}
    low, high = float(numbers.min()), float(numbers.max())
    integers = values.dtype.kind in "iu"
    if integers and high - low < _BINS:
        edges = np.arange(low - 0.5, high + 1)
    elif high - low <= 1e-9 * max(1.0, abs(high)):
        edges = np.array([low - 0.5, low + 0.5])
    else:
        edges = np.linspace(low, high, _BINS + 1)
    counts = np.histogram(numbers, edges)[0]
    return {"edges": edges.tolist(), "counts": counts.tolist(), "sampled": sampled}


def _entry(artifact: Artifact, array: str) -> Json:
    found = {each["name"]: each for each in _arrays(artifact)}
    if array not in found:
        guess = did_you_mean(array, found)
        raise Missing(f"{artifact.name}: there is no array {array!r}. {guess}It has: {', '.join(found)}.")
    return found[array]


def _plain(value: Any) -> Any:
    """A value that JSON has: NaN and infinities are written as text."""
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else str(value)
    return value

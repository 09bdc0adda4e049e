"""The user's ids, unique within a role. Rows without ids are identified by their row number."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import CountMismatch, DuplicateIds
from mmdiff.formats.sources.base import Column
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.store import Artifact
from mmdiff.kernels.jit import kernel

Ids = NDArray[np.int64] | Strings


def check(ids: Column, where: str) -> Ids:
    """The ids of a column, refused unless each row has exactly one and no two are equal."""
    if ids.per_row != 1:
        raise CountMismatch(f"{where}: {ids.per_row} ids for each row. Give one id per row.")
    values = ids.values
    missing = np.diff(values.offsets) == 0 if isinstance(values, Strings) else values == -1
    if missing.any():
        raise CountMismatch(f"{where}, row {int(missing.argmax())}: no id. Give every row an id.")
    keys = hash_strings(values.offsets, values.utf8) if isinstance(values, Strings) else values
    order = np.argsort(keys, kind="stable")
    alike = np.flatnonzero(keys[order][1:] == keys[order][:-1])
    for first, second in sorted(zip(order[alike].tolist(), order[alike + 1].tolist(), strict=True)):
        if values[first] == values[second]:
            raise DuplicateIds(f"{where}: rows {first} and {second} have the same id {values[first]!s}. Make ids unique.")
    return values


def ids_of(artifact: Artifact) -> Ids | range:
    """The id of each row of an artifact."""
    if "ids" in artifact:
        return artifact.array("ids")
    if "ids_offsets" in artifact:
        return artifact.strings("ids")
    return range(artifact.spec("vectors").shape[0])


def take(ids: Ids, rows: NDArray[np.int64]) -> Ids:
    return ids.take(rows) if isinstance(ids, Strings) else ids[rows]


@kernel
def hash_strings(offsets: NDArray[np.int64], utf8: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """FNV-1a hash of each string."""
    hashes = np.empty(len(offsets) - 1, np.uint64)
    for i in range(len(hashes)):
        value = np.uint64(14695981039346656037)
        for j in range(offsets[i], offsets[i + 1]):
            value = (value ^ np.uint64(utf8[j])) * np.uint64(1099511628211)
        hashes[i] = value
    return hashes

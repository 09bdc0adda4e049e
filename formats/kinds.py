"""What each kind of artifact must hold: its arrays, and what their values have to satisfy (`docs/formats.md` in code).

Dispatch is on (kind, schema version). Large arrays are checked in blocks, so that a check needs no memory to speak of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.store import Artifact

Finding = tuple[str, str]

_BLOCK = 1 << 20


@dataclass(frozen=True)
class ArrayRule:
    """The dtypes and numbers of dimensions that an array may have."""

    dtypes: tuple[str, ...]
    dimensions: tuple[int, ...] = (1,)
    required: bool = False


@dataclass(frozen=True)
class Kind:
    arrays: dict[str, ArrayRule]
    check: Callable[[Artifact], Iterator[Finding]]


def problems_of_content(artifact: Artifact) -> Iterator[Finding]:
    """What an artifact with intact files says that cannot be, as (array, problem)."""
    manifest = artifact.manifest
    kind = KINDS.get((manifest.kind, manifest.schema))
    if kind is None:
        known = ", ".join(f"{name} {schema}" for name, schema in KINDS)
        yield "", f"kind {manifest.kind}, schema {manifest.schema}: this mmdiff knows {known}"
        return
    shapes = list(_problems_of_shape(artifact, kind))
    yield from shapes or kind.check(artifact)


def _problems_of_shape(artifact: Artifact, kind: Kind) -> Iterator[Finding]:
    for name, rule in kind.arrays.items():
        if name not in artifact:
            if rule.required:
                yield name, "missing"
            continue
        spec = artifact.spec(name)
        if spec.dtype not in rule.dtypes or len(spec.shape) not in rule.dimensions:
            yield name, f"{spec.dtype} of shape {spec.shape}; expected {' or '.join(rule.dtypes)}"
    for name in artifact.manifest.arrays:
        if name not in kind.arrays:
            yield name, "an array that this kind does not have"


def _check_descriptors(artifact: Artifact) -> Iterator[Finding]:
    rows = artifact.spec("vectors").shape[0]
    for name in ("raw", "labels", "ids"):
        if name in artifact and artifact.spec(name).shape[0] != rows:
            yield name, f"{artifact.spec(name).shape[0]} rows for {rows} vectors"
    for column, length in (("ids", rows), ("class_names", None), ("dropped_ids", None)):
        yield from _check_strings(artifact, column, length)
    if "labels" in artifact:
        classes = _class_count(artifact)
        yield from _check_range(artifact, "labels", -1, classes)
    for name in ("class_numbers", "ids", "dropped_ids"):
        if name in artifact and len(np.unique(artifact.array(name))) != artifact.spec(name).shape[0]:
            yield name, "values that occur twice"


def _class_count(artifact: Artifact) -> int:
    if "class_numbers" in artifact:
        return artifact.spec("class_numbers").shape[0]
    return artifact.spec("class_names_offsets").shape[0] - 1 if "class_names_offsets" in artifact else 0


def _check_pca(artifact: Artifact) -> Iterator[Finding]:
    if "components" not in artifact:
        return
    dims, width = artifact.spec("components").shape
    for name, shape in (("mean", (width,)), ("explained_variance", (dims,))):
        if name not in artifact or artifact.spec(name).shape != shape:
            yield name, f"missing, or not of shape {shape} as the components ask for"
    for name in artifact.manifest.arrays:
        if not np.isfinite(artifact.array(name)).all():
            yield name, "values that are not finite"


def _check_strings(artifact: Artifact, column: str, length: int | None) -> Iterator[Finding]:
    name = f"{column}_offsets"
    if name not in artifact:
        return
    if f"{column}_utf8" not in artifact:
        yield f"{column}_utf8", "missing"
        return
    offsets, size = artifact.array(name), artifact.spec(f"{column}_utf8").shape[0]
    if length is not None and len(offsets) != length + 1:
        yield name, f"{len(offsets)} offsets for {length} strings"
    yield from _check_offsets(name, offsets, size)


def _check_offsets(name: str, offsets: NDArray[Any], end: int) -> Iterator[Finding]:
    """Offsets start at 0, never go back, and end where the array behind them does."""
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != end:
        yield name, f"offsets do not run from 0 to {end}"
        return
    for start in range(0, len(offsets) - 1, _BLOCK):
        block = offsets[start : start + _BLOCK + 1]
        backwards = np.flatnonzero(block[1:] < block[:-1])
        if len(backwards):
            yield name, f"offsets go backwards at row {start + int(backwards[0])}"
            return


def _check_range(artifact: Artifact, name: str, low: int, high: int) -> Iterator[Finding]:
    """Every value is at least `low` and below `high`."""
    values = artifact.array(name)
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK]
        outside = np.flatnonzero(((block < low) | (block >= high)).reshape(len(block), -1).any(axis=1))
        if len(outside):
            row = start + int(outside[0])
            yield name, f"row {row}: {values[row]} is outside {low}..{high - 1}"
            return


def _strings(column: str) -> dict[str, ArrayRule]:
    return {f"{column}_offsets": ArrayRule(("int64",)), f"{column}_utf8": ArrayRule(("uint8",))}


KINDS: dict[tuple[str, int], Kind] = {
    ("descriptors", 1): Kind(
        {
            "vectors": ArrayRule(("float32", "float16"), (2,), required=True),
            "raw": ArrayRule(("float32", "float16", "uint8", "int8"), (2,)),
            "labels": ArrayRule(("int32",), (1, 2)),
            "class_numbers": ArrayRule(("int64",)),
            **_strings("class_names"),
            "ids": ArrayRule(("int64",)),
            **_strings("ids"),
            "dropped_ids": ArrayRule(("int64",)),
            **_strings("dropped_ids"),
        },
        _check_descriptors,
    ),
    ("pca", 1): Kind(
        {
            "mean": ArrayRule(("float32",)),
            "components": ArrayRule(("float32",), (2,)),
            "explained_variance": ArrayRule(("float32",)),
        },
        _check_pca,
    ),
}

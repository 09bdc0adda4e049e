"""Kinds of artifacts: what an artifact of a kind holds, how it is checked, what inspect shows and what export writes.

A registry maps (kind, schema version) to a `Kind`; the functions here and in `verify.py` take it as an argument. The kinds of
mmdiff are declared in `mmdiff/kinds.py`, and specified in `docs/formats.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from mmdiff.formats.errors import Corrupt
from mmdiff.formats.progress import Progress
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact, Store

Finding = tuple[str, str]
"""The array that a problem is in, and the problem."""

ArrayWriter = Callable[[Any, IO[bytes], Progress], None]
"""Writes the given arrays of an artifact to a file; formats of one array are given one."""

TableWriter = Callable[[Store, Artifact, IO[bytes], Progress], None]
"""Writes a table that needs other artifacts of the store too."""


@dataclass(frozen=True)
class ArrayRule:
    """The dtypes and numbers of dimensions that an array may have."""

    dtypes: tuple[str, ...]
    dimensions: tuple[int, ...] = (1,)
    required: bool = False


def string_arrays(column: str) -> dict[str, ArrayRule]:
    """The two arrays of an optional column of strings."""
    return {f"{column}_offsets": ArrayRule(("int64",)), f"{column}_utf8": ArrayRule(("uint8",))}


@dataclass(frozen=True)
class Exports:
    """The files that a kind of artifact can be exported to, by their ending.

    `main` is the array that formats of one array take by default. `counted` has one entry for each row of the artifact, where
    `main` has not. `tables` are files that need other artifacts of the store too.
    """

    writers: Mapping[str, ArrayWriter]
    main: str | None = None
    counted: str | None = None
    tables: Mapping[str, TableWriter] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of artifact in one schema version.

    `check` yields the problems of an artifact whose arrays follow `arrays`. Inspect shows `title` in one line, and
    `statistics` in the details.
    """

    name: str
    schema: int
    arrays: Mapping[str, ArrayRule]
    check: Callable[[Artifact], Iterator[Finding]]
    title: Callable[[Artifact], str]
    statistics: Callable[[Artifact], Json]
    exports: Exports


Kinds = Mapping[tuple[str, int], Kind]
"""A registry: kinds by name and schema version."""


def kind_of(artifact: Artifact, kinds: Kinds) -> Kind:
    """The kind of an artifact."""
    kind = _find(artifact, kinds)
    if kind is None:
        raise Corrupt(f"{artifact.name}: {_unknown(artifact, kinds)}. Use the version of mmdiff that wrote it.")
    return kind


def problems_of_content(artifact: Artifact, kinds: Kinds) -> Iterator[Finding]:
    """Contradictions in the content of an artifact whose files are intact."""
    kind = _find(artifact, kinds)
    if kind is None:
        yield "", _unknown(artifact, kinds)
        return
    wrong_arrays = list(_problems_of_arrays(artifact, kind))
    yield from wrong_arrays or kind.check(artifact)


def _find(artifact: Artifact, kinds: Kinds) -> Kind | None:
    return kinds.get((artifact.manifest.kind, artifact.manifest.schema))


def _unknown(artifact: Artifact, kinds: Kinds) -> str:
    known = ", ".join(f"{name} {schema}" for name, schema in kinds)
    return f"kind {artifact.manifest.kind}, schema {artifact.manifest.schema}: this mmdiff knows {known}"


def _problems_of_arrays(artifact: Artifact, kind: Kind) -> Iterator[Finding]:
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

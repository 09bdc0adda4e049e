"""Kinds of artifacts: what an artifact of a kind holds, how it is checked, what inspect shows and what export writes.

A `Layout` is the part of a kind that is on disk: its arrays, facts and checks. The layouts of mmdiff are in `layouts.py`, and
specified in `docs/formats.md`; publishing checks every artifact against them. A `Kind` adds what is shown and exported. The
kinds are declared in `mmdiff/kinds.py`, and the functions here and in `verify.py` take that registry as an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from mmdiff.formats.errors import Corrupt
from mmdiff.formats.progress import Progress
from mmdiff.formats.store.manifest import Json, Manifest
from mmdiff.formats.store.shapes import Finding

if TYPE_CHECKING:
    # A store compares the artifacts it opens with their layouts.
    from mmdiff.formats.store.store import Artifact, Store

ArrayWriter = Callable[[Any, IO[bytes], Progress], None]
"""Writes the given arrays of an artifact to a file; formats of one array are given one."""

TableWriter: TypeAlias = "Callable[[Store, Artifact, IO[bytes], Progress], None]"
"""Writes a table that needs other artifacts of the store too."""


ForeignWriter = Callable[[Any, IO[bytes], Progress], int]
"""Writes what a task names in the format of another library; returns the number of rows."""


@dataclass(frozen=True)
class NamedFormat:
    """A format of other libraries, chosen by its name, or by an ending that stands for nothing else.

    `takes` are the parameters of an export that make a difference to it.
    """

    endings: tuple[str, ...]
    writer: ForeignWriter
    takes: tuple[str, ...] = ()


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
    `main` has not. `tables` are files that need other artifacts of the store too. `formats` are those of other libraries, by
    name.
    """

    writers: Mapping[str, ArrayWriter]
    main: str | None = None
    counted: str | None = None
    tables: Mapping[str, TableWriter] = field(default_factory=dict)
    formats: Mapping[str, NamedFormat] = field(default_factory=dict)


Types = tuple[type, ...]
"""The types that an entry of a manifest may have, as JSON is read: True is not a number."""

NUMBER: Types = (int, float)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One kind of artifact on disk, in one schema version.

    `facts` and `parameters` are the entries that its manifest must have, with their types. `shapes` yields the problems of a
    manifest that has them and whose arrays follow `arrays`; `check` those of the content, where the manifest has none.
    """

    name: str
    schema: int
    arrays: Mapping[str, ArrayRule]
    shapes: Callable[[Manifest], Iterator[Finding]]
    check: Callable[[Artifact], Iterator[Finding]]
    facts: Mapping[str, Types] = field(default_factory=dict)
    parameters: Mapping[str, Types] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Kind(Layout):
    """A kind of artifact with its presentation. Inspect shows `title` in one line, and `statistics` in the details."""

    title: Callable[[Artifact], str]
    statistics: Callable[[Artifact], Json]
    exports: Exports


Layouts = Mapping[tuple[str, int], Layout]
Kinds = Mapping[tuple[str, int], Kind]
"""A registry: kinds by name and schema version."""


def kind_of(artifact: Artifact, kinds: Kinds) -> Kind:
    """The kind of an artifact."""
    kind = kinds.get((artifact.manifest.kind, artifact.manifest.schema))
    if kind is None:
        raise Corrupt(f"{artifact.name}: {_unknown(artifact.manifest, kinds)}. Use the version of mmdiff that wrote it.")
    return kind


# The kinds of artifacts in each folder of names, and those of names that stand for one kind.
_KINDS_IN = {
    "descriptors": ("descriptors",),
    "labels": ("labels",),
    "knn": ("knn",),
    "graph": ("graph",),
    "scores": ("scores",),
    "folds": ("folds",),
    "audit": ("audit",),
    "models": ("pca", "cells", "logreg"),
    "reports": ("report",),
}
_KIND_OF = {"models/pca": ("pca",), "models/cells": ("cells",), "models/logreg": ("logreg",)}


def problems_of_name(name: str, kind: str) -> list[Finding]:
    """Finds an artifact under the name of another kind; every stage would look in it for arrays that it does not have."""
    expected = _KIND_OF.get(name) or _KINDS_IN.get(name.split("/")[0], (kind,))
    return [] if kind in expected else [("", f"an artifact of kind {kind} under a name of {' or '.join(expected)}")]


def problems_of_manifest(manifest: Manifest, kinds: Layouts) -> list[Finding]:
    """Arrays, shapes, facts and parameters that an artifact of this kind cannot have. Nothing is read."""
    kind = kinds.get((manifest.kind, manifest.schema))
    if kind is None:
        return [("", _unknown(manifest, kinds))]
    return (
        list(_problems_of_arrays(manifest, kind)) or list(_problems_of_entries(manifest, kind)) or list(kind.shapes(manifest))
    )


def problems_of_content(artifact: Artifact, kinds: Layouts) -> Iterator[Finding]:
    """Contradictions in the content of an artifact whose files are intact."""
    manifest = artifact.manifest
    yield from problems_of_manifest(manifest, kinds) or kinds[manifest.kind, manifest.schema].check(artifact)


def _unknown(manifest: Manifest, kinds: Layouts) -> str:
    known = ", ".join(f"{name} {schema}" for name, schema in kinds)
    return f"kind {manifest.kind}, schema {manifest.schema}: this mmdiff knows {known}"


def _problems_of_entries(manifest: Manifest, kind: Layout) -> Iterator[Finding]:
    """Facts and parameters that the manifest lacks, or that have another type."""
    for what, required, found in (("fact", kind.facts, manifest.facts), ("parameter", kind.parameters, manifest.parameters)):
        for name, expected in required.items():
            if name not in found or type(found[name]) not in expected:
                types = " or ".join(each.__name__ for each in expected)
                yield "", f"the manifest lacks the {what} {name!r}, or it is not of type {types}"


def _problems_of_arrays(manifest: Manifest, kind: Layout) -> Iterator[Finding]:
    for name, rule in kind.arrays.items():
        if name not in manifest.arrays:
            if rule.required:
                yield name, "missing"
            continue
        spec = manifest.arrays[name].spec
        if spec.dtype not in rule.dtypes or len(spec.shape) not in rule.dimensions:
            yield name, f"{spec.dtype} of shape {spec.shape}; expected {' or '.join(rule.dtypes)}"
    for name in manifest.arrays:
        if name not in kind.arrays:
            yield name, "an array that this kind does not have"

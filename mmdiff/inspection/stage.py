"""`mmdiff inspect`: a line for each artifact of a store, and details and statistics of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from mmdiff.formats.errors import BadOption, Corrupt, MmdiffError, Parameter
from mmdiff.formats.store.gc import unnamed
from mmdiff.formats.store.kinds import Kinds, kind_of
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.inspection.distribution import distribution
from mmdiff.labels.classes import UNLABELLED, Classes, labels_of
from mmdiff.labels.ids import ids_of
from mmdiff.runtime.staleness import made_from, reasons_stale, sources_gone

Description = TypeVar("Description")

# Rows that statistics are taken on, evenly spread: enough for every digit shown.
_SAMPLE_ROWS = 1 << 16


def overview(store: Store, kinds: Kinds) -> Json:
    """All artifacts of the store, and the folders that a garbage collection would remove."""
    garbage = unnamed(store)
    return {
        "store": str(store),
        "artifacts": [line(store, name, kinds) for name in store.names()],
        "unnamed": [{"folder": str(item.folder), "bytes": item.bytes, "why": item.why} for item in garbage],
    }


def details(store: Store, name: str, kinds: Kinds) -> Json:
    """Manifest, run and statistics of one artifact."""
    artifact = store.open_artifact(name)
    manifest = artifact.manifest
    return {
        **line(store, name, kinds),
        "schema": manifest.schema,
        "parameters": manifest.parameters,
        "inputs": manifest.inputs,
        "facts": manifest.facts,
        "arrays": {
            array: {
                "shape": list(entry.spec.shape),
                "dtype": entry.spec.dtype,
                "chunks": entry.spec.chunks,
                "bytes": entry.spec.bytes_on_disk,
            }
            for array, entry in manifest.arrays.items()
        },
        "run": artifact.run,
        "statistics": _described(artifact, kind_of(artifact, kinds).statistics),
    }


def rows(store: Store, name: str, span: str) -> Iterator[Json]:
    """Rows A to B-1 of an artifact, each with its id and labels."""
    artifact = store.open_artifact(name)
    if artifact.manifest.kind != "descriptors":
        raise BadOption(Parameter("rows", span), f": {name} has no rows to show. Artifacts descriptors/... have.")
    vectors = artifact["vectors"]
    ids = ids_of(artifact)
    classes = Classes.of(artifact)
    labels = labels_of(artifact, classes) if "labels" in artifact else np.full(len(vectors), UNLABELLED)
    for row in range(*_span(span, len(vectors))):
        own = [classes.title(int(label)) for label in np.atleast_1d(labels[row]) if label != UNLABELLED]
        yield {"row": row, "id": _plain(ids[row]), "labels": own, "values": [round(float(value), 6) for value in vectors[row]]}


def _plain(value: Any) -> int | str:
    return value if isinstance(value, str) else int(value)


def line(store: Store, name: str, kinds: Kinds) -> Json:
    """The line of one artifact in the overview."""
    artifact = store.open_artifact(name)
    manifest = artifact.manifest
    return {
        "artifact": name,
        "object": artifact.id,
        "kind": manifest.kind,
        "what": _described(artifact, kind_of(artifact, kinds).title),
        "bytes": manifest.bytes_on_disk,
        "made": artifact.run["started"],
        "seconds": artifact.run["seconds"],
        "made_from": made_from(artifact),
        "stale": reasons_stale(store, artifact),
        "gone": sources_gone(artifact),
    }


def _described(artifact: Artifact, describe: Callable[[Artifact], Description]) -> Description:
    """A description of an artifact; Corrupt where its manifest contradicts itself, as only a forged one does."""
    try:
        return describe(artifact)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, MmdiffError):
            raise
        problem = "its manifest does not describe what it holds"
        raise Corrupt(f"{artifact.name}: {problem} ({type(error).__name__}). {artifact.remedy}") from error


def _span(span: str, length: int) -> tuple[int, int]:
    """A:B as a Python slice, within the rows that exist."""
    start, colon, stop = span.partition(":")
    try:
        first, last, _ = slice(int(start) if start else None, int(stop) if stop else None).indices(length)
    except ValueError:
        colon = ""
    if not colon:
        raise BadOption(Parameter("rows", span), ": not a range. Write A:B, for rows A to B-1.")
    return first, last


def what_descriptors(artifact: Artifact) -> str:
    vectors = artifact.spec("vectors")
    classes = artifact.manifest.facts.get("classes")
    return f"{vectors.shape[0]:,} x {vectors.shape[1]} {vectors.dtype}" + (f", {classes:,} classes" if classes else "")


def what_pca(artifact: Artifact) -> str:
    facts = artifact.manifest.facts
    if not facts["reduces"]:
        return f"{facts['width']} dimensions, not reduced"
    return f"{facts['width']} to {facts['dims']} dimensions, {facts['explained_variance']:.1%} of the variance"


def descriptor_statistics(artifact: Artifact) -> Json:
    vectors = artifact.array("vectors")
    step = -(-len(vectors) // _SAMPLE_ROWS)
    norms = np.linalg.norm(vectors[::step].astype(np.float32), axis=1)
    found: Json = {"norms": distribution(norms)}
    if "labels" in artifact:
        found["labels"] = _label_statistics(artifact)
    return found


def _label_statistics(artifact: Artifact) -> Json:
    classes = Classes.of(artifact)
    labels = labels_of(artifact, classes)
    counts = np.bincount(labels[labels != UNLABELLED], minlength=len(classes))
    labelled = int((labels != UNLABELLED).reshape(len(labels), -1).any(axis=1).sum())
    order = np.argsort(-counts, kind="stable")
    return {
        "labelled": labelled,
        "unlabelled": len(labels) - labelled,
        "classes": len(classes),
        "classes_without_rows": int((counts == 0).sum()),
        "rows_per_class": distribution(counts),
        "largest": {classes.title(int(c)): int(counts[c]) for c in order[:3]},
        "smallest": {classes.title(int(c)): int(counts[c]) for c in order[::-1][:3]},
    }


def pca_statistics(artifact: Artifact) -> Json:
    if "explained_variance" not in artifact:
        return {}
    cumulative = np.cumsum(artifact.array("explained_variance"))
    at = sorted({min(1 << power, len(cumulative)) for power in range(0, 20, 2)} | {len(cumulative)})
    return {"variance_explained_by_first": {str(n): round(float(cumulative[n - 1]), 4) for n in at}}


def what_cells(artifact: Artifact) -> str:
    rows, width = artifact.spec("vectors").shape
    return f"{rows:,} x {width} {artifact.spec('vectors').dtype} in {artifact.manifest.facts['cells']:,} cells"


def cell_statistics(artifact: Artifact) -> Json:
    cells = artifact.manifest.facts["cells"]
    # Schema 1 has several partitions, one after the other.
    entries = artifact.spec("members" if "members" in artifact else "order").shape[0]
    offsets = artifact.index_array("offsets", below=entries + 1)
    return {"rows_per_cell": distribution(np.diff(offsets[: cells + 1]))}

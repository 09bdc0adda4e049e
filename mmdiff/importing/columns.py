"""Labels, ids and class names of the rows that are imported, and notes on what an import means for the rest of the store."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadLabels, Corrupt, CountMismatch, StoreError
from mmdiff.formats.sources.base import Column, Source
from mmdiff.formats.sources.columns.files import ColumnFiles, find_column
from mmdiff.formats.sources.columns.integers import MAX_DIGITS
from mmdiff.formats.sources.columns.reading import is_unicode, read_class_names
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.publish import Draft
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.importing import space as spaces
from mmdiff.importing.rows import Kept
from mmdiff.labels.classes import UNLABELLED, Classes, encode, labels_of
from mmdiff.labels.ids import Ids, check, take

_SHOWN = 5


@dataclass(frozen=True)
class Given:
    """Labels or ids that are in memory instead of in a file.

    `fingerprint` identifies the values, as `formats.store.fingerprint` does for files; `name` is used in messages.
    """

    column: Column
    fingerprint: Json
    name: str


ColumnSpec = str | ColumnFiles | Given | None
"""A file, a pattern, or a column of the source by its name; the files found by it; or values in memory."""

ClassNames = str | Mapping[int, str] | None
"""A file of class names, or the names by class number."""


def name_of(spec: str | ColumnFiles | Given) -> str:
    """The name of a column in messages."""
    return spec if isinstance(spec, str) else spec.name


def fingerprint_of_names(names: Mapping[int, str]) -> Json:
    """The fingerprint of class names that are in memory."""
    text = json.dumps(sorted((int(number), str(name)) for number, name in names.items())).encode()
    digest = hashlib.blake2b(text, digest_size=12).hexdigest()
    return {"source": "class_names", "bytes": len(text), "files": 0, "digest": digest}


@dataclass(frozen=True)
class Columns:
    """Labels and ids of all rows of a source, including bad rows."""

    labels: NDArray[np.int32] | None
    classes: Classes | None
    ids: Ids | None

    def facts(self) -> Json:
        return {} if self.classes is None else {"classes": len(self.classes)}

    def write(self, draft: Draft, rows: Kept) -> None:
        """Writes the columns of the rows that are kept, and the ids of those that are dropped."""
        if self.labels is not None and self.classes is not None:
            draft.values("labels", self.labels if rows.kept is None else self.labels[rows.kept])
            self.classes.write(draft)
        ids = self.ids
        if len(rows.dropped):
            # Rows without ids are identified by their number in the source, which dropping others must not change.
            ids = np.arange(rows.source.rows) if ids is None else ids
            _write_ids(draft, "dropped_ids", take(ids, rows.dropped))
        if ids is not None:
            _write_ids(draft, "ids", ids if rows.kept is None else take(ids, rows.kept))


def read_columns(source: Source, labels: ColumnSpec, ids: ColumnSpec, class_names: ClassNames, role: str) -> Columns:
    """Reads labels, ids and class names, checked against the rows of the source.

    Class names that come with the labels are used where no others are given.
    """
    if class_names is None and isinstance(labels, ColumnFiles):
        class_names = labels.class_names()
    names = _read_names(class_names)
    indices, classes = None, None
    if labels is not None:
        column, where = _read(labels, source.rows), name_of(labels)
        _refuse_other_length(column, source, where, "labels")
        indices, classes = encode(column, names, numbered=role == "seeds", where=where)
        if role == "seeds" and (indices == UNLABELLED).all():
            raise BadLabels(f"{where}: all {source.rows} seeds are unlabelled. Seeds are the rows with labels.")
    id_column, where = (_read(ids, source.rows), name_of(ids)) if ids is not None else (source.ids(), source.name)
    if id_column is None:
        return Columns(indices, classes, None)
    _refuse_other_length(id_column, source, where, "ids")
    return Columns(indices, classes, check(id_column, where))


def _read(spec: str | ColumnFiles | Given, rows: int) -> Column:
    if isinstance(spec, Given):
        return spec.column
    return (find_column(spec, ()) if isinstance(spec, str) else spec).read(rows)


def _read_names(names: ClassNames) -> Mapping[int, str] | None:
    if names is None or isinstance(names, str):
        return None if names is None else read_class_names(names)
    numbers: dict[str, int] = {}
    for number, name in names.items():
        if not name or not 0 <= number < 10**MAX_DIGITS or not is_unicode(name):
            shown = number if abs(number) < 10**MAX_DIGITS else f"of {number.bit_length():,} bits"
            raise BadLabels(
                f"class {shown} is named {name!r}. Classes are numbered from 0, with at most {MAX_DIGITS} digits, and have "
                "names that are not empty and valid Unicode."
            )
        if name in numbers:
            raise BadLabels(f"classes {numbers[name]} and {number} are both named {name!r}. Rename one of them.")
        numbers[name] = number
    return names


def _refuse_other_length(column: Column, source: Source, where: str, what: str) -> None:
    if len(column) != source.rows:
        raise CountMismatch(
            f"{where}: {len(column)} {what} for the {source.rows} rows of {source.name}. Give one for each row"
            + (", -1 or empty where there is none." if what == "labels" else ".")
        )


def _write_ids(draft: Draft, name: str, ids: Ids) -> None:
    if isinstance(ids, Strings):
        draft.strings(name, ids)
    else:
        draft.values(name, ids)


def notes_on(store: Store, imported: str) -> list[str]:
    """Notes after an import of one role: other roles that are damaged or stale, and labels of classes without seeds."""
    artifacts: dict[str, Artifact] = {}
    damaged = []
    for name in (f"descriptors/{role}" for role in ("background", "seeds", "test")):
        try:
            if store.id(name) is not None:
                artifacts[name] = store.open_artifact(name)
        except Corrupt:
            damaged.append(_damaged(name))
    stale = [
        f"{name} was made with another {spaces.NAME}: import it again."
        for name, artifact in artifacts.items()
        if artifact.manifest.inputs.get("pca", {}).get("object") != store.id(spaces.NAME)
    ]
    seeds = artifacts.get("descriptors/seeds")
    labelled = [name for name in artifacts if name != "descriptors/seeds" and imported in ("seeds", name.split("/")[1])]
    return damaged + stale + [note for name in labelled if seeds for note in _unseen(artifacts[name], seeds)]


def unseen_classes(artifact: Artifact, seeds: Artifact) -> list[str]:
    """The classes among an artifact's labels that no seed has."""
    classes = Classes.of(artifact)
    used = np.unique(labels_of(artifact, classes))
    unknown = np.flatnonzero(classes.columns_in(Classes.of(seeds)) == UNLABELLED)
    return [classes.title(int(index)) for index in np.intersect1d(used, unknown)]


def _unseen(artifact: Artifact, seeds: Artifact) -> list[str]:
    if "labels" not in artifact:
        return []
    try:
        unseen = unseen_classes(artifact, seeds)
    except BadLabels as error:
        return [f"{artifact.name}: {error}"]
    except Corrupt:
        return [_damaged(f"{artifact.name} or {seeds.name}")]
    if not unseen:
        return []
    shown = ", ".join(unseen[:_SHOWN]) + (", ..." if len(unseen) > _SHOWN else "")
    classes = "class" if len(unseen) == 1 else "classes"
    return [
        f"{artifact.name}: {len(unseen)} {classes} without seeds ({shown}). Their points are kept but always count as errors."
    ]


def _damaged(name: str) -> str:
    return f"{name} is damaged: import it again."


def imported_before(store: Store, name: str) -> Artifact | None:
    """The artifact that an import will replace; None if there is none, or a damaged one."""
    with suppress(StoreError):
        return store.open_artifact(name) if store.id(name) is not None else None
    return None


def notes_on_replacing(store: Store, before: Artifact | None, now: Artifact, gone: Artifact | None = None) -> list[str]:
    """A note on the rows that an import replaces, on those that were appended to them and are `gone`, and on stale artifacts.

    The same rows in a new space, after another background, need no note: the user was told to import them again.
    """
    if before is None or _given(before) == _given(now):
        return []
    source = before.manifest.inputs["source"]["source"]
    stale = list(_made_from(store, before.id))
    consequence = f"; made from them, and stale now: {', '.join(stale)}." if stale else "."
    also = "" if gone is None else f", and {_counted(gone)} appended to them"
    return [f"{now.name} replaces {_counted(before)} imported from {source}{also}{consequence}"]


def _counted(artifact: Artifact) -> str:
    rows = artifact.spec("vectors").shape[0]
    return "1 row" if rows == 1 else f"{rows:,} rows"


def _given(artifact: Artifact) -> tuple[Json, Json]:
    """The parameters of an import, and its files."""
    manifest = artifact.manifest
    return manifest.parameters, {key: entry for key, entry in manifest.inputs.items() if key != "pca"}


def _made_from(store: Store, object_id: str) -> Iterator[str]:
    """The names of all artifacts that were made from an object, directly or not."""
    artifacts = []
    for name in store.names():
        with suppress(StoreError):
            artifacts.append(store.open_artifact(name))
    objects, found = {object_id}, True
    while found:
        found = False
        for artifact in artifacts:
            made_from = {entry.get("object") for entry in artifact.manifest.inputs.values()}
            if artifact.id not in objects and made_from & objects:
                objects.add(artifact.id)
                found = True
                yield artifact.name

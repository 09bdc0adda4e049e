"""What is known of the rows beside their values: labels, with the table of their classes, and ids.

What an import means for what was there before: labels that no seed has, roles that were made with another PCA.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadLabels, Corrupt, CountMismatch
from mmdiff.formats.sources.base import Column, Source
from mmdiff.formats.sources.columns.reading import read_class_names, read_column
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.publish import Draft
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.importing import space as spaces
from mmdiff.importing.rows import Kept
from mmdiff.labels.classes import UNLABELLED, Classes, encode
from mmdiff.labels.ids import Ids, check, take


@dataclass(frozen=True)
class Columns:
    """Labels and ids of all rows of a source, bad ones among them."""

    labels: NDArray[np.int32] | None
    classes: Classes | None
    ids: Ids | None

    def facts(self) -> Json:
        return {} if self.classes is None else {"classes": len(self.classes)}

    def write(self, draft: Draft, rows: Kept) -> None:
        """Writes the columns of the rows that are kept, and the ids of those that are not."""
        if self.labels is not None and self.classes is not None:
            draft.values("labels", self.labels if rows.kept is None else self.labels[rows.kept])
            self.classes.write(draft)
        ids = self.ids
        if len(rows.dropped):
            # Without ids of their own, rows are known by their number in the source, and must stay so.
            ids = np.arange(rows.source.rows) if ids is None else ids
            _write_ids(draft, "dropped_ids", take(ids, rows.dropped))
        if ids is not None:
            _write_ids(draft, "ids", ids if rows.kept is None else take(ids, rows.kept))


def read_columns(source: Source, labels: str | None, ids: str | None, class_names: str | None, role: str) -> Columns:
    """Reads what the user gave, checked against the rows of the source."""
    names = None if class_names is None else read_class_names(class_names)
    indices, classes = None, None
    if labels is not None:
        column = read_column(labels)
        _refuse_other_length(column, source, labels, "labels")
        indices, classes = encode(column, names, numbered=role == "seeds", where=labels)
        if role == "seeds" and (indices == UNLABELLED).all():
            raise BadLabels(f"{labels}: all {source.rows} seeds are unlabelled. Seeds are what has labels.")
    id_column, where = (read_column(ids), ids) if ids is not None else (source.ids(), source.name)
    if id_column is None:
        return Columns(indices, classes, None)
    _refuse_other_length(id_column, source, where, "ids")
    return Columns(indices, classes, check(id_column, where))


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


_SHOWN = 5


def notes_on(store: Store, imported: str) -> list[str]:
    """Sentences for the user, after one role was imported; damage to another role is worth one, and no reason to fail."""
    artifacts: dict[str, Artifact] = {}
    damage = []
    for name in (f"descriptors/{role}" for role in ("background", "seeds", "test")):
        try:
            if store.id(name) is not None:
                artifacts[name] = store.open_artifact(name)
        except Corrupt as error:
            damage.append(str(error))
    stale = [
        f"{name} was made with another {spaces.NAME}: import it again."
        for name, artifact in artifacts.items()
        if artifact.manifest.inputs["pca"]["object"] != store.id(spaces.NAME)
    ]
    seeds = artifacts.get("descriptors/seeds")
    labelled = [name for name in artifacts if name != "descriptors/seeds" and imported in ("seeds", name.split("/")[1])]
    return damage + stale + [note for name in labelled if seeds for note in _unseen(artifacts[name], seeds)]


def unseen_classes(artifact: Artifact, seeds: Artifact) -> list[str]:
    """The classes of an artifact's labels that no seed has."""
    classes = Classes.of(artifact)
    used = np.unique(artifact.array("labels"))
    unknown = np.flatnonzero(classes.columns_in(Classes.of(seeds)) == UNLABELLED)
    return [classes.title(int(index)) for index in np.intersect1d(used, unknown)]


def _unseen(artifact: Artifact, seeds: Artifact) -> list[str]:
    if "labels" not in artifact:
        return []
    try:
        unseen = unseen_classes(artifact, seeds)
    except BadLabels as error:
        return [f"{artifact.name}: {error}"]
    except Corrupt as error:
        return [str(error)]
    if not unseen:
        return []
    shown = ", ".join(unseen[:_SHOWN]) + (", ..." if len(unseen) > _SHOWN else "")
    return [f"{artifact.name}: no seed has {len(unseen)} of its classes ({shown}). Kept; they can only be misses."]

"""The artifacts `audit/PART` as they are stored, and their rows with the user's ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmdiff.auditing.lists import Rows
from mmdiff.formats.errors import Missing, call
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.publish import Draft
from mmdiff.formats.store.shapes import AUDITED_ROLES
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.inspection.distribution import distribution, distribution_of_counts
from mmdiff.labels.collection import rows_of
from mmdiff.labels.ids import Ids, has_ids, ids_of, take
from mmdiff.runtime.staleness import require_current
from mmdiff.text import count

KIND, SCHEMA = "audit", 1
PARTS = ("labels", "duplicates", "leaks", "outliers")

# Why a row is an outlier, as bits.
FAR, UNNAMED = 1, 2
REASONS = ("", "far", "not named", "far and not named")

# The roles that have another name for a single row.
_CALLED = {"appended": "background"}


def full_name(part: str) -> str:
    return f"{KIND}/{part}"


def write(draft: Draft, rows: Rows, arrays: Mapping[str, NDArray[Any]], estimated: Json, **facts: Any) -> Json:
    """Writes the arrays of an audit, and returns its facts."""
    for name, values in arrays.items():
        draft.values(name, values)
    return {"rows": len(arrays["rows"]), "of": rows.of, "estimated": estimated, **facts}


def open_audit(store: Store, part: str) -> Artifact:
    """The current audit of a part."""
    name = full_name(part)
    if store.id(name) is None:
        raise Missing(f"{store.path}: no {name}. Run first: ", call("audit", part))
    artifact = store.open_artifact(name)
    require_current(store, artifact)
    return artifact


class _Role(NamedTuple):
    name: str
    first: int
    rows: int
    ids: Ids | range


@dataclass(frozen=True)
class RowNames:
    """The user's ids and roles of rows as an audit numbers them. Numbers are written as text where a role has text ids."""

    roles: list[_Role]

    @classmethod
    def of(cls, store: Store, of: Mapping[str, int]) -> RowNames:
        found: list[_Role] = []
        first = 0
        for role in AUDITED_ROLES:
            # Appended rows without ids go on with the row numbers of the background.
            begin = first if role == "appended" else 0
            ids: Ids | range = range(begin, begin + of[role])
            artifact = None if store.id(f"descriptors/{role}") is None else store.open_artifact(f"descriptors/{role}")
            # An imported graph may be of other rows than those in the store.
            if artifact is not None and has_ids(artifact) and rows_of(artifact) == of[role]:
                ids = ids_of(artifact)
            found.append(_Role(_CALLED.get(role, role), first, of[role], ids))
            first += of[role]
        return cls(found)

    @property
    def are_strings(self) -> bool:
        return any(isinstance(role.ids, Strings) for role in self.roles if role.rows)

    def ids(self, rows: NDArray[np.int64]) -> list[Any]:
        """The ids of some rows."""
        found = np.empty(len(rows), object)
        for role in self.roles:
            own = (rows >= role.first) & (rows < role.first + role.rows)
            if own.any():
                ids = take(role.ids, rows[own] - role.first)
                texts = list(ids) if isinstance(ids, Strings) else ids.tolist()
                found[own] = list(map(str, texts)) if self.are_strings else texts
        return list(found)

    def names(self, rows: NDArray[np.int64]) -> list[str]:
        """The roles of some rows."""
        ends = np.array([role.first + role.rows for role in self.roles])
        names = np.array([role.name for role in self.roles], object)
        return list(names[np.searchsorted(ends, rows, "right")])


def what_audit(artifact: Artifact) -> str:
    """One line for `inspect`."""
    facts, part = artifact.manifest.facts, artifact.manifest.parameters["part"]
    if part == "labels":
        return f"labels, {count(facts['rows'], 'label')} judged, {facts['contradicted']:,} contradicted"
    if part == "duplicates":
        return f"duplicates, {count(facts['groups'], 'group')} of {count(facts['rows'], 'row')} above {facts['above']:g}"
    if part == "leaks":
        return f"leaks, {count(facts['rows'], 'row')} above {facts['above']:g}"
    return f"outliers, {facts['far']:,} far and {facts['unnamed']:,} that no list names"


def audit_statistics(artifact: Artifact) -> Json:
    """Statistics for `inspect`: the distribution of what the rows are ordered by."""
    part, found = artifact.manifest.parameters["part"], {}
    if not artifact.manifest.facts["rows"]:
        return {}
    if part == "duplicates":
        found["rows_per_group"] = distribution_of_counts(np.bincount(np.bincount(artifact.array("group"))))
    name = "doubt" if part == "labels" else "similarity"
    return {**found, name: distribution(artifact.array(name))}

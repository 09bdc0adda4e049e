"""What users call the nodes of a graph and the test points: the ids that they imported, and the role of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadOption
from mmdiff.formats.store import Store
from mmdiff.formats.strings import Strings
from mmdiff.graph.graph import NAME as GRAPH
from mmdiff.ids import Ids, ids_of

_SHOWN = 3


@dataclass(frozen=True)
class Name:
    """A row of one of the roles, as its user knows it."""

    role: str
    id: int | str

    def __str__(self) -> str:
        return f"{self.role} {self.id}"


class Nodes:
    """The nodes of the graph of a store: background, seeds, test points if they are nodes. Rows without ids go by number."""

    def __init__(self, store: Store, order: NDArray[np.uint32] | None) -> None:
        facts = store.open_artifact(GRAPH).manifest.facts
        self._counts = {role: int(facts[role]) for role in ("background", "seeds", "test")}
        self._ids = {role: role_ids(store, role, count) for role, count in self._counts.items()}
        self._order = order

    def name(self, node: int) -> Name:
        row = node
        for role, count in self._counts.items():
            if row < count:
                if role == "background" and self._order is not None:
                    row = int(self._order[row])
                return Name("seed" if role == "seeds" else role, plain(self._ids[role], row))
            row -= count
        raise IndexError(node)


def role_ids(store: Store, role: str, count: int) -> Ids | range:
    """The ids of a role; those of an imported graph may have no descriptors, and then no ids either."""
    name = f"descriptors/{role}"
    return range(count) if store.id(name) is None else ids_of(store.open_artifact(name))


def plain(ids: Ids | range, row: int) -> int | str:
    value = ids[row]
    return value if isinstance(value, str) else int(value)


def find_row(ids: Ids | range, wanted: str) -> int:
    """The row of the test point that has this id."""
    rows = _rows(ids, wanted)
    if len(rows):
        return int(rows[0])
    known = ", ".join(str(plain(ids, row)) for row in range(min(_SHOWN, len(ids))))
    raise BadOption(f"--test {wanted}: no test point has this id. There are {len(ids):,}: {known}, ...")


def _rows(ids: Ids | range, wanted: str) -> NDArray[np.int64]:
    if isinstance(ids, Strings):
        text = np.frombuffer(wanted.encode(errors="surrogateescape"), np.uint8)
        alike = np.flatnonzero(np.diff(ids.offsets) == len(text))
        for place, byte in enumerate(text):
            alike = alike[ids.utf8[ids.offsets[alike] + place] == byte]
        return alike
    try:
        number = int(wanted)
    except ValueError:
        return np.empty(0, np.int64)
    if isinstance(ids, range):
        return np.array([number] if number in ids else [], np.int64)
    return np.flatnonzero(ids == number)

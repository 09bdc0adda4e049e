"""The neighbours of one row in the graph, with the similarity of their descriptors.

Only the row's own entries of the graph are read, and the descriptors at the other ends of its edges. A row that very many lists
name, a hub, shows some of its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmdiff.browsing.rows import TEST, AllRows, Place
from mmdiff.formats.errors import Damaged
from mmdiff.formats.storage.mapped_array import MappedArray
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.graph.graph import NAME as GRAPH
from mmdiff.kernels.constants import COLUMN, NONE

TEST_LISTS = "knn/test"

MOST_SHOWN = 60

# Edges of a row that are looked at.
_MOST_EDGES = 4096

# Entries of the order of nodes that are compared at a time.
_BLOCK = 1 << 22


@dataclass(frozen=True)
class Neighbour:
    """A row, and the inner product of its descriptor with the other one's; None where there are no descriptors."""

    place: Place
    similarity: float | None


class Neighbourhoods:
    """The rows of `graph/W`, in the user's numbers, and the lists of the test points."""

    def __init__(self, graph: Artifact, lists: Artifact | None, rows: AllRows) -> None:
        self.graph, self._rows = graph, rows
        facts = graph.manifest.facts
        self.nodes = int(facts["nodes"])
        self._tests = int(facts["test"])
        self._indptr, self._indices = graph["indptr"], graph["indices"]
        self._order: MappedArray | None = graph["order"] if "order" in graph.manifest.arrays else None
        self._lists = None if lists is None else lists["neighbors"]

    @classmethod
    def of(cls, store: Store, rows: AllRows) -> Neighbourhoods | None:
        """Those of the graph of a store; None where it has none, or one of other rows."""
        if store.id(GRAPH) is None:
            return None
        graph = store.open_artifact(GRAPH)
        facts, counts = graph.manifest.facts, rows.counts()
        if any(int(facts.get(role, 0)) != counts[role] for role in ("background", "appended", "seeds")):
            return None
        lists = None
        if store.id(TEST_LISTS) is not None and store.id(TEST) is not None:
            lists = store.open_artifact(TEST_LISTS)
            fits = lists.manifest.facts["nodes"] == graph.manifest.facts["nodes"]
            lists = lists if fits and lists.spec("neighbors").shape[0] == rows.total(True) else None
        return cls(graph, lists, rows)

    def of_row(self, place: Place) -> list[Neighbour]:
        """The neighbours of a row, the most similar ones first."""
        found = [each for each in self._places(place) if each != place]
        if not found:
            return []
        own, others = self._rows.vectors([place])[0], self._rows.vectors(found)
        similarities = (others @ own).astype(np.float64)
        order = np.argsort(-similarities, kind="stable")[:MOST_SHOWN]
        return [Neighbour(found[at], round(float(similarities[at]), 6)) for at in order.tolist()]

    def _places(self, place: Place) -> list[Place]:
        if place.test and self._lists is not None:
            listed = np.asarray(self._lists[place.row])
            return self._places_of(listed[listed != NONE].astype(np.int64))
        if place.test and not self._tests:
            return []
        node = self._node(place.row + (self.nodes - self._tests if place.test else 0))
        first, last = (int(offset) for offset in self._indptr[node : node + 2])
        if not 0 <= first <= last <= len(self._indices):
            raise Damaged(f"{self.graph.name}: row {node} has entries that do not exist. {self.graph.remedy}")
        entries = np.asarray(self._indices[first : min(last, first + _MOST_EDGES)])
        return self._places_of((entries & COLUMN).astype(np.int64))

    def _node(self, row: int) -> int:
        """The node of a row: where the order of the background's nodes names it."""
        if self._order is None or row >= len(self._order):
            return row
        for start in range(0, len(self._order), _BLOCK):
            hits = np.flatnonzero(self._order[start : start + _BLOCK] == row)
            if len(hits):
                return start + int(hits[0])
        raise Damaged(f"{self.graph.name}, array order: no node is row {row}. {self.graph.remedy}")

    def _places_of(self, nodes: NDArray[np.int64]) -> list[Place]:
        if len(nodes) and int(nodes.max()) >= self.nodes:
            raise Damaged(f"{self.graph.name}: an edge leads to node {int(nodes.max())}. {self.graph.remedy}")
        rows = nodes.copy()
        if self._order is not None and len(self._order):
            inside = nodes < len(self._order)
            rows[inside] = self._order[nodes[inside].tolist()] if inside.any() else rows[inside]
        first_test = self.nodes - self._tests
        return [Place(row - first_test, True) if row >= first_test else Place(row) for row in rows.tolist()]

    def place_of_node(self, node: int) -> Place:
        """The row of a node."""
        return self._places_of(np.array([node]))[0]

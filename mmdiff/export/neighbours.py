"""Lists of neighbours in the user's rows, in blocks, and the ids of these rows.

The lists are stored in cell order (`models/cells`), and `knn/W0` as a patch over `knn/BB`. They are read as the lists of all
nodes: the background rows as they were imported, then appended rows, seeds, and test points that are nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadOption, Damaged, Parameter, Stale, call
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.graph.graph import order_of
from mmdiff.graph.lists import ArrayLists, PatchedLists
from mmdiff.kernels.constants import NONE
from mmdiff.knn.csr import sorted_lists
from mmdiff.labels.collection import APPENDED, BACKGROUND, appended_rows, rows_of
from mmdiff.labels.ids import Ids, has_ids, ids_of, joined, take
from mmdiff.labels.rows_by_id import SEEDS
from mmdiff.runtime.staleness import require_current

TEST = "descriptors/test"


class ListBlock(NamedTuple):
    """The lists of rows `start`, `start + 1`, ...; neighbours are NONE, behind all others, where there are fewer than k."""

    start: int
    neighbors: NDArray[np.uint32]
    similarities: NDArray[np.float32]


@dataclass(frozen=True)
class UserLists:
    """The lists of an artifact. `order` has the background row of each node, None where nodes are rows already.

    The `rows` that have lists are the nodes themselves, or test points, which are not nodes (`of_nodes` is false).
    """

    artifact: Artifact
    lists: ArrayLists | PatchedLists
    order: NDArray[np.uint32] | None
    of_nodes: bool

    @classmethod
    def of(cls, artifact: Artifact, similarities: bool = True) -> UserLists:
        """The lists of an artifact, with those under it where it is a patch. Without `similarities` these are not read."""
        order = _cell_order(artifact)
        if "rows" in artifact:
            lists: ArrayLists | PatchedLists = PatchedLists.of(
                _input(artifact, "BB", "its lists are a patch over"), artifact, similarities
            )
        else:
            lists = ArrayLists.of(artifact, similarities)
        # The rows of test points are in the user's order already.
        of_nodes = artifact.manifest.parameters.get("lists") != "knn/test"
        if order is not None and of_nodes and len(order) > lists.nodes:
            raise Damaged(
                f"{artifact.name}: {lists.nodes} rows, but there are {len(order)} of the background. {artifact.remedy}"
            )
        return cls(artifact, lists, order, of_nodes)

    @property
    def rows(self) -> int:
        return self.lists.nodes

    @property
    def k(self) -> int:
        return self.lists.k

    @property
    def nodes(self) -> int:
        """The number of nodes, among which the neighbours were searched."""
        return int(self.artifact.manifest.facts["nodes"])

    def blocks(self, rows: int) -> Iterator[ListBlock]:
        """All lists, so many rows at a time."""
        node_of_row = np.arange(self.rows)
        if self.of_nodes and self.order is not None:
            node_of_row[: len(self.order)] = np.argsort(self.order)
        for start in range(0, self.rows, rows):
            neighbors, similarities = self.lists.take(node_of_row[start : start + rows])
            # The number after NONE is 0.
            if (neighbors + np.uint32(1)).max(initial=0) > self.nodes:
                name, remedy = self.artifact.name, self.artifact.remedy
                raise Damaged(f"{name}: lists that name more than the {self.nodes:,} nodes. {remedy}")
            yield ListBlock(start, self._user_rows(neighbors), similarities)

    def _user_rows(self, nodes: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """The rows of some nodes; NONE is above every node, and stays."""
        if self.order is None:
            return nodes
        order = self.order
        return np.where(nodes < len(order), order[np.minimum(nodes, len(order) - 1)], nodes)


def _cell_order(artifact: Artifact) -> NDArray[np.uint32] | None:
    """The background row of each node of some lists; None where the store's graph has no background."""
    if "cells" not in artifact.manifest.inputs:
        return None
    found = _input(artifact, "cells", "its nodes are in the order of")
    order = order_of(found)
    return None if order is None or not len(order) else order


def _input(artifact: Artifact, key: str, how: str) -> Artifact:
    """An input of some lists as it was when they were made."""
    store, name, identity = artifact.store, *(artifact.manifest.inputs[key][entry] for entry in ("artifact", "object"))
    if store.id(name) == identity:
        return store.open_artifact(name)
    if (store.objects / identity).is_dir():
        return store.open_object(name, identity)
    raise Stale(
        f"{artifact.name}: {how} a {name} that is no longer in the store. Run first: ",
        call("build_graph"),
        ". Or export it as it is stored, with ",
        Parameter("order", "internal"),
        ".",
    )


def missing(neighbors: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Where lists have no neighbour."""
    return np.asarray(neighbors == NONE)


def cosine_lists(lists: UserLists, block: ListBlock, self_loops: bool) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Lists by increasing cosine distance, 1 - the inner product, each with its own row first, or without it.

    Where there are fewer neighbours, -1 at distance +Inf is behind them.
    """
    itself = self_loops if lists.of_nodes else None
    distances = np.maximum(np.float32(1) - block.similarities, np.float32(0))
    neighbors, distances = sorted_lists(block.neighbors, distances, itself, block.start)
    distances[neighbors < 0] = np.inf
    width = lists.k - (itself is False)
    return neighbors[:, :width], distances[:, :width]


def require_nodes(lists: UserLists, what: str) -> None:
    """Refuses the lists of test points, where rows and neighbours must be numbered alike."""
    if not lists.of_nodes:
        raise BadOption(
            f"{lists.artifact.name}: its rows are test points, which are no nodes, so that there is no {what} of them. "
            "Export it as ",
            Parameter("format_", "edges"),
            " or ",
            Parameter("format_", "csr"),
            ".",
        )


def require_unit_length(lists: UserLists, format_: str) -> None:
    """Refuses lists of rows that are not of unit length: their inner products give no distances."""
    store = lists.artifact.store
    if not store.open_artifact("models/pca").manifest.parameters["normalize"]:
        raise BadOption(
            f"{lists.artifact.name}: its rows were not scaled to unit length, so that inner products give no distances, which "
            f"{format_} holds. Import the rows with ",
            Parameter("normalize", True),
            ", or export ",
            Parameter("format_", "edges"),
            ", whose weights are the inner products.",
        )


def parts_of_nodes(store: Store, nodes: int) -> list[Artifact]:
    """The descriptors of the nodes of a graph or of lists, in their order; none where the store has other rows."""
    background = [] if store.id(BACKGROUND) is None else [store.open_artifact(BACKGROUND)]
    appended = appended_rows(store)
    later = [store.open_artifact(name) for name in (SEEDS, TEST) if store.id(name) is not None]
    parts: list[Artifact] = []
    for part in [*background, *([] if appended is None else [appended]), *later]:
        if sum(map(rows_of, parts)) < nodes:
            parts.append(part)
    return parts if sum(map(rows_of, parts)) == nodes else []


@dataclass(frozen=True)
class RowIds:
    """The ids of rows: the user's, or row numbers where `parts` is empty."""

    parts: Sequence[Artifact]

    @classmethod
    def of_nodes(cls, store: Store, artifact: Artifact, nodes: int) -> RowIds:
        """The ids of the nodes of a graph or of lists.

        Row numbers are used unless every role that nodes come from has ids: the row numbers of one could be ids of another.
        """
        parts = parts_of_nodes(store, nodes)
        if not all(part.name == APPENDED or has_ids(part) for part in parts):
            return cls(())
        if parts:
            require_current(store, artifact)
        return cls(parts)

    @classmethod
    def of_tests(cls, store: Store, artifact: Artifact) -> RowIds:
        """The ids of test points."""
        tests = None if store.id(TEST) is None else store.open_artifact(TEST)
        if tests is None or not has_ids(tests):
            return cls(())
        require_current(store, artifact)
        return cls((tests,))

    @property
    def are_strings(self) -> bool:
        return any("ids_offsets" in part for part in self.parts)

    @cached_property
    def _ids(self) -> list[Ids | range]:
        return [ids_of(part) for part in self.parts]

    def take(self, rows: NDArray[np.int64]) -> Ids:
        """The ids of some rows, in their order."""
        if not self.parts:
            return rows
        firsts = np.cumsum([0, *(rows_of(part) for part in self.parts)])
        part_of = np.searchsorted(firsts, rows, "right") - 1
        found: Ids | None = None
        for number in range(len(self.parts)):
            inside = take(self._ids[number], rows[part_of == number] - firsts[number])
            found = inside if found is None else joined(found, inside)
        assert found is not None
        if len(self.parts) == 1:
            return found
        place = np.argsort(np.argsort(part_of, kind="stable"), kind="stable")
        return found.take(place) if isinstance(found, Strings) else found[place]

"""One pass over the lists of all nodes, for every part of the audit that reads them.

Blocks of lists are read and searched in threads; what is kept of them is put together in order, in a few bytes for each node:

    near-duplicates   the pairs of nodes with a similarity of at least `above`, united as they are found
    leaks             those pairs of which one node is evaluated on and the other one is labelled
    outliers          the mean similarity of each list, and the number of lists that name each node

A node in its own list is no pair, and does not count. The similarities are those of the lists: nothing is computed anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmdiff.auditing.lists import Lists, Rows
from mmdiff.graph.lists import Block
from mmdiff.graph.statistics import join
from mmdiff.kernels.constants import NONE
from mmdiff.kernels.jit import exact_kernel, kernel
from mmdiff.runtime.progress import Progress

# The similarity of a list that holds no other node than its own: that of opposite rows.
ALONE = np.float32(-1)


class Pairs(NamedTuple):
    """Nodes (or test points), nodes in their lists, and their similarities."""

    nodes: NDArray[np.int64]
    neighbors: NDArray[np.int64]
    similarities: NDArray[np.float32]

    def take(self, places: NDArray[np.bool_] | NDArray[np.int64]) -> Pairs:
        return Pairs(self.nodes[places], self.neighbors[places], self.similarities[places])

    def turned(self) -> Pairs:
        """The same pairs, seen from the other node."""
        return Pairs(self.neighbors, self.nodes, self.similarities)

    def followed_by(self, other: Pairs) -> Pairs:
        return Pairs(
            np.concatenate([self.nodes, other.nodes]),
            np.concatenate([self.neighbors, other.neighbors]),
            np.concatenate([self.similarities, other.similarities]),
        )

    def best(self) -> Pairs:
        """The most similar pair of each node, by increasing node; of equal ones the one with the smallest neighbour."""
        pairs = self.take(np.lexsort((self.neighbors, -self.similarities, self.nodes)))
        return pairs.take(np.diff(pairs.nodes, prepend=-1) > 0)

    @classmethod
    def none(cls) -> Pairs:
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))


class Groups(NamedTuple):
    """Groups of near-duplicates as they grow: a forest whose roots are the smallest nodes of their groups.

    Nodes that are in no pair have no `links`. `nearest` is the largest similarity of each node in a pair.
    """

    parents: NDArray[np.uint32]
    links: NDArray[np.uint32]
    nearest: NDArray[np.float32]

    @classmethod
    def empty(cls, nodes: int) -> Groups:
        return cls(np.arange(nodes, dtype=np.uint32), np.zeros(nodes, np.uint32), np.full(nodes, ALONE, np.float32))

    @property
    def grouped(self) -> NDArray[np.int64]:
        """The nodes that are in a group, by number."""
        return np.flatnonzero(self.links)


@dataclass
class Matches:
    """The most similar labelled row of each row that is evaluated on, among the pairs that were added; `best` has rows.

    The masks are of nodes. Of equally similar rows the first one counts.
    """

    rows: Rows
    evaluated: NDArray[np.bool_]
    labelled: NDArray[np.bool_]
    best: Pairs = field(default_factory=Pairs.none)

    def add(self, pairs: Pairs) -> None:
        """Adds the pairs of which one node is evaluated on and the other one labelled, whichever list they are in."""
        for each in (pairs, pairs.turned()):
            found = each.take(self.evaluated[each.nodes] & self.labelled[each.neighbors])
            self._keep(Pairs(self.rows.of_nodes(found.nodes), self.rows.of_nodes(found.neighbors), found.similarities))

    def add_test_points(self, pairs: Pairs) -> None:
        """Adds pairs of test points, by their number, and labelled nodes."""
        found = pairs.take(self.labelled[pairs.neighbors])
        rows = self.rows.first_test + found.nodes
        self._keep(Pairs(rows, self.rows.of_nodes(found.neighbors), found.similarities))

    def _keep(self, found: Pairs) -> None:
        if len(found.nodes):
            self.best = self.best.followed_by(found).best()


@dataclass
class Scan:
    """The values that a pass collects for each node; those that are not wanted are empty."""

    groups: Groups
    matches: Matches | None
    means: NDArray[np.float32]
    named: NDArray[np.uint32]

    @classmethod
    def of(cls, nodes: int, *, groups: bool, matches: Matches | None, outliers: bool) -> Scan:
        own = nodes if outliers else 0
        return cls(Groups.empty(nodes if groups else 0), matches, np.empty(own, np.float32), np.zeros(own, np.uint32))

    def run(self, lists: Lists, above: float, progress: Progress) -> None:
        """Reads all lists once."""
        grouping, ranking = len(self.groups.parents) > 0, len(self.means) > 0

        def work(start: int, block: Block) -> tuple[int, Block, Pairs]:
            if ranking:
                self.means[start : start + len(block[0])] = mean_similarities(*block, start)
            return start, block, near_pairs(*block, start, above) if grouping or self.matches is not None else Pairs.none()

        for start, block, pairs in lists.blocks(work, "auditing lists", progress):
            if grouping:
                unite(pairs, *self.groups)
            if self.matches is not None:
                self.matches.add(pairs)
            if ranking:
                count_named(block[0], start, self.named)


def near_pairs(
    neighbors: NDArray[np.uint32], similarities: NDArray[np.float32], first: int, above: float, *, nodes: bool = True
) -> Pairs:
    """The pairs with a similarity of at least `above` in a block of lists, the first of which is that of node `first`.

    Without `nodes` the lists are of points that are no nodes, so that every entry is another one.
    """
    places = np.empty(neighbors.size, np.int64)
    own = first if nodes else -len(neighbors)
    found = places[: find_near(neighbors, similarities, own, np.float32(above), places)]
    rows, columns = np.divmod(found, neighbors.shape[1])
    return Pairs(first + rows, neighbors[rows, columns].astype(np.int64), similarities[rows, columns])


@kernel
def find_near(
    neighbors: NDArray[np.uint32], similarities: NDArray[np.float32], first: int, above: np.float32, places: NDArray[np.int64]
) -> int:
    """Writes the places of the entries of at least `above` that are other nodes, row after row, and returns their number."""
    count = 0
    for row in range(neighbors.shape[0]):
        for j in range(neighbors.shape[1]):
            other = neighbors[row, j]
            if similarities[row, j] >= above and other != NONE and np.int64(other) != first + row:
                places[count] = row * neighbors.shape[1] + j
                count += 1
    return count


@exact_kernel
def mean_similarities(neighbors: NDArray[np.uint32], similarities: NDArray[np.float32], first: int) -> NDArray[np.float32]:
    """The mean similarity of each list of a block, without the node itself; ALONE where there is no other."""
    means = np.empty(neighbors.shape[0], np.float32)
    for row in range(neighbors.shape[0]):
        total, count = 0.0, 0
        for j in range(neighbors.shape[1]):
            other = neighbors[row, j]
            if other != NONE and np.int64(other) != first + row:
                total += similarities[row, j]
                count += 1
        means[row] = total / count if count else ALONE
    return means


@kernel
def count_named(neighbors: NDArray[np.uint32], first: int, named: NDArray[np.uint32]) -> None:
    """Counts the lists of a block that name each node, without its own."""
    for row in range(neighbors.shape[0]):
        for j in range(neighbors.shape[1]):
            other = neighbors[row, j]
            if other != NONE and np.int64(other) != first + row:
                named[other] += np.uint32(1)


@kernel
def unite(pairs: Pairs, parents: NDArray[np.uint32], links: NDArray[np.uint32], nearest: NDArray[np.float32]) -> None:
    """Joins the nodes of all pairs. The root of a group is its smallest node, so that groups do not depend on the order."""
    for i in range(len(pairs.nodes)):
        a, b = np.uint32(pairs.nodes[i]), np.uint32(pairs.neighbors[i])
        for node in (a, b):
            links[node] += np.uint32(1)
            nearest[node] = max(nearest[node], pairs.similarities[i])
        join(parents, a, b)


@kernel
def roots_of(parents: NDArray[np.uint32], nodes: NDArray[np.int64]) -> NDArray[np.uint32]:
    """The root of the group of each node."""
    roots = np.empty(len(nodes), np.uint32)
    for i in range(len(nodes)):
        root = np.uint32(nodes[i])
        while parents[root] != root:
            root = parents[root]
        roots[i] = root
    return roots


def ordered_groups(
    rows: NDArray[np.int64], roots: NDArray[np.uint32], links: NDArray[np.uint32]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """The places of rows in the order of their groups, the number of each one's group, and whether it represents it.

    The largest group comes first, of equally large ones that with the first row. The row with the most links represents its
    group, of several the first one; it comes first, and the others follow by row.
    """
    distinct, own, sizes = np.unique(roots, return_inverse=True, return_counts=True)
    first = np.full(len(distinct), np.iinfo(np.int64).max)
    np.minimum.at(first, own, rows)
    rank = np.empty(len(distinct), np.int64)
    rank[np.lexsort((first, -sizes))] = np.arange(len(distinct))
    group = rank[own]
    by_links = np.lexsort((rows, -links.astype(np.int64), group))
    represents = np.zeros(len(rows), np.uint8)
    represents[by_links[np.diff(group[by_links], prepend=-1) > 0]] = 1
    order = np.lexsort((rows, 1 - represents, group))
    return order, group[order], represents[order]

"""Neighbour lists that all draws of a group and background share, and the merge of a draw's seeds (paper, section 3.5).

The background and the base seeds depend neither on n nor on the draw, so their lists are searched once, exactly; so are the
lists of the test points. In-domain, all images of the novel classes are nodes, drawn or not: the graph is the same for every
draw, and only the labels change. The PCA is fitted to the background, as an import does, or to the base seeds without one.
In-domain, drawn images count as background for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.experiment.config import Background
from mmdiff.experiment.protocol import Ids, Protocol
from mmdiff.importing.space import Space
from mmdiff.kernels.constants import NONE
from mmdiff.knn.search.flat import search_flat
from mmdiff.knn.search.outside import entering
from mmdiff.knn.search.topk import Lists, merge
from mmdiff.runtime.progress import silent
from mmdiff.runtime.threads import in_threads

# Queries per block and thread.
_BLOCK_ROWS = 1024


@dataclass(frozen=True)
class Nodes:
    """The nodes of a graph: the training image of each, the list of each, and the lists of the test points."""

    rows: Ids
    lists: Lists
    test_lists: Lists


@dataclass(frozen=True)
class SharedLists:
    """Background, base seeds and test points in one space, with their lists: the part that no draw changes."""

    protocol: Protocol
    background: Background
    space: Space
    vectors: NDArray[np.float32]
    test: NDArray[np.float32]
    nodes: Nodes

    @classmethod
    def make(cls, protocol: Protocol, background: Background, dims: int, k: int) -> SharedLists:
        """Searches the k nearest neighbours of each row, or all rows where there are fewer."""
        rows = np.concatenate([protocol.background(background), protocol.base])
        train, tests = protocol.data.train, protocol.data.test[protocol.tests]
        space = Space.make(_RowsInMemory(train[protocol.sample(background)]), dims, True, silent)
        vectors, test = (_project(space, some) for some in (train[rows], tests))
        lists = nearest(vectors, vectors, k)
        nodes = Nodes(rows, lists, nearest(test, vectors, k))
        return cls(protocol=protocol, background=background, space=space, vectors=vectors, test=test, nodes=nodes)

    @property
    def draws_matter(self) -> bool:
        """Whether the graph depends on the draw."""
        return self.background.kind != "in-domain"

    def with_draw(self, drawn: Ids) -> Nodes:
        """All nodes including the seeds of a draw. The lists equal those of one search over all nodes."""
        if not self.draws_matter:
            return self.nodes
        new = _project(self.space, self.protocol.data.train[drawn])
        old, first = self.nodes.lists, len(self.vectors)
        k = old[0].shape[1]
        updated = in_blocks(
            len(self.vectors),
            lambda start, stop: merge(
                (old[0][start:stop], old[1][start:stop]),
                entering(self.vectors[start:stop], old[1][start:stop, -1], new, first, k),
            ),
        )
        among_new = _shifted(nearest(new, new, k), first)
        of_new = merge(nearest(new, self.vectors, k), among_new)
        lists = (np.concatenate([updated[0], of_new[0]]), np.concatenate([updated[1], of_new[1]]))
        test_lists = merge(self.nodes.test_lists, _shifted(nearest(self.test, new, k), first))
        return Nodes(np.concatenate([self.nodes.rows, drawn]), lists, test_lists)


def nearest(queries: NDArray[np.float32], vectors: NDArray[np.float32], k: int) -> Lists:
    """The k nearest vectors of each query, by exact search on all cores."""
    return in_blocks(len(queries), lambda start, stop: search_flat(queries[start:stop], vectors, k))


def in_blocks(rows: int, work: Any) -> Lists:
    """The lists of all rows; `work(start, stop)` gives those of a block."""
    starts = range(0, rows, _BLOCK_ROWS)
    parts = list(in_threads(lambda start: work(start, min(start + _BLOCK_ROWS, rows)), starts))
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _shifted(lists: Lists, first: int) -> Lists:
    """Lists with node numbers increased by `first`."""
    return np.where(lists[0] == NONE, NONE, lists[0] + np.uint32(first)), lists[1]


def _project(space: Space, rows: NDArray[Any]) -> NDArray[np.float32]:
    return space.project(rows.astype(np.float32), lambda row: f"image {row}")


class _RowsInMemory:
    """An array as a source of rows, for the PCA."""

    name = "the background"
    files: tuple[Path, ...] = ()

    def __init__(self, values: NDArray[Any]) -> None:
        self.values, self.dtype = values, values.dtype
        self.rows, self.width = values.shape

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return self.values[start:stop].copy()

    def locate(self, row: int) -> str:
        return f"background, row {row}"

    def ids(self) -> None:
        return None

"""The lists of neighbours that all draws share, and how the few seeds of a draw enter them (paper, section 3.5).

The background and the base seeds do not depend on n or on the draw, so their lists are found once, exactly, for each group and
background; so are those of the test points. In-domain, all images of the novel classes are nodes whether they are drawn or not:
there the graph is the same for every draw, and only the labels change. The PCA is made from the background, as `mmdiff import`
makes it, and without one from the base seeds. In-domain the drawn images count as background for it.
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

# Rows that a thread searches for at a time.
_BLOCK_ROWS = 1024


@dataclass(frozen=True)
class Nodes:
    """All nodes of a graph: which training image each is, its list, and the lists of the test points."""

    rows: Ids
    lists: Lists
    test_lists: Lists


@dataclass(frozen=True)
class Ground:
    """What is there whoever is drawn: background, base seeds and test points in one space, with their lists."""

    protocol: Protocol
    background: Background
    space: Space
    vectors: NDArray[np.float32]
    test: NDArray[np.float32]
    nodes: Nodes

    @classmethod
    def make(cls, protocol: Protocol, background: Background, dims: int, k: int) -> Ground:
        """The lists of the k nearest neighbours, or of as many nodes as there are."""
        rows = np.concatenate([protocol.background(background), protocol.base])
        train, tests = protocol.data.train, protocol.data.test[protocol.tests]
        space = Space.make(_Some(train[protocol.sample(background)]), dims, True, silent)
        vectors, test = (_project(space, some) for some in (train[rows], tests))
        lists = nearest(vectors, vectors, k)
        return cls(protocol, background, space, vectors, test, Nodes(rows, lists, nearest(test, vectors, k)))

    @property
    def draws_matter(self) -> bool:
        """Whether the graph depends on who is drawn."""
        return self.background.kind != "in-domain"

    def joined(self, drawn: Ids) -> Nodes:
        """The nodes with the seeds of a draw among them, exactly as if all had been searched for at once."""
        if not self.draws_matter:
            return self.nodes
        new = _project(self.space, self.protocol.data.train[drawn])
        own, border = self.nodes.lists, len(self.vectors)
        k = own[0].shape[1]
        entered = in_blocks(
            len(self.vectors),
            lambda start, stop: merge(
                (own[0][start:stop], own[1][start:stop]),
                entering(self.vectors[start:stop], own[1][start:stop, -1], new, np.arange(len(new)), border, k),
            ),
        )
        among_new = _shifted(nearest(new, new, k), border)
        joining = merge(nearest(new, self.vectors, k), among_new)
        lists = (np.concatenate([entered[0], joining[0]]), np.concatenate([entered[1], joining[1]]))
        test_lists = merge(self.nodes.test_lists, _shifted(nearest(self.test, new, k), border))
        return Nodes(np.concatenate([self.nodes.rows, drawn]), lists, test_lists)


def nearest(queries: NDArray[np.float32], vectors: NDArray[np.float32], k: int) -> Lists:
    """The k nearest of some vectors to each query, exactly, on all cores."""
    return in_blocks(len(queries), lambda start, stop: search_flat(queries[start:stop], vectors, k))


def in_blocks(rows: int, work: Any) -> Lists:
    """Lists of all rows, block by block on all cores."""
    starts = range(0, rows, _BLOCK_ROWS)
    parts = list(in_threads(lambda start: work(start, min(start + _BLOCK_ROWS, rows)), starts))
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _shifted(lists: Lists, first: int) -> Lists:
    """Lists whose nodes are numbered from `first` on."""
    return np.where(lists[0] == NONE, NONE, lists[0] + np.uint32(first)), lists[1]


def _project(space: Space, rows: NDArray[Any]) -> NDArray[np.float32]:
    return space.project(rows.astype(np.float32), lambda row: f"image {row}")


class _Some:
    """Rows in memory as a source, for the PCA."""

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

"""Small lists of neighbours and graphs for the tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from hypothesis import strategies as st
from numpy.typing import NDArray

from mmdiff.formats.store.manifest import Recipe
from mmdiff.formats.store.publish import Publication
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.graph import symmetrise as stage
from mmdiff.graph.graph import CsrGraph
from mmdiff.graph.lists import ArrayLists, Lists
from mmdiff.graph.symmetrise import symmetrise
from mmdiff.graph.weights import Weighting
from mmdiff.kernels.constants import NONE
from mmdiff.runtime.progress import Progress, silent

ENOUGH = 4 << 30


@dataclass(frozen=True)
class SomeLists:
    """Neighbours and similarities, as a search returns them."""

    neighbors: NDArray[np.uint32]
    similarities: NDArray[np.float32]

    @property
    def lists(self) -> ArrayLists:
        return ArrayLists(self.neighbors, self.similarities)


def some_lists(nodes: int, k: int, seed: int = 0, self_loops: bool = True, none: float = 0.1, empty: float = 0.1) -> SomeLists:
    """Lists with duplicates; a share of the entries is NONE, and so is a share of whole rows."""
    draw = np.random.default_rng(seed)
    near = np.arange(nodes)[:, None] + np.rint(draw.standard_normal((nodes, k)) * max(2, k))
    neighbors = np.where(draw.random((nodes, k)) < 0.3, draw.integers(0, nodes, (nodes, k)), near.astype(np.int64) % nodes)
    if self_loops:
        neighbors[:, 0] = np.arange(nodes)
    gone = (draw.random((nodes, k)) < none) | (draw.random((nodes, 1)) < empty)
    similarities = np.where(gone, -np.inf, -np.sort(-draw.uniform(-1, 1, (nodes, k)), axis=1))
    return SomeLists(np.where(gone, NONE, neighbors).astype(np.uint32), similarities.astype(np.float32))


def completed_lists(store: Store) -> SomeLists:
    """The lists of all nodes, from `knn/BB` and `knn/W0`, row by row."""
    W0 = store.open_artifact("knn/W0")
    if "rows" not in W0:
        return SomeLists(W0.array("neighbors"), W0.array("similarities"))
    BB, shape = store.open_artifact("knn/BB"), (W0.facts["nodes"], W0.spec("neighbors").shape[1])
    lists = SomeLists(np.full(shape, NONE, np.uint32), np.full(shape, np.nan, np.float32))
    for artifact, rows in ((BB, range(BB.facts["nodes"])), (W0, W0.array("rows").tolist())):
        for place, row in enumerate(rows):
            lists.neighbors[row], lists.similarities[row] = (
                artifact.array(name)[place] for name in ("neighbors", "similarities")
            )
    return lists


lists_of_all_kinds = st.builds(
    some_lists,
    nodes=st.integers(1, 70),
    k=st.integers(1, 12),
    seed=st.integers(0, 1 << 16),
    self_loops=st.booleans(),
    none=st.sampled_from([0, 0.2, 1]),
    empty=st.sampled_from([0, 0.3]),
)


def make_graph(
    path: Path, lists: Lists, weighting: Weighting | None = None, memory: int = ENOUGH, progress: Progress = silent
) -> Artifact:
    """Makes the graph of some lists in a store, or continues an interrupted run."""
    with Publication(path, ["graph/W"], "a test") as publication:
        draft = publication.draft("graph/W", Recipe("graph", 1, {}, {}))
        facts = symmetrise(lists, draft, memory, progress, weighting)
        roles = {"background": facts["nodes"], "seeds": 0, "test": 0}
        artifact = publication.publish(draft, facts | roles, {"command": "a test"})
        publication.link({"graph/W": artifact})
    return Store.open(path).open_artifact("graph/W")


def anew(path: Path) -> Path:
    """The same path, with nothing at it."""
    shutil.rmtree(path, ignore_errors=True)
    return path


@contextmanager
def pieces_of(block_edges: int, range_edges: int) -> Iterator[None]:
    """Makes blocks and ranges small, so that small graphs have several."""
    before: Any = (stage.BLOCK_EDGES, stage.MOST_EDGES)
    stage.BLOCK_EDGES, stage.MOST_EDGES = block_edges, range_edges
    try:
        yield
    finally:
        stage.BLOCK_EDGES, stage.MOST_EDGES = before


def some_graph(nodes: int, k: int, seed: int = 0, weighted: bool = False, self_loops: bool = True) -> CsrGraph:
    """A graph with empty rows, isolated nodes, and edges that are reciprocal or not."""
    neighbors = some_lists(nodes, k, seed, self_loops).neighbors
    matrix = np.zeros((nodes, nodes))
    for row, own in enumerate(neighbors):
        matrix[row, own[own != NONE]] = 1
    if weighted:
        matrix *= np.random.default_rng(seed).random((nodes, nodes)) + 0.01
    return CsrGraph.from_scipy(scipy.sparse.csr_array(matrix))

"""The on-line completion of the graph with points that join it: `knn/W0` and `knn/test` (paper, 3.5 and the supplement).

    W0 = [ W_BB  W_BL ]     rows of the background: their lists in `knn/BB`, which points enter
         [ W_LB  W_LL ]     rows of the points: nearest background nodes and nearest points, merged

Nodes are the background in cell order, then the points: rows that were appended to the background, the seeds and, when
transductive, the test points. `knn/W0` is a patch over `knn/BB`: the lists that a point enters, and those of the points. So new
points do not write the lists of all rows again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.store.growing import Growth
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.publish import Draft
from mmdiff.kernels.constants import NONE
from mmdiff.knn.background import ListWriter, Searchers, rows_per_chunk
from mmdiff.knn.cells.order import Cells
from mmdiff.knn.search.devices import CORES, PIECE_ROWS
from mmdiff.knn.search.outside import Entrance, Probe
from mmdiff.knn.search.topk import Lists, merge
from mmdiff.knn.targets import all_reached
from mmdiff.runtime.progress import Progress
from mmdiff.runtime.threads import in_threads

# The patch is checkpointed each time this share of all nodes is done.
_CHECKPOINTS = 16


@dataclass(frozen=True)
class Background:
    """The off-line part of the graph: the background in cell order, and its lists."""

    cells: Cells
    BB: Lists


@dataclass(frozen=True)
class Nodes:
    """All nodes: the background, if there is one, and the points that join it.

    These are appended rows, then seeds, then test points when transductive.
    """

    background: Background | None
    points: NDArray[Any]
    k: int
    recall: float
    seed: int

    @property
    def border(self) -> int:
        """The first id after the background."""
        return 0 if self.background is None else len(self.background.cells.vectors)

    @property
    def count(self) -> int:
        return self.border + len(self.points)

    def probe(self, points: NDArray[Any]) -> Probe | None:
        if self.background is None:
            return None
        return Probe(self.background.cells, self.background.BB[0], points, self.recall, self.seed)

    def nearest(self, queries: NDArray[Any], probe: Probe | None) -> Lists:
        """The k nearest of all nodes to points outside the background: [W_LB W_LL], or the lists of test points."""
        device = CORES if self.background is None else self.background.cells.device
        neighbors, similarities = device.nearest(queries, self.points, self.k)
        neighbors[neighbors != NONE] += np.uint32(self.border)
        return (neighbors, similarities) if probe is None else merge(probe.find(queries), (neighbors, similarities))


class Patch(NamedTuple):
    """Lists of some nodes, by increasing number."""

    rows: NDArray[np.uint32]
    neighbors: NDArray[np.uint32]
    similarities: NDArray[np.float32]


def write_W0(draft: Draft, nodes: Nodes, threads: int, progress: Progress) -> Json:
    """Writes the lists that differ from those of the background, or all where there is none; returns the facts.

    Lists are shorter than k only if there are fewer nodes.
    """
    what = "completing the graph"
    if nodes.background is None:
        writer = ListWriter.declare(draft.array, nodes.count, nodes.k)
        writer.fill(lambda start, stop: nodes.nearest(nodes.points[start:stop], None), what, progress, Searchers(threads))
        return {"nodes": nodes.count, "rows": nodes.count}
    probe = Probe(nodes.background.cells, nodes.background.BB[0], nodes.points, nodes.recall, nodes.seed)
    entrance = Entrance(nodes.background.cells, nodes.background.BB, nodes.points, nodes.recall, nodes.seed)

    def lists(piece: tuple[int, int]) -> Patch:
        start, stop = piece
        if start < nodes.border:
            return _changed(start, entrance.BB, entrance.of(start, stop))
        found = nodes.nearest(nodes.points[start - nodes.border : stop - nodes.border], probe)
        return Patch(np.arange(start, stop, dtype=np.uint32), *found)

    dtypes = {"rows": "uint32", "neighbors": "uint32", "similarities": "float32"}
    widths = {"neighbors": nodes.k, "similarities": nodes.k}
    with progress(what, nodes.count, "rows") as advance, Growth(draft, dtypes, widths) as growth:
        done = growth.note.get("nodes", 0)
        advance(done)
        pieces = [piece for piece in pieces_of(nodes.border, nodes.count, nodes.k) if piece[1] > done]
        for (start, stop), patch in zip(pieces, in_threads(lists, pieces, threads), strict=True):
            for name, values in patch._asdict().items():
                growth.append(name, values)
            if stop * _CHECKPOINTS // nodes.count > start * _CHECKPOINTS // nodes.count:
                growth.checkpoint({"nodes": stop})
            advance(stop - start)
        growth.close()
        written = growth.arrays["rows"].spec.shape[0]
    facts: Json = {"nodes": nodes.count, "background": nodes.border, "rows": written}
    return facts | {"W_LB": probe.facts, "W_BL": entrance.facts, **all_reached(probe.facts, entrance.facts)}


def pieces_of(border: int, nodes: int, k: int) -> list[tuple[int, int]]:
    """The work units of a patch: pieces of the background, and pieces of the nodes after it, enough for all cores."""
    pieces = []
    for first, last in ((0, border), (border, nodes)):
        size = min(PIECE_ROWS, rows_per_chunk(last - first, k))
        pieces += [(start, min(start + size, last)) for start in range(first, last, size)]
    return pieces


def _changed(start: int, BB: Lists, entering: Lists) -> Patch:
    """The lists of the background from row `start` on that points enter."""
    which = np.flatnonzero(entering[0][:, 0] != NONE)
    rows = start + which
    merged = merge((BB[0][rows], BB[1][rows]), (entering[0][which], entering[1][which]))
    return Patch(rows.astype(np.uint32), *merged)


def write_test(draft: Draft, nodes: Nodes, test: NDArray[Any], threads: int, progress: Progress) -> Json:
    """Writes the lists of the test points; no list of a node holds a test point (paper, section 3.2)."""
    probe = nodes.probe(test)
    writer = ListWriter.declare(draft.array, len(test), nodes.k)
    what = "finding neighbours of test points"
    writer.fill(lambda start, stop: nodes.nearest(test[start:stop], probe), what, progress, Searchers(threads))
    return {"nodes": nodes.count, "rows": len(test)} | (
        {} if probe is None else {"W_test": probe.facts, **all_reached(probe.facts)}
    )

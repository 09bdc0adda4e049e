"""The on-line completion of the graph with seeds and test points: `knn/W0` and `knn/test` (paper, 3.5 and the supplement).

    W0 = [ W_BB  W_BL ]     rows of the background: their lists in `knn/BB`, which seeds enter
         [ W_LB  W_LL ]     rows of the seeds: nearest background nodes and nearest seeds, merged

Nodes are the background in cell order, then the seeds, then, when transductive, the test points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.publish import Draft
from mmdiff.kernels.constants import NONE
from mmdiff.knn.background import ListWriter, Searchers
from mmdiff.knn.cells.order import Cells
from mmdiff.knn.search.devices import CORES
from mmdiff.knn.search.outside import Entrance, Probe
from mmdiff.knn.search.topk import Lists, merge
from mmdiff.knn.targets import all_reached
from mmdiff.runtime.progress import Progress


@dataclass(frozen=True)
class Background:
    """The off-line part of the graph: the background in cell order, and its lists."""

    cells: Cells
    BB: Lists


@dataclass(frozen=True)
class Nodes:
    """All nodes: the background, if there is one, and the points that join it (seeds, and test points when transductive)."""

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


def write_W0(draft: Draft, nodes: Nodes, threads: int, progress: Progress) -> Json:
    """Writes the lists of all nodes; returns the facts. Lists are shorter than k only if there are fewer nodes."""
    facts: Json = {"nodes": nodes.count, "rows": nodes.count}
    probe, entrance = nodes.probe(nodes.points), None
    if nodes.background is not None and probe is not None:
        entrance = Entrance(nodes.background.cells, nodes.background.BB, nodes.points, nodes.recall, nodes.seed)
        facts |= {"W_LB": probe.facts, "W_BL": entrance.facts, **all_reached(probe.facts, entrance.facts)}

    def rows(start: int, stop: int) -> Lists:
        parts = []
        border = min(max(nodes.border, start), stop)
        if nodes.background is not None and entrance is not None and start < border:
            own = (lists[start:border] for lists in nodes.background.BB)
            parts.append(merge(tuple(own), entrance.of(start, border)))  # type: ignore[arg-type]
        if border < stop:
            parts.append(nodes.nearest(nodes.points[border - nodes.border : stop - nodes.border], probe))
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    ListWriter.declare(draft.array, nodes.count, nodes.k).fill(rows, "completing the graph", progress, Searchers(threads))
    return facts


def write_test(draft: Draft, nodes: Nodes, test: NDArray[Any], threads: int, progress: Progress) -> Json:
    """Writes the lists of the test points; no list of a node holds a test point (paper, section 3.2)."""
    probe = nodes.probe(test)
    writer = ListWriter.declare(draft.array, len(test), nodes.k)
    what = "finding neighbours of test points"
    writer.fill(lambda start, stop: nodes.nearest(test[start:stop], probe), what, progress, Searchers(threads))
    return {"nodes": nodes.count, "rows": len(test)} | (
        {} if probe is None else {"W_test": probe.facts, **all_reached(probe.facts)}
    )

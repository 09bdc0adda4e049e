"""Back-tracking: the path of largest terms that a score comes from, one node per iteration (paper, "Qualitative results").

A score is a sum over the nodes of a test point's list. An entry of S_t is a sum over the neighbours of its row, of W times
S_{t-1}, plus a share of the node's own label if it is a seed. From the test point back to iteration 0 the largest term is
followed. The operators (eta, Gamma) scale or raise whole entries, so they leave the shares within a sum alone. S is in
sqrt-degree units where the graph is symmetric, as the diffusion iterates it; in these units the product is that of W.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.engine.run import Diffusion, IterationResult
from mmdiff.diffusion.engine.states import SomeRows, sqrt_degrees_of
from mmdiff.diffusion.io.graph_stream import Stream
from mmdiff.diffusion.seeds import Seeds
from mmdiff.diffusion.variant import Variant
from mmdiff.formats.errors import BadOption, Parameter
from mmdiff.graph.graph import CsrGraph
from mmdiff.kernels.constants import COLUMN, NONE

# Memory for S after every iteration, in batches of at least one class.
STATE_BYTES = 1 << 30
COUPLED_WIDTH = 96


@dataclass(frozen=True)
class Question:
    """A class whose path to a test point is wanted."""

    point: int
    column: int


@dataclass(frozen=True)
class Step:
    """A node after an iteration, and its share of the entry (or the score) that the next step follows."""

    node: int
    iteration: int
    share: float


@dataclass(frozen=True)
class Path:
    """Steps from a seed to a node of the point's list. `own` is the share of the seed's own label in its first entry."""

    steps: tuple[Step, ...]
    own: float


@dataclass(frozen=True)
class Spreading:
    """The inputs of a diffusion whose paths are wanted. Columns are those of `seeds`."""

    graph: CsrGraph
    seeds: Seeds
    variant: Variant
    prior: NDArray[np.float64]
    iterations: int
    neighbors: NDArray[np.uint32]


def find_paths(spreading: Spreading, questions: Sequence[Question]) -> dict[Question, Path | None]:
    """The path for each question; None where no label of the class reaches the point."""
    points = np.unique([question.point for question in questions])
    wanted = np.unique([question.column for question in questions])
    found: dict[Question, Path | None] = {}
    with Stream(spreading.graph) as stream:
        diffusion, columns = _diffusion(spreading, stream, spreading.neighbors[points], wanted)
        kept: dict[tuple[int, int], NDArray[np.float32]] = {}
        for result in diffusion.results():
            own = columns[diffusion.columns(result.batch)]
            places = np.flatnonzero(np.isin(own, wanted))
            kept[result.batch, result.iteration] = _values(result, spreading.graph.nodes)[:, places]
            if result.iteration < spreading.iterations:
                continue
            states = [kept.pop((result.batch, iteration)) for iteration in range(spreading.iterations + 1)]
            for place, column in enumerate(own[places].tolist()):
                tracer = _Tracer(spreading, column, [state[:, place] for state in states], result.rows)
                for question in questions:
                    if question.column == column:
                        found[question] = tracer.trace(spreading.neighbors[question.point])
    return found


def _diffusion(
    spreading: Spreading, stream: Stream, neighbors: NDArray[np.uint32], wanted: NDArray[np.int64]
) -> tuple[Diffusion, NDArray[np.int64]]:
    """The diffusion of the wanted columns, or of all where classes are coupled, and the columns that it has."""
    seeds, prior, variant = spreading.seeds, spreading.prior, spreading.variant
    nodes, iterations = spreading.graph.nodes, spreading.iterations
    column_bytes = 4 * nodes * (iterations + 1)
    if variant.coupled:
        taken = 8 * nodes * seeds.classes + column_bytes * len(wanted)
        if taken > 4 * STATE_BYTES:
            raise BadOption(
                Parameter("eta", variant.eta),
                f" couples the classes: to trace one, all {seeds.classes:,} are computed, in {taken / 2**30:.1f} GiB of "
                f"memory where {4 * STATE_BYTES / 2**30:.0f} are allowed. Explain a diffusion with ",
                Parameter("eta", "column"),
                " instead.",
            )
        columns, width = np.arange(seeds.classes), min(COUPLED_WIDTH, seeds.classes)
    else:
        columns, width = wanted, max(1, min(len(wanted), STATE_BYTES // column_bytes))
        seeds, prior = seeds.select(columns), prior[columns]
    diffusion = Diffusion(
        stream=stream,
        seeds=seeds,
        variant=variant,
        prior=prior,
        iterations=iterations,
        width=width,
        neighbors=neighbors,
    )
    return diffusion, columns


def _values(result: IterationResult, nodes: int) -> NDArray[np.float32]:
    """A batch of S as a dense array; rows that were not computed are zero."""
    state = result.state
    if not isinstance(state, SomeRows):
        return state.block(0, nodes)
    values = np.zeros((nodes, state.width), np.float32)
    values[state.rows] = state.computed()
    return values


class _Tracer:
    """Follows one class back from iteration T to 0. `rows` are the factors of the rows of S in the sum of a point's list."""

    def __init__(
        self, spreading: Spreading, column: int, states: Sequence[NDArray[np.float32]], rows: NDArray[np.float32] | None
    ) -> None:
        self.graph, self.variant, self.states, self.rows = spreading.graph, spreading.variant, states, rows
        self.alpha = 1.0 if spreading.variant.alpha is None else spreading.variant.alpha
        sqrt_degrees = sqrt_degrees_of(spreading.graph.scale) if spreading.variant.normalize_graph == "symmetric" else None
        self.all_seeds = spreading.seeds.nodes
        nodes, _, values = spreading.seeds.select(np.array([column])).in_units_of(sqrt_degrees).entries
        self.labels = dict(zip(nodes.tolist(), values.tolist(), strict=True))

    def trace(self, neighbors: NDArray[np.uint32]) -> Path | None:
        nodes, times = np.unique(neighbors[neighbors != NONE].astype(np.int64), return_counts=True)
        terms = times * self.states[-1][nodes].astype(np.float64)
        if self.rows is not None:
            terms *= self.rows[nodes]
        total = float(terms.sum())
        if not total > 0:
            return None
        best = int(terms.argmax())
        steps = [Step(int(nodes[best]), len(self.states) - 1, float(terms[best]) / total)]
        while steps[-1].iteration > 0:
            before, own = self._before(steps[-1])
            if before is None:
                return Path(tuple(reversed(steps)), own)
            steps.append(before)
        return Path(tuple(reversed(steps)), 1.0)

    def _before(self, step: Step) -> tuple[Step | None, float]:
        """The largest term of an entry of S; None and the share of the own label, where that is the largest."""
        node = step.node
        if self.variant.reset_seeds and _holds(self.all_seeds, node):
            return None, 1.0
        self.graph.touch_rows(np.array([node]))
        self.graph.refuse_bad_rows(np.array([node]))
        start, stop = int(self.graph.indptr[node]), int(self.graph.indptr[node + 1])
        columns = (self.graph.indices[start:stop] & COLUMN).astype(np.int64)
        weights = self.graph.values(node, node + 1, normalized=True).astype(np.float64)
        terms = self.alpha * weights * self.states[step.iteration - 1][columns]
        own = (1 - self.alpha) * self.labels.get(node, 0.0)
        total = float(terms.sum()) + own
        # A seed without edges has its label only.
        if own > terms.max(initial=0.0):
            return None, own / total
        best = int(terms.argmax())
        return Step(int(columns[best]), step.iteration - 1, float(terms[best]) / total), 0.0


def _holds(ordered: NDArray[np.int64], value: int) -> bool:
    place = int(np.searchsorted(ordered, value))
    return place < len(ordered) and int(ordered[place]) == value

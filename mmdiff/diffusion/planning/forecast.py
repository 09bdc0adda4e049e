"""The forecast of a run: the products that the schedule will choose, before any matrix exists.

While S stays a frontier, its products are cheap and are computed; from there on the schedule needs sizes only. The plan shows
the forecast of one batch, and the memory model takes the largest states of all batches.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mmdiff.diffusion.engine.frontier import frontier_size
from mmdiff.diffusion.engine.needed_rows import Rows
from mmdiff.diffusion.engine.run import Diffusion
from mmdiff.diffusion.engine.states import Frontier
from mmdiff.diffusion.schedule import ENTRY_BYTES, NEW_ENTRY_BYTES, Decision, Form, FrontierSize, ProductSize, next_product

# Visits of frontier products that the memory model computes: at most so many, which take a second or two, and one for so many
# bytes of the coarse bound. A run that needs little memory is short, and would notice the time.
MOST_VISITS = 1 << 25
_BYTES_PER_VISIT = 128

# Visits of a frontier product that is computed to find out whether S stays a frontier: that takes some tenths of a second.
FEW_VISITS = 1 << 23

# Bytes for each row that a frontier product computes: its number in two types, and the lengths of parts and whole.
REACHED_BYTES = 28

# Matrices lie in large pages: a row that is written takes the whole page.
_PAGE_BYTES = 2 << 20


class Forecast(NamedTuple):
    """One product of a batch. `before` is the frontier that it reads, `after` the number of entries of one that it writes.

    `written_bytes` are the pages of matrices that it writes to, `seconds` its time where it was computed.
    """

    iteration: int
    decision: Decision
    size: ProductSize
    before: FrontierSize | None
    after: int = 0
    written_bytes: int = 0
    seconds: float = 0.0

    @property
    def frontier_bytes(self) -> int:
        """Memory of frontiers beside their offsets.

        That is the entries of the one that is read, the next one with its parts, and the lists of rows that
        labels reach, at most one row for each visit.
        """
        if self.before is None:
            return 0
        reached = min(self.size.nodes, self.before.rows + self.before.visits) if self.after else 0
        return ENTRY_BYTES * self.before.entries + NEW_ENTRY_BYTES * self.after + REACHED_BYTES * reached


def forecast_batch(diffusion: Diffusion, batch: int, spills: bool, most_visits: int | None = None) -> Iterator[Forecast]:
    """The products of a batch, in order. With `most_visits`, only memory is asked for.

    Then it ends early where a frontier product would make more visits, and bounds the last one, on which no decision depends.
    """
    work, seeds = diffusion.work, diffusion.batch_seeds(batch)
    state: Frontier | None = None if work.whole else work.start_frontier(seeds)
    for iteration in range(1, diffusion.iterations + 1):
        size = work.product_size(iteration, seeds.classes, spills)
        before = None if state is None else frontier_size(diffusion.stream.graph, state)
        decision = next_product(before, size)
        if state is None or before is None or decision.form is not Form.FRONTIER:
            written = _written_bytes(decision, size, work.needed[iteration])
            yield Forecast(iteration=iteration, decision=decision, size=size, before=before, written_bytes=written)
            state = None
            continue
        if most_visits is not None and iteration == diffusion.iterations:
            most = before.visits + len(seeds.columns)
            yield Forecast(iteration=iteration, decision=decision, size=size, before=before, after=most)
            continue
        if most_visits is not None and before.visits > most_visits:
            return
        clock = time.perf_counter()
        state = work.advance(state, seeds, iteration)
        seconds = time.perf_counter() - clock
        after = len(state.values)
        yield Forecast(iteration=iteration, decision=decision, size=size, before=before, after=after, seconds=seconds)


def extrapolate_batch(diffusion: Diffusion, batch: int, most_visits: int) -> Iterator[Forecast]:
    """The products of a batch with shortcuts. From the first with more than `most_visits` on, their sizes are estimates.

    Each visit is taken to make an entry of its own, in a needed row as often as edges belong to one. So there are fewer entries
    where neighbours have neighbours in common, and more where seeds are close to test points.
    """
    work, graph, seeds = diffusion.work, diffusion.stream.graph, diffusion.batch_seeds(batch)
    first = work.start_frontier(seeds)
    state: Frontier | None = first
    before: FrontierSize | None = frontier_size(graph, first)
    for iteration in range(1, diffusion.iterations + 1):
        size = work.product_size(iteration, seeds.classes, spills=False)
        decision = next_product(before, size)
        if before is None or decision.form is not Form.FRONTIER:
            written = _written_bytes(decision, size, work.needed[iteration])
            yield Forecast(iteration=iteration, decision=decision, size=size, before=before, written_bytes=written)
            before = None
            continue
        clock = time.perf_counter()
        if state is not None and before.visits <= most_visits:
            state = work.advance(state, seeds, iteration, again=True)
            following = frontier_size(graph, state)
        else:
            state = None
            met = before.visits * size.needed_edges // max(1, graph.edges)
            entries = min(met, size.needed_rows * size.width) + len(seeds.columns)
            following = FrontierSize(min(entries, size.needed_rows), entries, entries * graph.edges // graph.nodes)
        seconds = 0.0 if state is None else time.perf_counter() - clock
        yield Forecast(
            iteration=iteration, decision=decision, size=size, before=before, after=following.entries, seconds=seconds
        )
        before = following


def state_bytes(diffusion: Diffusion, spills: bool, coarse_bound: int) -> int | None:
    """The most memory that the states of a batch take, or None where finding out would take too long."""
    most_visits = min(MOST_VISITS, coarse_bound // _BYTES_PER_VISIT)
    nodes, itemsize = diffusion.stream.graph.nodes, diffusion.variant.itemsize
    matrix = nodes * diffusion.width * itemsize
    spill_bytes = diffusion.work.product_size(0, diffusion.width, spills).spill_bytes or 0
    most = matrix + spill_bytes if spills else 2 * matrix
    frontiers = matrices = visits = 0
    orders = set()
    for batch in range(len(diffusion.batches)):
        # Without shortcuts, Y is a matrix too.
        written = matrix if diffusion.work.whole else 0
        forms = []
        for product in forecast_batch(diffusion, batch, spills, most_visits - visits):
            if product.before is not None and product.decision.form is Form.FRONTIER:
                visits += product.before.visits if product.iteration < diffusion.iterations else 0
            frontiers = max(frontiers, product.frontier_bytes)
            written += product.written_bytes
            forms.append(product.decision)
        if len(forms) < diffusion.iterations:
            return None
        matrices = max(matrices, written)
        orders.add(tuple(forms))
    # A batch of other forms may find a matrix of the one before, of which it writes to other pages.
    return frontiers + min(most, matrices + (matrix if matrices and len(orders) > 1 else 0))


def _written_bytes(decision: Decision, size: ProductSize, needed: Rows | None) -> int:
    """Bytes of the pages that a product, and the matrix that a frontier is expanded to, are written to."""
    form, expands, spills = decision
    expanded = size.matrix_bytes if expands else 0
    if spills:
        return expanded + (size.spill_bytes or 0) + size.matrix_bytes
    if form in (Form.FRONTIER_TO_ROWS, Form.MATRIX_TO_ROWS):
        return expanded + size.rows_bytes
    return expanded + _touched_bytes(needed, size)


def _touched_bytes(needed: Rows | None, size: ProductSize) -> int:
    """Bytes of the pages of a matrix that hold needed rows."""
    if needed is None:
        return size.matrix_bytes
    row_bytes = size.width * size.itemsize
    first = needed.astype(np.int64) * row_bytes
    pages = np.append(first // _PAGE_BYTES, (first + row_bytes - 1) // _PAGE_BYTES)
    return min(size.matrix_bytes, _PAGE_BYTES * len(np.unique(pages)))

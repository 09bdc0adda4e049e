"""The forecast of a run: the products that the schedule will choose, before any matrix exists.

While S stays a frontier, its products are cheap and are computed; from there on the schedule needs sizes only. The plan shows
the forecast of one batch, and the memory model takes the largest state of all batches.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from mmdiff.diffusion.engine.frontier import frontier_size
from mmdiff.diffusion.engine.run import Diffusion
from mmdiff.diffusion.engine.states import Frontier
from mmdiff.diffusion.schedule import ENTRY_BYTES, Decision, Form, FrontierSize, ProductSize, next_product

# Visits of frontier products that the memory model computes; they take a second or two.
_MOST_VISITS = 1 << 25


class Forecast(NamedTuple):
    """One product of a batch. `before` is the frontier that it reads, `after` the number of entries of one that it writes.

    `seconds` is the time that the product took where it was computed.
    """

    iteration: int
    decision: Decision
    size: ProductSize
    before: FrontierSize | None
    after: int
    seconds: float

    @property
    def frontier_bytes(self) -> int:
        """Entries of frontiers in memory: the one that is read, and the parts of the next one together with their copy."""
        return ENTRY_BYTES * ((0 if self.before is None else self.before.entries) + 2 * self.after)

    @property
    def matrix_bytes(self) -> int:
        """Matrices in memory, and rows of one."""
        form, _, spills = self.decision
        if spills:
            return self.size.matrix_bytes + (self.size.spill_bytes or 0)
        return {
            Form.FRONTIER: 0,
            Form.FRONTIER_TO_ROWS: self.size.rows_bytes,
            Form.FRONTIER_TO_MATRIX: self.size.matrix_bytes,
            Form.MATRIX: 2 * self.size.matrix_bytes,
            Form.MATRIX_TO_ROWS: self.size.matrix_bytes + self.size.rows_bytes,
        }[form]


def forecast_batch(diffusion: Diffusion, batch: int, spills: bool, most_visits: int | None = None) -> Iterator[Forecast]:
    """The products of a batch, in order. It ends early where a frontier product would make more than `most_visits`."""
    work, seeds = diffusion.work, diffusion.batch_seeds(batch)
    state: Frontier | None = None if work.whole else work.start_frontier(seeds)
    for iteration in range(1, diffusion.iterations + 1):
        size = work.product_size(iteration, seeds.classes, spills)
        before = None if state is None else frontier_size(diffusion.stream.graph, state)
        decision = next_product(before, size)
        if state is None or before is None or decision.form is not Form.FRONTIER:
            yield Forecast(iteration, decision, size, before, 0, 0.0)
            state = None
            continue
        if most_visits is not None and before.visits > most_visits:
            return
        clock = time.perf_counter()
        state = work.advance(state, seeds, iteration)
        yield Forecast(iteration, decision, size, before, len(state.values), time.perf_counter() - clock)


def state_bytes(diffusion: Diffusion, spills: bool) -> int | None:
    """The most memory that the states of all batches take, or None where finding out would take too long.

    Matrices are used again by later batches, so the largest frontier may be in memory beside the largest matrices.
    """
    frontiers = matrices = visits = 0
    for batch in range(len(diffusion.batches)):
        products = 0
        for product in forecast_batch(diffusion, batch, spills, _MOST_VISITS - visits):
            products += 1
            visits += 0 if product.before is None or product.decision.form is not Form.FRONTIER else product.before.visits
            frontiers = max(frontiers, product.frontier_bytes)
            matrices = max(matrices, product.matrix_bytes)
        if products < diffusion.iterations:
            return None
    return frontiers + matrices

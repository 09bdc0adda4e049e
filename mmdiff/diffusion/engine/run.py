"""A diffusion as a whole: batches of columns, their iterations, and what is reported of each, whoever keeps it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.engine.coupled import Coupled, CoupledProducts, ProductsInMemory
from mmdiff.diffusion.engine.deferred_sums import column_sums
from mmdiff.diffusion.engine.independent import Buffers, Step, Work, steps
from mmdiff.diffusion.engine.needed_rows import Rows, closures, looked_at
from mmdiff.diffusion.engine.states import Matrix, SqrtDegrees, State, sqrt_degrees_of
from mmdiff.diffusion.io.graph_stream import Stream
from mmdiff.diffusion.io.spill import Sheet
from mmdiff.diffusion.seeds import Seeds
from mmdiff.diffusion.variant import Variant


@dataclass(frozen=True)
class Report:
    """A batch of S after an iteration; L is S times a factor for each row and one for each column."""

    iteration: int
    batch: int
    state: State
    rows: SqrtDegrees
    columns: NDArray[np.float64]
    sums: NDArray[np.float64]
    nonzero: int
    computed: int

    def scores(self, neighbors: NDArray[np.uint32]) -> NDArray[np.float32]:
        """V L for test points with these neighbours."""
        seen = self.state.look(neighbors, self.rows)
        return np.multiply(seen, self.columns, out=seen, casting="same_kind")

    def block(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows start..stop-1 of L."""
        block = self.state.block(start, stop)
        if self.rows is not None:
            block = block * self.rows[start:stop, None]
        return np.multiply(block, self.columns, out=np.empty_like(block), casting="same_kind")


class Keeper:
    """Keeps what is finished, so that it need not be computed again. This one keeps nothing."""

    def is_done(self, batch: int) -> bool:  # noqa: ARG002
        """Whether all of a batch is kept."""
        return False

    def resume(self, batch: int) -> tuple[int, NDArray[Any]] | None:  # noqa: ARG002
        """The last iteration of a batch that was kept, and S after it."""
        return None

    def sheet(self, batch: int) -> Sheet:
        """Where S goes after the iterations of a batch that has no room in memory for two of them."""
        raise RuntimeError(f"batch {batch}: nothing is kept on disk")

    def keep(self, batch: int, step: Step) -> None:
        """Is offered S after an iteration that is neither the last nor Y."""


@dataclass(frozen=True)
class Diffusion:
    """What is to be computed. `neighbors` are those of the test points; `every_row` asks for L in all rows in the end.

    Columns are put into batches by their number of seeds: those with few stay frontiers for longer.
    """

    stream: Stream
    seeds: Seeds
    variant: Variant
    prior: NDArray[np.float64]
    iterations: int
    width: int
    neighbors: NDArray[np.uint32] | None = None
    every_row: bool = False
    plain: bool = False

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """The columns as they are computed."""
        return np.arange(self.seeds.classes) if self.plain else np.argsort(self.seeds.per_class(), kind="stable")

    @cached_property
    def batches(self) -> list[slice]:
        """Of `order`."""
        classes = self.seeds.classes
        return [slice(start, min(start + self.width, classes)) for start in range(0, classes, self.width)]

    def columns(self, batch: int) -> NDArray[np.int64]:
        """The columns of a batch."""
        return self.order[self.batches[batch]]

    def reports(
        self, buffers: Buffers | None = None, keeper: Keeper | None = None, products: CoupledProducts | None = None
    ) -> Iterator[Report]:
        """S after every iteration of every batch that is not kept yet. A report is valid until the next is asked for."""
        if self.variant.coupled:
            yield from self._coupled_reports(buffers, products or ProductsInMemory())
        else:
            keeper = keeper or Keeper()
            for batch in range(len(self.batches)):
                if not keeper.is_done(batch):
                    yield from self.reports_of(batch, buffers, keeper)

    @cached_property
    def _sqrt_degrees(self) -> SqrtDegrees:
        return sqrt_degrees_of(self.stream.graph.scale) if self.variant.normalize_graph == "symmetric" else None

    def reports_of(self, batch: int, buffers: Buffers | None, keeper: Keeper) -> Iterator[Report]:
        """S after every iteration of one batch, whose classes are not coupled to those of others."""
        columns, sums = self.columns(batch), self._sums
        sheet = keeper.sheet(batch) if buffers is not None and buffers.on_disk else None
        for step in steps(self._work, self._own_seeds.select(columns), buffers, keeper.resume(batch), sheet):
            if sums is None and isinstance(step.state, Matrix):
                own = step.state.column_sums(self._sqrt_degrees)
            else:
                own = np.empty(0) if sums is None else sums[step.iteration, columns]
            factors = self._factors(own, columns)
            yield Report(step.iteration, batch, step.state, self._sqrt_degrees, factors, own, step.nonzero, step.rows)
            if 0 < step.iteration < self.iterations:
                keeper.keep(batch, step)

    @cached_property
    def _work(self) -> Work:
        return self.work()

    @cached_property
    def _own_seeds(self) -> Seeds:
        return self.seeds.in_units_of(self._sqrt_degrees)

    @cached_property
    def _sums(self) -> NDArray[np.float64] | None:
        """The column sums of S after every iteration, where they need not be taken from it."""
        if self._work.whole:
            return None
        return column_sums(self.stream, self._own_seeds, self.variant, self._sqrt_degrees, self.iterations)

    def _coupled_reports(self, buffers: Buffers | None, products: CoupledProducts) -> Iterator[Report]:
        seeds = self.seeds.select(self.order).in_units_of(self._sqrt_degrees)
        coupled = Coupled(self.work(), seeds, self.batches, self.prior[self.order], products)
        nodes = self.stream.graph.nodes
        for step in coupled.steps(buffers):
            yield Report(step.iteration, step.batch, step.state, step.rows, step.columns, step.sums, step.nonzero, nodes)

    def work(self) -> Work:
        """What all batches share."""
        return Work(self.stream, self.variant, self.iterations, self._needed(), self._sqrt_degrees, self.plain)

    def _needed(self) -> Sequence[Rows | None]:
        """The rows of S that somebody needs after each iteration."""
        everything: list[Rows | None] = [None] * (self.iterations + 1)
        if self.every_row or self.neighbors is None or self.plain or not self.variant.linear:
            return everything
        rows = looked_at(self.neighbors, self.stream.graph.nodes)
        return closures(self.stream, rows, self.iterations)[::-1]

    def _factors(self, sums: NDArray[np.float64], columns: NDArray[np.int64]) -> NDArray[np.float64]:
        """eta as a factor for each column."""
        if self.variant.eta == "none":
            return np.ones(len(columns))
        inverse = np.divide(1, sums, out=np.ones(len(columns)), where=sums > 0)
        return inverse * self.prior[columns] if self.variant.eta == "prior" else inverse

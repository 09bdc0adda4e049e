"""A diffusion as a whole: batches of columns, their iterations, and the result of each (paper, sections 3.3 and 3.4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.engine.coupled import Coupled, CoupledProducts, ProductsInMemory
from mmdiff.diffusion.engine.deferred_sums import column_sums
from mmdiff.diffusion.engine.independent import Buffers, Step, Work, steps
from mmdiff.diffusion.engine.needed_rows import Rows, closures, gathered_rows
from mmdiff.diffusion.engine.states import Matrix, SqrtDegrees, State, sqrt_degrees_of
from mmdiff.diffusion.io.graph_stream import Stream
from mmdiff.diffusion.io.spill import SpillFile
from mmdiff.diffusion.schedule import Form
from mmdiff.diffusion.seeds import Seeds
from mmdiff.diffusion.variant import Variant


@dataclass(frozen=True)
class IterationResult:
    """A batch of S after an iteration. L is S times the factors `rows` (None is one) and `columns`.

    `nonzero` of the entries in the `computed` rows are not zero; `sums` are the column sums of S.
    """

    iteration: int
    batch: int
    state: State
    rows: SqrtDegrees
    columns: NDArray[np.float64]
    sums: NDArray[np.float64]
    nonzero: int
    computed: int
    form: Form | None = None

    def scores(self, neighbors: NDArray[np.uint32]) -> NDArray[np.float32]:
        """V L for test points with these neighbours."""
        gathered = self.state.gather(neighbors, self.rows)
        return np.multiply(gathered, self.columns, out=gathered, casting="same_kind")

    def block(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows start..stop-1 of L."""
        block = self.state.block(start, stop)
        if self.rows is not None:
            block = block * self.rows[start:stop, None]
        return np.multiply(block, self.columns, out=np.empty_like(block), casting="same_kind")


class Checkpoint:
    """Saves finished work, so that a killed run does not repeat it. This one saves nothing."""

    def is_done(self, batch: int) -> bool:  # noqa: ARG002
        """Whether all of a batch is saved."""
        return False

    def resume(self, batch: int) -> tuple[int, State] | None:  # noqa: ARG002
        """The last saved iteration of a batch, and S after it."""
        return None

    def spill_file(self, batch: int) -> SpillFile:
        """The spill file of a batch of which only one matrix fits in memory."""
        raise RuntimeError(f"batch {batch}: there is no disk to spill to")

    def save(self, batch: int, step: Step) -> None:
        """Called with S after each intermediate iteration."""


@dataclass(frozen=True)
class Diffusion:
    """A diffusion to compute. `neighbors` are the lists of the test points; `every_row` asks for L in all rows at the end.

    Columns are batched by their number of seeds: classes with few seeds stay frontiers for longer. `needed_rows` are the sets
    of `find_needed_rows`, where they are known already. With `most_bytes`, S is to stay a frontier of at most so many bytes,
    or the run ends with Outgrown.
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
    needed_rows: Sequence[Rows | None] | None = None
    most_bytes: int | None = None

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """The columns in the order in which they are computed."""
        return np.arange(self.seeds.classes) if self.plain else np.argsort(self.seeds.per_class(), kind="stable")

    @cached_property
    def batches(self) -> list[slice]:
        """The batches, as slices of `order`."""
        classes = self.seeds.classes
        return [slice(start, min(start + self.width, classes)) for start in range(0, classes, self.width)]

    def columns(self, batch: int) -> NDArray[np.int64]:
        """The columns of a batch."""
        return self.order[self.batches[batch]]

    def batch_seeds(self, batch: int) -> Seeds:
        """The seeds of a batch, in sqrt-degree units."""
        return self._scaled_seeds.select(self.columns(batch))

    def results(
        self,
        buffers: Buffers | None = None,
        checkpoint: Checkpoint | None = None,
        products: CoupledProducts | None = None,
    ) -> Iterator[IterationResult]:
        """All iterations of all batches that are not saved yet. A result is valid until the next one is requested."""
        if self.variant.coupled:
            yield from self._coupled_results(buffers, products or ProductsInMemory())
        else:
            checkpoint = checkpoint or Checkpoint()
            for batch in range(len(self.batches)):
                if not checkpoint.is_done(batch):
                    yield from self.batch_results(batch, buffers, checkpoint)

    def batch_results(self, batch: int, buffers: Buffers | None, checkpoint: Checkpoint) -> Iterator[IterationResult]:
        """All iterations of one batch, whose classes are independent of the others."""
        columns, all_sums = self.columns(batch), self._sums
        spill_file = checkpoint.spill_file(batch) if buffers is not None and buffers.spills else None
        for step in steps(self.work, self.batch_seeds(batch), buffers, checkpoint.resume(batch), spill_file):
            if all_sums is None and isinstance(step.state, Matrix):
                sums = step.state.column_sums(self._sqrt_degrees)
            else:
                sums = np.empty(0) if all_sums is None else all_sums[step.iteration, columns]
            yield IterationResult(
                iteration=step.iteration,
                batch=batch,
                state=step.state,
                rows=self._sqrt_degrees,
                columns=self._factors(sums, columns),
                sums=sums,
                nonzero=step.nonzero,
                computed=step.rows,
                form=step.form,
            )
            if 0 < step.iteration < self.iterations:
                checkpoint.save(batch, step)

    def _coupled_results(self, buffers: Buffers | None, products: CoupledProducts) -> Iterator[IterationResult]:
        seeds = self.seeds.select(self.order).in_units_of(self._sqrt_degrees)
        coupled = Coupled(self.work, seeds, self.batches, self.prior[self.order], products)
        for step in coupled.steps(buffers):
            form = Form.COUPLED if step.iteration else None
            yield IterationResult(**vars(step), computed=self.stream.graph.nodes, form=form)

    @cached_property
    def work(self) -> Work:
        """The inputs that all batches share."""
        needed = self.find_needed_rows() if self.needed_rows is None else self.needed_rows
        return Work(
            stream=self.stream,
            variant=self.variant,
            iterations=self.iterations,
            needed=needed,
            sqrt_degrees=self._sqrt_degrees,
            plain=self.plain,
            several=len(self.batches) > 1,
            most_bytes=self.most_bytes,
        )

    def find_needed_rows(self) -> Sequence[Rows | None]:
        """The needed rows of S after each iteration; None is all rows."""
        if self.every_row or self.neighbors is None or self.plain or not self.variant.linear:
            return [None] * (self.iterations + 1)
        rows = gathered_rows(self.neighbors, self.stream.graph.nodes)
        return closures(self.stream, rows, self.iterations)[::-1]

    @cached_property
    def _sqrt_degrees(self) -> SqrtDegrees:
        return sqrt_degrees_of(self.stream.graph.scale) if self.variant.normalize_graph == "symmetric" else None

    @cached_property
    def _scaled_seeds(self) -> Seeds:
        return self.seeds.in_units_of(self._sqrt_degrees)

    @cached_property
    def _sums(self) -> NDArray[np.float64] | None:
        """The column sums of S after every iteration; None where they are taken from S."""
        if self.work.whole:
            return None
        return column_sums(self.stream, self._scaled_seeds, self.variant, self._sqrt_degrees, self.iterations)

    def _factors(self, sums: NDArray[np.float64], columns: NDArray[np.int64]) -> NDArray[np.float64]:
        """eta as a factor for each column."""
        if self.variant.eta == "none":
            return np.ones(len(columns))
        inverse = np.divide(1, sums, out=np.ones(len(columns)), where=sums > 0)
        return inverse * self.prior[columns] if self.variant.eta == "prior" else inverse

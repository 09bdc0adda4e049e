"""Iterations with operators that couple the classes: row normalisation and Sinkhorn (paper, section 3.4; DESIGN section 5).

The iteration is the outer loop. The products P = W S of all batches of columns are stored as coupled products, in memory or on
disk. An operator turns P into S by one factor for each row and one for each column; these are computed in passes over blocks
of rows and applied when a product is read. S after the operator is L_t of the paper, and is reported as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.engine import coupled_kernels as kernels
from mmdiff.diffusion.engine.coupled_kernels import Applied
from mmdiff.diffusion.engine.independent import Buffers, Work
from mmdiff.diffusion.engine.product import SeedUpdate, product
from mmdiff.diffusion.engine.states import Matrix, SqrtDegrees
from mmdiff.diffusion.seeds import Seeds
from mmdiff.diffusion.variant import SINKHORN_ROUNDS
from mmdiff.formats.errors import Corrupt

BLOCK_ROWS = 1 << 13
_NO_ROWS = np.empty(0, np.float32)


class CoupledProducts(Protocol):
    """Storage for the products of an iteration, one float32 matrix for each batch.

    Products in memory are the arrays that were put there, and S may overwrite them.
    """

    in_memory: ClassVar[bool] = False

    def get(self, iteration: int, batch: int) -> NDArray[np.float32] | None: ...

    def put(self, iteration: int, batch: int, values: NDArray[np.float32]) -> None: ...

    def drop(self, iteration: int) -> None:
        """Removes the products of an iteration."""


class ProductsInMemory(CoupledProducts):
    """Coupled products in memory."""

    in_memory = True

    def __init__(self) -> None:
        self._products: dict[tuple[int, int], NDArray[np.float32]] = {}

    def get(self, iteration: int, batch: int) -> NDArray[np.float32] | None:
        return self._products.get((iteration, batch))

    def put(self, iteration: int, batch: int, values: NDArray[np.float32]) -> None:
        self._products[iteration, batch] = values

    def drop(self, iteration: int) -> None:
        for key in [key for key in self._products if key[0] == iteration]:
            del self._products[key]


@dataclass(frozen=True)
class Operator:
    """S = (rows * P * columns)^gamma * after, for a product P. None is a factor of one."""

    rows: NDArray[np.float32] | None = None
    columns: NDArray[np.float32] | None = None
    gamma: float = 1.0
    after: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class CoupledStep:
    """One batch of S after an iteration. L is S times the factors `rows` (None is one) and `columns`."""

    iteration: int
    batch: int
    state: Matrix
    rows: SqrtDegrees
    columns: NDArray[np.float64]
    sums: NDArray[np.float64]
    nonzero: int


class Coupled:
    """The iterations of a diffusion whose classes are coupled. Batches are slices of the columns of Y."""

    def __init__(
        self, work: Work, seeds: Seeds, batches: Sequence[slice], prior: NDArray[np.float64], products: CoupledProducts
    ) -> None:
        self.work, self.batches, self.prior, self.products = work, batches, prior, products
        self.classes, self.nodes = seeds.classes, work.stream.graph.nodes
        self.spans = [(start, min(start + BLOCK_ROWS, self.nodes)) for start in range(0, self.nodes, BLOCK_ROWS)]
        self._seeds = [seeds.select(np.arange(columns.start, columns.stop)) for columns in batches]
        self._alpha = 1.0 if work.variant.alpha is None else work.variant.alpha

    def steps(self, buffers: Buffers | None = None) -> Iterator[CoupledStep]:
        """All batches of all iterations, from the last one whose products are stored."""
        buffers = buffers or Buffers()
        iteration = self._resumed()
        while True:
            if iteration == self.work.iterations and self.products.in_memory:
                # There is no further product, and S overwrites the stored ones.
                buffers.clear()
            S = self._apply(iteration, self._operator(iteration), self.work.variant.reset_seeds)
            # The operator is part of S from the first iteration on; Y is normalised only for the report.
            reported = self._eta(S) if iteration == 0 else Operator()
            rows = self._in_sqrt_degrees(reported.rows)
            for number, columns in enumerate(self.batches):
                state, sums, nonzero = self._load(S[number], buffers)
                yield CoupledStep(
                    iteration=iteration,
                    batch=number,
                    state=state,
                    rows=rows,
                    columns=np.asarray(self._or_ones(reported.columns)[columns], np.float64),
                    sums=sums,
                    nonzero=nonzero,
                )
                if iteration < self.work.iterations and self.products.get(iteration + 1, number) is None:
                    out = buffers.target((self.nodes, state.width), "float32")
                    product(self.work.stream, state.values, out, SeedUpdate(self._seeds[number], self._alpha))
                    self.products.put(iteration + 1, number, out)
                    if not self.products.in_memory:
                        buffers.give_back(out)
                buffers.give_back(state.values)
            if iteration == self.work.iterations:
                return
            self.products.drop(iteration)
            iteration += 1

    def _resumed(self) -> int:
        """The last iteration whose products are all stored; 0, which starts from Y, if there is none."""
        for iteration in range(self.work.iterations, 0, -1):
            if all(self.products.get(iteration, batch) is not None for batch in range(len(self.batches))):
                return iteration
        return 0

    def _apply(self, iteration: int, operator: Operator, reset_seeds: bool) -> list[Applied]:
        """An operator applied to the products of an iteration, batch by batch. Iteration 0 is Y."""
        parts = []
        for number, columns in enumerate(self.batches):
            stored, seeds = self.products.get(iteration, number), self._seeds[number]
            if stored is None and iteration:
                raise Corrupt(
                    f"the product of iteration {iteration}, columns {columns.start} to {columns.stop - 1}, cannot be read back "
                    "or has changed on the disk since it was written. Check the disk, then run the same command again."
                )
            reset = slice(None) if reset_seeds or iteration == 0 else slice(0)
            parts.append(
                Applied(
                    product=np.empty((0, seeds.classes), np.float32) if stored is None else stored,
                    sqrt_degrees=_NO_ROWS if self.work.sqrt_degrees is None else self.work.sqrt_degrees,
                    rows=_NO_ROWS if operator.rows is None else operator.rows,
                    columns=self._or_ones(operator.columns)[columns],
                    gamma=operator.gamma,
                    after=self._or_ones(operator.after)[columns],
                    seeds=seeds.nodes[reset],
                    offsets=seeds.offsets,
                    labels=seeds.columns,
                )
            )
        return parts

    def _operator(self, iteration: int) -> Operator:
        """eta and Gamma for the products of an iteration."""
        if iteration == 0:
            return Operator()
        gamma = self.work.variant.gamma
        operator = self._eta(self._apply(iteration, Operator(), reset_seeds=False))
        if gamma is None:
            return operator
        raised = replace(operator, gamma=gamma)
        sums = self._column_sums(self._apply(iteration, raised, reset_seeds=False), _NO_ROWS)
        return replace(raised, after=_inverse(sums))

    def _eta(self, matrix: Sequence[Applied]) -> Operator:
        """The factors of eta for the rows and columns of a matrix. Rows and columns of sum zero keep the factor one."""
        if self.work.variant.eta == "row":
            return Operator(self._row_factors(matrix, np.ones(self.classes, np.float32)))
        columns, rows = np.ones(self.classes), _NO_ROWS
        for _ in range(SINKHORN_ROUNDS):
            sums = self._column_sums(matrix, rows)
            np.divide(self.prior, sums, out=columns, where=sums > 0)
            rows = self._row_factors(matrix, columns.astype(np.float32))
        return Operator(rows, columns.astype(np.float32))

    def _row_factors(self, matrix: Sequence[Applied], columns: NDArray[np.float32]) -> NDArray[np.float32]:
        """1 / the sum of each row, 1 where that is zero."""
        factors = np.empty(self.nodes, np.float32)

        def work(span: tuple[int, int]) -> None:
            sums = np.zeros(span[1] - span[0])
            for batch, part in zip(self.batches, matrix, strict=True):
                kernels.add_row_sums(part, *span, columns[batch], sums)
            factors[slice(*span)] = _inverse(sums)

        for _ in self.work.stream.map(work, self.spans):
            pass
        return factors

    def _column_sums(self, matrix: Sequence[Applied], rows: NDArray[np.float32]) -> NDArray[np.float64]:
        """The sums of all columns, each row times its factor."""

        def work(span: tuple[int, int]) -> NDArray[np.float64]:
            return np.concatenate([kernels.column_sums(part, *span, rows) for part in matrix])

        return sum(self.work.stream.map(work, self.spans), np.zeros(self.classes))

    def _load(self, S: Applied, buffers: Buffers) -> tuple[Matrix, NDArray[np.float64], int]:
        """A batch of S in sqrt-degree units as the product reads it, its column sums, and its number of nonzero entries."""
        shape, dtype = (self.nodes, len(S.columns)), self.work.variant.stored_dtype
        if self.products.in_memory and len(S.product) and dtype == "float32":
            out: NDArray[Any] = S.product
        else:
            out = buffers.target(shape, dtype)
        total, nonzero = np.zeros(shape[1]), 0

        def work(span: tuple[int, int]) -> tuple[NDArray[np.float64], int]:
            sums = np.zeros(shape[1])
            return sums, kernels.store(S, *span, out, sums)

        for sums, count in self.work.stream.map(work, self.spans):
            total += sums
            nonzero += count
        return Matrix(out), total, nonzero

    def _or_ones(self, factors: NDArray[np.float32] | None) -> NDArray[np.float32]:
        return np.ones(self.classes, np.float32) if factors is None else factors

    def _in_sqrt_degrees(self, rows: NDArray[np.float32] | None) -> SqrtDegrees:
        """Factors of rows that also take S out of sqrt-degree units."""
        sqrt_degrees = self.work.sqrt_degrees
        if rows is None or sqrt_degrees is None:
            return sqrt_degrees if rows is None else rows
        return sqrt_degrees * rows


def _inverse(sums: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.divide(1, sums, out=np.ones(sums.shape), where=sums > 0).astype(np.float32)

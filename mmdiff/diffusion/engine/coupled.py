"""Operators that couple the classes (row normalisation, Sinkhorn): the iteration is the outer loop (DESIGN section 5).

Products P = W S are kept as plates, one for each batch of columns, wherever these lie. What the operator makes of them is a
factor for each row and one for each column, found in passes over blocks of rows; it is applied when a plate is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.engine import coupled_kernels as passes
from mmdiff.diffusion.engine.coupled_kernels import Applied
from mmdiff.diffusion.engine.independent import Buffers, Work
from mmdiff.diffusion.engine.product import SeedUpdate, product
from mmdiff.diffusion.engine.states import Matrix
from mmdiff.diffusion.seeds import Seeds
from mmdiff.diffusion.variant import SINKHORN_ROUNDS

BLOCK_ROWS = 1 << 13
_NO_ROWS = np.empty(0, np.float32)


class Plates(Protocol):
    """Where the products of an iteration are kept, a matrix of float32 for each batch.

    In memory they are the arrays that were put there, and may be written over by what becomes of them.
    """

    in_memory: ClassVar[bool] = False

    def get(self, iteration: int, batch: int) -> NDArray[np.float32] | None: ...

    def put(self, iteration: int, batch: int, values: NDArray[np.float32]) -> None: ...

    def drop(self, iteration: int) -> None:
        """The products of an iteration are not needed any more."""


class InMemory(Plates):
    """Plates in memory."""

    in_memory = True

    def __init__(self) -> None:
        self._plates: dict[tuple[int, int], NDArray[np.float32]] = {}

    def get(self, iteration: int, batch: int) -> NDArray[np.float32] | None:
        return self._plates.get((iteration, batch))

    def put(self, iteration: int, batch: int, values: NDArray[np.float32]) -> None:
        self._plates[iteration, batch] = values

    def drop(self, iteration: int) -> None:
        for key in [key for key in self._plates if key[0] == iteration]:
            del self._plates[key]


@dataclass(frozen=True)
class Operator:
    """What became of a product P: S = (rows * P * columns)^gamma * after. None is a factor of one."""

    rows: NDArray[np.float32] | None = None
    columns: NDArray[np.float32] | None = None
    gamma: float = 1.0
    after: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class CoupledStep:
    """One batch of S after an iteration; L is S times `rows` and `columns`."""

    iteration: int
    batch: int
    state: Matrix
    rows: NDArray[np.float32]
    columns: NDArray[np.float64]
    sums: NDArray[np.float64]
    nonzero: int


class Coupled:
    """The iterations of a diffusion whose classes are coupled. Batches are slices of the columns of Y."""

    def __init__(self, work: Work, seeds: Seeds, batches: Sequence[slice], prior: NDArray[np.float64], plates: Plates) -> None:
        self.work, self.batches, self.prior, self.plates = work, batches, prior, plates
        self.classes, self.nodes = seeds.classes, work.stream.graph.nodes
        self.spans = [(start, min(start + BLOCK_ROWS, self.nodes)) for start in range(0, self.nodes, BLOCK_ROWS)]
        self._seeds = [seeds.select(np.arange(columns.start, columns.stop)) for columns in batches]
        self._alpha = 1.0 if work.variant.alpha is None else work.variant.alpha

    def steps(self, buffers: Buffers | None = None) -> Iterator[CoupledStep]:
        """All batches of all iterations that are not behind us."""
        buffers = buffers or Buffers()
        iteration = self._resumed()
        while True:
            if iteration == self.work.iterations:
                buffers.clear()
            S = self._apply(iteration, self._operator(iteration), self.work.variant.reset_seeds)
            shown = self._eta(S)
            rows = self._in_sqrt_degrees(shown.rows)
            for number, columns in enumerate(self.batches):
                state, sums, nonzero = self._load(S[number], buffers)
                factors = np.asarray(self._of_columns(shown.columns)[columns], np.float64)
                yield CoupledStep(iteration, number, state, rows, factors, sums, nonzero)
                if iteration < self.work.iterations and self.plates.get(iteration + 1, number) is None:
                    out = buffers.target((self.nodes, state.width), "float32")
                    product(self.work.stream, state.values, out, SeedUpdate(self._seeds[number], self._alpha))
                    self.plates.put(iteration + 1, number, out)
                    if not self.plates.in_memory:
                        buffers.give_back(out)
                buffers.give_back(state.values)
            if iteration == self.work.iterations:
                return
            self.plates.drop(iteration)
            iteration += 1

    def _resumed(self) -> int:
        """The last iteration whose products are all there; before the first there is Y."""
        for iteration in range(self.work.iterations, 0, -1):
            if all(self.plates.get(iteration, batch) is not None for batch in range(len(self.batches))):
                return iteration
        return 0

    def _apply(self, iteration: int, operator: Operator, set_back: bool) -> list[Applied]:
        """What an operator makes of the product that led to an iteration, batch by batch; at the beginning it is Y."""
        parts = []
        for number, columns in enumerate(self.batches):
            plate, seeds = self.plates.get(iteration, number), self._seeds[number]
            chosen = slice(None) if set_back or iteration == 0 else slice(0)
            parts.append(
                Applied(
                    np.empty((0, seeds.classes), np.float32) if plate is None else plate,
                    _NO_ROWS if self.work.sqrt_degrees is None else self.work.sqrt_degrees,
                    _NO_ROWS if operator.rows is None else operator.rows,
                    self._of_columns(operator.columns)[columns],
                    operator.gamma,
                    self._of_columns(operator.after)[columns],
                    seeds.nodes[chosen],
                    seeds.offsets,
                    seeds.columns,
                )
            )
        return parts

    def _operator(self, iteration: int) -> Operator:
        """eta and Gamma for the product that led to an iteration."""
        if iteration == 0:
            return Operator()
        gamma = self.work.variant.gamma
        operator = self._eta(self._apply(iteration, Operator(), set_back=False))
        if gamma is None:
            return operator
        raised = replace(operator, gamma=gamma)
        return replace(raised, after=_inverse(self._column_sums(self._apply(iteration, raised, set_back=False), _NO_ROWS)))

    def _eta(self, matrix: Sequence[Applied]) -> Operator:
        """The factors that eta applies to the rows and columns of a matrix; only those of positive sum are touched."""
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

        def part(span: tuple[int, int]) -> None:
            sums = np.zeros(span[1] - span[0])
            for batch, own in zip(self.batches, matrix, strict=True):
                passes.add_row_sums(own, *span, columns[batch], sums)
            factors[slice(*span)] = _inverse(sums)

        for _ in self.work.stream.map(part, self.spans):
            pass
        return factors

    def _column_sums(self, matrix: Sequence[Applied], rows: NDArray[np.float32]) -> NDArray[np.float64]:
        """Of all classes, each row times its factor."""

        def part(span: tuple[int, int]) -> NDArray[np.float64]:
            return np.concatenate([passes.column_sums(own, *span, rows) for own in matrix])

        return sum(self.work.stream.map(part, self.spans), np.zeros(self.classes))

    def _load(self, S: Applied, buffers: Buffers) -> tuple[Matrix, NDArray[np.float64], int]:
        """A batch of S in units of sqrt_degrees, as the product takes it, the sums of its columns, and what is not zero."""
        shape, dtype = (self.nodes, len(S.columns)), self.work.variant.stored_dtype
        if self.plates.in_memory and len(S.plate) and dtype == "float32":
            out: NDArray[Any] = S.plate
        else:
            out = buffers.target(shape, dtype)
        total, nonzero = np.zeros(shape[1]), 0

        def part(span: tuple[int, int]) -> tuple[NDArray[np.float64], int]:
            sums = np.zeros(shape[1])
            return sums, passes.store(S, *span, out, sums)

        for sums, count in self.work.stream.map(part, self.spans):
            total += sums
            nonzero += count
        return Matrix(out), total, nonzero

    def _of_columns(self, factors: NDArray[np.float32] | None) -> NDArray[np.float32]:
        return np.ones(self.classes, np.float32) if factors is None else factors

    def _in_sqrt_degrees(self, rows: NDArray[np.float32] | None) -> NDArray[np.float32]:
        own = np.ones(self.nodes, np.float32) if self.work.sqrt_degrees is None else self.work.sqrt_degrees
        return own if rows is None else own * rows


def _inverse(sums: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.divide(1, sums, out=np.ones(sums.shape), where=sums > 0).astype(np.float32)

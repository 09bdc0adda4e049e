"""Operators that couple the classes (row normalisation, Sinkhorn): the iteration is the outer loop (DESIGN section 5).

Products P = W S are kept as plates, one for each batch of columns, wherever these lie. What the operator makes of them is a
factor for each row and one for each column, found in passes over blocks of rows; it is applied when a plate is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.batch import Buffers, Work
from mmdiff.diffusion.bfloat16 import encode
from mmdiff.diffusion.product import Pull, product
from mmdiff.diffusion.seeds import Seeds
from mmdiff.diffusion.states import Matrix
from mmdiff.diffusion.variant import SINKHORN_ROUNDS, Variant
from mmdiff.parallel import in_threads

Blocks = Callable[[int, int], NDArray[np.float32]]
"""Rows start..stop-1 of a matrix, all classes."""


class Plates(Protocol):
    """Where the products of an iteration are kept, a matrix of float32 for each batch."""

    def get(self, iteration: int, batch: int) -> NDArray[np.float32] | None: ...

    def put(self, iteration: int, batch: int, values: NDArray[np.float32]) -> None: ...

    def drop(self, iteration: int) -> None:
        """The products of an iteration are not needed any more."""


class InMemory:
    """Plates in memory."""

    def __init__(self) -> None:
        self._plates: dict[tuple[int, int], NDArray[np.float32]] = {}

    def get(self, iteration: int, batch: int) -> NDArray[np.float32] | None:
        return self._plates.get((iteration, batch))

    def put(self, iteration: int, batch: int, values: NDArray[np.float32]) -> None:
        self._plates[iteration, batch] = values.copy()

    def drop(self, iteration: int) -> None:
        for key in [key for key in self._plates if key[0] == iteration]:
            del self._plates[key]


@dataclass(frozen=True)
class Operator:
    """What became of a product P: S = (rows * P * columns)^gamma * after, and the seeds' rows set back."""

    rows: NDArray[np.float32] | None = None
    columns: NDArray[np.float32] | None = None
    after: NDArray[np.float32] | None = None

    def apply(self, values: NDArray[np.float32], start: int, columns: slice, gamma: float | None) -> NDArray[np.float32]:
        if self.rows is not None:
            values = values * self.rows[start : start + len(values), None]
        if self.columns is not None:
            values = values * self.columns[columns]
        if self.after is not None and gamma is not None:
            values = values**gamma * self.after[columns]
        return values


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

    def __init__(
        self, work: Work, seeds: Seeds, batches: Sequence[slice], prior: NDArray[np.float64], plates: Plates, block_rows: int
    ) -> None:
        self.work, self.seeds, self.batches, self.prior, self.plates = work, seeds, batches, prior, plates
        self.nodes = work.stream.graph.nodes
        starts = range(0, self.nodes, block_rows)
        self.spans = [(start, min(start + block_rows, self.nodes)) for start in starts]
        # Y as it is, not in units of heights.
        self.Y = replace(seeds, values=np.ones_like(seeds.values))
        self._pull = Pull(seeds, 1.0 if work.variant.alpha is None else work.variant.alpha)

    def steps(self, buffers: Buffers | None = None) -> Iterator[CoupledStep]:
        """All batches of all iterations that are not behind us."""
        buffers = buffers or Buffers()
        iteration = self._resumed()
        while True:
            operator = self._operator(iteration)
            shown = scales(self.work.variant, lambda a, b: self._S(iteration, operator, a, b), self.spans, self.prior)  # noqa: B023
            for number, columns in enumerate(self.batches):
                state, nonzero = self._load(iteration, number, operator, buffers)
                rows = self._in_heights(shown.rows)
                yield CoupledStep(
                    iteration,
                    number,
                    state,
                    rows,
                    _or_ones(shown.columns, self.seeds.classes)[columns].astype(np.float64),
                    state.column_sums(self.work.heights),
                    nonzero,
                )
                if iteration < self.work.iterations and self.plates.get(iteration + 1, number) is None:
                    out = buffers.target((self.nodes, state.width), "float32", source_is_matrix=True)
                    product(self.work.stream, state.values, out, self._batch_pull(columns))
                    self.plates.put(iteration + 1, number, out)
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

    def _batch_pull(self, columns: slice) -> Pull:
        return replace(self._pull, seeds=self.seeds.select(np.arange(columns.start, columns.stop)))

    def _in_heights(self, rows: NDArray[np.float32] | None) -> NDArray[np.float32]:
        own = np.ones(self.nodes, np.float32) if self.work.heights is None else self.work.heights
        return own if rows is None else own * rows

    def _P(self, iteration: int, start: int, stop: int) -> NDArray[np.float32]:
        """Rows of the product that led to an iteration, all classes."""
        plates = [self.plates.get(iteration, batch) for batch in range(len(self.batches))]
        block = np.concatenate([plate[start:stop] for plate in plates if plate is not None], axis=1)
        return block if self.work.heights is None else block * self.work.heights[start:stop, None]

    def _S(self, iteration: int, operator: Operator, start: int, stop: int) -> NDArray[np.float32]:
        if iteration == 0:
            block = np.zeros((stop - start, self.seeds.classes), np.float32)
            self._set_back(block, start, slice(0, self.seeds.classes))
            return block
        everything = slice(0, self.seeds.classes)
        block = operator.apply(self._P(iteration, start, stop), start, everything, self.work.variant.gamma)
        if self.work.variant.reset_seeds:
            self._set_back(block, start, everything)
        return block

    def _operator(self, iteration: int) -> Operator:
        """eta and Gamma for the product that led to an iteration."""
        if iteration == 0:
            return Operator()
        gamma = self.work.variant.gamma
        operator = scales(self.work.variant, lambda start, stop: self._P(iteration, start, stop), self.spans, self.prior)
        if gamma is None:
            return operator
        everything = slice(0, self.seeds.classes)
        sums = np.zeros(self.seeds.classes)

        def part(span: tuple[int, int]) -> NDArray[np.float64]:
            block = operator.apply(self._P(iteration, *span), span[0], everything, None)
            return np.asarray((block**gamma).sum(axis=0, dtype=np.float64))

        for total in in_threads(part, self.spans):
            sums += total
        return replace(operator, after=_inverse(sums, 1.0))

    def _load(self, iteration: int, batch: int, operator: Operator, buffers: Buffers) -> tuple[Matrix, int]:
        """A batch of S in memory, in units of heights, as the product takes it."""
        columns = self.batches[batch]
        out = buffers.target((self.nodes, columns.stop - columns.start), self.work.kept_as, source_is_matrix=False)
        plate = self.plates.get(iteration, batch)
        heights, gamma = self.work.heights, self.work.variant.gamma

        def load(span: tuple[int, int]) -> int:
            start, stop = span
            if plate is None:
                block = np.zeros((stop - start, out.shape[1]), np.float32)
            else:
                block = plate[start:stop] if heights is None else plate[start:stop] * heights[start:stop, None]
                block = operator.apply(block, start, columns, gamma)
            if plate is None or self.work.variant.reset_seeds:
                block = block if block.flags.writeable else block.copy()
                self._set_back(block, start, columns)
            if heights is not None:
                block = block / heights[start:stop, None]
            out[start:stop] = block if self.work.kept_as == "float32" else encode(np.ascontiguousarray(block))
            return int(np.count_nonzero(block))

        return Matrix(out), sum(in_threads(load, self.spans))

    def _set_back(self, block: NDArray[np.float32], start: int, columns: slice) -> None:
        """Y in the seeds' rows of a block."""
        first, last = np.searchsorted(self.Y.nodes, [start, start + len(block)])
        for seed in range(first, last):
            row = self.Y.nodes[seed] - start
            block[row] = 0
            own = self.Y.columns[self.Y.offsets[seed] : self.Y.offsets[seed + 1]]
            block[row, own[(own >= columns.start) & (own < columns.stop)] - columns.start] = 1


def scales(variant: Variant, blocks: Blocks, spans: Sequence[tuple[int, int]], prior: NDArray[np.float64]) -> Operator:
    """The factors that eta applies to the rows and columns of a matrix, of which only those of positive sum are touched."""
    if variant.eta == "row":
        return Operator(_row_factors(blocks, spans, None))
    columns = np.ones(len(prior))
    rows: NDArray[np.float32] | None = None
    for _ in range(SINKHORN_ROUNDS):
        sums = np.zeros(len(prior))
        for total in in_threads(lambda span, rows=rows: _weighted_sums(blocks(*span), rows, span), spans):  # type: ignore[misc]
            sums += total
        np.divide(prior, sums, out=columns, where=sums > 0)
        rows = _row_factors(blocks, spans, columns.astype(np.float32))
    return Operator(rows, columns.astype(np.float32))


def _weighted_sums(block: NDArray[np.float32], rows: NDArray[np.float32] | None, span: tuple[int, int]) -> NDArray[np.float64]:
    if rows is None:
        return np.asarray(block.sum(axis=0, dtype=np.float64))
    return np.asarray((block * rows[slice(*span), None]).sum(axis=0, dtype=np.float64))


def _row_factors(blocks: Blocks, spans: Sequence[tuple[int, int]], columns: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """1 / the sum of each row, 1 where that is zero."""

    def part(span: tuple[int, int]) -> NDArray[np.float32]:
        block = blocks(*span)
        sums = (block if columns is None else block * columns).sum(axis=1, dtype=np.float64)
        return _inverse(sums, 1.0)

    return np.concatenate(list(in_threads(part, spans)))


def _inverse(sums: NDArray[Any], otherwise: float) -> NDArray[np.float32]:
    inverse: NDArray[Any] = np.divide(1, sums, out=np.full(sums.shape, otherwise), where=sums > 0)
    return inverse.astype(np.float32)


def _or_ones(values: NDArray[np.float32] | None, count: int) -> NDArray[np.float32]:
    return np.ones(count, np.float32) if values is None else values

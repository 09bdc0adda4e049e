"""The iterations of one batch of columns, whose operators leave the columns independent: S stays in memory from first to last.

While labels have not come far the state is a frontier; then a matrix; and what only test points look at is computed in the rows
that they look at. With `plain` it is a matrix from the beginning, in all rows, as the method is written down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.engine import frontier as frontiers
from mmdiff.diffusion.engine.gamma import raise_power
from mmdiff.diffusion.engine.needed_rows import Rows
from mmdiff.diffusion.engine.product import SeedUpdate, product, product_of_rows
from mmdiff.diffusion.engine.states import Frontier, Matrix, SomeRows, SqrtDegrees, State
from mmdiff.diffusion.io.graph_stream import Stream
from mmdiff.diffusion.io.spill import Sheet, held_beside, product_to_sheet, read_back
from mmdiff.diffusion.seeds import Seeds
from mmdiff.diffusion.variant import Variant
from mmdiff.formats.storage.direct import page_aligned
from mmdiff.kernels.floats import bfloat16_decode, bfloat16_encode


@dataclass(frozen=True)
class Work:
    """What all batches share. `needed[t]` are the rows of S that somebody needs after iteration t; None is all of them."""

    stream: Stream
    variant: Variant
    iterations: int
    needed: Sequence[Rows | None]
    sqrt_degrees: SqrtDegrees = None
    plain: bool = False

    @property
    def whole(self) -> bool:
        """Whether every iteration takes the whole matrix."""
        return self.plain or self.variant.gamma is not None


@dataclass(frozen=True)
class Step:
    """S after an iteration: `nonzero` of the entries in `rows` rows are not zero."""

    iteration: int
    state: State
    nonzero: int
    rows: int


class Buffers:
    """The two matrices that a batch needs at most. Where there is room for one only, the other lies on disk (`sheets`)."""

    def __init__(self, on_disk: bool = False) -> None:
        self.on_disk = on_disk
        self._spares: list[NDArray[Any]] = []

    def target(self, shape: tuple[int, int], dtype: str) -> NDArray[Any]:
        """A matrix to write to, while another one may be read."""
        entries = shape[0] * shape[1]
        for place, spare in enumerate(self._spares):
            if spare.size >= entries and spare.dtype == dtype:
                return self._spares.pop(place).reshape(-1)[:entries].reshape(shape)
        self._spares.clear()
        return page_aligned(shape, dtype)

    def give_back(self, values: NDArray[Any]) -> None:
        """A matrix that may be written again."""
        self._spares.append(values)

    def clear(self) -> None:
        """None is needed any more."""
        self._spares.clear()


def steps(
    work: Work,
    seeds: Seeds,
    buffers: Buffers | None = None,
    resume: tuple[int, NDArray[Any]] | None = None,
    sheet: Sheet | None = None,
) -> Iterator[Step]:
    """S after iterations 0..T, or after those that follow one that was kept. A step is valid until the next is asked for.

    With a sheet, a matrix is replaced by the next one by way of the disk.
    """
    buffers = buffers or Buffers()
    nodes = work.stream.graph.nodes
    if resume is None:
        done, state = 0, _start(work, seeds, buffers)
        yield Step(0, state, len(seeds.columns), nodes)
    else:
        done, state = resume[0], Matrix(resume[1])
    for iteration in range(done + 1, work.iterations + 1):
        step = _iterate(work, seeds, state, iteration, buffers, sheet)
        state = step.state
        yield step
    if isinstance(state, Matrix):
        buffers.give_back(state.values)


def _start(work: Work, seeds: Seeds, buffers: Buffers) -> State:
    nodes = work.stream.graph.nodes
    if not work.whole:
        first = frontiers.first_frontier(seeds, nodes)
        return (
            first
            if work.variant.stored_dtype == "float32"
            else replace(first, values=bfloat16_decode(bfloat16_encode(first.values)))
        )
    out = buffers.target((nodes, seeds.classes), work.variant.stored_dtype)
    out[:] = 0
    _set_back(out, seeds)
    return Matrix(out)


def _iterate(work: Work, seeds: Seeds, state: State, iteration: int, buffers: Buffers, sheet: Sheet | None) -> Step:
    stream, variant = work.stream, work.variant
    alpha = 1.0 if variant.alpha is None else variant.alpha
    # A power comes between the product and the seeds' rows, which are set back behind it.
    seed_update = SeedUpdate(seeds, alpha, variant.reset_seeds and variant.gamma is None)
    needed = work.needed[iteration]
    rows = stream.graph.nodes if needed is None else len(needed)
    shape = (stream.graph.nodes, seeds.classes)
    last = iteration == work.iterations and needed is not None
    if isinstance(state, Frontier):
        itemsize = variant.itemsize
        if frontiers.stays_small(stream, state, itemsize):
            after = frontiers.advance_frontier(stream, state, seed_update, needed, variant.dtype == "bfloat16")
            return Step(iteration, after, len(after.values), rows)
        if not frontiers.worthwhile(stream, state, needed):
            state = _matrix_of(work, state, buffers)
    few = (
        last
        and needed is not None
        and len(needed) * seeds.classes * variant.itemsize <= held_beside(shape, variant.stored_dtype)
    )
    if isinstance(state, Matrix) and sheet is not None and not few:
        written = sheet(iteration)
        nonzero = product_to_sheet(stream, state.values, written, seed_update, needed)
        read_back(written, state.values)
        return Step(iteration, _raised(work, seeds, state), nonzero, rows)
    if last and needed is not None:
        out = buffers.target((len(needed), seeds.classes), variant.stored_dtype)
        if isinstance(state, Frontier):
            nonzero = frontiers.spread_frontier(stream, state, out, seed_update, needed, compact=True)
        else:
            nonzero = product_of_rows(stream, _values(state), out, seed_update, needed)
            buffers.give_back(_values(state))
        return Step(iteration, SomeRows(needed, out), nonzero, rows)
    out = buffers.target(shape, work.variant.stored_dtype)
    if isinstance(state, Frontier):
        nonzero = frontiers.spread_frontier(stream, state, out, seed_update, needed, compact=False)
    else:
        nonzero = product(stream, _values(state), out, seed_update, needed)
        buffers.give_back(_values(state))
    return Step(iteration, _raised(work, seeds, Matrix(out)), nonzero, rows)


def _raised(work: Work, seeds: Seeds, product: Matrix) -> Matrix:
    """Gamma of a product, in its place, and the seeds set back behind it; without Gamma the product has done that."""
    if work.variant.gamma is not None:
        raise_power(product, work.variant.gamma, work.sqrt_degrees)
        if work.variant.reset_seeds:
            _set_back(product.values, seeds)
    return product


def _values(state: State) -> NDArray[Any]:
    if not isinstance(state, Matrix):
        raise TypeError(f"a {type(state).__name__} is no matrix")
    return state.values


def _matrix_of(work: Work, frontier: Frontier, buffers: Buffers) -> Matrix:
    """A frontier that has grown large, as a matrix."""
    nodes = work.stream.graph.nodes
    out = buffers.target((nodes, frontier.width), work.variant.stored_dtype)
    frontiers.lay_out(work.stream, frontier, out)
    return Matrix(out)


def _set_back(values: NDArray[Any], seeds: Seeds) -> None:
    values[seeds.nodes] = 0
    rows, columns, own = seeds.entries
    values[rows, columns] = own if values.dtype == np.float32 else bfloat16_encode(own)

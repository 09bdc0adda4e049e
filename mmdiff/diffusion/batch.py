"""The iterations of one batch of columns, whose operators leave the columns independent: S stays in memory from first to last.

While labels have not come far the state is a frontier; then a matrix; and what only test points look at is computed in the rows
that they look at. With `plain` it is a matrix from the beginning, in all rows, as the method is written down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion import frontier as frontiers
from mmdiff.diffusion.bfloat16 import decode, encode
from mmdiff.diffusion.needed import Rows
from mmdiff.diffusion.powers import raise_power
from mmdiff.diffusion.product import Pull, product, product_of_rows
from mmdiff.diffusion.seeds import Seeds
from mmdiff.diffusion.states import Frontier, Heights, Matrix, SomeRows, State
from mmdiff.diffusion.streaming import Stream
from mmdiff.diffusion.variant import Variant
from mmdiff.parallel import in_threads

Allocate = Callable[[tuple[int, int], str], NDArray[Any]]

_LINE_BYTES = 64
_COPIED_ROWS = 1 << 16


def aligned(shape: tuple[int, int], dtype: str) -> NDArray[Any]:
    """An empty matrix that begins with a line of the cache, so that rows that fill lines touch no others."""
    size = shape[0] * shape[1] * np.dtype(dtype).itemsize
    room = np.empty(size + _LINE_BYTES, np.uint8)
    first = -room.__array_interface__["data"][0] % _LINE_BYTES
    return room[first : first + size].view(dtype).reshape(shape)


@dataclass(frozen=True)
class Work:
    """What all batches share. `needed[t]` are the rows of S that somebody needs after iteration t; None is all of them."""

    stream: Stream
    variant: Variant
    iterations: int
    needed: Sequence[Rows | None]
    heights: Heights = None
    plain: bool = False

    @property
    def whole(self) -> bool:
        """Whether every iteration takes the whole matrix."""
        return self.plain or self.variant.gamma is not None

    @property
    def kept_as(self) -> str:
        return "float32" if self.variant.dtype == "float32" else "uint16"


@dataclass(frozen=True)
class Step:
    """S after an iteration: `nonzero` of the entries in `rows` rows are not zero."""

    iteration: int
    state: State
    nonzero: int
    rows: int


class Buffers:
    """The two matrices that a batch needs at most, one of which may lie on disk and is then read back into the other."""

    def __init__(self, allocate: Allocate = aligned, disk: Allocate | None = None) -> None:
        self._allocate, self._disk = allocate, disk
        self._spares: list[NDArray[Any]] = []

    def target(self, shape: tuple[int, int], dtype: str, source_is_matrix: bool) -> NDArray[Any]:
        """A matrix to write to, while another one may be read."""
        if self._disk is not None and source_is_matrix:
            return self._disk(shape, dtype)
        entries = shape[0] * shape[1]
        for place, spare in enumerate(self._spares):
            if spare.size >= entries and spare.dtype == dtype:
                return self._spares.pop(place).reshape(-1)[:entries].reshape(shape)
        self._spares.clear()
        return self._allocate(shape, dtype)

    def give_back(self, values: NDArray[Any]) -> None:
        """A matrix that may be written again."""
        self._spares.append(values)

    def settle(self, target: NDArray[Any], source: State | None) -> NDArray[Any]:
        """The matrix that was written, where it can be read at random; the one that was read may be written next."""
        before = source.values if isinstance(source, Matrix) else None
        if before is None:
            return target
        if self._disk is not None:
            for _ in in_threads(lambda start: _copy(before, target, start), range(0, len(before), _COPIED_ROWS)):
                pass
            return before
        self.give_back(before)
        return target


def steps(
    work: Work, seeds: Seeds, buffers: Buffers | None = None, resume: tuple[int, NDArray[Any]] | None = None
) -> Iterator[Step]:
    """S after iterations 0..T, or after those that follow one that was kept. A step is valid until the next is asked for."""
    buffers = buffers or Buffers()
    nodes = work.stream.graph.nodes
    if resume is None:
        done, state = 0, _start(work, seeds, buffers)
        yield Step(0, state, len(seeds.columns), nodes)
    else:
        done, state = resume[0], Matrix(resume[1])
    for iteration in range(done + 1, work.iterations + 1):
        step = _iterate(work, seeds, state, iteration, buffers)
        state = step.state
        yield step
    if isinstance(state, Matrix):
        buffers.give_back(state.values)


def _start(work: Work, seeds: Seeds, buffers: Buffers) -> State:
    nodes = work.stream.graph.nodes
    if not work.whole:
        first = frontiers.first_frontier(seeds, nodes)
        return first if work.kept_as == "float32" else replace(first, values=decode(encode(first.values)))
    out = buffers.target((nodes, seeds.classes), work.kept_as, source_is_matrix=False)
    out[:] = 0
    _set_back(out, seeds)
    return Matrix(out)


def _iterate(work: Work, seeds: Seeds, state: State, iteration: int, buffers: Buffers) -> Step:
    stream, variant = work.stream, work.variant
    alpha = 1.0 if variant.alpha is None else variant.alpha
    # A power comes between the product and the seeds' rows, which are set back behind it.
    pull = Pull(seeds, alpha, variant.reset_seeds and variant.gamma is None)
    needed = work.needed[iteration]
    rows = stream.graph.nodes if needed is None else len(needed)
    shape = (stream.graph.nodes, seeds.classes)
    last = iteration == work.iterations and needed is not None
    if isinstance(state, Frontier):
        itemsize = variant.itemsize
        if frontiers.stays_small(stream, state, itemsize):
            after = frontiers.advance_frontier(stream, state, pull, needed, variant.dtype == "bfloat16")
            return Step(iteration, after, len(after.values), rows)
        if not frontiers.worthwhile(stream, state):
            state = _matrix_of(work, state, buffers)
    if last and needed is not None:
        out = buffers.target(shape, work.kept_as, isinstance(state, Matrix))[: len(needed)]
        if isinstance(state, Frontier):
            nonzero = frontiers.spread_frontier(stream, state, out, pull, needed, compact=True)
        else:
            nonzero = product_of_rows(stream, _values(state), out, pull, needed)
            buffers.give_back(_values(state))
        return Step(iteration, SomeRows(needed, out), nonzero, rows)
    out = buffers.target(shape, work.kept_as, isinstance(state, Matrix))
    if isinstance(state, Frontier):
        nonzero = frontiers.spread_frontier(stream, state, out, pull, needed, compact=False)
    else:
        nonzero = product(stream, _values(state), out, pull, needed)
    after_product = Matrix(buffers.settle(out, state))
    if variant.gamma is not None:
        raise_power(after_product, variant.gamma, work.heights)
        if variant.reset_seeds:
            _set_back(after_product.values, seeds)
    return Step(iteration, after_product, nonzero, rows)


def _values(state: State) -> NDArray[Any]:
    if not isinstance(state, Matrix):
        raise TypeError(f"a {type(state).__name__} is no matrix")
    return state.values


def _matrix_of(work: Work, frontier: Frontier, buffers: Buffers) -> Matrix:
    """A frontier that has grown large, as a matrix."""
    nodes = work.stream.graph.nodes
    out = buffers.target((nodes, frontier.width), work.kept_as, source_is_matrix=False)
    step = max(1, (8 << 20) // (4 * frontier.width))
    for start in range(0, nodes, step):
        block = frontier.block(start, min(start + step, nodes))
        out[start : start + step] = block if work.kept_as == "float32" else encode(block)
    return Matrix(out)


def _copy(target: NDArray[Any], source: NDArray[Any], start: int) -> None:
    rows = slice(start, start + _COPIED_ROWS)
    np.copyto(target[rows], source[rows])


def _set_back(values: NDArray[Any], seeds: Seeds) -> None:
    values[seeds.nodes] = 0
    rows, columns, own = seeds.entries
    values[rows, columns] = own if values.dtype == np.float32 else encode(own)

"""The iterations of one batch of columns, for operators that leave columns independent (paper, section 3.3).

S stays in memory from the first iteration to the last: first as a frontier, then as a matrix, and after the last iteration as
the rows that test points gather. `mmdiff/diffusion/schedule.py` decides. With `plain`, S is a matrix of all rows throughout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.engine.frontier import (
    Outgrown,
    advance_frontier,
    fill_matrix,
    first_frontier,
    frontier_size,
    spread_frontier,
)
from mmdiff.diffusion.engine.gamma import raise_power
from mmdiff.diffusion.engine.needed_rows import Rows
from mmdiff.diffusion.engine.product import SeedUpdate, product, product_of_rows
from mmdiff.diffusion.engine.states import Frontier, Matrix, SomeRows, SqrtDegrees, State
from mmdiff.diffusion.io.graph_stream import Stream
from mmdiff.diffusion.io.spill import SpillFile, buffer_bytes, product_to_spill, read_back
from mmdiff.diffusion.schedule import ENTRY_BYTES, NEW_ENTRY_BYTES, Form, ProductSize, next_product
from mmdiff.diffusion.seeds import Seeds
from mmdiff.diffusion.variant import Variant
from mmdiff.formats.storage.direct import page_aligned
from mmdiff.kernels.floats import bfloat16_decode, bfloat16_encode


@dataclass(frozen=True)
class Work:
    """The inputs that all batches share. `needed[t]` are the needed rows of S after iteration t; None is all rows.

    There are `several` batches. With `most_bytes`, S is to stay a frontier of at most so many bytes while it is computed, up to
    the rows that test points gather; a batch that does not raises Outgrown.
    """

    stream: Stream
    variant: Variant
    iterations: int
    needed: Sequence[Rows | None]
    sqrt_degrees: SqrtDegrees = None
    plain: bool = False
    several: bool = True
    most_bytes: int | None = None

    @property
    def whole(self) -> bool:
        """Whether every iteration takes the whole matrix."""
        return self.plain or self.variant.gamma is not None

    @cached_property
    def _needed_edges(self) -> list[int]:
        return [self.stream.graph.edges_of(rows) for rows in self.needed]

    def product_size(self, iteration: int, width: int, spills: bool) -> ProductSize:
        """The size of the product that leads to an iteration, as the schedule takes it."""
        nodes, needed = self.stream.graph.nodes, self.needed[iteration]
        return ProductSize(
            nodes=nodes,
            width=width,
            itemsize=self.variant.itemsize,
            needed_rows=nodes if needed is None else len(needed),
            needed_edges=self._needed_edges[iteration],
            rows_only=iteration == self.iterations and needed is not None,
            spill_bytes=buffer_bytes((nodes, width), self.variant.stored_dtype) if spills else None,
        )

    def seed_update(self, seeds: Seeds) -> SeedUpdate:
        """The update that the product applies. With Gamma, which follows the product, seeds are reset after that."""
        alpha = 1.0 if self.variant.alpha is None else self.variant.alpha
        return SeedUpdate(seeds, alpha, self.variant.reset_seeds and self.variant.gamma is None)

    def start_frontier(self, seeds: Seeds) -> Frontier:
        """Y as a frontier, rounded as S is stored."""
        first = first_frontier(seeds, self.stream.graph.nodes)
        return (
            first if self.variant.dtype == "float32" else replace(first, values=bfloat16_decode(bfloat16_encode(first.values)))
        )

    def advance(self, frontier: Frontier, seeds: Seeds, iteration: int, again: bool = False) -> Frontier:
        """The product that leads to an iteration, as a frontier; with `again`, it will be computed again."""
        most = None
        if self.most_bytes is not None:
            most = max(0, self.most_bytes - ENTRY_BYTES * len(frontier.values)) // NEW_ENTRY_BYTES
        return advance_frontier(
            self.stream,
            frontier,
            self.seed_update(seeds),
            self.needed[iteration],
            short=self.variant.dtype == "bfloat16",
            shared=self.several,
            again=again,
            most_entries=most,
        )

    def refuse_matrix(self, form: Form, size: ProductSize) -> None:
        """Raises Outgrown for a product that makes a matrix where S is to stay a frontier, or too many needed rows."""
        if self.most_bytes is not None and (form is not Form.FRONTIER_TO_ROWS or size.rows_bytes > self.most_bytes):
            raise Outgrown


@dataclass(frozen=True)
class Step:
    """S after an iteration: `nonzero` entries in `rows` computed rows. `form` is that of the product; None is Y."""

    iteration: int
    state: State
    nonzero: int
    rows: int
    form: Form | None = None


class Buffers:
    """The matrices of a batch, at most two, which the next batch uses again. With `spills`, one of them lies on disk."""

    def __init__(self, spills: bool = False) -> None:
        self.spills = spills
        self._free: list[NDArray[Any]] = []

    def target(self, shape: tuple[int, int], dtype: str) -> NDArray[Any]:
        """A matrix to write to, while another one may be read."""
        entries = shape[0] * shape[1]
        for place, free in enumerate(self._free):
            if free.size >= entries and free.dtype == dtype:
                return self._free.pop(place)[:entries].reshape(shape)
        self._free.clear()
        return page_aligned(shape, dtype)

    def give_back(self, values: NDArray[Any]) -> None:
        """Returns a matrix that may be overwritten."""
        self._free.append(_whole_memory(values))

    def clear(self) -> None:
        """Frees the matrices that are not in use."""
        self._free.clear()


def _whole_memory(values: NDArray[Any]) -> NDArray[Any]:
    """The memory that a matrix begins in, as a vector of its type: a narrow matrix may lie in the memory of a wide one."""
    root = values
    while isinstance(root.base, np.ndarray):
        root = root.base
    start = values.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    memory = root.reshape(-1).view(np.uint8)[start:]
    return memory[: len(memory) // values.itemsize * values.itemsize].view(values.dtype)


def steps(
    work: Work,
    seeds: Seeds,
    buffers: Buffers | None = None,
    resume: tuple[int, State] | None = None,
    spill_file: SpillFile | None = None,
) -> Iterator[Step]:
    """S after iterations 0..T, or after those that follow a checkpoint. A step is valid until the next one is requested.

    With a spill file, a matrix is replaced by the next one through the disk.
    """
    buffers = buffers or Buffers()
    if resume is None:
        done, state = 0, _start(work, seeds, buffers)
        yield Step(0, state, len(seeds.columns), work.stream.graph.nodes)
    else:
        done, state = resume
    for iteration in range(done + 1, work.iterations + 1):
        step = _iterate(work, seeds, state, iteration, buffers, spill_file)
        state = step.state
        yield step
    if isinstance(state, Matrix):
        buffers.give_back(state.values)


def _start(work: Work, seeds: Seeds, buffers: Buffers) -> State:
    if not work.whole:
        return work.start_frontier(seeds)
    out = buffers.target((work.stream.graph.nodes, seeds.classes), work.variant.stored_dtype)
    out[:] = 0
    _reset(out, seeds)
    return Matrix(out)


def _iterate(work: Work, seeds: Seeds, state: State, iteration: int, buffers: Buffers, spill_file: SpillFile | None) -> Step:
    stream, dtype = work.stream, work.variant.stored_dtype
    size = work.product_size(iteration, seeds.classes, spill_file is not None)
    frontier = frontier_size(stream.graph, state) if isinstance(state, Frontier) else None
    form, expands, spills = next_product(frontier, size)
    needed, seed_update = work.needed[iteration], work.seed_update(seeds)

    def step(after: State, nonzero: int) -> Step:
        return Step(iteration, after, nonzero, size.needed_rows, form)

    if form is Form.FRONTIER and isinstance(state, Frontier):
        after = work.advance(state, seeds, iteration)
        return step(after, len(after.values))
    work.refuse_matrix(form, size)
    if expands and isinstance(state, Frontier):
        values = buffers.target((size.nodes, size.width), dtype)
        fill_matrix(stream, state, values)
        state = Matrix(values)
    if spills and spill_file is not None:
        written, values = spill_file(iteration), _values(state)
        nonzero = product_to_spill(stream, values, written, seed_update, needed, work.several)
        read_back(written, values)
        return step(_raised(work, seeds, Matrix(values)), nonzero)
    rows_only = needed if size.rows_only else None
    out = buffers.target((size.nodes if rows_only is None else len(rows_only), size.width), dtype)
    if isinstance(state, Frontier):
        nonzero = spread_frontier(stream, state, out, seed_update, needed, rows_only is not None, work.several)
    elif rows_only is not None:
        nonzero = product_of_rows(stream, _values(state), out, seed_update, rows_only, work.several)
    else:
        nonzero = product(stream, _values(state), out, seed_update, needed, work.several)
    if isinstance(state, Matrix):
        buffers.give_back(state.values)
    return step(_raised(work, seeds, Matrix(out)) if rows_only is None else SomeRows(rows_only, out), nonzero)


def _raised(work: Work, seeds: Seeds, product: Matrix) -> Matrix:
    """Applies Gamma to a product, in place, and then resets the seeds; without Gamma the product has done that."""
    if work.variant.gamma is not None:
        raise_power(product, work.variant.gamma, work.sqrt_degrees)
        if work.variant.reset_seeds:
            _reset(product.values, seeds)
    return product


def _values(state: State) -> NDArray[Any]:
    if not isinstance(state, Matrix):
        raise TypeError(f"a {type(state).__name__} is no matrix")
    return state.values


def _reset(values: NDArray[Any], seeds: Seeds) -> None:
    """Sets the rows of the seeds to Y."""
    values[seeds.nodes] = 0
    rows, columns, labels = seeds.entries
    values[rows, columns] = labels if values.dtype == np.float32 else bfloat16_encode(labels)

"""The product W S over blocks of rows of the graph (paper, section 3.3). The kernel is `mmdiff/kernels/spmm.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.io.graph_stream import Block, Stream, arrays_of
from mmdiff.diffusion.seeds import Seeds
from mmdiff.formats.errors import CountMismatch, Damaged
from mmdiff.graph.graph import CsrGraph
from mmdiff.kernels.spmm import SeedUpdateArrays, multiply_rows


@dataclass(frozen=True)
class SeedUpdate:
    """The update of the seeds' rows after each product: S <- alpha W S + (1 - alpha) Y, or with `reset` S <- Y."""

    seeds: Seeds
    alpha: float = 1.0
    reset: bool = False

    def arrays(self) -> SeedUpdateArrays:
        """The update as kernels read it."""
        return SeedUpdateArrays(
            nodes=self.seeds.nodes,
            offsets=self.seeds.offsets,
            columns=self.seeds.columns,
            values=self.seeds.values,
            alpha=np.float32(self.alpha),
            share=np.float32(1 if self.reset else 1 - self.alpha),
            reset=self.reset,
        )


def matmul(graph: CsrGraph, dense: NDArray[Any]) -> NDArray[np.float32]:
    """W times a matrix or a vector."""
    if dense.ndim not in (1, 2) or len(dense) != graph.nodes:
        raise CountMismatch(f"a matrix of shape {dense.shape} for {graph.nodes:,} nodes. Give one row for each node.")
    source = np.ascontiguousarray(dense, np.float32).reshape(graph.nodes, -1)
    out = np.empty_like(source)
    if out.size:
        with Stream(graph) as stream:
            product(stream, source, out, no_update(source.shape[1]))
    return out.reshape(dense.shape)


def no_update(width: int) -> SeedUpdate:
    """The update of a plain product: there are no seeds."""
    return SeedUpdate(Seeds.of(np.empty(0, np.int64), np.empty((0, 1), np.int32), width))


def product(
    stream: Stream,
    source: NDArray[Any],
    out: NDArray[Any],
    seed_update: SeedUpdate,
    rows: NDArray[Any] | None = None,
    shared: bool = False,
) -> int:
    """Writes rows of W S to the same rows of `out`; returns the number of nonzero entries.

    Other batches will request `shared` rows too.
    """

    def work(block: Block) -> int:
        return multiply(block, source, out, block.rows, seed_update)

    return sum(stream.each(work, rows, kernel_checks=True, shared=shared, columns=source.shape[1]))


def product_of_rows(
    stream: Stream,
    source: NDArray[Any],
    out: NDArray[Any],
    seed_update: SeedUpdate,
    rows: NDArray[Any],
    shared: bool = False,
) -> int:
    """Writes some rows of W S to `out`, which has no others; returns the number of nonzero entries.

    Other batches will request `shared` rows too.
    """

    def work(block: Block) -> int:
        return multiply(block, source, out, block.places, seed_update)

    return sum(stream.each(work, rows, kernel_checks=True, shared=shared, columns=source.shape[1]))


def multiply(block: Block, source: NDArray[Any], out: NDArray[Any], places: NDArray[np.int64], seed_update: SeedUpdate) -> int:
    """Writes the rows of a block of W S to these places of `out`; returns the number of nonzero entries.

    Raises Damaged where the kernel finds a row that it must not follow.
    """
    flat, width = source.reshape(-1), source.shape[1]
    nonzero = multiply_rows(arrays_of(block.graph), flat, width, block.rows, out, places, seed_update.arrays())
    if nonzero < 0:
        block.refuse_bad_rows()
        raise Damaged("the graph: its entries changed while they were read. Repeat the command.")
    return nonzero

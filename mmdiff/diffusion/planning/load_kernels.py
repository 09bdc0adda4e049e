"""Loads (or compiles) the kernels of a diffusion before its memory is measured, by running them on a graph of two nodes.

Compiled code and the compiler take tens of megabytes, which then are part of the process and need not be guessed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.diffusion.engine.coupled import ProductsInMemory
from mmdiff.diffusion.engine.frontier import fill_matrix, spread_frontier
from mmdiff.diffusion.engine.independent import Work
from mmdiff.diffusion.engine.product import product
from mmdiff.diffusion.engine.run import Diffusion
from mmdiff.diffusion.engine.states import Matrix, SomeRows, State
from mmdiff.diffusion.engine.top_classes import TopClasses
from mmdiff.diffusion.io.graph_stream import Stream
from mmdiff.diffusion.io.kept_rows import RowCache
from mmdiff.diffusion.seeds import Seeds
from mmdiff.formats.storage.direct import page_aligned
from mmdiff.graph.graph import CsrGraph

_ROWS = np.arange(2, dtype=np.uint32)


class _ReadOnlyProducts(ProductsInMemory):
    """Coupled products as they are mapped from disk, which kernels are compiled for separately."""

    in_memory = False

    def put(self, iteration: int, batch: int, values: NDArray[np.float32]) -> None:
        super().put(iteration, batch, _like(values.copy(), read_only=True))


def load_kernels(diffusion: Diffusion) -> None:
    """Runs the kernels of a diffusion on arrays of the same types as its own."""
    neighbors = None if diffusion.neighbors is None else _like(_ROWS[:, None], diffusion.neighbors)
    with Stream(_small_graph(diffusion.stream.graph)) as stream:
        small = replace(
            diffusion,
            stream=stream,
            seeds=Seeds.of(np.arange(2), np.array([0, -1], np.int32), 1),
            prior=np.ones(1),
            iterations=1,
            width=1,
            neighbors=neighbors,
            needed_rows=None,
            most_bytes=None,
        )
        top_classes = TopClasses.empty(2, 1) if diffusion.every_row else None
        for result in small.results(products=_ReadOnlyProducts()):
            if neighbors is not None:
                result.scores(neighbors)
            if top_classes is not None and not isinstance(result.state, SomeRows):
                top_classes.add(result.block, np.zeros(1, np.int64))
        if not (small.work.whole or small.variant.coupled):
            _load_frontier_kernels(small.work, small.batch_seeds(0), neighbors)
        if diffusion.stream.past_cache and (kept := RowCache(1 << 20).room_for(stream.graph, _ROWS)) is not None:
            kept.copy(stream.graph, 0, _ROWS.astype(np.int64))


def _load_frontier_kernels(work: Work, seeds: Seeds, neighbors: NDArray[np.uint32] | None) -> None:
    """All forms of a product, whichever of them the schedule would choose."""
    stream, update = work.stream, work.seed_update(seeds)
    source, out = (page_aligned((2, 1), work.variant.stored_dtype) for _ in range(2))
    frontier = work.advance(work.start_frontier(seeds), seeds, 1)
    spread_frontier(stream, frontier, out, update, None, compact=False)
    fill_matrix(stream, frontier, source)
    product(stream, source, out, update)
    states: tuple[State, ...] = (frontier, Matrix(out), SomeRows(_ROWS, out))
    if neighbors is not None:
        for state in states:
            state.gather(neighbors, work.sqrt_degrees)


def _small_graph(graph: CsrGraph) -> CsrGraph:
    """Two nodes that are neighbours, in arrays of the same types."""
    return CsrGraph(
        indptr=_like(np.array([0, 1, 2]), graph.indptr),
        indices=_like(np.array([1, 0]), graph.indices),
        scale=_like(np.ones(2), graph.scale),
        weights=None if graph.weights is None else _like(np.ones(2), graph.weights),
    )


def _like(values: NDArray[Any], model: NDArray[Any] | None = None, read_only: bool = False) -> NDArray[Any]:
    made = values if model is None else values.astype(model.dtype)
    made.flags.writeable = not read_only if model is None else model.flags.writeable
    return made

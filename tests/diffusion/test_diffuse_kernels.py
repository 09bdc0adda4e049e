"""Each kernel of the diffusion equals its naive twin, for any graph and any split of the work."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mmdiff.diffusion.engine.deferred_sums import column_sums
from mmdiff.diffusion.engine.frontier import advance_frontier, spread_frontier
from mmdiff.diffusion.engine.gamma import raise_power
from mmdiff.diffusion.engine.needed_rows import closures, gathered_rows, reached
from mmdiff.diffusion.engine.product import SeedUpdate, matmul, no_update, product, product_of_rows
from mmdiff.diffusion.engine.states import Frontier, Matrix, SomeRows, sqrt_degrees_of
from mmdiff.diffusion.engine.top_classes import TOP, TopClasses
from mmdiff.diffusion.io import graph_stream as streaming
from mmdiff.diffusion.io.graph_stream import Stream
from mmdiff.diffusion.io.spill import product_to_spill, read_back, rows_per_chunk
from mmdiff.diffusion.seeds import Seeds
from mmdiff.diffusion.variant import Variant
from mmdiff.formats.storage.arrays import ArraySpec
from mmdiff.formats.store.array_writer import ArrayWriter
from mmdiff.graph.graph import CsrGraph
from mmdiff.kernels.constants import COLUMN, NONE
from mmdiff.kernels.floats import bfloat16_decode, bfloat16_encode, keep, widen
from mmdiff.kernels.jit import exact_kernel
from mmdiff.kernels.register_sums import AHEAD, GROUP, GROUPED_COLUMNS, PAIRED_COLUMNS, UnpackedRows, fused, summing
from mmdiff.kernels.spmm import LENGTHS, put_in_order
from tests.diffusion.test_diffusion import assert_close, graphs, some_labels, some_neighbors
from tests.support.graphs import some_graph
from tests.support.naive_diffusion import naive_diffusion, naive_scores, naive_W, naive_Y

seeds_of_draws = st.integers(0, 1000)
widths = st.sampled_from([1, 2, 5, 17])
# Together they are summed in all the sizes that there are: up to 128, 96, 64, 32, 16, 8, 4, 2 and 1 columns at once.
all_widths = st.sampled_from([1, 2, 3, 5, 17, 60, 127, 176, 232])
seed_updates = st.sampled_from([(1.0, False), (0.8, False), (1.0, True), (0.6, True)])


@contextmanager
def blocks_of(edges: int) -> Iterator[None]:
    before, streaming.BLOCK_EDGES = streaming.BLOCK_EDGES, edges
    try:
        yield
    finally:
        streaming.BLOCK_EDGES = before


def some_S(nodes: int, width: int, seed: int, share: float = 0.3) -> NDArray[np.float32]:
    draw = np.random.default_rng(seed)
    return (draw.random((nodes, width)) * (draw.random((nodes, width)) < share)).astype(np.float32)


def some_rows(nodes: int, seed: int) -> NDArray[np.uint32]:
    return np.flatnonzero(np.random.default_rng(seed + 1).random(nodes) < 0.4).astype(np.uint32)


def frontier_of(S: NDArray[np.float32]) -> Frontier:
    rows, columns = np.nonzero(S)
    offsets = np.append(0, np.cumsum(np.bincount(rows, minlength=len(S))))
    return Frontier(offsets.astype(np.int64), columns.astype(np.int32), S[rows, columns], S.shape[1])


def naive_step(graph: CsrGraph, S: NDArray[Any], labels: NDArray[Any], alpha: float, reset: bool) -> NDArray[np.float64]:
    Y = naive_Y(graph.nodes, labels, S.shape[1])
    P = alpha * (naive_W(graph, "row") @ S.astype(np.float64)) + (1 - alpha) * Y
    return np.where(Y.any(axis=1, keepdims=True), Y, P) if reset else P


@settings(max_examples=60)
@given(graph=graphs, width=all_widths, seed=seeds_of_draws, seed_update=seed_updates, block=st.sampled_from([3, 40, 1 << 18]))
def test_product_is_that_of_the_matrices(
    graph: CsrGraph, width: int, seed: int, seed_update: tuple[float, bool], block: int
) -> None:
    labels, S, rows = some_labels(graph.nodes, width, 2, seed), some_S(graph.nodes, width, seed), some_rows(graph.nodes, seed)
    seeds = Seeds.of(np.arange(graph.nodes), labels, width)
    expected = naive_step(graph, S, labels, *seed_update)
    whole, some, compact = np.empty_like(S), np.full_like(S, 7), np.empty((len(rows), width), np.float32)
    with blocks_of(block), Stream(graph) as stream:
        nonzero = product(stream, S, whole, SeedUpdate(seeds, *seed_update))
        assert product(stream, S, some, SeedUpdate(seeds, *seed_update), rows) == np.count_nonzero(expected[rows])
        assert product_of_rows(stream, S, compact, SeedUpdate(seeds, *seed_update), rows) == np.count_nonzero(expected[rows])
    assert_close(whole, expected)
    assert nonzero == np.count_nonzero(expected)
    np.testing.assert_array_equal(some[rows], whole[rows])
    np.testing.assert_array_equal(compact, whole[rows])
    assert (np.delete(some, rows, axis=0) == 7).all()


@settings(max_examples=22, deadline=None)
@given(nodes=st.integers(1, 900), width=widths, seed=seeds_of_draws, short=st.booleans(), block=st.sampled_from([40, 1 << 18]))
def test_product_through_a_spill_file_is_the_same_to_the_last_bit(
    nodes: int, width: int, seed: int, short: bool, block: int
) -> None:
    graph, S = some_graph(nodes, 4, seed), some_S(nodes, width, seed)
    values = bfloat16_encode(S) if short else S
    rows = some_rows(nodes, seed)
    seed_update = SeedUpdate(Seeds.of(np.arange(nodes), some_labels(nodes, width, 2, seed), width), 0.8)
    spec = ArraySpec.fit(values.shape, values.dtype.name, rows_per_chunk((nodes, width), values.dtype.name))
    with blocks_of(block), Stream(graph) as stream, tempfile.TemporaryDirectory() as folder:
        for number, chosen in enumerate((None, rows)):
            expected, found = np.zeros_like(values), np.full_like(values, 1)
            spill = ArrayWriter(Path(folder) / str(number), spec)
            nonzero = product_to_spill(stream, values, spill, seed_update, chosen)
            read_back(spill, found)
            assert nonzero == product(stream, values, expected, seed_update, chosen)
            np.testing.assert_array_equal(found, expected)


@exact_kernel
def naive_sums(
    indptr: NDArray[np.int64], nodes: NDArray[np.uint32], weights: NDArray[np.float32], S: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Sums in float32, one fused multiply-add for each edge, in the order of the edges."""
    sums = np.zeros((len(indptr) - 1, S.shape[1]), np.float32)
    for i in range(len(sums)):
        for edge in range(indptr[i], indptr[i + 1]):
            for c in range(S.shape[1]):
                sums[i, c] = fused(weights[edge], S[nodes[edge], c], sums[i, c])
    return sums


def edges_of(graph: CsrGraph) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    """The nodes and weights of all edges."""
    free = 1 + (graph.indices > COLUMN).astype(np.float32)
    return graph.indices & COLUMN, free if graph.weights is None else graph.weights.astype(np.float32)


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_sums_of_a_column_are_the_same_to_the_last_bit_in_batches_of_any_width(weighted: bool, short: bool) -> None:
    graph, S, draw = some_graph(60, 9, weighted=weighted), some_S(60, 130, 0, 0.9), np.random.default_rng(0)
    S = bfloat16_decode(bfloat16_encode(S)) if short else S
    sums = naive_sums(graph.indptr, *edges_of(graph), S) * graph.scale[:, None]
    expected = bfloat16_encode(sums) if short else sums
    with Stream(graph) as stream:
        for width in range(1, 131):
            first = int(draw.integers(0, 131 - width))
            columns, out = np.ascontiguousarray(S[:, first : first + width]), np.empty((60, width), expected.dtype)
            product(stream, bfloat16_encode(columns) if short else columns, out, no_update(width))
            np.testing.assert_array_equal(out, expected[:, first : first + width])


# The numbers of columns that are summed at once, and the number below the least of them.
SIZES = ((128, 96), (96, 64), (64, 32), (32, 16), (16, 8), (8, 4), (4, 0), (16, 15), (8, 7), (4, 3), (2, 1), (1, 0))


def unpacked_rows(graph: CsrGraph, order: NDArray[np.int64]) -> UnpackedRows:
    """All rows of a graph, in groups of this order."""
    nodes, weights = edges_of(graph)
    return UnpackedRows(
        np.append(nodes, np.zeros(AHEAD, np.uint32)),
        np.append(weights, np.zeros(AHEAD, np.float32)),
        np.append(graph.indptr, graph.edges),
        np.append(graph.scale, np.float32(0)),
        np.append(order, np.full(GROUP - 1, graph.nodes)).astype(np.uint32),
    )


@pytest.mark.skipif("NUMBA_DISABLE_JIT" in os.environ, reason="the instructions are not compiled")
@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize(("columns", "fewer"), SIZES)
def test_sums_are_the_same_to_the_last_bit_on_processors_of_8_and_of_16_lanes(columns: int, fewer: int, lanes: int) -> None:
    graph, sum_rows = some_graph(31, 5), summing(columns, fewer, lanes)
    step = GROUP if columns <= GROUPED_COLUMNS else 2 if columns <= PAIRED_COLUMNS else 1
    # Any order will do: groups of rows of very different lengths are only slower.
    unpacked = unpacked_rows(graph, np.random.default_rng(columns).permutation(31))

    @numba.njit
    def sum_all(unpacked: UnpackedRows, source: NDArray[Any], width: int, column: int, sums: NDArray[np.float32]) -> None:
        for row in range(0, 31, step):
            sum_rows(unpacked, row, source, width, column, sums)

    for count in range(fewer + 1, columns + 1):
        # A single column that is not the whole row follows others, where a register begins.
        for column in (0,) if fewer == columns - 1 else (0, 7) if count > 1 else (7,):
            S = some_S(31, column + count, count, 0.9)
            for source in (S, bfloat16_encode(S)):
                sums = np.empty((32, column + count), np.float32)
                sum_all(unpacked, source.reshape(-1), column + count, column, sums.reshape(-1))
                expected = naive_sums(graph.indptr, *edges_of(graph), bfloat16_decode(source)) * graph.scale[:, None]
                np.testing.assert_array_equal(sums[:31, column:], expected[:, column:])


@settings(max_examples=50)
@given(lengths=st.lists(st.one_of(st.integers(0, 3), st.integers(20, 120), st.integers(0, 3000)), min_size=1, max_size=60))
def test_rows_are_grouped_by_length_and_the_last_group_is_filled_with_the_empty_row(lengths: list[int]) -> None:
    rows = len(lengths)
    starts = np.append(0, np.cumsum(lengths)).astype(np.int64)
    order = np.full(rows + GROUP - 1, NONE)
    empty = np.empty(0, np.float32)
    put_in_order(UnpackedRows(np.empty(0, np.uint32), empty, np.append(starts, starts[-1]), empty, order), rows)
    told_apart = np.minimum(np.array(lengths) - min(lengths), LENGTHS - 1)
    assert order.tolist() == [*np.argsort(told_apart, kind="stable").tolist(), *[rows] * (GROUP - 1)]


def test_product_of_rows_that_are_longer_than_what_is_unpacked_at_once() -> None:
    nodes = (1 << 14) + 100
    ends, center = np.arange(1, nodes), np.zeros(nodes - 1, np.int64)
    star = scipy.sparse.coo_array((np.ones(2 * nodes - 2), (np.append(center, ends), np.append(ends, center))))
    graph, S = CsrGraph.from_scipy(scipy.sparse.csr_array(star)), some_S(nodes, 3, 0)
    np.testing.assert_array_equal(matmul(graph, S), naive_sums(graph.indptr, *edges_of(graph), S) * graph.scale[:, None])


def test_product_takes_weights_of_float16() -> None:
    graph, S = some_graph(60, 5, weighted=True), some_S(60, 5, 0)
    assert graph.weights is not None
    short = graph.weights.astype(np.float16)
    found, expected = (
        matmul(CsrGraph(graph.indptr, graph.indices, graph.scale, weights), S) for weights in (short, short.astype(np.float32))
    )
    np.testing.assert_array_equal(found, expected)


@settings(max_examples=60)
@given(
    graph=graphs,
    width=widths,
    seed=seeds_of_draws,
    seed_update=seed_updates,
    short=st.booleans(),
    block=st.sampled_from([3, 1 << 18]),
    needs=st.booleans(),
)
def test_product_from_a_frontier_is_that_of_the_matrix_to_the_last_bit(
    graph: CsrGraph, width: int, seed: int, seed_update: tuple[float, bool], short: bool, block: int, needs: bool
) -> None:
    S = some_S(graph.nodes, width, seed, 0.1)
    S = bfloat16_decode(bfloat16_encode(S)) if short else S
    seeds = Seeds.of(np.arange(graph.nodes), some_labels(graph.nodes, width, 2, seed), width)
    needed = some_rows(graph.nodes, seed) if needs else None
    kept = np.dtype(np.uint16 if short else np.float32)
    expected = np.zeros(S.shape, kept)
    with blocks_of(block), Stream(graph) as stream:
        product(stream, bfloat16_encode(S) if short else S, expected, SeedUpdate(seeds, *seed_update), needed)
        after = advance_frontier(stream, frontier_of(S), SeedUpdate(seeds, *seed_update), needed, short)
        spread = np.zeros(S.shape, kept)
        nonzero = spread_frontier(stream, frontier_of(S), spread, SeedUpdate(seeds, *seed_update), needed, compact=False)
        rows = np.arange(graph.nodes) if needed is None else needed
        compact = np.empty((len(rows), width), kept)
        assert spread_frontier(stream, frontier_of(S), compact, SeedUpdate(seeds, *seed_update), rows, compact=True) == nonzero
    np.testing.assert_array_equal(after.block(0, graph.nodes), bfloat16_decode(expected))
    np.testing.assert_array_equal(spread, expected)
    np.testing.assert_array_equal(compact, expected[rows])
    assert nonzero == np.count_nonzero(expected) == np.count_nonzero(after.values)


def test_frontier_takes_weights_of_float16_and_so_do_the_sums() -> None:
    graph, S = some_graph(60, 5, weighted=True), some_S(60, 3, 0, 0.1)
    assert graph.weights is not None
    short = graph.weights.astype(np.float16)
    found = []
    seeds = Seeds.of(np.arange(60), some_labels(60, 3, 1, 0), 3)
    for weights in (short, short.astype(np.float32)):
        with Stream(CsrGraph(graph.indptr, graph.indices, graph.scale, weights)) as stream:
            after = advance_frontier(stream, frontier_of(S), SeedUpdate(seeds), None, False).block(0, 60)
            found.append((after, column_sums(stream, seeds, Variant(), None, 3)))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])


def naive_bfloat16(value: np.float32) -> float:
    """The nearest number of eight significant bits (fewer below 2^-126); ties go to the even one."""
    if not np.isfinite(value) or value == 0:
        return float(value)
    unit = 2.0 ** (max(math.frexp(float(value))[1] - 1, -126) - 7)
    rounded = float(np.round(float(value) / unit)) * unit
    return rounded if abs(rounded) < 2.0**128 else math.copysign(math.inf, rounded)


@exact_kernel
def keep_and_widen(values: NDArray[np.float32], bits: NDArray[np.uint16], out: NDArray[np.float32]) -> None:
    for i in range(len(values)):
        keep(bits, (i, 0), values[i])
        out[i] = widen(bits[i, 0])


patterns = st.one_of(
    st.integers(0, 0x7F800000),
    st.integers(0, 0x00900000),
    st.integers(0, 0x7F7F).map(lambda high: (high << 16) | 0x8000),
    st.integers(0x7F7F0000, 0x7F800000),
)


@settings(max_examples=70)
@given(st.lists(st.tuples(patterns, st.booleans()), min_size=1, max_size=40))
def test_bfloat16_rounds_to_the_nearest_and_between_two_to_the_even_one(drawn: list[tuple[int, bool]]) -> None:
    values = np.array([bits | (negative << 31) for bits, negative in drawn], np.uint32).view(np.float32)
    expected = np.array([naive_bfloat16(value) for value in values], np.float64)
    np.testing.assert_array_equal(bfloat16_decode(bfloat16_encode(values)).astype(np.float64), expected)
    bits, out = np.empty((len(values), 1), np.uint16), np.empty_like(values)
    keep_and_widen(values, bits, out)
    np.testing.assert_array_equal(bits[:, 0], bfloat16_encode(values))
    np.testing.assert_array_equal(out.astype(np.float64), expected)


@settings(max_examples=45)
@given(graph=graphs, seed=seeds_of_draws, steps=st.integers(0, 3), block=st.sampled_from([2, 1 << 18]))
def test_needed_rows_are_those_that_can_be_reached_in_as_many_steps(graph: CsrGraph, seed: int, steps: int, block: int) -> None:
    A = (graph.to_scipy(normalized=False).toarray() != 0) | np.eye(graph.nodes, dtype=bool)
    start = some_rows(graph.nodes, seed)[:3]
    with blocks_of(block), Stream(graph) as stream:
        found, once = closures(stream, start, steps), reached(stream, start)
    assert len(found) == steps + 1
    mask = np.isin(np.arange(graph.nodes), start)
    for step, rows in enumerate(found):
        # A set of almost all nodes counts as all nodes.
        if rows is None:
            assert mask.sum() > 0.7 * graph.nodes
        else:
            np.testing.assert_array_equal(rows, np.flatnonzero(mask))
        if step == 1:
            np.testing.assert_array_equal(rows is None, once is None)
        mask = A[mask].any(axis=0)
    neighbors = some_neighbors(graph.nodes, seed)
    seen = gathered_rows(neighbors, graph.nodes)
    named = np.unique(neighbors[neighbors != NONE])
    np.testing.assert_array_equal(named if seen is None else seen, named)


@settings(max_examples=60)
@given(
    graph=graphs,
    seed=seeds_of_draws,
    classes=st.integers(1, 4),
    iterations=st.integers(0, 4),
    alpha=st.sampled_from([None, 0.7, 1]),
    reset=st.booleans(),
    symmetric=st.booleans(),
)
def test_sums_of_columns_are_known_without_the_columns(
    graph: CsrGraph, seed: int, classes: int, iterations: int, alpha: float | None, reset: bool, symmetric: bool
) -> None:
    labels = some_labels(graph.nodes, classes, 2, seed)
    variant = Variant("none", None, alpha, reset, "symmetric" if symmetric else "row")
    sqrt_degrees = sqrt_degrees_of(graph.scale) if symmetric else None
    seeds = Seeds.of(np.arange(graph.nodes), labels, classes).in_units_of(sqrt_degrees)
    with blocks_of(20), Stream(graph) as stream:
        sums = column_sums(stream, seeds, variant, sqrt_degrees, iterations)
    S = naive_diffusion(graph, labels, classes, variant, np.ones(classes), iterations)
    assert_close(sums, np.stack([each.sum(axis=0) for each in S]))


@settings(max_examples=50)
@given(
    nodes=st.integers(1, 30),
    classes=st.integers(1, 12),
    seed=seeds_of_draws,
    width=st.integers(1, 12),
    scores=st.sampled_from([2, 3, 1000]),
)
def test_best_classes_are_the_same_whatever_the_batches_and_ties_go_to_the_lower_class(
    nodes: int, classes: int, seed: int, width: int, scores: int
) -> None:
    draw = np.random.default_rng(seed)
    L = draw.integers(0, scores, (nodes, classes)).astype(np.float32)
    order, tops, merged = draw.permutation(classes), TopClasses.empty(nodes, classes), TopClasses.empty(nodes, classes)
    for start in range(0, classes, width):
        columns, own = order[start : start + width], TopClasses.empty(nodes, classes)
        for each in (tops, own):
            each.add(lambda first, stop, columns=columns: L[first:stop, columns], columns)  # type: ignore[misc]
        merged.merge(own)
    np.testing.assert_array_equal(merged.classes, tops.classes)
    np.testing.assert_array_equal(merged.scores, tops.scores)
    for row in range(nodes):
        best = [int(c) for c in np.lexsort((np.arange(classes), -L[row])) if L[row, c] > 0][:TOP]
        rest = [-1] * (min(TOP, classes) - len(best))
        assert tops.classes[row].tolist() == best + rest
        assert tops.scores[row].tolist() == [*L[row, best].tolist(), *(0.0 for _ in rest)]


@settings(max_examples=45)
@given(nodes=st.integers(1, 40), width=widths, seed=seeds_of_draws, short=st.booleans(), high=st.booleans())
def test_all_forms_of_a_state_gather_the_same_scores(nodes: int, width: int, seed: int, short: bool, high: bool) -> None:
    S, neighbors = some_S(nodes, width, seed), some_neighbors(nodes, seed)
    S = bfloat16_decode(bfloat16_encode(S)) if short else S
    kept = bfloat16_encode(S) if short else S
    sqrt_degrees = np.random.default_rng(seed).uniform(0.5, 4, nodes).astype(np.float32) if high else None
    rows = np.unique(neighbors[neighbors != NONE]).astype(np.uint32)
    matrix, frontier = Matrix(kept), frontier_of(S)
    expected = matrix.gather(neighbors, sqrt_degrees)
    L = S.astype(np.float64) if sqrt_degrees is None else S * sqrt_degrees.astype(np.float64)[:, None]
    assert_close(expected, naive_scores(L, neighbors))
    np.testing.assert_array_equal(SomeRows(rows, kept[rows]).gather(neighbors, sqrt_degrees), expected)
    np.testing.assert_array_equal(frontier.gather(neighbors, sqrt_degrees), expected)
    first, stop = nodes // 3, nodes
    np.testing.assert_array_equal(matrix.block(first, stop), S[first:stop])
    np.testing.assert_array_equal(frontier.block(first, stop), S[first:stop])
    np.testing.assert_allclose(matrix.column_sums(sqrt_degrees), L.sum(axis=0), rtol=1e-6)
    np.testing.assert_array_equal(frontier.rows, np.flatnonzero(S.any(axis=1)))


@settings(max_examples=30)
@given(nodes=st.integers(1, 40), width=widths, seed=seeds_of_draws, power=st.sampled_from([0.3, 1, 2.5]), high=st.booleans())
@pytest.mark.parametrize("size", [1e-30, 1, 1e30])
def test_power_then_columns_that_sum_to_one(nodes: int, width: int, seed: int, power: float, high: bool, size: float) -> None:
    S = some_S(nodes, width, seed) * np.float32(size)
    sqrt_degrees = np.random.default_rng(seed).uniform(0.5, 4, nodes).astype(np.float32) if high else None
    ups = np.ones((nodes, 1)) if sqrt_degrees is None else sqrt_degrees.astype(np.float64)[:, None]
    expected = (S.astype(np.float64) * ups) ** power
    sums = expected.sum(axis=0)
    state = Matrix(S.copy())
    raise_power(state, power, sqrt_degrees)
    np.testing.assert_allclose(state.values * ups, np.divide(expected, sums, where=sums > 0, out=expected), rtol=1e-5)


def test_labels_that_are_given_twice_count_once_and_nodes_stay_seeds_in_every_batch() -> None:
    labels = np.array([[2, 2], [-1, -1], [0, 1], [-1, 2]], np.int32)
    seeds = Seeds.of(np.array([7, 3, 5, 4]), labels, 4)
    assert seeds.nodes.tolist() == [4, 5, 7]
    assert [part.tolist() for part in seeds.entries] == [[4, 5, 5, 7], [2, 0, 1, 2], [1, 1, 1, 1]]
    assert seeds.per_class().tolist() == [1, 1, 2, 0]
    some = seeds.select(np.array([3, 2]))
    assert some.nodes.tolist() == [4, 5, 7]
    assert [part.tolist() for part in some.entries] == [[4, 7], [1, 1], [1, 1]]


@settings(max_examples=30)
@given(graph=graphs, block=st.sampled_from([1, 7, 1 << 18]), seed=seeds_of_draws, every=st.booleans())
def test_every_row_is_in_one_block_and_blocks_come_in_order(graph: CsrGraph, block: int, seed: int, every: bool) -> None:
    rows = None if every else some_rows(graph.nodes, seed)
    wanted = np.arange(graph.nodes) if rows is None else rows
    with blocks_of(block), Stream(graph) as stream:
        blocks = list(stream.each(lambda block: (block.rows, block.places), rows))
        read = stream.bytes
    found = np.concatenate([own for own, _ in blocks]) if blocks else np.empty(0, np.int64)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.concatenate([places for _, places in blocks] or [found]), np.arange(len(wanted)))
    degrees = np.diff(graph.indptr)[wanted.astype(np.int64)]
    assert read == int(degrees.sum()) * (4 if graph.weights is None else 8)

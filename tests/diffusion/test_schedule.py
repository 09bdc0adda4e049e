"""One schedule decides the form of each product: the run takes the forms that the plan foresees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdiff.diffusion.engine.independent import Buffers
from mmdiff.diffusion.engine.run import Diffusion
from mmdiff.diffusion.io.graph_stream import Stream
from mmdiff.diffusion.planning.forecast import forecast_batch
from mmdiff.diffusion.schedule import Decision, Form, FrontierSize, ProductSize, next_product
from mmdiff.diffusion.seeds import Seeds
from mmdiff.diffusion.variant import Variant
from mmdiff.graph.graph import CsrGraph
from tests.diffusion.test_diffusion import graphs, small_pieces, some_labels, some_neighbors


@settings(max_examples=60, deadline=None)
@given(
    graph=graphs,
    classes=st.integers(1, 6),
    width=st.integers(1, 6),
    seed=st.integers(0, 1000),
    iterations=st.integers(0, 5),
    every_row=st.booleans(),
    plain=st.booleans(),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    alpha=st.sampled_from([None, 0.8]),
    reset=st.booleans(),
    gamma=st.sampled_from([None, None, None, 1.5]),
    entry_cost=st.sampled_from([0, 2, 8, 70, 1 << 40]),
)
def test_run_takes_the_forms_that_its_plan_foresees(
    graph: CsrGraph,
    classes: int,
    width: int,
    seed: int,
    iterations: int,
    every_row: bool,
    plain: bool,
    dtype: Any,
    alpha: float | None,
    reset: bool,
    gamma: float | None,
    entry_cost: int,
) -> None:
    seeds = Seeds.of(np.arange(graph.nodes), some_labels(graph.nodes, classes, 1, seed), classes)
    with small_pieces(60, entry_cost), Stream(graph) as stream:
        diffusion = Diffusion(
            stream=stream,
            seeds=seeds,
            variant=Variant("column", gamma, alpha, reset, "row", dtype),
            prior=np.full(classes, 1 / classes),
            iterations=iterations,
            width=width,
            neighbors=some_neighbors(graph.nodes, seed)[:1],
            every_row=every_row,
            plain=plain,
        )
        taken: list[list[Form | None]] = [[] for _ in diffusion.batches]
        for result in diffusion.results():
            taken[result.batch].append(result.form)
        for batch, forms in enumerate(taken):
            foreseen = [product.decision.form for product in forecast_batch(diffusion, batch, spills=False)]
            assert forms == [None, *foreseen]


def size(**changed: Any) -> ProductSize:
    usual: dict[str, Any] = {"nodes": 1000, "width": 10, "itemsize": 4, "needed_rows": 1000, "needed_edges": 50_000}
    return ProductSize(**usual | {"rows_only": False} | changed)


FEW, SOME, MANY = FrontierSize(5, 5, 250), FrontierSize(50, 80, 6000), FrontierSize(900, 9000, 450_000)
CASES: dict[str, tuple[FrontierSize | None, ProductSize, Decision]] = {
    "few labels stay a frontier": (FEW, size(), Decision(Form.FRONTIER)),
    "many labels become a matrix": (MANY, size(), Decision(Form.MATRIX, expands=True)),
    "a matrix stays one": (None, size(), Decision(Form.MATRIX)),
    "some labels spread into a matrix": (SOME, size(width=40), Decision(Form.FRONTIER_TO_MATRIX)),
    "some labels spread into rows": (
        SOME,
        size(width=40, needed_rows=9, needed_edges=450, rows_only=True),
        Decision(Form.FRONTIER_TO_ROWS),
    ),
    "the last product computes needed rows": (
        None,
        size(needed_rows=9, needed_edges=450, rows_only=True),
        Decision(Form.MATRIX_TO_ROWS),
    ),
    "a matrix goes through the spill file": (None, size(spill_bytes=100), Decision(Form.MATRIX, spills=True)),
    "few needed rows need no spill file": (
        None,
        size(needed_rows=2, needed_edges=100, rows_only=True, spill_bytes=100),
        Decision(Form.MATRIX_TO_ROWS),
    ),
    "many needed rows need a spill file": (
        None,
        size(needed_rows=9, needed_edges=450, rows_only=True, spill_bytes=100),
        Decision(Form.MATRIX, spills=True),
    ),
}


@pytest.mark.parametrize(("frontier", "product", "decision"), CASES.values(), ids=CASES.keys())
def test_each_form_is_chosen_where_it_pays(frontier: FrontierSize | None, product: ProductSize, decision: Decision) -> None:
    assert next_product(frontier, product) == decision


def test_matrices_of_narrow_batches_give_their_whole_memory_back() -> None:
    buffers = Buffers()
    wide = buffers.target((1000, 96), "float32")
    address = wide.__array_interface__["data"][0]
    buffers.give_back(wide)
    narrow = buffers.target((1000, 20), "float32")
    assert narrow.__array_interface__["data"][0] == address
    buffers.give_back(narrow)
    assert buffers.target((1000, 96), "float32").__array_interface__["data"][0] == address

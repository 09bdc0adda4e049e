"""`mmdiff plan diffuse`: what a run will take in memory, disk and time, from the store's sizes and a calibration of seconds.

The iterations in which labels have not come far are cheap: those of one batch are run. Of the products of whole matrices some
blocks are timed, spread over the graph. The rest is arithmetic: how many batches there are, and what each iteration needs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from mmdiff.diffusion.engine import frontier as frontiers
from mmdiff.diffusion.engine.deferred_sums import time_of_step
from mmdiff.diffusion.engine.independent import Work
from mmdiff.diffusion.engine.needed_rows import closures
from mmdiff.diffusion.engine.product import SeedUpdate, product_of_rows
from mmdiff.diffusion.engine.run import Diffusion
from mmdiff.diffusion.engine.states import Frontier, Matrix
from mmdiff.diffusion.io import graph_stream as streaming
from mmdiff.diffusion.io.checkpoint import KEEP_SECONDS
from mmdiff.diffusion.io.graph_stream import Stream
from mmdiff.diffusion.planning.memory_model import held_beside
from mmdiff.diffusion.seeds import Seeds
from mmdiff.diffusion.stage import Prepared, Request, prepare
from mmdiff.diffusion.variant import SINKHORN_ROUNDS
from mmdiff.doctor.disk import measure
from mmdiff.formats.storage.seam import free_bytes
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Store
from mmdiff.runtime.memory import anonymous_bytes

# The matrix that products are timed on, and the blocks that are.
_CALIBRATION_BYTES = 512 << 20
_CALIBRATION_BLOCKS = 24

# Of what a run is allowed for each node (`needs`), the part that runs of one to ten million nodes did not use; and what kernels
# hold that planning does not load.
_SPARED_NODE_BYTES = 9
_KERNEL_BYTES = 30 << 20

# Python, its libraries, kernels and threads, as the command has them when it begins to compute.
_START_SECONDS = 1.5


@dataclass(frozen=True)
class Planned:
    """One iteration of one batch."""

    iteration: int
    form: str
    rows: int
    seconds: float
    bytes: int


@dataclass(frozen=True)
class Plan:
    """What a run will take. Bytes, seconds."""

    cols_per_batch: int
    batches: int
    buffer_on_disk: bool
    memory: int
    memory_limit: int
    scratch: int
    artifact: int
    disk_free: int
    seconds: float
    steps: list[Planned]

    def summary(self) -> Json:
        return asdict(self)


def plan_diffuse(path: Path, request: Request) -> Plan:
    """The plan of a run; refused where the run would be."""
    store = Store.open(path)
    prepared = prepare(store, request)
    needs, problem, variant = prepared.needs, prepared.problem, prepared.variant
    held = anonymous_bytes()
    with Stream(problem.graph) as stream:
        diffusion = Diffusion(
            stream,
            problem.seeds,
            variant,
            prepared.prior,
            request.iterations,
            needs.width,
            problem.neighbors,
            request.predict_nodes is not None,
            request.plain,
        )
        work = diffusion.work()
        per_column = _time_per_edge_and_column(stream, needs.width)
        if variant.coupled:
            steps = list(_coupled_steps(prepared, per_column, path))
        else:
            steps = list(_steps(prepared, diffusion, work, per_column))
        around = _sums_seconds(diffusion, work)
    seconds = _START_SECONDS + around + needs.batches * sum(step.seconds for step in steps) + _scores_seconds(prepared)
    kept = not variant.coupled and max((step.seconds for step in steps), default=0) > KEEP_SECONDS
    return Plan(
        needs.width,
        needs.batches,
        needs.on_disk,
        held + _peak(prepared, steps),
        request.memory,
        needs.parts + (needs.states if kept or variant.coupled or needs.on_disk else 0),
        needs.artifact,
        free_bytes(path),
        round(seconds, 1),
        steps,
    )


def _time_per_edge_and_column(stream: Stream, width: int) -> float:
    """Seconds of the product of a whole matrix, on blocks that are spread over the graph."""
    graph = stream.graph
    columns = max(1, min(width, _CALIBRATION_BYTES // (4 * graph.nodes)))
    source = np.ones((graph.nodes, columns), np.float32)
    block = max(1, streaming.BLOCK_EDGES * graph.nodes // max(1, graph.edges))
    starts = np.linspace(0, max(0, graph.nodes - block), _CALIBRATION_BLOCKS).astype(np.int64)
    rows = np.unique((starts[:, None] + np.arange(min(block, graph.nodes))).reshape(-1))
    edges = graph.edges_of(rows)
    out = np.empty((len(rows), columns), np.float32)
    seed_update = SeedUpdate(Seeds.of(np.empty(0, np.int64), np.empty((0, 1), np.int32), columns))
    times = []
    for _ in range(3):
        clock = time.perf_counter()
        product_of_rows(stream, source, out, seed_update, rows)
        times.append(time.perf_counter() - clock)
    return min(times[1:]) / max(1, edges * columns)


def _steps(prepared: Prepared, diffusion: Diffusion, work: Work, per_column: float) -> Iterator[Planned]:
    """The iterations of one batch, of which there is one in the middle of the order."""
    graph, variant = prepared.problem.graph, prepared.variant
    seeds = prepared.problem.seeds.select(diffusion.columns(len(diffusion.batches) // 2))
    alpha = 1.0 if variant.alpha is None else variant.alpha
    seed_update = SeedUpdate(seeds, alpha, variant.reset_seeds)
    state: Frontier | None = None if work.whole else frontiers.first_frontier(seeds, graph.nodes)
    matrix = graph.nodes * seeds.classes * variant.itemsize
    for iteration in range(1, prepared.request.iterations + 1):
        needed = work.needed[iteration]
        rows = graph.nodes if needed is None else len(needed)
        last = iteration == prepared.request.iterations and needed is not None
        if state is not None and frontiers.stays_small(work.stream, state, variant.itemsize):
            clock, before = time.perf_counter(), anonymous_bytes()
            state = frontiers.advance_frontier(work.stream, state, seed_update, needed, variant.dtype == "bfloat16")
            grown = anonymous_bytes() - before
            yield Planned(iteration, "frontier", rows, time.perf_counter() - clock, max(0, grown))
            continue
        target = 4 * rows * seeds.classes if last else matrix
        if state is not None and frontiers.worthwhile(work.stream, state, needed):
            seconds = frontiers.cost(work.stream, state, needed) * per_column
            yield Planned(iteration, "frontier to rows" if last else "frontier to matrix", rows, seconds, target)
        else:
            edges = work.stream.graph.edges_of(needed)
            seconds = edges * seeds.classes * per_column * (1 if variant.itemsize == 4 else 0.7)
            yield Planned(iteration, "some rows" if last else "matrix", rows, seconds, target + matrix)
        state = None


def _coupled_steps(prepared: Prepared, per_column: float, path: Path) -> Iterator[Planned]:
    """Of operators that couple the classes: a product, and passes over all classes, of which a piece is timed."""
    graph, width = prepared.problem.graph, prepared.needs.width
    values = np.ones((1 << 14, 256), np.float32)
    clock = time.perf_counter()
    for _ in range(3):
        Matrix(values).column_sums(None)
        np.count_nonzero(values * values[:, :1])
    per_entry = (time.perf_counter() - clock) / 3 / values.size
    speed = measure(path, lambda _: None)
    passes = 3 if prepared.variant.eta == "row" else 3 + 2 * SINKHORN_ROUNDS
    entries = graph.nodes * width
    for iteration in range(1, prepared.request.iterations + 1):
        disk = 4 * entries * (1 / speed.write + 1 / speed.read)
        seconds = graph.edges * width * per_column + passes * entries * per_entry + disk
        yield Planned(iteration, "matrix on disk", graph.nodes, seconds, entries * (4 + prepared.variant.itemsize))


def _sums_seconds(diffusion: Diffusion, work: Work) -> float:
    """The recursion of the column sums: each step where a later one looks."""
    if work.whole or diffusion.variant.coupled or not diffusion.iterations:
        return 0.0
    graph = diffusion.stream.graph
    clock = time.perf_counter()
    needed = closures(diffusion.stream, diffusion.seeds.nodes.astype(np.uint32), diffusion.iterations - 1)
    found = time.perf_counter() - clock
    per_edge = time_of_step(diffusion.stream)
    edges = sum(map(graph.edges_of, needed))
    return found + edges * per_edge


def _scores_seconds(prepared: Prepared) -> float:
    """Writing the scores twice, as parts and as a whole, each piece synced."""
    return 2 * prepared.needs.artifact / 400e6 + 0.01 * prepared.needs.batches


def _peak(prepared: Prepared, steps: list[Planned]) -> int:
    """What is held beside the process itself, at the worst moment."""
    request = prepared.request
    allowed = held_beside(prepared.problem, prepared.variant, request.predict_nodes is not None, request.plain)
    spared = 0 if request.plain else _SPARED_NODE_BYTES * prepared.problem.graph.nodes
    likely = allowed - spared + _KERNEL_BYTES
    return likely + max((step.bytes for step in steps), default=0)

"""`mmdiff plan diffuse`: memory, disk and time of a run, from its forecast and a calibration that takes seconds.

The frontier products of one batch are computed, and some blocks of the product of a whole matrix are timed. The rest is
arithmetic: the number of batches, and the edges of each product. Memory is the bound that the run announces.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from mmdiff.diffusion.engine.deferred_sums import time_of_step
from mmdiff.diffusion.engine.needed_rows import Rows, closures
from mmdiff.diffusion.engine.product import no_update, product_of_rows
from mmdiff.diffusion.engine.run import Diffusion
from mmdiff.diffusion.engine.states import Matrix
from mmdiff.diffusion.io import graph_stream as streaming
from mmdiff.diffusion.io.checkpoint import CHECKPOINT_SECONDS
from mmdiff.diffusion.io.graph_stream import Stream
from mmdiff.diffusion.io.kept_rows import kept_bytes
from mmdiff.diffusion.planning.forecast import MOST_VISITS, extrapolate_batch, forecast_batch
from mmdiff.diffusion.planning.memory_model import Footprint
from mmdiff.diffusion.schedule import Form, FrontierSize, frontier_cost
from mmdiff.diffusion.stage import Prepared, Request, prepare
from mmdiff.diffusion.variant import SINKHORN_ROUNDS
from mmdiff.doctor.disk import measure
from mmdiff.formats.storage import seam
from mmdiff.formats.storage.arrays import PAGE_BYTES
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Store
from mmdiff.graph.graph import CsrGraph
from mmdiff.runtime.find_or_make import notes_on_disk

# The matrix that products are timed on, and the number of blocks.
_CALIBRATION_BYTES = 512 << 20
_CALIBRATION_BLOCKS = 24

# Time of the product of bfloat16 relative to float32.
_SHORT_TIME = 0.7

_NO_FRONTIER = FrontierSize(0, 0, 0)

# Starting Python, and loading libraries, kernels and threads.
_START_SECONDS = 1.5


@dataclass(frozen=True)
class Planned:
    """One iteration of one batch: the form and the rows of its product, its seconds, and the bytes of its states.

    `read` are the bytes of W that it reads from the disk, where W is larger than memory; rows that are kept count as unread.
    """

    iteration: int
    form: str
    rows: int
    seconds: float
    bytes: int
    read: int = 0


@dataclass(frozen=True)
class Plan:
    """The plan of a run, in bytes and seconds, with notes for the user. `memory` is an upper bound of the anonymous memory.

    `read` are the bytes of W that the run reads from the disk, 0 where the page cache holds W.
    """

    cols_per_batch: int
    batches: int
    buffer_on_disk: bool
    memory: int
    memory_limit: int
    scratch: int
    artifact: int
    disk_free: int
    seconds: float
    read: int
    notes: list[str]
    steps: list[Planned]

    def summary(self) -> Json:
        return asdict(self)


def plan_diffuse(path: Path, request: Request) -> Plan:
    """The plan of a run; refused where the memory is too little for any."""
    store = Store.open(path)
    prepared = prepare(store, request).widened
    needs, problem, variant = prepared.announced, prepared.problem, prepared.variant
    memory = needs.memory
    with Stream(problem.graph) as stream:
        # Its frontier has no limit: the extrapolation goes on where the run would fall back.
        diffusion = replace(prepared.diffusion(stream), most_bytes=None)
        clock = time.perf_counter()
        reached = _reached_rows(diffusion)
        found = time.perf_counter() - clock
        reading = Reading.of(diffusion, reached, needs.kept, past_cache(prepared))
        per_column = _time_per_edge_and_column(stream, needs.width)
        if variant.coupled:
            steps = list(_coupled_steps(prepared, per_column, path, reading))
        else:
            steps = list(_steps(diffusion, needs, per_column, reading))
        around = found + sum(map(problem.graph.edges_of, reached)) * (time_of_step(stream) if reached else 0)
    seconds = _START_SECONDS + around + needs.batches * sum(step.seconds for step in steps) + _scores_seconds(prepared)
    saved = not variant.coupled and max((step.seconds for step in steps), default=0) > CHECKPOINT_SECONDS
    return Plan(
        cols_per_batch=needs.width,
        batches=needs.batches,
        buffer_on_disk=needs.spills,
        memory=memory,
        memory_limit=request.memory,
        scratch=needs.parts + (needs.states if saved or variant.coupled or needs.spills else 0),
        artifact=needs.artifact,
        disk_free=seam.free_bytes(path),
        seconds=round(seconds, 1),
        read=reading.of_sets(diffusion, reached) + needs.batches * sum(step.read for step in steps),
        notes=notes_on_disk(path, "this run", needs.disk),
        steps=steps,
    )


def _time_per_edge_and_column(stream: Stream, width: int) -> float:
    """Seconds of the product of a whole matrix, measured on blocks spread over the graph."""
    graph = stream.graph
    columns = max(1, min(width, _CALIBRATION_BYTES // (4 * graph.nodes)))
    source = np.ones((graph.nodes, columns), np.float32)
    block = max(1, streaming.BLOCK_EDGES * graph.nodes // max(1, graph.edges))
    starts = np.linspace(0, max(0, graph.nodes - block), _CALIBRATION_BLOCKS).astype(np.int64)
    rows = np.unique((starts[:, None] + np.arange(min(block, graph.nodes))).reshape(-1))
    edges = graph.edges_of(rows)
    out = np.empty((len(rows), columns), np.float32)
    times = []
    for _ in range(3):
        clock = time.perf_counter()
        product_of_rows(stream, source, out, no_update(columns), rows)
        times.append(time.perf_counter() - clock)
    return min(times[1:]) / max(1, edges * columns)


def past_cache(prepared: Prepared) -> bool:
    """Whether the run reads W past the page cache."""
    with prepared.stream(prepared.announced.memory) as stream:
        return stream.past_cache


@dataclass(frozen=True)
class Reading:
    """The bytes of W that passes read from the disk.

    The rows of W that are kept are those that are needed after the iterations `needed`, and those that labels have reached
    after the iterations `reached`.
    """

    graph: CsrGraph
    past_cache: bool
    needed: frozenset[int] = frozenset()
    reached: frozenset[int] = frozenset()

    @classmethod
    def of(cls, diffusion: Diffusion, reached: Sequence[Rows | None], most: int, past_cache: bool) -> Reading:
        """The reading of a run that keeps at most so many bytes of rows.

        Needed rows come first, from the last iteration backwards; those before the last are only kept for other batches.
        """
        graph, several = diffusion.stream.graph, len(diffusion.batches) > 1
        last = diffusion.iterations
        sets = [("needed", t, diffusion.work.needed[t]) for t in range(last, 0, -1) if several or t == last]
        sets += [("reached", t, rows) for t, rows in enumerate(reached)]
        kept: dict[str, set[int]] = {"needed": set(), "reached": set()}
        for kind, iteration, rows in sets:
            if past_cache and rows is not None and streaming.reads_whole(graph, len(rows)):
                size = kept_bytes(rows, graph.edges_of(rows), graph.entries)
                if size <= most:
                    kept[kind].add(iteration)
                    most -= size
        return cls(graph, past_cache, frozenset(kept["needed"]), frozenset(kept["reached"]))

    def of_sets(self, diffusion: Diffusion, reached: Sequence[Rows | None]) -> int:
        """The bytes of the passes that find both kinds of rows, and of the column sums, which take the reached ones again."""
        sets = [*reached[:-1], *diffusion.work.needed[2:]]
        found = sum(self.of_rows(len(rows)) for rows in sets if rows is not None)
        again = [rows for t, rows in enumerate(reached) if t not in self.reached]
        return found + sum(self.of_rows(self.graph.nodes if rows is None else len(rows)) for rows in again)

    def of_rows(self, rows: int) -> int:
        """The bytes of a pass over so many rows."""
        if not self.past_cache:
            return 0
        whole = streaming.stored_bytes(self.graph)
        return whole if streaming.reads_whole(self.graph, rows) else min(whole, rows * PAGE_BYTES)

    def of_product(self, iteration: int, rows: int) -> int:
        """The bytes of a product that computes so many of the needed rows of an iteration."""
        return 0 if iteration in self.needed | self.reached else self.of_rows(rows)


def _steps(diffusion: Diffusion, needs: Footprint, per_column: float, reading: Reading) -> Iterator[Planned]:
    """The iterations of the batch in the middle of the order."""
    short = _SHORT_TIME if diffusion.variant.itemsize == 2 else 1.0
    batch = len(diffusion.batches) // 2
    if needs.frontier is None:
        products = forecast_batch(diffusion, batch, needs.spills)
    else:
        products = extrapolate_batch(diffusion, batch, MOST_VISITS)
    for product in products:
        size, form = product.size, product.decision.form
        if form is Form.FRONTIER:
            seconds = product.seconds or frontier_cost(product.before or _NO_FRONTIER, size) * per_column
        elif product.before is not None and not product.decision.expands:
            seconds = frontier_cost(product.before, size) * per_column
        else:
            seconds = size.needed_edges * size.width * per_column * short
        held = product.frontier_bytes + product.written_bytes
        # A frontier product computes the rows that its visits lead to.
        visited = size.nodes if product.before is None else product.before.visits
        yield Planned(
            iteration=product.iteration,
            form=form.value,
            rows=size.needed_rows,
            seconds=seconds,
            bytes=held,
            read=reading.of_product(product.iteration, min(visited, size.needed_rows)),
        )


def _coupled_steps(prepared: Prepared, per_column: float, path: Path, reading: Reading) -> Iterator[Planned]:
    """The iterations of a coupled operator: a product, and passes over all classes, of which a piece is timed."""
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
        held = entries * (4 + prepared.variant.itemsize)
        yield Planned(
            iteration=iteration,
            form=Form.COUPLED.value,
            rows=graph.nodes,
            seconds=seconds,
            bytes=held,
            read=reading.of_rows(graph.nodes),
        )


def _reached_rows(diffusion: Diffusion) -> Sequence[Rows | None]:
    """The rows that labels have reached after each iteration but the last: those of the recursion of the column sums."""
    if diffusion.work.whole or diffusion.variant.coupled or not diffusion.iterations:
        return []
    return closures(diffusion.stream, diffusion.seeds.nodes.astype(np.uint32), diffusion.iterations - 1)


def _scores_seconds(prepared: Prepared) -> float:
    """Seconds of writing the scores twice, as batches and as a whole, with each chunk synced."""
    return 2 * prepared.needs.artifact / 400e6 + 0.01 * prepared.needs.batches

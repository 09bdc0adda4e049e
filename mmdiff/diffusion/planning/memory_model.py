"""The memory model of a diffusion: the width of its batches, an upper bound of its memory, and its disk use.

Memory is the anonymous memory of the process, which the memory limit is about; mapped files do not count. The width of batches
is chosen before anything is computed, as if every batch held two matrices. The announced bound takes the schedule into account
(`forecast.py`): where S stays a frontier, and where only needed rows are computed, matrices are not made.

Where S is expected to stay a frontier to the end, batches are as wide as frontiers of the expected size allow, mostly all
columns at once: each pass over W then serves all of them. The run holds frontiers to that size, and falls back to the narrow
batches if they outgrow it. Memory that is left keeps rows of W, if W is larger than memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from mmdiff.diffusion.engine import top_classes
from mmdiff.diffusion.engine.run import Diffusion
from mmdiff.diffusion.io import spill
from mmdiff.diffusion.io.graph_stream import stored_bytes, window_bytes
from mmdiff.diffusion.options import COLS_PER_BATCH
from mmdiff.diffusion.planning.forecast import FEW_VISITS, REACHED_BYTES, extrapolate_batch, state_bytes
from mmdiff.diffusion.planning.load_kernels import load_kernels
from mmdiff.diffusion.problem import Problem
from mmdiff.diffusion.schedule import ENTRY_BYTES, NEW_ENTRY_BYTES, Form
from mmdiff.diffusion.variant import Variant
from mmdiff.formats.errors import BadOption, Parameter
from mmdiff.formats.storage.arrays import CHUNK_BYTES, ArraySpec
from mmdiff.formats.store.manifest import Json
from mmdiff.runtime.memory import anonymous_bytes, available_bytes
from mmdiff.runtime.threads import cores

# Memory for loading and compiling kernels, before they are loaded; and for threads, allocators and blocks in work.
_KERNEL_BYTES = 96 << 20
_SLACK_BYTES = 16 << 20

# The memory of a process itself differs by so much from run to run; advice on a limit includes it.
_VARIATION = 2 << 20

# Bytes for each node. Shortcuts: offsets of two frontiers and of the next one, masks, sets of rows, the vector of column sums.
_SHORTCUT_NODE_BYTES = 24 + 9
_PLAIN_NODE_BYTES = 4
_SQRT_DEGREE_BYTES = 4
_ROW_FACTOR_BYTES = 12

# Bytes for each neighbour of a test point while its scores are gathered.
_NEIGHBOR_BYTES = 28

# The least memory for frontiers that may grow beyond what is expected.
_LEAST_FRONTIER = 16 << 20

# A narrower batch is widened by a spill file.
_NARROW = 32
# Entries of float32 in a cache line. A line has twice as many of bfloat16, but its kernel goes in steps of 16 too.
_LINE = 16


@dataclass(frozen=True)
class Footprint:
    """Columns of a batch, number of batches, and memory and disk of a run in bytes (memory: of each worker).

    On disk are the scores of each batch (`parts`), the `states` (coupled products, or checkpoints of S) and the `artifact`.
    `most_memory` is the bound before the schedule is known; `find_bound` computes the closer one. Both include `kept` bytes for
    rows of W. Where S is to stay a frontier, `frontier` are its most bytes while it is computed.
    """

    width: int
    batches: int
    spills: bool
    most_memory: int
    parts: int
    states: int
    artifact: int
    workers: int = 1
    kept: int = 0
    frontier: int | None = None
    find_bound: Callable[[], int] | None = field(default=None, compare=False, repr=False)

    @cached_property
    def memory(self) -> int:
        """An upper bound of the anonymous memory. Its first use loads the kernels and computes the cheap first products."""
        return self.most_memory if self.find_bound is None else min(self.most_memory, self.find_bound())

    @property
    def disk(self) -> int:
        """Bytes on disk at the peak."""
        return self.parts + self.states + self.artifact

    def summary(self) -> Json:
        """The footprint as plain values."""
        return {
            "cols_per_batch": self.width,
            "batches": self.batches,
            "spills": self.spills,
            "memory": self.memory,
            "disk": self.disk,
            "workers": self.workers,
        }


@dataclass(frozen=True)
class Limits:
    """The user's limits: columns of a batch or the most there may be, memory of all workers, and what is to be computed."""

    cols_per_batch: int | None
    memory: int
    iterations: int
    kept_iterations: int
    every_row: bool
    workers: int = 1
    plain: bool = False
    most_cols: int | None = None


def footprint(problem: Problem, variant: Variant, limits: Limits) -> Footprint:
    """The widest batches that fit and leave no worker idle, or the requested ones; refused if they do not fit."""
    nodes, classes = problem.graph.nodes, problem.seeds.classes
    memory = limits.memory // limits.workers
    fixed = anonymous_bytes() + _KERNEL_BYTES + fixed_bytes(problem, variant, limits, min(classes, COLS_PER_BATCH))
    free = max(0, memory - fixed)
    # A coupled operator writes its products as float32, beside the state.
    pair = nodes * (variant.itemsize + 4) if variant.coupled else 2 * nodes * variant.itemsize
    width = _width(limits, variant, nodes, classes, free // pair, free)
    batches = -(-classes // width)
    width = min(width, _whole_lines(-(-classes // batches)))
    two, one = fixed + width * pair, fixed + _spilled_bytes(nodes, variant, width)
    spills = two > memory
    if spills and (variant.coupled or one > memory):
        raise _refusal(limits, variant, nodes, width, fixed)
    parts, states, artifact = _disk(problem, variant, limits, width)
    most_memory = one if spills else two
    kept = _kept_bytes(problem, variant, limits, memory - most_memory)
    return Footprint(
        width=width,
        batches=batches,
        spills=spills,
        most_memory=most_memory + kept,
        parts=parts,
        states=states,
        artifact=artifact,
        workers=limits.workers,
        kept=kept,
    )


def wide_footprint(problem: Problem, limits: Limits, narrow: Footprint, diffusion: Diffusion) -> Footprint | None:
    """Wider batches in which S stays a frontier; None where it is expected not to, or where these would be no wider.

    `diffusion` is that of all columns in as many batches as there are workers.
    """
    variant, nodes, classes = diffusion.variant, problem.graph.nodes, problem.seeds.classes
    memory = limits.memory // limits.workers
    fixed = anonymous_bytes() + _KERNEL_BYTES + fixed_bytes(problem, variant, limits, diffusion.width)
    free = memory - fixed - REACHED_BYTES * nodes
    expected = 0
    for product in extrapolate_batch(diffusion, 0, FEW_VISITS):
        if product.before is None or product.decision.form not in (Form.FRONTIER, Form.FRONTIER_TO_ROWS):
            return None
        rows = product.written_bytes if product.decision.form is Form.FRONTIER_TO_ROWS else 0
        expected = max(expected, ENTRY_BYTES * product.before.entries + NEW_ENTRY_BYTES * product.after + rows)
    if free < _LEAST_FRONTIER:
        return None
    split = -(-max(expected, _LEAST_FRONTIER) // free)
    width, expected = -(-diffusion.width // split), max(-(-expected // split), _LEAST_FRONTIER)
    if width <= narrow.width:
        return None
    # Twice the expected size, since that is an estimate, but not all of the memory, since rows of W are kept in the rest.
    frontier = min(2 * expected, max(expected, free * 2 // 3))
    kept = _kept_bytes(problem, variant, limits, free - frontier)
    parts, _, artifact = _disk(problem, variant, limits, width)
    return replace(
        narrow,
        width=width,
        batches=-(-classes // width),
        spills=False,
        most_memory=memory - free + frontier + kept,
        parts=parts,
        # The checkpoint of the batch in work, and the one that replaces it.
        states=2 * (frontier + 8 * nodes) if limits.iterations > 1 else 0,
        artifact=artifact,
        kept=kept,
        frontier=frontier,
    )


def memory_bound(problem: Problem, limits: Limits, diffusion: Diffusion, needs: Footprint) -> int:
    """An upper bound of the anonymous memory, from the process with all kernels loaded and the states of the forecast."""
    variant, nodes, width = diffusion.variant, problem.graph.nodes, diffusion.width
    load_kernels(diffusion)
    held = anonymous_bytes() + _SLACK_BYTES + fixed_bytes(problem, variant, limits, width) + needs.kept
    if variant.coupled:
        return held + nodes * width * (variant.itemsize + 4)
    limited = None if needs.frontier is None else held + REACHED_BYTES * nodes + needs.frontier
    if limited is not None and diffusion.stream.past_cache:
        # The products of the forecast would read W.
        return limited
    states = state_bytes(diffusion, needs.spills, needs.most_memory)
    if states is None and limited is not None:
        return limited
    return needs.most_memory if states is None else held + states


def fixed_bytes(problem: Problem, variant: Variant, limits: Limits, width: int) -> int:
    """Memory beside the states: vectors over all nodes, blocks of scores, and windows of a graph larger than memory."""
    nodes, classes = problem.graph.nodes, problem.seeds.classes
    total = nodes * (_PLAIN_NODE_BYTES if limits.plain else _SHORTCUT_NODE_BYTES)
    if problem.neighbors is not None and problem.tests:
        per_row = 4 * width + _NEIGHBOR_BYTES * problem.neighbors.shape[1]
        chunk = ArraySpec.fit((limits.kept_iterations, problem.tests, width), "float32").rows_per_chunk
        gathered = cores() * min(chunk, problem.tests) * per_row
        # Scores are gathered beside the states, and put together after them.
        total += max(gathered, min(CHUNK_BYTES, 4 * problem.tests * classes))
    if variant.normalize_graph == "symmetric":
        total += nodes * _SQRT_DEGREE_BYTES
    if variant.coupled:
        total += nodes * _ROW_FACTOR_BYTES
    if limits.every_row:
        total += nodes * top_classes.BYTES_PER_NODE + 2 * cores() * top_classes.block_bytes(nodes, width)
    if _reads_past_cache(problem, limits):
        total += min(window_bytes(problem.graph), stored_bytes(problem.graph))
    return total


def _reads_past_cache(problem: Problem, limits: Limits) -> bool:
    """Whether W is larger than the memory of the machine beside the run."""
    return stored_bytes(problem.graph) > available_bytes() - limits.memory


def _kept_bytes(problem: Problem, variant: Variant, limits: Limits, free: int) -> int:
    """Memory for rows of W that several passes need: what is free, where W is read past the page cache."""
    if limits.plain or not variant.linear or not _reads_past_cache(problem, limits):
        return 0
    return max(0, min(free, stored_bytes(problem.graph)))


def _width(limits: Limits, variant: Variant, nodes: int, classes: int, pairs: int, free: int) -> int:
    """Columns of a batch: those that the user fixed, or as many as fit in `free` bytes, which hold `pairs` twice."""
    if limits.cols_per_batch is not None:
        return min(limits.cols_per_batch, classes)
    most = min(classes, limits.most_cols or classes)
    width = min(most, max(1, pairs))
    if _LINE < width < most:
        width -= width % _LINE
    if width < min(_NARROW, most) and not variant.coupled:
        width = min(most, _NARROW, max(1, _widest_spilled(nodes, variant, free)))
    return min(width, -(-classes // limits.workers))


def _refusal(limits: Limits, variant: Variant, nodes: int, width: int, fixed: int) -> BadOption:
    """The error of a run that does not fit, with the columns or the memory that would."""
    memory = limits.memory // limits.workers
    pair = nodes * (variant.itemsize + 4)
    if variant.coupled:
        least, needed, most = fixed + pair, fixed + width * pair, max(0, memory - fixed) // pair
    else:
        least, needed = (fixed + _spilled_bytes(nodes, variant, columns) for columns in (1, width))
        most = _widest_spilled(nodes, variant, max(0, memory - fixed))
    share = f", {memory >> 20}M for each of {limits.workers} workers" if limits.workers > 1 else ""
    columns = f"1 column of {nodes:,} nodes needs" if width == 1 else f"{width} columns of {nodes:,} nodes need"
    problem = (Parameter("memory", f"{limits.memory >> 20}M"), f"{share}: {columns} {needed >> 20}M. ")
    if most and limits.cols_per_batch is not None:
        return BadOption(*problem, Parameter("cols_per_batch", most), " or auto fits.")
    enough = f"{limits.workers * -(-(least + _VARIATION) >> 20)}M"
    return BadOption(*problem, "At least ", Parameter("memory", enough), " is needed.")


def _whole_lines(width: int) -> int:
    """The next width at which rows of S fill whole cache lines and vector registers."""
    return -(-width // _LINE) * _LINE


def _spilled_bytes(nodes: int, variant: Variant, width: int) -> int:
    """Memory of one matrix that is replaced by the next one through a spill file."""
    return nodes * width * variant.itemsize + spill.buffer_bytes((nodes, width), variant.stored_dtype)


def _widest_spilled(nodes: int, variant: Variant, free: int) -> int:
    """The most columns that fit in memory with a spill file."""
    width = free // max(1, nodes * variant.itemsize)
    while width and _spilled_bytes(nodes, variant, width) > free:
        width -= 1
    return width


def _disk(problem: Problem, variant: Variant, limits: Limits, width: int) -> tuple[int, int, int]:
    """Bytes of the scores of batches, of states, and of the artifact."""
    nodes, classes = problem.graph.nodes, problem.seeds.classes
    artifact = 0
    if problem.tests:
        artifact += ArraySpec.fit((limits.kept_iterations, problem.tests, classes), "float32").bytes_on_disk
    if limits.every_row:
        artifact += 2 * ArraySpec.fit((problem.collection, min(top_classes.TOP, classes)), "float32").bytes_on_disk
    widths = [min(width, classes - first) for first in range(0, classes, width)]
    shapes = [(limits.kept_iterations, problem.tests, own) for own in widths if problem.tests]
    parts = sum(ArraySpec.fit(shape, "float32").bytes_on_disk for shape in shapes)
    states = 0
    if variant.coupled:
        states += 2 * sum(ArraySpec.fit((nodes, own), "float32").bytes_on_disk for own in widths)
    elif limits.iterations > 1:
        # The checkpoint of the batch in work, and the one that replaces it.
        states += 2 * nodes * width * variant.itemsize
    if limits.every_row:
        # The top classes of all finished batches, twice while they are replaced, and those that workers have finished since.
        parts += (2 + (limits.workers if limits.workers > 1 else 0)) * nodes * top_classes.BYTES_PER_NODE
    return parts, states, artifact

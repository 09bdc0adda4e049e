"""What a diffusion will hold in memory and put on disk, decided before it starts (DESIGN section 5, and `mmdiff plan`)."""

from __future__ import annotations

from dataclasses import dataclass

from mmdiff.diffusion.engine import top_classes as tops
from mmdiff.diffusion.io import spill
from mmdiff.diffusion.io.graph_stream import stored_bytes, window_bytes
from mmdiff.diffusion.problem import Problem
from mmdiff.diffusion.variant import Variant
from mmdiff.formats.errors import BadOption
from mmdiff.formats.storage.arrays import CHUNK_BYTES, ArraySpec
from mmdiff.formats.store.manifest import Json
from mmdiff.runtime.memory import anonymous_bytes, available_bytes
from mmdiff.runtime.threads import cores

# Kernels that are loaded or compiled, and blocks in work.
_KERNEL_BYTES = 96 << 20
# Offsets of two frontiers and of the one in the making; masks and lists of needed rows; the vector of column sums.
_NODE_BYTES = 24 + 9
# Without shortcuts there is none of that; with room to spare, what was seen beside S.
_PLAIN_NODE_BYTES = 4
_SQRT_DEGREE_BYTES = 4
_ROW_FACTOR_BYTES = 12

# A batch that is narrower than this is better widened with a buffer on disk.
_NARROW = 32
# Entries of float32 in a line of the cache; bfloat16 has twice as many, but its kernel goes in steps of as few.
_LINE = 16
# Columns that the blocks of scores in work usually have.
_USUAL = 96


@dataclass(frozen=True)
class Footprint:
    """Of a run: columns of a batch, whether S changes between memory and disk, bytes of memory at the most (of each worker),
    bytes on disk.

    On disk there are the scores, first as `parts`, one for each batch, and `states`: of coupled operators the products, of
    others S after an iteration, where that takes long.
    """

    width: int
    batches: int
    spills: bool
    memory: int
    parts: int
    states: int
    artifact: int
    workers: int

    def summary(self) -> Json:
        """The footprint as plain values."""
        return {
            "cols_per_batch": self.width,
            "batches": self.batches,
            "spills": self.spills,
            "memory": self.memory,
            "disk": self.parts + self.states + self.artifact,
            "workers": self.workers,
        }


@dataclass(frozen=True)
class Limits:
    """What the user fixed: columns of a batch, or None and the most there may be, and the limit of memory of all workers."""

    cols_per_batch: int | None
    memory: int
    iterations: int
    kept_iterations: int
    every_row: bool
    workers: int = 1
    plain: bool = False
    most_cols: int | None = None


def footprint(problem: Problem, variant: Variant, limits: Limits) -> Footprint:
    """The widest batches that fit and leave none of the workers idle, or those that were asked for; refused where they do not
    fit.
    """
    nodes, classes = problem.graph.nodes, problem.seeds.classes
    memory = limits.memory // limits.workers
    fixed = anonymous_bytes() + _KERNEL_BYTES + held_beside(problem, variant, limits.every_row, limits.plain)
    if stored_bytes(problem.graph) > available_bytes() - limits.memory:
        fixed += min(window_bytes(problem.graph), stored_bytes(problem.graph))
    room = max(0, memory - fixed)
    column = nodes * variant.itemsize
    # A coupled operator writes its products as float32, beside the state.
    pair = nodes * (variant.itemsize + 4) if variant.coupled else 2 * column
    if limits.cols_per_batch is not None:
        width = min(limits.cols_per_batch, classes)
    else:
        at_once = min(classes, limits.most_cols or classes)
        width = min(at_once, max(1, room // pair))
        if _LINE < width < at_once:
            width -= width % _LINE
        if width < min(_NARROW, at_once) and not variant.coupled:
            width = min(at_once, _NARROW, max(1, _widest_by_way_of_disk(nodes, variant, room)))
        width = min(width, -(-classes // limits.workers))
    batches = -(-classes // width)
    width = min(width, _whole_lines(-(-classes // batches)))
    two, one = fixed + width * pair, fixed + _by_way_of_disk(nodes, variant, width)
    if two <= memory:
        return Footprint(width, batches, False, two, *_disk(problem, variant, limits, width), limits.workers)
    if one <= memory and not variant.coupled:
        return Footprint(width, batches, True, one, *_disk(problem, variant, limits, width), limits.workers)
    least = fixed + (pair if variant.coupled else _by_way_of_disk(nodes, variant, 1))
    most = room // pair if variant.coupled else _widest_by_way_of_disk(nodes, variant, room)
    if most and limits.cols_per_batch is not None:
        remedy = f"--cols-per-batch {most} or auto fits"
    else:
        remedy = f"At least --memory {limits.workers * -(-least >> 20)}M is needed"
    share = f", {memory >> 20}M for each of {limits.workers} workers" if limits.workers > 1 else ""
    need = (two if variant.coupled else one) >> 20
    wanted = f"1 column of {nodes:,} nodes needs" if width == 1 else f"{width} columns of {nodes:,} nodes need"
    raise BadOption(f"--memory {limits.memory >> 20}M{share}: {wanted} {need}M. {remedy}.")


def _whole_lines(width: int) -> int:
    """At least so many columns that rows of S fill lines of the cache, and vectors of the processor."""
    return -(-width // _LINE) * _LINE


def _by_way_of_disk(nodes: int, variant: Variant, width: int) -> int:
    """Bytes of a matrix that is replaced by the next one by way of the disk."""
    return nodes * width * variant.itemsize + spill.buffer_bytes((nodes, width), variant.stored_dtype)


def _widest_by_way_of_disk(nodes: int, variant: Variant, room: int) -> int:
    width = room // max(1, nodes * variant.itemsize)
    while width and _by_way_of_disk(nodes, variant, width) > room:
        width -= 1
    return width


def held_beside(problem: Problem, variant: Variant, every_row: bool, plain: bool) -> int:
    """What is held whatever the width of a batch: vectors of all nodes, and blocks of scores."""
    nodes, classes = problem.graph.nodes, problem.seeds.classes
    scores = 4 * problem.tests
    total = min(CHUNK_BYTES, scores * classes) + cores() * min(CHUNK_BYTES, scores * min(classes, _USUAL))
    total += nodes * (_PLAIN_NODE_BYTES if plain else _NODE_BYTES)
    if variant.normalize_graph == "symmetric":
        total += nodes * _SQRT_DEGREE_BYTES
    if variant.coupled:
        total += nodes * _ROW_FACTOR_BYTES
    if every_row:
        total += nodes * tops.BYTES_PER_NODE
    return total


def _disk(problem: Problem, variant: Variant, limits: Limits, width: int) -> tuple[int, int, int]:
    """Bytes of parts, of states, and of the artifact."""
    nodes, classes = problem.graph.nodes, problem.seeds.classes
    artifact = 0
    if problem.tests:
        artifact += ArraySpec.fit((limits.kept_iterations, problem.tests, classes), "float32").bytes_on_disk
    if limits.every_row:
        artifact += 2 * ArraySpec.fit((problem.background, min(tops.TOP, classes)), "float32").bytes_on_disk
    parts = [min(width, classes - first) for first in range(0, classes, width)]
    scores = sum(
        ArraySpec.fit((limits.kept_iterations, problem.tests, part), "float32").bytes_on_disk for part in parts if problem.tests
    )
    states = 0
    if variant.coupled:
        states += 2 * sum(ArraySpec.fit((nodes, part), "float32").bytes_on_disk for part in parts)
    elif limits.iterations > 1:
        # S of the batch in work, where its iterations take long, and the one that replaces it.
        states += 2 * nodes * width * variant.itemsize
    if limits.every_row:
        # Those of all batches so far, and of the batches that other workers have finished since.
        scores += (2 + (limits.workers if limits.workers > 1 else 0)) * nodes * tops.BYTES_PER_NODE
    return scores, states, artifact

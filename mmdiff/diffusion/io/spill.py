"""Spill files: where only one matrix S fits in memory, the next S is written to disk as it is computed, then read back.

A complete spill file holds S after an iteration, with checksums, so that it doubles as the checkpoint of a killed run.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from numpy.typing import NDArray

from mmdiff.diffusion.engine.product import SeedUpdate, multiply
from mmdiff.diffusion.io.graph_stream import READERS, Block, Stream
from mmdiff.formats.storage.arrays import even_rows_per_chunk, page_unit, row_bytes
from mmdiff.formats.storage.direct import page_aligned
from mmdiff.formats.store.array_writer import ArrayWriter
from mmdiff.runtime.threads import in_threads

SpillFile = Callable[[int], ArrayWriter]
"""Returns the array on disk that takes S after an iteration."""

# Chunks that wait to be written.
_WAITING = 2
# The least number of chunks, and the most bytes of one: the chunks in memory are a small part of the file.
_CHUNKS = 32
_CHUNK_BYTES = 8 << 20


def rows_per_chunk(shape: tuple[int, int], dtype: str) -> int:
    """Rows of a chunk of a spill file."""
    unit = page_unit(shape, dtype)
    most = min(shape[0] / _CHUNKS, _CHUNK_BYTES / row_bytes(shape, dtype))
    return min(even_rows_per_chunk((shape, dtype)), unit * max(1, math.ceil(most / unit)))


def buffer_bytes(shape: tuple[int, int], dtype: str) -> int:
    """Memory of the chunks on their way to disk: those that wait, the one being written, and two that blocks write to."""
    return (_WAITING + 3) * min(shape[0], rows_per_chunk(shape, dtype)) * row_bytes(shape, dtype)


def product_to_spill(
    stream: Stream,
    source: NDArray[Any],
    spill: ArrayWriter,
    seed_update: SeedUpdate,
    rows: NDArray[Any] | None = None,
    shared: bool = False,
) -> int:
    """Writes W S chunk by chunk, with zeros for rows that are not needed; returns the number of nonzero entries.

    Other batches will request `shared` rows too.
    """
    spec, nonzero = spill.spec, 0
    buffers: dict[int, NDArray[Any]] = {}
    free: list[NDArray[Any]] = []
    lock, written = threading.Lock(), deque[Future[None]]()

    def buffer(chunk: int) -> NDArray[Any]:
        start, stop = spec.rows(chunk)
        with lock:
            if chunk not in buffers:
                memory = free.pop() if free else page_aligned((spec.rows_per_chunk, source.shape[1]), source.dtype.name)
                buffers[chunk] = memory[: stop - start]
                if rows is not None:
                    buffers[chunk][:] = 0
            return buffers[chunk]

    def write(chunk: int, values: NDArray[Any]) -> None:
        spill.write(chunk, values, cached=False)
        with lock:
            if len(values) == spec.rows_per_chunk:
                free.append(values)

    def work(block: Block) -> tuple[int, int]:
        chunk = int(block.rows[0]) // spec.rows_per_chunk
        places = block.rows - spec.rows(chunk)[0]
        return chunk, multiply(block, source, buffer(chunk), places, seed_update)

    with ThreadPoolExecutor(1) as writer:
        finished = 0

        def finish(until: int) -> None:
            nonlocal finished
            for chunk in range(finished, until):
                written.append(writer.submit(write, chunk, buffer(chunk)))
                del buffers[chunk]
                if len(written) > _WAITING:
                    written.popleft().result()
            finished = max(finished, until)

        # Blocks come in order: the first block of a chunk completes all chunks before it.
        for chunk, count in stream.each(work, rows, spec.rows_per_chunk, kernel_checks=True, shared=shared):
            finish(chunk)
            nonzero += count
        finish(spec.chunks)
        for future in written:
            future.result()
    return nonzero


def read_back(spill: ArrayWriter, out: NDArray[Any]) -> None:
    """Reads a spill file into memory."""

    def read(chunk: int) -> None:
        spill.read(chunk, out[slice(*spill.spec.rows(chunk))])

    for _ in in_threads(read, range(spill.spec.chunks), READERS):
        pass

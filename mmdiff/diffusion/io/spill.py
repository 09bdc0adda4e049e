"""Where S fits memory only once: the next S is written to the disk as it is computed, and then read back over the old one.

What lies on the disk then is S after an iteration, whole and with checksums, so that a run that is killed continues from it.
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
from mmdiff.formats.store.publish import ArrayWriter
from mmdiff.runtime.threads import in_threads

Sheet = Callable[[int], ArrayWriter]
"""The array on the disk that takes S after an iteration."""

# Chunks that wait to be written.
_WAITING = 2
# Chunks that a sheet has at least, and the most bytes that one of them has: those in memory are a small part of it.
_CHUNKS = 32
_CHUNK_BYTES = 8 << 20


def rows_per_chunk(shape: tuple[int, int], dtype: str) -> int:
    """Of a sheet."""
    unit = page_unit(shape, dtype)
    most = min(shape[0] / _CHUNKS, _CHUNK_BYTES / row_bytes(shape, dtype))
    return min(even_rows_per_chunk((shape, dtype)), unit * max(1, math.ceil(most / unit)))


def held_beside(shape: tuple[int, int], dtype: str) -> int:
    """Bytes of chunks in memory: those that wait, the one that is being written, and two that blocks in work may lie in."""
    return (_WAITING + 3) * min(shape[0], rows_per_chunk(shape, dtype)) * row_bytes(shape, dtype)


def product_to_sheet(
    stream: Stream, source: NDArray[Any], sheet: ArrayWriter, seed_update: SeedUpdate, rows: NDArray[Any] | None = None
) -> int:
    """Writes W S, or some rows of it and zeros, chunk by chunk; returns how many entries are not zero."""
    spec, nonzero = sheet.spec, 0
    pages: dict[int, NDArray[Any]] = {}
    spares: list[NDArray[Any]] = []
    lock, written = threading.Lock(), deque[Future[None]]()

    def page(chunk: int) -> NDArray[Any]:
        start, stop = spec.rows(chunk)
        with lock:
            if chunk not in pages:
                room = spares.pop() if spares else page_aligned((spec.rows_per_chunk, source.shape[1]), source.dtype.name)
                pages[chunk] = room[: stop - start]
                if rows is not None:
                    pages[chunk][:] = 0
            return pages[chunk]

    def write(chunk: int, values: NDArray[Any]) -> None:
        sheet.write(chunk, values, cached=False)
        with lock:
            if len(values) == spec.rows_per_chunk:
                spares.append(values)

    def work(block: Block) -> tuple[int, int]:
        chunk = int(block.rows[0]) // spec.rows_per_chunk
        places = block.rows - spec.rows(chunk)[0]
        return chunk, multiply(block.graph, source, block.rows, page(chunk), places, seed_update)

    with ThreadPoolExecutor(1) as writer:
        finished = 0

        def finish(until: int) -> None:
            nonlocal finished
            for chunk in range(finished, until):
                written.append(writer.submit(write, chunk, page(chunk)))
                del pages[chunk]
                if len(written) > _WAITING:
                    written.popleft().result()
            finished = max(finished, until)

        # Blocks come in order: with the first one of a chunk those before it are whole.
        for chunk, count in stream.each(work, rows, spec.rows_per_chunk):
            finish(chunk)
            nonzero += count
        finish(spec.chunks)
        for future in written:
            future.result()
    return nonzero


def read_back(sheet: ArrayWriter, out: NDArray[Any]) -> None:
    """Brings a sheet into memory."""

    def read(chunk: int) -> None:
        sheet.read(chunk, out[slice(*sheet.spec.rows(chunk))])

    for _ in in_threads(read, range(sheet.spec.chunks), READERS):
        pass

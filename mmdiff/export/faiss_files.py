"""Descriptors as Faiss indexes, for `faiss.read_index`, written block by block: no index has to fit in memory.

- `descriptors/ROLE`: a flat index over inner products. Ids of the user that are numbers become the ids of the index; otherwise
  these are row numbers.
- `models/cells`: an inverted file over the cells of the background, with the centroids as its quantizer, whose ids are those of
  the background. It needs no training.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import IO

import numpy as np
from numpy.typing import NDArray

from mmdiff.export.graphs import Task
from mmdiff.export.reading import rows_per_block
from mmdiff.formats.errors import Damaged
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.store import Artifact
from mmdiff.labels.collection import BACKGROUND
from mmdiff.labels.ids import ids_of
from mmdiff.runtime.progress import Advance, Progress

_INNER_PRODUCT, _L2 = 0, 1
# Two numbers that Faiss writes and no longer reads.
_UNUSED = 1 << 20


def write_faiss(task: Task, stream: IO[bytes], progress: Progress) -> int:
    """Writes descriptors as a flat index, or cells as an inverted file."""
    artifact = task.artifact
    rows = int(artifact.spec("vectors").shape[0])
    with progress(f"exporting {artifact.name}", rows, "rows") as advance:
        if artifact.manifest.kind == "cells":
            _write_cells(task, stream, advance)
        else:
            _write_descriptors(artifact, stream, advance)
    return rows


def _write_descriptors(artifact: Artifact, stream: IO[bytes], advance: Advance) -> None:
    rows, width = artifact.spec("vectors").shape
    ids = _numbers_of(artifact)
    if ids is not None:
        stream.write(b"IxM2" + _header(rows, width))
    stream.write(_flat_header(rows, width, _INNER_PRODUCT))
    _write_vectors(_vectors(artifact, 0, rows), stream, advance)
    if ids is not None:
        stream.write(struct.pack("<Q", rows))
        for start in range(0, rows, rows_per_block(8)):
            stream.write(np.ascontiguousarray(ids[start : start + rows_per_block(8)], "<i8").tobytes())


def _write_vectors(blocks: Iterator[NDArray[np.float32]], stream: IO[bytes], advance: Advance) -> None:
    for block in blocks:
        stream.write(block.tobytes())
        advance(len(block))


def _write_cells(task: Task, stream: IO[bytes], advance: Advance) -> None:
    """An `IndexIVFFlat`: its header, the quantizer, and for each cell its vectors and ids."""
    cells = task.artifact
    rows, width = cells.spec("vectors").shape
    count = cells.spec("centroids").shape[0]
    offsets, order = cells.array("offsets"), cells.index_array("order", below=rows)
    if len(offsets) != count + 1 or offsets[0] != 0 or offsets[-1] != rows or (np.diff(offsets) < 0).any():
        raise Damaged(f"{cells.name}, array offsets: not those of {count:,} cells of {rows:,} rows. {cells.remedy}")
    ids = _ids_of_cells(task)
    stream.write(b"IwFl" + _header(rows, width) + struct.pack("<QQ", count, min(count, _PROBES)))
    # Cells are chosen by distance, as their rows were.
    stream.write(_flat_header(count, width, _L2) + np.ascontiguousarray(cells.array("centroids"), "<f4").tobytes())
    # No map from ids to places, then lists of which all are written with their sizes.
    stream.write(struct.pack("<BQ", 0, 0) + b"ilar" + struct.pack("<QQ", count, 4 * width))
    stream.write(b"full" + struct.pack("<Q", count) + np.diff(offsets).astype("<u8").tobytes())
    for first, last in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        _write_vectors(_vectors(cells, first, last), stream, advance)
        members = order[first:last].astype(np.int64)
        stream.write(np.ascontiguousarray(members if ids is None else ids[members], "<i8").tobytes())


# Cells that a search visits unless the user sets `nprobe`.
_PROBES = 32


def _header(rows: int, width: int, metric: int = _INNER_PRODUCT) -> bytes:
    """The head of every index: its size, that it is trained, and its metric."""
    return struct.pack("<iqqqBi", width, rows, _UNUSED, _UNUSED, 1, metric)


def _flat_header(rows: int, width: int, metric: int) -> bytes:
    """The head of a flat index, before its vectors."""
    name = b"IxFI" if metric == _INNER_PRODUCT else b"IxF2"
    return name + _header(rows, width, metric) + struct.pack("<Q", rows * width)


def _vectors(artifact: Artifact, start: int, stop: int) -> Iterator[NDArray[np.float32]]:
    values, size = artifact["vectors"], rows_per_block(4 * artifact.spec("vectors").shape[1])
    for first in range(start, stop, size):
        yield np.ascontiguousarray(values[first : min(first + size, stop)], "<f4")


def _ids_of_cells(task: Task) -> NDArray[np.int64] | None:
    """The ids of the background that the cells divide, where they are numbers."""
    store, made_of = task.store, task.artifact.manifest.inputs["background"]["object"]
    return _numbers_of(store.open_artifact(BACKGROUND)) if store.id(BACKGROUND) == made_of else None


def _numbers_of(artifact: Artifact) -> NDArray[np.int64] | None:
    """The ids of descriptors, where they are numbers."""
    ids = ids_of(artifact)
    return None if isinstance(ids, (Strings, range)) else ids

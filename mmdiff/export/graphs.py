"""`.npz` of a graph: W as a sparse matrix that `scipy.sparse.load_npz` reads, made block by block from the map.

Rows and columns are nodes. Where these are in cell order, the file also holds `order`, which says what row of the background a
node is; scipy passes over it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any
from zipfile import ZipFile, ZipInfo

import numpy as np
from numpy.typing import NDArray

from mmdiff.export import reading
from mmdiff.export.numpys import write_header, write_npz
from mmdiff.export.reading import CheckedArray
from mmdiff.formats.store import Artifact
from mmdiff.graph.graph import COLUMN
from mmdiff.progress import Advance, Progress


def write_csr(artifact: Artifact, arrays: Sequence[str], stream: IO[bytes], progress: Progress) -> None:
    """W, or the one array that was asked for."""
    if len(arrays) == 1:
        write_npz(artifact, arrays, stream, progress)
        return
    nodes, edges = artifact.spec("scale").shape[0], artifact.spec("indices").shape[0]
    index = "int32" if edges <= np.iinfo(np.int32).max else "int64"
    entries: list[tuple[str, str, tuple[int, ...], Callable[[], Iterator[NDArray[Any]]]]] = [
        ("format", "S3", (), lambda: iter([np.array(b"csr")])),
        ("shape", "int64", (2,), lambda: iter([np.array([nodes, nodes])])),
        ("indptr", index, (nodes + 1,), lambda: CheckedArray(artifact, "indptr").blocks()),
        ("indices", index, (edges,), lambda: (block & COLUMN for block in CheckedArray(artifact, "indices").blocks())),
        ("data", "float32", (edges,), lambda: _values(artifact)),
    ]
    if "order" in artifact:
        order = artifact.spec("order")
        entries.append(("order", order.dtype, order.shape, lambda: CheckedArray(artifact, "order").blocks()))
    with progress(f"exporting {artifact.name}", nodes + 2 * edges, "values") as advance, ZipFile(stream, "w") as archive:
        for name, dtype, shape, blocks in entries:
            # A ZipInfo without a date: the same artifact gives the same file.
            with archive.open(ZipInfo(f"{name}.npy"), "w", force_zip64=True) as entry:
                write_header(entry, dtype, shape)
                _write_blocks(entry, np.dtype(dtype), blocks(), advance)


def _write_blocks(entry: IO[bytes], dtype: np.dtype[Any], blocks: Iterator[NDArray[Any]], advance: Advance) -> None:
    for block in blocks:
        entry.write(np.ascontiguousarray(block, dtype).tobytes())
        advance(block.size)


def _values(artifact: Artifact) -> Iterator[NDArray[np.float32]]:
    """The entries of W, some rows at a time."""
    indptr, scale = artifact.array("indptr"), CheckedArray(artifact, "scale")
    stored = CheckedArray(artifact, "weights" if "weights" in artifact else "indices")
    nodes, most = artifact.spec("scale").shape[0], reading.BLOCK_BYTES // 4
    start = 0
    while start < nodes:
        stop = max(start + 1, int(np.searchsorted(indptr, int(indptr[start]) + most, "right")) - 1)
        entries = stored.rows(int(indptr[start]), int(indptr[stop]))
        values = entries if "weights" in artifact else (entries > COLUMN) + np.uint8(1)
        yield values.astype(np.float32) * np.repeat(scale.rows(start, stop), np.diff(indptr[start : stop + 1]))
        start = stop

"""Arrays as files: `.npy` and `.npz` of any artifact, `.npz` of a graph as a sparse matrix, `.safetensors` of a model.

Values stream from the map into the file, block by block. The `.npz` of a graph is W for `scipy.sparse.load_npz`, with nodes
in the user's order; each of its three arrays takes one pass over the graph. The file also holds `row_scale`, 1/degree of each
node, which scipy ignores and from which `mmdiff import-graph` restores W0 + W0^T.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import IO, Any
from zipfile import ZipFile, ZipInfo

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from mmdiff.export.reading import Selection, blocks_of, checked_graph, most_edges, offset_blocks, scale_blocks
from mmdiff.formats.sources.graphs import ROW_SCALE
from mmdiff.runtime.progress import Advance, Progress


def write_npy(selection: Selection, stream: IO[bytes], progress: Progress) -> None:
    """Writes the one array that is selected."""
    with progress(f"exporting {selection.artifact.name}", _bytes_of(selection), "bytes") as advance:
        _write_array(selection, selection.arrays[0], stream, advance)


def write_npz(selection: Selection, stream: IO[bytes], progress: Progress) -> None:
    """Writes the selected arrays under their names, uncompressed, so that readers can map them within the file."""
    with (
        progress(f"exporting {selection.artifact.name}", _bytes_of(selection), "bytes") as advance,
        ZipFile(stream, "w") as archive,
    ):
        for name in selection.arrays:
            with entry_of(archive, name) as entry:
                _write_array(selection, name, entry, advance)


def write_csr(selection: Selection, stream: IO[bytes], progress: Progress) -> None:
    """Writes W, or the one array that is selected."""
    if len(selection.arrays) == 1:
        write_npz(selection, stream, progress)
        return
    graph = checked_graph(selection)
    nodes, edges = graph.nodes, graph.edges
    index = "int32" if edges <= np.iinfo(np.int32).max else "int64"
    entries: list[tuple[str, str, tuple[int, ...], Callable[[], Iterator[NDArray[Any]]]]] = [
        ("format", "S3", (), lambda: iter([np.array(b"csr")])),
        ("shape", "int64", (2,), lambda: iter([np.array([nodes, nodes])])),
        ("indptr", index, (nodes + 1,), lambda: offset_blocks(graph)),
        ("indices", index, (edges,), lambda: (rows.columns for rows in graph.user_rows(most_edges=most_edges()))),
        ("data", "float32", (edges,), lambda: (rows.values for rows in graph.user_rows(most_edges=most_edges()))),
        (ROW_SCALE, "float32", (nodes,), lambda: scale_blocks(graph)),
    ]
    what = f"exporting {selection.artifact.name}"
    with progress(what, 2 * nodes + 2 * edges, "values") as advance, ZipFile(stream, "w") as archive:
        for name, dtype, shape, blocks in entries:
            with entry_of(archive, name) as entry:
                write_header(entry, dtype, shape)
                for block in blocks():
                    entry.write(np.ascontiguousarray(block, dtype).tobytes())
                    advance(block.size)


def write_safetensors(selection: Selection, stream: IO[bytes], progress: Progress) -> None:
    """Writes the safetensors file that the artifact holds as an array of bytes."""
    artifact = selection.artifact
    with progress(f"exporting {artifact.name}", artifact.spec("safetensors").shape[0], "bytes") as advance:
        _stream_values(selection, "safetensors", stream, advance)


def write_header(stream: IO[bytes], dtype: str, shape: tuple[int, ...]) -> None:
    """Writes the header of a `.npy` file."""
    descr = np.dtype(dtype).newbyteorder("<").str
    npy.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})


def entry_of(archive: ZipFile, name: str) -> IO[bytes]:
    """A file within the archive; without a date, so that the same artifact gives the same bytes."""
    return archive.open(ZipInfo(f"{name}.npy"), "w", force_zip64=True)


def _bytes_of(selection: Selection) -> int:
    dtypes = ((name, np.dtype(selection.artifact.spec(name).dtype)) for name in selection.arrays)
    return sum(math.prod(selection.shape(name)) * dtype.itemsize for name, dtype in dtypes)


def _write_array(selection: Selection, name: str, stream: IO[bytes], advance: Advance) -> None:
    write_header(stream, selection.artifact.spec(name).dtype, selection.shape(name))
    _stream_values(selection, name, stream, advance)


def _stream_values(selection: Selection, name: str, stream: IO[bytes], advance: Advance) -> None:
    for block in blocks_of(selection, name):
        stream.write(block.reshape(-1).view(np.uint8).data)
        advance(block.nbytes)

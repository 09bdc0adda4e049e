"""Reading an array from its first row to its last, with every chunk checked before anything of it is passed on.

Opening an artifact checks the content of small arrays only. An exported file has no checksums any more, so this is the last
chance to notice a damaged chunk.

`.npy` and `.npz`: arrays as they are stored, streamed from the map into the file.

`.npz` of a graph: W as a sparse matrix that `scipy.sparse.load_npz` reads, made block by block from the map.

Rows and columns are nodes. Where these are in cell order, the file also holds `order`, which says what row of the background a
node is; scipy passes over it.

`.safetensors`: a model as it was stored, for torch and others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any
from zipfile import ZipFile, ZipInfo

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from mmdiff.formats.errors import Corrupt
from mmdiff.formats.storage.crc import crc32c
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.store import Artifact
from mmdiff.kernels.constants import COLUMN
from mmdiff.runtime.progress import Advance, Progress

BLOCK_BYTES = 32 << 20


class CheckedArray:
    """A mapped array that is read front to back."""

    def __init__(self, artifact: Artifact, name: str) -> None:
        self.spec = artifact.spec(name)
        self._artifact = artifact
        self._name = name
        self._values = artifact.array(name)
        self._chunks_checked = 0

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start..stop-1, straight from the map."""
        while self._chunks_checked * self.spec.rows_per_chunk < min(stop, self.spec.shape[0]):
            self._check(self._chunks_checked)
            self._chunks_checked += 1
        return self._values[start:stop]

    def blocks(self) -> Iterator[NDArray[Any]]:
        """All rows, those of the planes one below the other, in blocks of at most about BLOCK_BYTES."""
        size = rows_per_block(self.spec.row_bytes)
        for chunk in range(self.spec.chunks):
            rows = self._check(chunk)
            for start in range(0, len(rows), size):
                yield rows[start : start + size]

    def _check(self, chunk: int) -> NDArray[Any]:
        """The rows of a chunk."""
        start, stop = self.spec.rows(chunk)
        plane, first = divmod(start, self.spec.length)
        values = self._values if len(self.spec.shape) < 3 else self._values[plane]
        rows: NDArray[Any] = values[first : first + stop - start]
        padding = bytes(self.spec.chunk_bytes - rows.nbytes)
        if crc32c(padding, crc32c(rows)) != self._artifact.manifest.arrays[self._name].crcs[chunk]:
            raise Corrupt(
                f"{self._artifact.name}, array {self._name}: chunk {self.spec.chunk_file(chunk)} does not match its checksum. "
                f"{self._artifact.remedy}"
            )
        return rows


class CheckedStrings:
    """A column of strings that is read front to back."""

    def __init__(self, artifact: Artifact, column: str) -> None:
        self._offsets = CheckedArray(artifact, f"{column}_offsets")
        self._utf8 = CheckedArray(artifact, f"{column}_utf8")

    def rows(self, start: int, stop: int) -> Strings:
        offsets = self._offsets.rows(start, stop + 1)
        first, last = int(offsets[0]), int(offsets[-1])
        return Strings(offsets - first, self._utf8.rows(first, last))


def rows_per_block(row_bytes: int) -> int:
    return max(1, BLOCK_BYTES // row_bytes)


def write_npy(artifact: Artifact, arrays: Sequence[str], stream: IO[bytes], progress: Progress) -> None:
    """The one array that was asked for."""
    with progress(f"exporting {artifact.name}", _bytes_of(artifact, arrays), "bytes") as advance:
        _write_array(artifact, arrays[0], stream, advance)


def write_npz(artifact: Artifact, arrays: Sequence[str], stream: IO[bytes], progress: Progress) -> None:
    """Arrays under their names, uncompressed, so that others can map them within the file."""
    with (
        progress(f"exporting {artifact.name}", _bytes_of(artifact, arrays), "bytes") as advance,
        ZipFile(stream, "w") as archive,
    ):
        for name in arrays:
            # A ZipInfo without a date: the same artifact gives the same file.
            with archive.open(ZipInfo(f"{name}.npy"), "w", force_zip64=True) as entry:
                _write_array(artifact, name, entry, advance)


def write_header(stream: IO[bytes], dtype: str, shape: tuple[int, ...]) -> None:
    """What stands before the values in a `.npy` file."""
    descr = np.dtype(dtype).newbyteorder("<").str
    npy.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})


def _bytes_of(artifact: Artifact, arrays: Sequence[str]) -> int:
    return sum(artifact.spec(name).table[0] * artifact.spec(name).row_bytes for name in arrays)


def stream_values(artifact: Artifact, name: str, stream: IO[bytes], advance: Advance) -> None:
    """The values of an array, row after row, and nothing else."""
    for block in CheckedArray(artifact, name).blocks():
        stream.write(block.reshape(-1).view(np.uint8).data)
        advance(block.nbytes)


def _write_array(artifact: Artifact, name: str, stream: IO[bytes], advance: Advance) -> None:
    spec = artifact.spec(name)
    write_header(stream, spec.dtype, spec.shape)
    stream_values(artifact, name, stream, advance)


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
    nodes, most = artifact.spec("scale").shape[0], BLOCK_BYTES // 4
    start = 0
    while start < nodes:
        stop = max(start + 1, int(np.searchsorted(indptr, int(indptr[start]) + most, "right")) - 1)
        entries = stored.rows(int(indptr[start]), int(indptr[stop]))
        values = entries if "weights" in artifact else (entries > COLUMN) + np.uint8(1)
        yield values.astype(np.float32) * np.repeat(scale.rows(start, stop), np.diff(indptr[start : stop + 1]))
        start = stop


def write_safetensors(artifact: Artifact, arrays: Sequence[str], stream: IO[bytes], progress: Progress) -> None:  # noqa: ARG001
    """The bytes of the file, which the artifact has as an array."""
    with progress(f"exporting {artifact.name}", artifact.spec("safetensors").shape[0], "bytes") as advance:
        stream_values(artifact, "safetensors", stream, advance)

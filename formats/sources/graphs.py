"""Graphs in files: lists of neighbours (`.ivecs`, `.npy`; -1 for none) and sparse matrices (`.npz` of scipy, CSR).

Pickles are never loaded.
"""

from __future__ import annotations

import math
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.sources.limits import most_bytes, reason
from mmdiff.formats.sources.npy import MAX_HEADER, READERS, read_header, read_rows
from mmdiff.formats.sources.rawfile import RawFile
from mmdiff.formats.sources.vecs import VecsFile

_BLOCK = 1 << 20

ENDINGS = (".ivecs", ".npy")


class NeighbourFile:
    """One list of neighbours per row, read by position from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.suffix.lower() == ".ivecs":
            vecs = VecsFile(path, np.dtype("<i4"))
            self.rows, self.width, self._read = vecs.rows, vecs.width, vecs.read
            return
        file = RawFile(path)
        header = read_header(file)
        if len(header.shape) != 2 or header.dtype.kind not in "iu":
            raise UnreadableSource(
                f"{path}: {header.dtype} of shape {header.shape}, expected integers of shape (nodes, k). "
                "Save for each node the numbers of its neighbours."
            )
        if 0 in header.shape:
            raise UnreadableSource(f"{path}: holds no neighbours (shape {header.shape}). Check how it was written.")
        self.rows, self.width = header.shape
        self._read = lambda start, stop: read_rows(file, header, start, stop)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start..stop-1 with the integers of the file."""
        return self._read(start, stop)


_ARRAYS = ("format", "shape", "indptr", "indices", "data")
ROW_SCALE = "row_scale"
"""1/degree of each node, in an exported W = D^-1 (W0 + W0^T)."""

_SAVE = "Save it with scipy.sparse.save_npz(FILE, A.tocsr())."


def read_csr(path: Path) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], tuple[int, int]]:
    """The values, columns, offsets and shape of a matrix, with columns and offsets checked.

    An exported W comes back as W0 + W0^T.
    """
    found = _read_archive(path)
    kind, shape, indptr, indices, data = (found[name] for name in _ARRAYS)
    scale = found.get(ROW_SCALE)
    name = kind.item().decode(errors="replace") if kind.dtype.kind == "S" and kind.shape == () else str(kind)
    if name != "csr":
        raise UnreadableSource(f"{path}: a sparse matrix of format {name[:20]!r}, expected 'csr'. {_SAVE}")
    if shape.shape != (2,) or any(array.dtype.kind not in "iu" for array in (shape, indptr, indices)):
        raise UnreadableSource(f"{path}: its shape, offsets or columns are not integers. {_SAVE}")
    if data.dtype.kind not in "biuf":
        raise UnreadableSource(f"{path}: values of type {data.dtype}, expected numbers. {_SAVE}")
    rows, columns = map(int, shape)
    _refuse_bad_structure(path, rows, columns, indptr, indices, data)
    indptr = indptr.astype(np.int64, copy=False)
    if scale is not None:
        data = _without_scale(path, data, indptr, scale)
    return data, indices, indptr, (rows, columns)


def _read_archive(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a sparse matrix. They are allocated only if the archive has the bytes that they need."""
    stored = RawFile(path).size
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            missing = [name for name in _ARRAYS if name not in members]
            if missing:
                raise UnreadableSource(f"{path}: not a sparse matrix: {missing[0]!r} is missing. {_SAVE}")
            wanted = [name for name in (*_ARRAYS, ROW_SCALE) if name in members]
            needed = sum(members[name].file_size for name in wanted)
            if needed > most_bytes(stored):
                raise UnreadableSource(
                    f"{path}: {stored:,} bytes that expand to {needed:,}, which no graph does. It is damaged: write it again."
                )
            return {name: _read_member(archive, members[name]) for name in wanted}
    except UnreadableSource:
        raise
    except Exception as error:  # damaged archives raise almost any exception
        raise UnreadableSource(f"{path}: not an .npz file that can be read ({reason(error)}). {_SAVE}") from None


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(member) as stream, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        version = npy_format.read_magic(stream)
        if version not in READERS:
            raise ValueError(f"{member.filename} has .npy version {version[0]}.{version[1]}")
        shape, fortran, dtype = READERS[version][1](stream, max_header_size=MAX_HEADER)
        needed, found = math.prod(shape) * dtype.itemsize, member.file_size - stream.tell()
        if dtype.hasobject or not dtype.itemsize or min(shape, default=0) < 0 or needed != found:
            raise ValueError(f"{member.filename} promises {shape} {dtype}, {needed:,} bytes, and holds {found:,}")
        content = np.empty(needed, np.uint8)
        done = 0
        while done < needed:
            block = stream.read(min(_BLOCK, needed - done))
            if not block:
                raise EOFError(f"{member.filename} ends after {done:,} of {needed:,} bytes")
            content[done : done + len(block)] = np.frombuffer(block, np.uint8)
            done += len(block)
        # The checksum is compared at the end of the member.
        stream.read(1)
    values = content.view(dtype).reshape(shape, order="F" if fortran else "C")
    return values if dtype.isnative else values.astype(dtype.newbyteorder("="))


def _without_scale(path: Path, data: NDArray[Any], indptr: NDArray[Any], scale: NDArray[Any]) -> NDArray[np.float32]:
    """The entries of W0 + W0^T from those of W; those of a graph without weights are exactly 1 or 2."""
    degrees = np.diff(indptr)
    if scale.shape != degrees.shape or scale.dtype.kind != "f":
        raise UnreadableSource(f"{path}: {ROW_SCALE} does not fit its rows. It is damaged: export it again.")
    bad = ~np.isfinite(scale) | (scale < 0) | ((scale == 0) & (degrees > 0))
    if bad.any():
        row = int(bad.argmax())
        raise UnreadableSource(
            f"{path}, row {row}: {ROW_SCALE} {scale[row]}, expected a finite value above 0, or 0 for a row "
            "without entries. It is damaged: export it again."
        )
    return (data / np.repeat(scale.astype(np.float64), degrees)).astype(np.float32)


def _refuse_bad_structure(
    path: Path, rows: int, columns: int, indptr: NDArray[Any], indices: NDArray[Any], data: NDArray[Any]
) -> None:
    if not (indptr.ndim == indices.ndim == data.ndim == 1 and len(indices) == len(data)):
        raise UnreadableSource(f"{path}: {indices.size} columns for {data.size} values. It is damaged: write it again.")
    if rows < 0 or len(indptr) != rows + 1 or indptr[0] != 0 or indptr[-1] != len(indices):
        raise UnreadableSource(f"{path}: offsets that do not fit its {rows} rows. It is damaged: write it again.")
    backwards = indptr[1:] < indptr[:-1]
    if backwards.any():
        raise UnreadableSource(f"{path}, row {int(backwards.argmax())}: offsets go backwards. It is damaged: write it again.")
    outside = (indices < 0) | (indices >= columns)
    if outside.any():
        at = int(outside.argmax())
        row = int(np.searchsorted(indptr, at, "right")) - 1
        raise UnreadableSource(f"{path}, row {row}: column {indices[at]} of {columns}. Correct the entry.")

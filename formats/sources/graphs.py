"""Graphs in files: lists of neighbours (`.ivecs`, `.npy`; -1 for none) and sparse matrices (`.npz` of scipy, CSR).

Pickles are never loaded.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.sources.npy import read_header, read_rows
from mmdiff.formats.sources.rawfile import RawFile
from mmdiff.formats.sources.vecs import VecsFile

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
    RawFile(path)
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            missing = [name for name in _ARRAYS if name not in archive]
            if missing:
                raise UnreadableSource(f"{path}: not a sparse matrix: {missing[0]!r} is missing. {_SAVE}")
            kind, shape, indptr, indices, data = (archive[name] for name in _ARRAYS)
            scale = archive.get(ROW_SCALE)
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error, RuntimeError, TypeError) as error:
        if isinstance(error, UnreadableSource):
            raise
        raise UnreadableSource(f"{path}: not an .npz file that can be read ({error}). {_SAVE}") from None
    name = kind.item().decode() if kind.dtype.kind == "S" and kind.shape == () else str(kind)
    if name != "csr":
        raise UnreadableSource(f"{path}: a sparse matrix of format {name!r}, expected 'csr'. {_SAVE}")
    if shape.shape != (2,) or any(array.dtype.kind not in "iu" for array in (shape, indptr, indices)):
        raise UnreadableSource(f"{path}: its shape, offsets or columns are not integers. {_SAVE}")
    rows, columns = map(int, shape)
    _refuse_bad_structure(path, rows, columns, indptr, indices, data)
    if scale is not None:
        data = _without_scale(path, data, indptr, scale)
    return data, indices, indptr, (rows, columns)


def _without_scale(path: Path, data: NDArray[Any], indptr: NDArray[Any], scale: NDArray[Any]) -> NDArray[np.float32]:
    """The entries of W0 + W0^T from those of W; those of a graph without weights are exactly 1 or 2."""
    degrees = np.diff(indptr)
    if scale.shape != degrees.shape or scale.dtype.kind != "f" or not (scale[degrees > 0] > 0).all():
        raise UnreadableSource(f"{path}: {ROW_SCALE} does not fit its rows. It is damaged: export it again.")
    return (data / np.repeat(scale.astype(np.float64), degrees)).astype(np.float32)


def _refuse_bad_structure(
    path: Path, rows: int, columns: int, indptr: NDArray[Any], indices: NDArray[Any], data: NDArray[Any]
) -> None:
    if not (indptr.ndim == indices.ndim == data.ndim == 1 and len(indices) == len(data)):
        raise UnreadableSource(f"{path}: {len(indices)} columns for {len(data)} values. It is damaged: write it again.")
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

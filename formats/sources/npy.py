"""numpy's `.npy` files, read by position. Pickles are never loaded, and the size is checked before a row is read."""

from __future__ import annotations

import io
import math
import struct
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.sources.base import Matrix, Rows
from mmdiff.formats.sources.rawfile import Bytes, RawFile, expect_data, first_bytes
from mmdiff.formats.storage.direct import page_aligned

# numpy's own limit: the header is parsed as Python syntax, which is neither safe nor fast for megabytes.
MAX_HEADER = 10_000

# Version 3.0 only adds other encodings of field names, and arrays with fields are refused anyway.
READERS = {
    (1, 0): ("<H", npy_format.read_array_header_1_0),
    (2, 0): ("<I", npy_format.read_array_header_2_0),
}


@dataclass(frozen=True)
class NpyHeader:
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    data_start: int


def read_header(file: Bytes) -> NpyHeader:
    """Reads the header; raises UnreadableSource unless the size of the file agrees with it."""
    start = first_bytes(file, 12 + MAX_HEADER)
    try:
        version = npy_format.read_magic(io.BytesIO(start))
    except ValueError as error:
        raise UnreadableSource(
            f"{file.name}: not a .npy file, it starts with {start[:8]!r} and not with {npy_format.MAGIC_PREFIX!r}. "
            "Write it with numpy.save."
        ) from error
    if version not in READERS:
        raise UnreadableSource(
            f"{file.name}: .npy version {version[0]}.{version[1]}, expected 1.0 or 2.0. Save it as a plain float array "
            "with numpy.save."
        )
    length_format, parse = READERS[version]
    data_start = _header_end(file, start, length_format)
    try:
        with warnings.catch_warnings():
            # Headers written by Python 2 (`10L`) raise a warning that does not help the user.
            warnings.simplefilter("ignore")
            shape, fortran, dtype = parse(io.BytesIO(start[8:data_start]), max_header_size=MAX_HEADER)
    except Exception as error:  # parsing Python syntax raises many types of errors
        raise UnreadableSource(
            f"{file.name}: damaged .npy header, {start[10:data_start][:80]!r}. Copy or write it again."
        ) from error
    if dtype.hasobject:
        raise UnreadableSource(
            f"{file.name}: holds Python objects (a pickle), which mmdiff never loads. Save it as a plain float array: "
            "numpy.save(FILE, numpy.asarray(X, dtype='float32'))"
        )
    if not dtype.itemsize:
        raise UnreadableSource(f"{file.name}: values of no bytes ({dtype}). Check how it was written.")
    if any(type(size) is not int or size < 0 for size in shape):
        raise UnreadableSource(f"{file.name}: damaged .npy header, shape {shape}. Copy or write it again.")
    promise = f"the header promises {' x '.join(map(str, shape))} {dtype}"
    expect_data(file, data_start, math.prod(shape) * dtype.itemsize, promise)
    return NpyHeader(shape, fortran, dtype, data_start)


def _header_end(file: Bytes, start: bytes, length_format: str) -> int:
    prefix = 8 + struct.calcsize(length_format)
    if len(start) < prefix:
        raise UnreadableSource(
            f"{file.name}: {len(start)} bytes, expected at least {prefix}. It is truncated: copy or write it again."
        )
    (length,) = struct.unpack_from(length_format, start, 8)
    if prefix + length > file.size:
        raise UnreadableSource(
            f"{file.name}: the header should take {prefix + length:,} bytes but the file holds {file.size:,}. "
            "It is truncated: copy or write it again."
        )
    if length > MAX_HEADER:
        raise UnreadableSource(
            f"{file.name}: a header of {length:,} bytes, expected at most {MAX_HEADER:,}. Save it as a plain float "
            "array with numpy.save."
        )
    return int(prefix + length)


def read_rows(file: Bytes, header: NpyHeader, start: int, stop: int) -> NDArray[Any]:
    """Rows start..stop-1 of an array of one or two dimensions, C-contiguous and in native byte order."""
    rows, width = header.shape[0], math.prod(header.shape[1:])
    step = header.dtype.itemsize
    if header.fortran and len(header.shape) > 1:
        columns = np.empty((width, stop - start), header.dtype)
        with file.reading() as read_into:
            for j in range(width):
                read_into(columns[j], header.data_start + (j * rows + start) * step)
        values = np.ascontiguousarray(columns.T)
    else:
        # Rows that an import stores as they are go to the disk from here, by direct I/O.
        values = page_aligned((stop - start, *header.shape[1:]), header.dtype.str)
        file.read_into(values, header.data_start + start * width * step)
    if not header.dtype.isnative:
        values = values.byteswap(inplace=True).view(header.dtype.newbyteorder("="))
    return values


class NpySource(Matrix):
    """A matrix in a `.npy` file, in C or Fortran order and either byte order."""

    def __init__(self, path: Path) -> None:
        self._file = RawFile(path)
        self.header = read_header(self._file)
        super().__init__(str(path), self.header.shape, self.header.dtype, (path,))

    def _read(self, start: int, stop: int) -> Rows:
        return read_rows(self._file, self.header, start, stop)

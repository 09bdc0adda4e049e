"""Layout of an array on disk: raw little-endian chunks of whole rows, each a multiple of the page size, as zarr v3.

A chunk file is the bytes of the chunk followed by their CRC-32C, so that all chunk files of an array can be mapped side by side
(`mapping.py`). The last chunk is padded with zeros to full size, as zarr's regular grid requires.

A 3-D array is a sequence of planes. Each plane is split into chunks like a 2-D array, so that planes can be written one after
the other and need not fill whole pages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mmdiff.formats.errors import Corrupt, shortened
from mmdiff.formats.storage.crc import TAIL_BYTES

PAGE_BYTES = 4096
CHUNK_BYTES = 64 << 20
# Address space of a process on x86-64 and ARM.
_MOST_BYTES = 1 << 47
DTYPES = ("float32", "float16", "uint8", "int8", "uint16", "uint32", "int32", "int64")


@dataclass(frozen=True)
class ArraySpec:
    """Shape, dtype and chunking of one array; these determine its `zarr.json`."""

    shape: tuple[int, ...]
    dtype: str
    rows_per_chunk: int

    @classmethod
    def fit(cls, shape: tuple[int, ...], dtype: str, rows_per_chunk: int | None = None) -> ArraySpec:
        """The array in chunks of the given rows; by default in even chunks of at most about CHUNK_BYTES."""
        if dtype not in DTYPES:
            raise ValueError(f"arrays of {dtype} are not written, only of {', '.join(DTYPES)}")
        spec = cls(shape, dtype, rows_per_chunk or even_rows_per_chunk((shape, dtype)))
        if spec.chunk_bytes % PAGE_BYTES:
            raise ValueError(f"{rows_per_chunk} rows of {spec.row_bytes} bytes do not fill whole pages")
        return spec

    @cached_property
    def row_bytes(self) -> int:
        return row_bytes(self.shape, self.dtype)

    @cached_property
    def chunk_bytes(self) -> int:
        return self.rows_per_chunk * self.row_bytes

    @property
    def file_bytes(self) -> int:
        """The size of each chunk file, the last one included."""
        return self.chunk_bytes + TAIL_BYTES

    @property
    def planes(self) -> int:
        return self.shape[0] if len(self.shape) == 3 else 1

    @property
    def length(self) -> int:
        """Rows of a plane."""
        return self.shape[1] if len(self.shape) == 3 else self.shape[0]

    @property
    def table(self) -> tuple[int, ...]:
        """The shape as a table of rows, with the planes stacked."""
        return (self.planes * self.length, self.shape[2]) if len(self.shape) == 3 else self.shape

    @cached_property
    def chunks_per_plane(self) -> int:
        return -(-self.length // self.rows_per_chunk)

    @cached_property
    def chunks(self) -> int:
        return self.planes * self.chunks_per_plane

    @property
    def bytes_on_disk(self) -> int:
        return self.chunks * self.file_bytes

    def rows(self, chunk: int) -> tuple[int, int]:
        """The first row of a chunk and the one after its last, in `table`."""
        plane, piece = divmod(chunk, self.chunks_per_plane)
        start = piece * self.rows_per_chunk
        return plane * self.length + start, plane * self.length + min(start + self.rows_per_chunk, self.length)

    def chunk_file(self, chunk: int) -> str:
        place = divmod(chunk, self.chunks_per_plane) if len(self.shape) == 3 else (chunk,)
        return ".".join(["c", *map(str, place), *("0" for _ in self.table[1:])])

    def zarr_json(self) -> dict[str, Any]:
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": self.dtype,
            "chunk_grid": {
                "name": "regular",
                "configuration": {"chunk_shape": [*(1 for _ in self.shape[2:]), self.rows_per_chunk, *self.table[1:]]},
            },
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
            "fill_value": 0,
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
            "attributes": {},
        }

    def to_json(self) -> dict[str, Any]:
        return {"shape": list(self.shape), "dtype": self.dtype, "rows_per_chunk": self.rows_per_chunk}

    @classmethod
    def from_json(cls, document: Mapping[str, Any], where: str) -> ArraySpec:
        """The spec in a manifest. Raises Corrupt for one that mmdiff would not write."""
        try:
            spec = cls(tuple(document["shape"]), document["dtype"], document["rows_per_chunk"])
            writable = spec.dtype in DTYPES and all(type(n) is int for n in (*spec.shape, spec.rows_per_chunk))
        except KeyError as error:
            raise Corrupt(f"{where}: an array without {error} in its manifest. Rebuild the artifact.") from None
        except TypeError:
            writable = False
        if not writable or not 1 <= len(spec.shape) <= 3:
            raise Corrupt(f"{where}: not an array that mmdiff writes ({shortened(document)}). Rebuild the artifact.")
        if spec.shape[0] < 0 or min(spec.shape[1:], default=1) < 1 or spec.rows_per_chunk < 1:
            raise Corrupt(f"{where}: impossible shape {spec.shape} in its manifest. Rebuild the artifact.")
        if max(1, spec.chunks) * spec.chunk_bytes > _MOST_BYTES:
            raise Corrupt(f"{where}: no machine holds an array of shape {spec.shape}. Rebuild the artifact.")
        if spec.chunk_bytes % PAGE_BYTES:
            raise Corrupt(f"{where}: chunks of {spec.chunk_bytes} bytes, not a multiple of {PAGE_BYTES}. Rebuild the artifact.")
        return spec


def row_bytes(shape: tuple[int, ...], dtype: str) -> int:
    return (shape[-1] if len(shape) > 1 else 1) * np.dtype(dtype).itemsize


def page_unit(shape: tuple[int, ...], dtype: str) -> int:
    """The fewest rows that fill whole pages."""
    return PAGE_BYTES // math.gcd(PAGE_BYTES, row_bytes(shape, dtype))


def even_rows_per_chunk(*arrays: tuple[tuple[int, ...], str]) -> int:
    """Rows per chunk for one array, or for several arrays whose chunks must hold the same rows.

    Chunks are as even as whole pages allow, to keep the padding of the last one small. Page units are powers of two, so the
    largest is a multiple of the others.
    """
    rows, most, unit = _sizes(*arrays)
    chunks = max(1, math.ceil(rows / most))
    return max(1, math.ceil(rows / chunks / unit)) * unit


def lasting_rows_per_chunk(*arrays: tuple[tuple[int, ...], str]) -> int:
    """Rows per chunk for arrays that later versions continue: as many as fit CHUNK_BYTES, however many rows there are.

    So full chunks are the same in every later version, which can share them. Rows of less than one chunk get a smaller one.
    """
    rows, most, _ = _sizes(*arrays)
    return even_rows_per_chunk(*arrays) if rows <= most else most


def _sizes(*arrays: tuple[tuple[int, ...], str]) -> tuple[int, int, int]:
    """The rows of arrays, the most rows of a chunk, and the unit that these are a multiple of."""
    first = arrays[0][0]
    rows = first[1] if len(first) == 3 else first[0]
    unit = max(page_unit(shape, dtype) for shape, dtype in arrays)
    return rows, max(1, CHUNK_BYTES // max(row_bytes(shape, dtype) for shape, dtype in arrays) // unit) * unit, unit

"""`.npy` and `.npz`: arrays as they are stored, streamed from the map into the file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO
from zipfile import ZipFile, ZipInfo

import numpy as np
from numpy.lib import format as npy

from mmdiff.export.reading import CheckedArray
from mmdiff.formats.store import Artifact
from mmdiff.progress import Advance, Progress


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

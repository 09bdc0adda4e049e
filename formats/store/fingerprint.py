"""Fingerprints of inputs, by which an unchanged input is recognised: cheap for files, complete for arrays in memory.

The digest of files covers names, sizes and samples of the content; it goes into the manifest. Modification times (the source
fingerprint) cover the bytes between the samples. They are recorded with the run, since a copy of a file is the same input.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.store.manifest import Json

_WHOLE_BYTES = 1 << 20
_SAMPLES = 64
_SAMPLE_BYTES = 4096
_BLOCK_BYTES = 4 << 20
_MOST_FILES = 1000


def fingerprint(name: str, files: Sequence[Path]) -> Json:
    """The fingerprint of a source: its name, and the size and digest of its files."""
    digest = hashlib.blake2b(digest_size=12)
    size = 0
    for file in files:
        try:
            size += _update(digest, file)
        except OSError as error:
            raise UnreadableSource(f"{file}: cannot be read ({error.strerror}). Check the file and its disk.") from None
    return {"source": name, "bytes": size, "files": len(files), "digest": digest.hexdigest()}


def _update(digest: Any, file: Path) -> int:
    """Adds the name, size and samples of a file to a digest; returns the size."""
    with file.open("rb", buffering=0) as stream:
        length = os.fstat(stream.fileno()).st_size
        digest.update(os.fsencode(file.name) + f"\0{length}\0".encode())
        if length <= _WHOLE_BYTES:
            digest.update(stream.read(length))
        else:
            for sample in range(_SAMPLES):
                offset = sample * (length - _SAMPLE_BYTES) // (_SAMPLES - 1)
                digest.update(os.pread(stream.fileno(), _SAMPLE_BYTES, offset))
    return length


def fingerprint_of_array(name: str, *arrays: NDArray[Any]) -> Json:
    """The fingerprint of values in memory, of one array or several: it covers every byte, the shapes and the dtypes.

    Memory layout and byte order make no difference. There are no files, so the source fingerprint is the empty list.
    """
    digest = hashlib.blake2b(digest_size=12)
    for values in arrays:
        if values.dtype.hasobject:
            raise TypeError(f"{name}: the bytes of Python objects ({values.dtype}) are no fingerprint")
        digest.update(f"{values.dtype.newbyteorder('=')}\0{values.shape}\0".encode())
        rows = np.atleast_1d(values)
        step = max(1, _BLOCK_BYTES // max(1, rows[:1].nbytes))
        for start in range(0, len(rows), step):
            block = np.ascontiguousarray(rows[start : start + step], values.dtype.newbyteorder("<"))
            digest.update(block.tobytes())
    return {"source": name, "bytes": sum(values.nbytes for values in arrays), "files": 0, "digest": digest.hexdigest()}


def source_fingerprint(files: Sequence[Path]) -> list[list[str | int]]:
    """The path, size and modification time of each file (of very many, the first thousand)."""
    stats = [(file, file.stat()) for file in files[:_MOST_FILES]]
    return [[str(file.resolve()), status.st_size, status.st_mtime_ns] for file, status in stats]


def state(recorded: Sequence[Sequence[str | int]]) -> Literal["same", "changed", "gone"]:
    """Compares the files that a run read, by their source fingerprint, with what is on disk now."""
    for path, size, modified in recorded:
        try:
            status = Path(str(path)).stat()
        except OSError:
            return "gone"
        if (status.st_size, status.st_mtime_ns) != (size, modified):
            return "changed"
    return "same"

"""Zarr arrays of version 2 or 3, alone or in a group (`data.zarr`, `data.zarr::images/embeddings`).

Zarr reads a chunk that is missing as fill values; such arrays are refused. Nothing but regular files is opened.
"""

from __future__ import annotations

import itertools
import math
import os
import stat
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.sources.base import Matrix, Rows
from mmdiff.formats.sources.limits import most_bytes, readable, reason
from mmdiff.formats.sources.spec import choose_array, natural_order

MARKERS = ("zarr.json", ".zarray", ".zgroup")
_METADATA = (*MARKERS, ".zattrs", ".zmetadata")
# Metadata are JSON, which takes many times its size in memory. Those of a group may hold those of all its arrays.
_METADATA_BYTES = 16 << 20

# Offset and length of a chunk that a shard does not hold.
_ABSENT = (1 << 64) - 1


def is_zarr(folder: Path) -> bool:
    return any((folder / marker).is_file() for marker in MARKERS)


class ZarrSource(Matrix):
    """A 2-D array; the only one of its group unless `inner` names it."""

    def __init__(self, path: Path, inner: str | None = None) -> None:
        _refuse_irregular(path)
        with readable(str(path), "zarr"):
            import zarr  # takes half a second, so only where it is needed

            name, folder = str(path), path
            with warnings.catch_warnings():
                # zarr warns of slow layouts and stray files. What cannot be read is refused below, in one sentence.
                warnings.simplefilter("ignore", UserWarning)
                array: Any = zarr.open(path, mode="r")
                if inner is not None or not hasattr(array, "shape"):
                    array, inner = _in_group(array, name, inner)
                    name, folder = f"{path}::{inner}", path / inner
            super().__init__(name, array.shape, array.dtype, ())
            self._array = array
            self._folder = folder
            _refuse_pickle(name, array)
            _refuse_layered_shards(name, array)
            _refuse_holes(name, array, folder)

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(sorted((path for path in self._folder.rglob("*") if path.is_file()), key=natural_order))

    def _read(self, start: int, stop: int) -> Rows:
        try:
            rows = self._array[start:stop]
        except Exception as error:  # the errors of codecs and zarr versions have no common type
            raise UnreadableSource(
                f"{self.name}, rows {start:,} to {stop:,}: a chunk cannot be read ({reason(error)}). Copy or write the array "
                "again."
            ) from error
        return np.ascontiguousarray(rows, self.dtype)


def _files_in(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Everything below a folder but folders: its path, and what it is after following links."""

    def fail(error: OSError) -> None:
        raise error

    for parent, _, names in os.walk(folder, onerror=fail):
        for name in names:
            path = os.path.join(parent, name)  # noqa: PTH118
            yield path, os.stat(path)  # noqa: PTH116


def _refuse_irregular(folder: Path) -> None:
    """Refuses pipes and devices, which would block or never end, and metadata of a size that no array has."""
    with readable(str(folder), "zarr"):
        for path, found in _files_in(folder):
            if not stat.S_ISREG(found.st_mode):
                raise UnreadableSource(f"{path}: not a regular file. Remove it from the zarr folder, or copy the array.")
            if found.st_size > _METADATA_BYTES and os.path.basename(path) in _METADATA:  # noqa: PTH119
                raise UnreadableSource(
                    f"{path}: metadata of {found.st_size:,} bytes, expected at most {_METADATA_BYTES:,}. Copy or write the "
                    "array again."
                )


def _in_group(group: Any, name: str, inner: str | None) -> tuple[Any, str]:
    if hasattr(group, "shape"):
        raise UnreadableSource(f"{name}: an array, not a group, so there is no {inner!r} in it. Leave ::{inner} off.")
    wanted = inner.strip("/") if inner is not None else None
    arrays = {key: item for key, item in group.members(max_depth=None) if hasattr(item, "shape")}
    chosen = choose_array(name, wanted, {key: (item.shape, item.dtype) for key, item in arrays.items()})
    return arrays[chosen], chosen


def _refuse_pickle(name: str, array: Any) -> None:
    # numcodecs registers a codec that unpickles, so a folder could run code while it is read.
    metadata = array.metadata.to_dict()
    if any("pickle" in repr(metadata.get(key)).lower() for key in ("filters", "compressor", "codecs")):
        raise UnreadableSource(
            f"{name}: its chunks are pickled, and mmdiff never loads a pickle. Write it again with an ordinary compressor."
        )


def _refuse_layered_shards(name: str, array: Any) -> None:
    """Refuses shards that are nested, or transposed or compressed as a whole: only plain shards have an index to read."""
    codecs = getattr(array.metadata, "codecs", ())
    for codec in filter(_is_sharding, codecs):
        if len(codecs) > 1 or any(map(_is_sharding, (*codec.codecs, *codec.index_codecs))):
            raise UnreadableSource(
                f"{name}: sharded in a way whose holes cannot be found, since its shards are nested or encoded once more. "
                "Write the array again with plain sharding."
            )


def _is_sharding(codec: Any) -> bool:
    return hasattr(codec, "index_codecs")


def _refuse_holes(name: str, array: Any, folder: Path) -> None:
    """Refuses an array whose chunks are not all on disk, or take far more memory than the disk holds bytes for."""
    sizes = array.shards or array.chunks
    if min(*sizes, *array.chunks) < 1:
        raise UnreadableSource(f"{name}: chunks of shape {array.chunks}. Copy or write the array again.")
    grid = [-(-length // size) for length, size in zip(array.shape, sizes, strict=True)]
    files = {os.path.relpath(path, folder): found.st_size for path, found in _files_in(folder)}
    expected, keys = math.prod(grid), None
    found = sum(os.path.basename(path) not in _METADATA for path in files)  # noqa: PTH119
    if found >= expected:
        keys = {array.metadata.encode_chunk_key(place): place for place in itertools.product(*map(range, grid))}
        found = len(keys.keys() & files.keys())
    if keys is None or found < expected:
        raise UnreadableSource(
            f"{name}: {found:,} of {expected:,} chunks are on disk; the others would read as {array.fill_value}. Copy or write "
            "the array again."
        )
    stored, needed = sum(files[key] for key in keys), math.prod(array.chunks) * array.dtype.itemsize
    if needed > most_bytes(stored):
        raise UnreadableSource(
            f"{name}: a chunk takes {needed:,} bytes of memory, but all chunks have {stored:,} on disk. Write the array again "
            "with smaller chunks."
        )
    if array.shards is not None:
        missing = sum(_absent_in_shard(array, folder / key, place) for key, place in keys.items())
        if missing:
            raise UnreadableSource(
                f"{name}: {missing:,} chunks are not in their shards and would read as {array.fill_value}. Copy or write the "
                "array again."
            )


def _absent_in_shard(array: Any, file: Path, place: tuple[int, ...]) -> int:
    """The number of chunks that a shard should hold but does not, by the index at one of its ends."""
    (codec,) = array.metadata.codecs
    grid = tuple(shard // chunk for shard, chunk in zip(array.shards, array.chunks, strict=True))
    checksum = sum(4 for code in codec.index_codecs if "crc32c" in type(code).__name__.lower())
    if len(codec.index_codecs) != 1 + bool(checksum):
        raise UnreadableSource(f"{file}: the index of the shard is compressed. Write the array again with default settings.")
    size = 16 * math.prod(grid)
    content = file.stat().st_size
    if content < size + checksum:
        raise UnreadableSource(f"{file}: {content:,} bytes, too few for the index of the shard. Copy or write the array again.")
    with file.open("rb") as stream:
        stream.seek(0 if codec.index_location.value == "start" else content - size - checksum)
        index = np.frombuffer(stream.read(size), "<u8").reshape(*grid, 2)
    inside = np.ones(grid, bool)
    for axis, (length, shard, chunk) in enumerate(zip(array.shape, array.shards, array.chunks, strict=True)):
        starts = place[axis] * shard + np.arange(grid[axis]) * chunk
        inside &= np.expand_dims(starts < length, tuple(other for other in range(len(grid)) if other != axis))
    return int(np.count_nonzero(inside & (index == _ABSENT).all(axis=-1)))

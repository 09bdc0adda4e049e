"""Arrays in containers: HDF5 datasets (`data.h5::embeddings`) and zarr arrays of version 2 or 3, alone or in a group
(`data.zarr`, `data.zarr::images/embeddings`).

h5py is an extra; it serialises access from several threads by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.extras import load
from mmdiff.formats.sources.base import Matrix, Rows
from mmdiff.formats.sources.rawfile import RawFile
from mmdiff.formats.sources.spec import choose_array, natural_order


class Hdf5Source(Matrix):
    """A 2-D dataset; the only one of the file unless `inner` names it."""

    def __init__(self, path: Path, inner: str | None = None) -> None:
        self._h5py = load("h5py", f"reading {path}")
        self._file = RawFile(path)
        with self._opened() as file:
            if inner is None or not isinstance(file.get(inner), self._h5py.Dataset):
                inner = choose_array(str(path), inner, self._arrays(file))
            self._inner = inner
            dataset = file[inner]
            # `shape` is None for a dataset that was declared empty.
            super().__init__(f"{path}::{inner}", dataset.shape or (), dataset.dtype, (path,))

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        self._file.check_unchanged()
        try:
            with self._h5py.File(self._file.path, "r") as file:
                yield file
        except (OSError, RuntimeError) as error:
            raise UnreadableSource(f"{self._file.name}: not readable as HDF5 ({error}). Copy or write it again.") from error

    def _arrays(self, file: Any) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        found: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}

        def visit(key: str, item: Any) -> None:
            if isinstance(item, self._h5py.Dataset):
                found[key] = (item.shape or (), item.dtype)

        file.visititems(visit)
        return found

    def _read(self, start: int, stop: int) -> Rows:
        with self._opened() as file:
            return np.ascontiguousarray(file[self._inner][start:stop], self.dtype)


MARKERS = ("zarr.json", ".zarray", ".zgroup")


def is_zarr(folder: Path) -> bool:
    return any((folder / marker).is_file() for marker in MARKERS)


class ZarrSource(Matrix):
    """A 2-D array; the only one of its group unless `inner` names it."""

    def __init__(self, path: Path, inner: str | None = None) -> None:
        array = _open(path)
        name, folder = str(path), path
        if inner is not None or not hasattr(array, "shape"):
            array, inner = _in_group(array, name, inner)
            name, folder = f"{path}::{inner}", path / inner
        super().__init__(name, array.shape, array.dtype, ())
        self._array = array
        self._folder = folder
        _refuse_pickle(name, array)
        _refuse_holes(name, array)

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(sorted((path for path in self._folder.rglob("*") if path.is_file()), key=natural_order))

    def _read(self, start: int, stop: int) -> Rows:
        try:
            rows = self._array[start:stop]
        except Exception as error:  # the errors of codecs and zarr versions have no common type
            raise UnreadableSource(
                f"{self.name}, rows {start:,} to {stop:,}: a chunk cannot be read ({error}). Copy or write the array again."
            ) from error
        return np.ascontiguousarray(rows, self.dtype)


def _open(path: Path) -> Any:
    import zarr  # takes half a second, so only where it is needed

    try:
        return zarr.open(path, mode="r")
    except Exception as error:  # damaged metadata raise almost any exception
        raise UnreadableSource(f"{path}: not readable as zarr ({error}). Copy or write it again.") from error


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


def _refuse_holes(name: str, array: Any) -> None:
    # zarr reads a missing chunk as fill values, which would give rows of zeros. Sharded arrays are not checked, since
    # versions of zarr count their chunks differently.
    if array.shards is None and array.nchunks_initialized < array.nchunks:
        raise UnreadableSource(
            f"{name}: {array.nchunks_initialized:,} of {array.nchunks:,} chunks are on disk; the others would read as "
            f"{array.fill_value}. Copy or write the array again."
        )

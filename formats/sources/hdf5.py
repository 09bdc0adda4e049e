"""A dataset in an HDF5 file, `data.h5::embeddings`. h5py is an extra, and takes turns between threads by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.sources.base import Rows
from mmdiff.formats.sources.choice import choose_array
from mmdiff.formats.sources.extras import import_extra
from mmdiff.formats.sources.matrix import Matrix
from mmdiff.formats.sources.rawfile import RawFile


class Hdf5Source(Matrix):
    """A 2-D dataset; the only one of the file unless `inner` names it."""

    def __init__(self, path: Path, inner: str | None = None) -> None:
        self._h5py = import_extra("h5py", str(path))
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

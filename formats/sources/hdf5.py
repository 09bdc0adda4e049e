"""HDF5 datasets (`data.h5::embeddings`). h5py is an extra; it serialises access from several threads by itself.

HDF5 reads values that were never written as fill values, and follows links and storage into any other file. A dataset whose
chunks are not all there is refused, as are virtual datasets, storage outside the file, and links to other files. A chunk that
was written in part, and storage that was allocated before anything was written, look like data and cannot be told from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.extras import load
from mmdiff.formats.sources.base import Matrix, Rows
from mmdiff.formats.sources.limits import most_bytes, readable
from mmdiff.formats.sources.rawfile import RawFile
from mmdiff.formats.sources.spec import choose_array

# HDF5's own limit is 16.
_MOST_LINKS = 16


class Hdf5Source(Matrix):
    """A 2-D dataset; the only one of the file unless `inner` names it."""

    def __init__(self, path: Path, inner: str | None = None) -> None:
        self._h5py = load("h5py", f"reading {path}")
        self._file = RawFile(path)
        with self._opened() as file:
            if inner is None or not isinstance(self._find(file, inner), self._h5py.Dataset):
                inner = choose_array(str(path), inner, self._arrays(file))
            self._inner = inner
            dataset = self._find(file, inner)
            # `shape` is None for a dataset that was declared empty.
            super().__init__(f"{path}::{inner}", dataset.shape or (), dataset.dtype, (path,))
            self._refuse_holes(dataset)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        self._file.check_unchanged()
        with readable(self._file.name, "HDF5"), self._h5py.File(self._file.path, "r") as file:
            yield file

    def _arrays(self, file: Any) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        found: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}

        def visit(key: str, item: Any) -> None:
            if isinstance(item, self._h5py.Dataset):
                found[key] = (item.shape or (), item.dtype)

        # Only hard links are followed.
        file.visititems(visit)
        return found

    def _find(self, file: Any, inner: str) -> Any:
        """The object with this path, None if there is none. No link is followed out of the file."""
        item, parts, followed = file, inner.split("/"), 0
        while parts:
            part = parts.pop(0)
            if part in ("", "."):
                continue
            if not isinstance(item, self._h5py.Group):
                return None
            # `item.get(part, getlink=True)` would follow the link to see whether it leads anywhere.
            links, key = item.id.links, part.encode()
            if not links.exists(key):
                return None
            kind = links.get_info(key).type
            if kind == self._h5py.h5l.TYPE_HARD:
                item = item[part]
                continue
            if kind != self._h5py.h5l.TYPE_SOFT:
                other = links.get_val(key)[0] if kind == self._h5py.h5l.TYPE_EXTERNAL else b"of an unknown kind"
                raise UnreadableSource(
                    f"{self._file.name}::{inner}: {part} is a link to another file, {_text(other)}. Name that file instead."
                )
            followed += 1
            if followed > _MOST_LINKS:
                raise UnreadableSource(
                    f"{self._file.name}::{inner}: links that lead in a circle, or more than {_MOST_LINKS} of them. Name the "
                    "dataset itself."
                )
            target = _text(links.get_val(key))
            item = file if target.startswith("/") else item
            parts = [*target.split("/"), *parts]
        return item

    def _refuse_holes(self, dataset: Any) -> None:
        # Nothing here reads the fill value itself: libhdf5 crashes on a damaged one.
        if dataset.is_virtual:
            self._refuse(
                "a virtual dataset, whose values lie in other files. Parts that are missing there would read as fill values, "
                "and that cannot be told surely. Name those files instead, or write the values into one dataset."
            )
        if dataset.external:
            self._refuse(
                f"its values lie in another file, {_text(dataset.external[0][0])}. Write them into the HDF5 file itself."
            )
        layout = dataset.id.get_create_plist().get_layout()
        if layout == self._h5py.h5d.CONTIGUOUS:
            stored, expected = dataset.id.get_storage_size(), dataset.size * dataset.id.get_type().get_size()
            if stored < expected:
                self._refuse(
                    f"{stored:,} of {expected:,} bytes are in the file; the others would read as fill values. Write the "
                    "dataset again."
                )
        elif layout == self._h5py.h5d.CHUNKED:
            self._refuse_missing_chunks(dataset)

    def _refuse_missing_chunks(self, dataset: Any) -> None:
        found = dataset.id.get_num_chunks()
        expected = math.prod(-(-size // chunk) for size, chunk in zip(dataset.shape, dataset.chunks, strict=True))
        if found < expected:
            self._refuse(
                f"{found:,} of {expected:,} chunks are in the file; the others would read as fill values. Write the dataset "
                "again."
            )
        needed = math.prod(dataset.chunks) * dataset.id.get_type().get_size()
        stored = dataset.id.get_storage_size()
        if needed > most_bytes(stored):
            self._refuse(
                f"a chunk takes {needed:,} bytes of memory, but all chunks have {stored:,} in the file. Write the dataset "
                "again with smaller chunks."
            )

    def _refuse(self, problem: str) -> NoReturn:
        raise UnreadableSource(f"{self.name}: {problem}")

    def _read(self, start: int, stop: int) -> Rows:
        with self._opened() as file:
            return np.ascontiguousarray(self._find(file, self._inner)[start:stop], self.dtype)


def _text(name: bytes | str) -> str:
    return name if isinstance(name, str) else name.decode(errors="surrogateescape")

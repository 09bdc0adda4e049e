"""Several sources as one, in the given order, and folders written by clip-retrieval.

Such a folder holds img_emb/img_emb_0.npy, ... and optionally metadata/metadata_0.parquet, ...; both may also lie in the folder
itself. Parts are numbered from 0 on.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, count
from pathlib import Path
from typing import Any

import numpy as np

from mmdiff.formats.errors import BadLabels, CountMismatch, UnreadableSource, WidthMismatch
from mmdiff.formats.sources.base import Column, Matrix, Rows, Source, most_per_row
from mmdiff.formats.sources.columns.parquet import read_parquet_column
from mmdiff.formats.sources.npy import NpySource
from mmdiff.formats.sources.parquet import open_parquet
from mmdiff.formats.sources.rawfile import RawFile
from mmdiff.formats.storage.strings import Strings


class Concatenated(Matrix):
    """The rows of all parts. Parts of different dtypes are read as float32, or as float64 if any part is float64."""

    def __init__(self, parts: Sequence[Source], name: str | None = None) -> None:
        first = parts[0]
        for part in parts:
            if part.width != first.width:
                raise WidthMismatch(
                    f"{part.name} has rows of {part.width:,} values, but {first.name} of {first.width:,}. "
                    "Only files of the same width can be read as one."
                )
        self.parts = tuple(parts)
        self._starts = [0, *accumulate(part.rows for part in parts)]
        if name is None:
            name = first.name if len(parts) == 1 else f"{first.name} ... {parts[-1].name} ({len(parts)} parts)"
        super().__init__(name, (self._starts[-1], first.width), _common_dtype([part.dtype for part in parts]), ())

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(file for part in self.parts for file in part.files)

    def _part(self, row: int) -> int:
        return bisect_right(self._starts, row) - 1

    def _read(self, start: int, stop: int) -> Rows:
        i = min(self._part(start), len(self.parts) - 1)
        if stop <= self._starts[i + 1]:
            rows = self.parts[i].read(start - self._starts[i], stop - self._starts[i])
            return rows.astype(self.dtype, copy=False)
        rows = np.empty((stop - start, self.width), self.dtype)
        done = start
        while done < stop:
            first, end = self._starts[i], min(stop, self._starts[i + 1])
            rows[done - start : end - start] = self.parts[i].read(done - first, end - first)
            done = end
            i += 1
        return rows

    def locate(self, row: int) -> str:
        i = self._part(row)
        return self.parts[i].locate(row - self._starts[i])

    def ids(self) -> Column | None:
        columns = []
        for part in self.parts:
            column = part.ids()
            if column is None:
                return None
            columns.append(column)
        return concatenate_columns(columns, self.name)


def _common_dtype(dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    if len(set(dtypes)) == 1:
        return dtypes[0]
    return np.dtype(np.float64 if np.dtype(np.float64) in dtypes else np.float32)


def concatenate_columns(columns: Sequence[Column], name: str) -> Column:
    """Joins columns, with as many values per row as the widest has; strings if any of them holds strings."""
    if len(columns) == 1:
        return columns[0]
    per_row = max(column.per_row for column in columns)
    if any(column.per_row < per_row for column in columns):
        rows = sum(map(len, columns))
        most = most_per_row(rows, sum(len(column.values) for column in columns))
        if per_row > most:
            raise BadLabels(
                f"{name}: a row with {per_row:,} labels. All {rows:,} rows are padded to as many, so {most:,} is the most. "
                "Keep the most important labels of such rows."
            )
        columns = [column.widened(per_row) for column in columns]
    integers = [column.values for column in columns if not isinstance(column.values, Strings)]
    if len(integers) == len(columns):
        return Column(np.concatenate(integers), per_row)
    texts = [column.values if isinstance(column.values, Strings) else _as_text(column.values) for column in columns]
    return Column(concatenate_strings(texts), per_row)


def concatenate_strings(parts: Sequence[Strings]) -> Strings:
    ends = [0, *accumulate(int(part.offsets[-1]) for part in parts)]
    offsets = [part.offsets[:-1] + end for part, end in zip(parts, ends, strict=False)]
    return Strings(np.concatenate([*offsets, ends[-1:]]), np.concatenate([part.utf8 for part in parts]))


def _as_text(values: np.ndarray[Any, np.dtype[np.int64]]) -> Strings:
    return Strings.of("" if value == -1 else str(value) for value in values.tolist())


ID_COLUMNS = ("image_path", "key", "url")


def is_clip(folder: Path) -> bool:
    return bool(_numbered(folder, "img_emb", "npy"))


class ClipSource(Concatenated):
    """The numbered parts of a clip-retrieval folder, with ids from the metadata if there are any."""

    def __init__(self, folder: Path) -> None:
        embeddings = _numbered(folder, "img_emb", "npy")
        self._metadata = _numbered(folder, "metadata", "parquet")
        parts = max((*embeddings, *self._metadata)) + 1
        _refuse_gaps(folder, "img_emb", "npy", embeddings, parts)
        if self._metadata:
            _refuse_gaps(folder, "metadata", "parquet", self._metadata, parts)
        super().__init__([NpySource(embeddings[number]) for number in sorted(embeddings)], str(folder))
        self._columns: list[set[str]] = []
        for number, part in enumerate(self.parts[: len(self._metadata)]):
            with open_parquet(RawFile(self._metadata[number])) as opened:
                rows = opened.metadata.num_rows
                self._columns.append(set(opened.schema_arrow.names))
            if rows != part.rows:
                raise CountMismatch(
                    f"{part.name} has {part.rows:,} rows, but {self._metadata[number]} has {rows:,}. Write part "
                    f"{number} again, or leave the metadata out."
                )

    @property
    def files(self) -> tuple[Path, ...]:
        return (*super().files, *(self._metadata[number] for number in sorted(self._metadata)))

    @cached_property
    def id_column(self) -> str | None:
        """The first of ID_COLUMNS that all parts have."""
        if not self._columns:
            return None
        common = set.intersection(*self._columns)
        return next((column for column in ID_COLUMNS if column in common), None)

    def ids(self) -> Column | None:
        if self.id_column is None:
            return None
        paths = (self._metadata[number] for number in sorted(self._metadata))
        return concatenate_columns([read_parquet_column(path, self.id_column) for path in paths], self.name)


def _numbered(folder: Path, stem: str, ending: str) -> dict[int, Path]:
    """The files stem_NUMBER.ending in the folder `stem`, or else in the folder itself, by number."""
    pattern = re.compile(rf"{stem}_([0-9]+)\.{ending}")
    inside = folder / stem if (folder / stem).is_dir() else folder
    found: dict[int, Path] = {}
    for path in sorted(inside.iterdir()):
        if match := pattern.fullmatch(path.name):
            number = int(match[1])
            if number in found:
                raise UnreadableSource(f"{folder}: {found[number].name} and {path.name} are both part {number}. Remove one.")
            found[number] = path
    return found


def _refuse_gaps(folder: Path, stem: str, ending: str, found: dict[int, Path], parts: int) -> None:
    if len(found) < parts:
        gap = next(number for number in count() if number not in found)
        raise UnreadableSource(
            f"{folder}: {stem}_{gap}.{ending} is missing ({len(found):,} of {parts:,} are there). Add it, or name the "
            "files to read, as in 'FOLDER/*.npy'."
        )

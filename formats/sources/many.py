"""Several sources as one, in the order given."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from mmdiff.formats.errors import WidthMismatch
from mmdiff.formats.sources.base import Column, Rows, Source
from mmdiff.formats.sources.matrix import Matrix
from mmdiff.formats.strings import Strings


class Concatenated(Matrix):
    """The rows of all parts. Parts of different dtypes are read as float32, or float64 if any part is."""

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
        return concatenate_columns(columns)


def _common_dtype(dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    if len(set(dtypes)) == 1:
        return dtypes[0]
    return np.dtype(np.float64 if np.dtype(np.float64) in dtypes else np.float32)


def concatenate_columns(columns: Sequence[Column]) -> Column:
    """Columns of one value per row as one; strings if any of them holds strings."""
    integers = [column.values for column in columns if not isinstance(column.values, Strings)]
    if len(integers) == len(columns):
        return Column(np.concatenate(integers))
    texts = [column.values if isinstance(column.values, Strings) else _as_text(column.values) for column in columns]
    return Column(concatenate_strings(texts))


def concatenate_strings(parts: Sequence[Strings]) -> Strings:
    ends = [0, *accumulate(int(part.offsets[-1]) for part in parts)]
    offsets = [part.offsets[:-1] + end for part, end in zip(parts, ends, strict=False)]
    return Strings(np.concatenate([*offsets, ends[-1:]]), np.concatenate([part.utf8 for part in parts]))


def _as_text(values: np.ndarray[Any, np.dtype[np.int64]]) -> Strings:
    return Strings.of("" if value == -1 else str(value) for value in values.tolist())

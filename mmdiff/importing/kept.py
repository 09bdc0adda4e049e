"""Leaving out bad rows (`--on-bad drop`): a first pass finds them, then the rest reads like a source of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadRow
from mmdiff.formats.sources.base import Column, Source
from mmdiff.importing.rows import ALL_ZERO, GOOD, NOT_FINITE, as_float32, examine
from mmdiff.parallel import in_threads
from mmdiff.progress import Progress

_BLOCK_BYTES = 32 << 20


@dataclass(frozen=True)
class Kept:
    """The rows of a source that are good, by their numbers in it (None: all of them), and why others were left out."""

    source: Source
    kept: NDArray[np.int64] | None = None
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def rows(self) -> int:
        return self.source.rows if self.kept is None else len(self.kept)

    @property
    def width(self) -> int:
        return self.source.width

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.source.dtype

    @property
    def files(self) -> tuple[Path, ...]:
        return self.source.files

    def read(self, start: int, stop: int) -> NDArray[Any]:
        if self.kept is None:
            return self.source.read(start, stop)
        rows = self.kept[start:stop]
        if len(rows) == 0:
            return np.empty((0, self.width), self.dtype)
        if rows[-1] - rows[0] + 1 == len(rows):
            return self.source.read(int(rows[0]), int(rows[-1]) + 1)
        # Between two good rows there may be any number of bad ones, so they are not read in one piece.
        block, done = np.empty((len(rows), self.width), self.dtype), 0
        span = rows_per_block(self.source)
        for near in np.split(rows, np.flatnonzero(np.diff(rows // span)) + 1):
            block[done : done + len(near)] = self.source.read(int(near[0]), int(near[-1]) + 1)[near - near[0]]
            done += len(near)
        return block

    def locate(self, row: int) -> str:
        return self.source.locate(row if self.kept is None else int(self.kept[row]))

    def ids(self) -> Column | None:
        return self.source.ids()

    @property
    def dropped(self) -> NDArray[np.int64]:
        if self.kept is None:
            return np.empty(0, np.int64)
        bad = np.ones(self.source.rows, bool)
        bad[self.kept] = False
        return np.flatnonzero(bad)


def rows_per_block(source: Source) -> int:
    return max(1, _BLOCK_BYTES // (source.width * source.dtype.itemsize))


def drop_bad_rows(source: Source, progress: Progress) -> Kept:
    """The good rows of a source, with the number of those left out for each reason."""
    size = rows_per_block(source)
    starts = range(0, source.rows, size)

    def conditions(start: int) -> NDArray[np.uint8]:
        return examine(as_float32(source.read(start, min(start + size, source.rows))), False)

    found = []
    with progress("looking for bad rows", source.rows, "rows") as advance:
        for condition in in_threads(conditions, starts):
            found.append(condition)
            advance(len(condition))
    condition = np.concatenate(found)
    kept = np.flatnonzero(condition == GOOD)
    if len(kept) == 0:
        raise BadRow(f"{source.name}: none of its {source.rows} rows is good (NaN, Inf or all zero). Nothing to import.")
    reasons = {"not_finite": int((condition == NOT_FINITE).sum()), "all_zero": int((condition == ALL_ZERO).sum())}
    return Kept(source, kept, reasons)

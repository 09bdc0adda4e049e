"""Checks and normalisation of rows on import (paper, section 4.1): NaN, Inf and all-zero rows are bad.

Bad rows stop the import, or a first pass finds and drops them; the remaining rows then read like a source of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadOption, BadRow, Parameter
from mmdiff.formats.sources.base import Column, Source, unreadable_rows
from mmdiff.kernels.jit import kernel
from mmdiff.runtime.progress import Progress
from mmdiff.runtime.threads import in_threads

GOOD, NOT_FINITE, ALL_ZERO, UNREADABLE = 0, 1, 2, 3

_BLOCK_BYTES = 32 << 20


@kernel
def examine(rows: NDArray[np.float32], normalize: bool) -> NDArray[np.uint8]:
    """GOOD, NOT_FINITE or ALL_ZERO for each row; with `normalize`, good rows are scaled to unit length in place.

    The squared norm is NaN or Inf exactly when a value is, because squares of float32 do not overflow float64.
    """
    condition = np.empty(len(rows), np.uint8)
    for i in range(len(rows)):
        row = rows[i]
        squares = 0.0
        for j in range(len(row)):
            squares += np.float64(row[j]) * np.float64(row[j])
        if not np.isfinite(squares):
            condition[i] = NOT_FINITE
        elif squares == 0.0:
            condition[i] = ALL_ZERO
        else:
            condition[i] = GOOD
            if normalize:
                scale = 1.0 / np.sqrt(squares)
                for j in range(len(row)):
                    row[j] = np.float32(row[j] * scale)
    return condition


def as_float32(rows: NDArray[Any]) -> NDArray[np.float32]:
    """The rows as float32, the precision of all arithmetic; larger values become Inf and are found as such."""
    with np.errstate(over="ignore"):
        return rows.astype(np.float32, copy=False)


def refuse_bad(rows: NDArray[Any], condition: NDArray[np.uint8], where: Callable[[int], str]) -> None:
    """Raises BadRow for the first row that is not GOOD; `where` gives the location of a row for the message."""
    if condition.any():
        row = int((condition != GOOD).argmax())
        problem = _in_words(rows[row], int(condition[row]))
        raise BadRow(f"{where(row)}: {problem}. Fix the row, or skip such rows with ", Parameter("on_bad", "drop"), ".")


def _in_words(row: NDArray[Any], condition: int) -> str:
    if condition == ALL_ZERO:
        return f"all {len(row)} values are zero"
    values = as_float32(row)
    nan, inf = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    return " and ".join(f"{name} in {count} of {len(row)} values" for name, count in (("NaN", nan), ("Inf", inf)) if count)


@dataclass(frozen=True)
class Kept:
    """The good rows of a source, by their row numbers (None: all rows), and the number of dropped rows by reason."""

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
        # Any number of bad rows may lie between two good ones, so the range is read in blocks.
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
    """Finds the bad rows of a source in one pass; returns the others."""
    size = rows_per_block(source)
    starts = range(0, source.rows, size)

    def conditions(start: int) -> NDArray[np.uint8]:
        return examine(as_float32(source.read(start, min(start + size, source.rows))), False)

    found = []
    with progress("finding bad rows", source.rows, "rows") as advance:
        for condition in in_threads(conditions, starts):
            found.append(condition)
            advance(len(condition))
    condition = np.concatenate(found)
    unreadable = unreadable_rows(source)
    condition[unreadable] = UNREADABLE
    kept = np.flatnonzero(condition == GOOD)
    if len(kept) == 0:
        raise BadRow(f"{source.name}: all {source.rows} rows are bad (NaN, Inf or all zero). Nothing to import.")
    reasons = {"not_finite": int((condition == NOT_FINITE).sum()), "all_zero": int((condition == ALL_ZERO).sum())}
    return Kept(source, kept, reasons | ({"unreadable": len(unreadable)} if len(unreadable) else {}))


def raw_dtype_of(rows: Kept) -> str:
    """The dtype of raw descriptors: their own, except that float64 becomes float32."""
    return "float32" if rows.dtype == np.float64 else rows.dtype.name


def narrowed(values: Any, dtype: str, rows: Kept, start: int) -> Any:
    """Values in the dtype they are stored in, refused where they overflow."""
    if dtype == "float32":
        return values
    with np.errstate(over="ignore"):
        narrow = values.astype(dtype)
    overflow = ~np.isfinite(narrow).all(axis=1)
    if overflow.any():
        where = rows.locate(start + int(overflow.argmax()))
        float32 = Parameter("dtype", "float32")
        raise BadOption(f"{where}: values too large for {dtype}. Use ", float32, ", or normalise the rows.")
    return narrow

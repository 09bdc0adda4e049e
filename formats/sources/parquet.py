"""Embeddings in a list column of a Parquet file (`data.parquet::embedding`), decoded one row group at a time.

The lists may be declared of any length, but every row must have the width of the first, and no nulls.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mmdiff.formats.errors import BadRow, UnreadableSource, WidthMismatch
from mmdiff.formats.extras import load
from mmdiff.formats.sources.base import READABLE_NAMES, Matrix, Rows, is_readable
from mmdiff.formats.sources.limits import most_bytes, readable
from mmdiff.formats.sources.parquet_footer import ColumnSize, column_sizes
from mmdiff.formats.sources.rawfile import RawFile
from mmdiff.formats.sources.spec import choose

BATCH_ROWS = 8192


class RowGroupCache:
    """The most recently decoded row groups, up to `limit` bytes but at least one. Parts of one source share a cache."""

    def __init__(self, limit: int = 256 << 20) -> None:
        self._limit = limit
        self._groups: OrderedDict[tuple[Path, str, int], Rows] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[Path, str, int], size: int, decode: Callable[[], Rows]) -> Rows:
        # Decoded under the lock: two threads at once would need twice the memory.
        with self._lock:
            if key not in self._groups:
                while self._groups and sum(group.nbytes for group in self._groups.values()) + size > self._limit:
                    self._groups.popitem(last=False)
                self._groups[key] = decode()
            self._groups.move_to_end(key)
            return self._groups[key]


@contextmanager
def open_parquet(file: RawFile, metadata: Any = None) -> Iterator[Any]:
    """Opens a pyarrow ParquetFile; its errors become UnreadableSource."""
    parquet = load("pyarrow.parquet", f"reading {file.name}")
    file.check_unchanged()
    # pyarrow takes a relative path with a colon for a URI.
    with readable(file.name, "Parquet"), parquet.ParquetFile(file.path.absolute(), metadata=metadata) as opened:
        yield opened


# The dtypes of arrow's types of numbers.
_DTYPES = {
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{"halffloat": "float16", "float": "float32", "double": "float64"},
}


def value_dtype(kind: Any) -> np.dtype[Any] | None:
    """The dtype of the values of an arrow list type; None for other types."""
    kind = getattr(kind, "storage_type", kind)
    if not hasattr(kind, "value_field"):
        return None
    name = str(kind.value_type)
    if name in _DTYPES:
        return np.dtype(_DTYPES[name])
    try:
        dtype: np.dtype[Any] = np.dtype(kind.value_type.to_pandas_dtype())
    # Old versions of pyarrow ask pandas, which may be absent.
    except (NotImplementedError, TypeError, ImportError):
        return None
    return dtype


def dtype_of_lists(name: str, kind: Any) -> np.dtype[Any]:
    """The dtype of the values of a column of embeddings, which must be a list type."""
    dtype = value_dtype(kind)
    if dtype is None:
        raise UnreadableSource(f"{name}: a column of {kind}, expected lists of numbers. Name another.")
    return dtype


class ParquetSource(Matrix):
    """A column of lists: the one that `inner` names, or the only one of readable values."""

    def __init__(self, path: Path, inner: str | None = None, cache: RowGroupCache | None = None) -> None:
        self._file = RawFile(path)
        self._cache = cache or RowGroupCache()
        with open_parquet(self._file) as opened:
            schema = opened.schema_arrow
            self._column = choose_lists(str(path), schema, inner)
            name = f"{path}::{self._column}"
            dtype = dtype_of_lists(name, schema.field(self._column).type)
            self._metadata = opened.metadata
            self._sizes = column_sizes(name, self._file, self._column)
            self._starts = np.concatenate([[0], np.cumsum([size.rows for size in self._sizes], dtype=np.int64)])
            for group, size in enumerate(self._sizes):
                _refuse_large(name, group, size, max(size.values * dtype.itemsize, size.encoded))
            first = next(opened.iter_batches(batch_size=1, columns=[self._column]), None)
            width = 0 if first is None else len(matrix_of_lists(name, first.column(0), 0, None, dtype)[0])
            super().__init__(name, (self._metadata.num_rows, width), dtype, (path,))

    def _read(self, start: int, stop: int) -> Rows:
        rows = np.empty((stop - start, self.width), self.dtype)
        done = start
        while done < stop:
            group = int(np.searchsorted(self._starts, done, side="right")) - 1
            first = int(self._starts[group])
            end = min(stop, int(self._starts[group + 1]))
            rows[done - start : end - start] = self._group(group)[done - first : end - first]
            done = end
        return rows

    def _group(self, group: int) -> Rows:
        rows = int(self._starts[group + 1] - self._starts[group])
        size = rows * self.width * self.dtype.itemsize
        return self._cache.get((self._file.path, self._column, group), size, lambda: self._decode(group, rows))

    def _decode(self, group: int, rows: int) -> Rows:
        done = 0
        first = int(self._starts[group])
        with open_parquet(self._file, self._metadata) as opened:
            _refuse_large(self.name, group, self._sizes[group], rows * self.width * self.dtype.itemsize)
            decoded = np.empty((rows, self.width), self.dtype)
            for batch in opened.iter_batches(batch_size=BATCH_ROWS, row_groups=[group], columns=[self._column]):
                part = matrix_of_lists(self.name, batch.column(0), first + done, self.width, self.dtype)
                decoded[done : done + len(part)] = part
                done += len(part)
        if done != rows:
            raise UnreadableSource(
                f"{self.name}: row group {group} holds {done:,} rows, expected {rows:,}. Copy or write it again."
            )
        return decoded


def _refuse_large(name: str, group: int, size: ColumnSize, needed: int) -> None:
    if needed > most_bytes(size.stored):
        raise UnreadableSource(
            f"{name}: row group {group} takes {needed:,} bytes of memory, but has {size.stored:,} in the file. Write it again "
            "with smaller row groups."
        )


def choose_lists(name: str, schema: Any, inner: str | None) -> str:
    """The column of embeddings in an arrow schema: the one that `inner` names, or the only one of lists of readable values."""
    fitting = {
        field.name: f" ({field.type})"
        for field in schema
        if (dtype := value_dtype(field.type)) is not None and is_readable(dtype)
    }
    return choose(name, inner, schema.names, fitting, f"a column of lists of {READABLE_NAMES}")


def matrix_of_lists(name: str, lists: Any, first: int, width: int | None, dtype: np.dtype[Any]) -> Rows:
    """The lists as a matrix; refuses null lists, null values, and widths other than that of the first row."""
    lists = getattr(lists, "storage", lists)
    if lists.null_count:
        row = first + _first_null(lists)
        raise BadRow(f"{name}, row {row}: null, expected a list of numbers. Fix the row or leave it out.")
    lengths = lists.value_lengths().to_numpy(zero_copy_only=False)
    if width is None:
        width = int(lengths[0])
    wrong = np.flatnonzero(lengths != width)
    if len(wrong):
        row = int(wrong[0])
        raise WidthMismatch(
            f"{name}, row {first + row}: {lengths[row]:,} values, expected {width:,} as in row 0. Fix the row or leave it out."
        )
    values = lists.flatten()
    if values.null_count:
        position = _first_null(values)
        raise BadRow(
            f"{name}, row {first + position // width}: value {position % width} is null, expected a number. Fix the "
            "row or leave it out."
        )
    matrix: Rows = values.to_numpy(zero_copy_only=False).reshape(len(lists), width)
    return matrix.astype(dtype, copy=False)


def _first_null(array: Any) -> int:
    return int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))

"""Labels or ids from a column of a Parquet file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmdiff.formats.errors import CountMismatch
from mmdiff.formats.extras import load
from mmdiff.formats.sources.base import Column
from mmdiff.formats.sources.columns.arrow_values import ArrowColumns, refuse_more
from mmdiff.formats.sources.parquet import open_parquet
from mmdiff.formats.sources.parquet_footer import ColumnSize, column_sizes
from mmdiff.formats.sources.rawfile import RawFile
from mmdiff.formats.sources.spec import choose_column

# Rows that are decoded at a time. A dictionary can hold a long text once for millions of rows, so few of them are decoded where
# the column has room for long ones.
_BATCH_ROWS = 1 << 16
_LEAST_BATCH_ROWS = 256
_BATCH_BYTES = 256 << 20


def read_parquet_column(path: Path, inner: str | None = None, rows: int | None = None) -> Column:
    """The column `inner`; by default the only one, or the only one named label, labels, class or id.

    A column of another number of rows than `rows` is refused before it is decoded.
    """
    file = RawFile(path)
    with open_parquet(file) as opened:
        column = choose_column(str(path), inner, opened.schema_arrow.names)
        name = f"{path}::{column}"
        sizes = column_sizes(name, file, column)
        found = opened.metadata.num_rows
        if rows is not None and found != rows:
            raise CountMismatch(f"{name}: {found:,} values for {rows:,} rows. Give one for each row, null where there is none.")
        needed = max(8 * sum(size.values for size in sizes), max((size.encoded for size in sizes), default=0))
        refuse_more(name, needed, file.size, found)
        return ArrowColumns(name, file.size).column(_decoded(name, opened, column, sizes, file.size))


def _decoded(name: str, opened: Any, column: str, sizes: Sequence[ColumnSize], stored: int) -> Any:
    """The column as an arrow array, decoded in batches until it takes too much memory."""
    pyarrow = load("pyarrow", f"reading {name}")
    longest = max((size.encoded for size in sizes), default=0)
    batch_rows = min(_BATCH_ROWS, max(_LEAST_BATCH_ROWS, _BATCH_BYTES // max(1, longest)))
    batches, rows, needed = [], 0, 0
    for batch in opened.iter_batches(batch_size=batch_rows, columns=[column]):
        # Arrow does not look whether texts are UTF-8 unless it is asked to.
        batch.validate(full=True)
        batches.append(batch.column(0))
        rows += len(batch)
        needed += batch.nbytes
        refuse_more(name, needed, stored, rows)
    return pyarrow.chunked_array(batches, opened.schema_arrow.field(column).type)

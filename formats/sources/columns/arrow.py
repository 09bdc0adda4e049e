"""Labels or ids from a column of an Arrow IPC file, or of a folder of the library `datasets`."""

from __future__ import annotations

from mmdiff.formats.errors import CountMismatch, UnreadableSource
from mmdiff.formats.extras import load
from mmdiff.formats.sources.arrow import ArrowFile
from mmdiff.formats.sources.base import Column
from mmdiff.formats.sources.columns.arrow_values import ArrowColumns, refuse_more
from mmdiff.formats.sources.datasets import Dataset
from mmdiff.formats.sources.limits import most_bytes, readable
from mmdiff.formats.sources.many import concatenate_columns
from mmdiff.formats.sources.spec import choose_column


def read_arrow_column(table: ArrowFile, inner: str | None = None, rows: int | None = None) -> Column:
    """The column `inner`; by default the only one, or the only one named label, labels, class or id.

    A column of another number of rows than `rows` is refused before it is decoded.
    """
    pyarrow = load("pyarrow", f"reading {table.path}")
    column = choose_column(str(table.path), inner, table.names)
    name = f"{table.path}::{column}"
    found = table.rows
    if rows is not None and found != rows:
        raise CountMismatch(f"{name}: {found:,} values for {rows:,} rows. Give one for each row, null where there is none.")
    if rows is None and pyarrow.types.is_null(table.schema.field(column).type) and 8 * found > most_bytes(table.file.size):
        # Nulls have no bytes, so nothing else bounds their number.
        raise UnreadableSource(f"{name}: {found:,} nulls in a file of {table.file.size:,} bytes. Copy or write it again.")
    columns = ArrowColumns(name, table.file.size)
    arrays, needed, done = [], 0, 0
    for batch in table.stream.batches:
        # Each batch comes with the whole dictionary of its column, so none is kept.
        array = columns.without_dictionary(table.decode(column, batch))
        needed += array.nbytes
        done += batch.rows
        refuse_more(name, needed, table.file.size, done)
        arrays.append(array)
    if not done:
        raise UnreadableSource(f"{name}: holds no rows. Check how it was written.")
    with readable(name, "labels or ids"):
        return columns.column(pyarrow.chunked_array(arrays))


def read_dataset_column(dataset: Dataset, inner: str | None = None, rows: int | None = None) -> Column:
    """The same from all parts of a dataset."""
    found = sum(table.rows for table in dataset.tables)
    if rows is not None and found != rows:
        raise CountMismatch(f"{dataset.folder}: {found:,} rows, but {rows:,} embeddings. Give one row for each.")
    name = choose_column(str(dataset.folder), inner, dataset.tables[0].names)
    return concatenate_columns([read_arrow_column(table, name) for table in dataset.tables], f"{dataset.folder}::{name}")

"""`.parquet`: columns `id`, `label` (where there are labels) and `embedding`, one row group after the other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.classes import UNLABELLED
from mmdiff.export.arrow import arrow, strings_column
from mmdiff.export.table import Block, Table
from mmdiff.formats.store import Artifact
from mmdiff.formats.strings import Strings
from mmdiff.progress import Progress


def write_parquet(artifact: Artifact, arrays: Sequence[str], stream: IO[bytes], progress: Progress) -> None:
    """Descriptors as a table that pyarrow, pandas, polars or DuckDB open."""
    table = Table(artifact, arrays[0])
    columns = _Columns(table)
    # Embeddings neither repeat nor compress: to try would only take time.
    plain = {"compression": "none", "use_dictionary": ["label", "label.list.element"], "write_statistics": ["id", "label"]}
    with (
        progress(f"exporting {artifact.name}", table.rows, "rows") as advance,
        columns.parquet.ParquetWriter(stream, columns.schema(), **plain) as writer,
    ):
        for block in table.blocks():
            writer.write_table(columns.of(block), row_group_size=len(block.vectors))
            advance(len(block.vectors))


class _Columns:
    """Blocks of a table as arrow columns."""

    def __init__(self, table: Table) -> None:
        self.pa, self.parquet = arrow("writing .parquet")
        self.table = table

    @cached_property
    def titles(self) -> Any:
        """What each class is called."""
        classes = self.table.classes
        return self.pa.array(classes.numbers if classes.names is None else classes.names, self._title_type())

    def schema(self) -> Any:
        pa, table = self.pa, self.table
        fields = [("id", pa.string() if table.string_ids else pa.int64())]
        if table.labels_per_row:
            fields.append(("label", self._title_type() if table.labels_per_row == 1 else pa.list_(self._title_type())))
        fields.append(("embedding", pa.list_(pa.from_numpy_dtype(table.dtype), table.width)))
        return pa.schema(fields)

    def of(self, block: Block) -> Any:
        columns = [strings_column(self.pa, block.ids) if isinstance(block.ids, Strings) else self.pa.array(block.ids)]
        if block.labels is not None:
            columns.append(self._labels(block.labels))
        columns.append(self.pa.FixedSizeListArray.from_arrays(self.pa.array(block.vectors.reshape(-1)), self.table.width))
        return self.pa.Table.from_arrays(columns, schema=self.schema())

    def _title_type(self) -> Any:
        return self.pa.int64() if self.table.classes.names is None else self.pa.string()

    def _labels(self, labels: NDArray[np.int32]) -> Any:
        given = labels != UNLABELLED
        if self.table.labels_per_row == 1:
            return self.titles.take(self.pa.array(labels[:, 0], mask=~given[:, 0]))
        offsets = np.zeros(len(labels) + 1, np.int32)
        np.cumsum(given.sum(axis=1), out=offsets[1:])
        nowhere = self.pa.array(~given.any(axis=1))
        return self.pa.ListArray.from_arrays(offsets, self.titles.take(self.pa.array(labels[given])), mask=nowhere)

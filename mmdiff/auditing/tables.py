"""The tables of an audit, worst first: as Arrow tables, Parquet, CSV and JSON lines, written block by block.

| part | columns |
|---|---|
| `labels` | `id`, `label`, `confidence`, `predicted`, `predicted_confidence`, `doubt`, `role` |
| `duplicates` | `group`, `id`, `representative`, `similarity`, `role` |
| `leaks` | `id`, `role`, `matches`, `matched_role`, `similarity` |
| `outliers` | `id`, `similarity`, `named`, `reason`, `role` |

Ids are numbers unless a role has text ids; classes have their names, else their numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmdiff.auditing.artifact import REASONS, RowNames
from mmdiff.export.columns import ending_of
from mmdiff.export.tables import arrow, cell
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact
from mmdiff.labels.classes import Classes
from mmdiff.prediction.writing import shortest

_BLOCK_ROWS = 1 << 16

Values = NDArray[Any] | list[Any]


class Field(NamedTuple):
    """A column of a table and its Arrow type."""

    name: str
    type: str


class Table:
    """An audit as a table: its fields, and its rows in blocks of columns."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact, self.part = artifact, str(artifact.manifest.parameters["part"])
        self.rows = int(artifact.facts["rows"])
        self._names = RowNames.of(artifact.store, artifact.facts["of"])
        classes = Classes.of(artifact)
        self._titles = np.array(
            classes.numbers if classes.names is None and classes.numbers is not None else classes.names or [], object
        )
        self.fields = self._fields("int64" if classes.names is None else "string")

    def _fields(self, title: str) -> list[Field]:
        id_type = "string" if self._names.are_strings else "int64"
        given = {"id": id_type, "matches": id_type, "label": title, "predicted": title}
        given |= {"group": "int64", "representative": "bool", "named": "int64"}
        given |= dict.fromkeys(("role", "matched_role", "reason"), "string")
        columns = {
            "labels": ("id", "label", "confidence", "predicted", "predicted_confidence", "doubt", "role"),
            "duplicates": ("group", "id", "representative", "similarity", "role"),
            "leaks": ("id", "role", "matches", "matched_role", "similarity"),
            "outliers": ("id", "similarity", "named", "reason", "role"),
        }
        return [Field(name, given.get(name, "float32")) for name in columns[self.part]]

    @cached_property
    def _arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of the artifact; those that others are looked up by are checked."""
        rows, classes = sum(self.artifact.facts["of"].values()), len(self._titles)
        below = {"rows": rows, "matches": rows, "labels": classes, "predicted": classes, "reasons": len(REASONS)}
        names = [name for name in self.artifact if not name.startswith("class_")]
        return {
            name: self.artifact.index_array(name, below[name]) if name in below else self.artifact.array(name) for name in names
        }

    def block(self, start: int, stop: int) -> list[Values]:
        """The columns of rows start..stop-1."""
        return [self._column(field.name, slice(start, stop)) for field in self.fields]

    def _column(self, name: str, part: slice) -> Values:
        stored = {"id": "rows", "role": "rows", "matched_role": "matches", "label": "labels", "reason": "reasons"}
        values = self._arrays[stored.get(name, name)][part]
        if name in ("id", "matches"):
            return self._names.ids(values)
        if name in ("role", "matched_role"):
            return self._names.names(values)
        if name in ("label", "predicted"):
            return list(self._titles[values])
        if name == "reason":
            return [REASONS[reason] for reason in values.tolist()]
        return values != 0 if name == "representative" else np.asarray(values)

    def blocks(self) -> Iterator[list[Values]]:
        for start in range(0, self.rows, _BLOCK_ROWS):
            yield self.block(start, min(start + _BLOCK_ROWS, self.rows))

    def first(self, count: int) -> list[Json]:
        """The worst rows as plain values."""
        columns = [_plain(values) for values in self.block(0, min(count, self.rows))]
        names = [field.name for field in self.fields]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def arrow(self) -> Any:
        """The whole table in memory."""
        return _Arrow(self.fields, "a table of an audit").table(self.blocks())


def _plain(values: Values) -> list[Any]:
    if isinstance(values, np.ndarray) and values.dtype == np.float32:
        return [float(text) for text in shortest(values)]
    return [
        value.item() if isinstance(value, np.generic) else value
        for value in (values.tolist() if isinstance(values, np.ndarray) else values)
    ]


class _Arrow:
    """Blocks as Arrow record batches."""

    def __init__(self, fields: Sequence[Field], needed_for: str) -> None:
        self._pa, self.parquet = arrow(needed_for)
        self.schema = self._pa.schema([(field.name, self._pa.type_for_alias(field.type)) for field in fields])

    def of(self, block: list[Values]) -> Any:
        columns = [self._pa.array(values, field.type) for values, field in zip(block, self.schema, strict=True)]
        return self._pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def table(self, blocks: Iterator[list[Values]]) -> Any:
        return self._pa.Table.from_batches(map(self.of, blocks), schema=self.schema)


def _parquet(table: Table, stream: IO[bytes]) -> None:
    blocks = _Arrow(table.fields, "writing .parquet")
    with blocks.parquet.ParquetWriter(stream, blocks.schema) as writer:
        for block in table.blocks():
            writer.write_batch(blocks.of(block))


def _csv(table: Table, stream: IO[bytes]) -> None:
    stream.write((",".join(field.name for field in table.fields) + "\n").encode())
    _lines(table, stream, cell, lambda values: ",".join(values) + "\n")


def _jsonl(table: Table, stream: IO[bytes]) -> None:
    form = "{" + ", ".join(f'"{field.name}": %s' for field in table.fields) + "}\n"
    _lines(table, stream, lambda text: json.dumps(text, ensure_ascii=False), lambda values: form % values)


def _lines(table: Table, stream: IO[bytes], text: Callable[[str], str], join: Callable[[tuple[str, ...]], str]) -> None:
    for block in table.blocks():
        columns = [_texts(values, text) for values in block]
        stream.write("".join(map(join, zip(*columns, strict=True))).encode())


def _texts(values: Values, text: Callable[[str], str]) -> list[str]:
    if not isinstance(values, np.ndarray):
        return [text(value) if isinstance(value, str) else str(value) for value in values]
    if values.dtype == np.float32:
        return list(shortest(values))
    return [str(value).lower() for value in values.tolist()]


Writer = Callable[[Table, IO[bytes]], None]
WRITERS: dict[str, Writer] = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}


def writer_of(file: Path) -> Writer:
    """The writer for the ending of a file; Parquet without pyarrow is refused before anything is computed."""
    return WRITERS[ending_of(file, "audits")]

"""Small tables as columns of values, None for none: an Arrow table, or a file of Parquet, CSV or JSON lines.

In CSV, null is an empty field. Numbers are written with as many digits as reading them back takes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from mmdiff.export.tables import arrow, cell
from mmdiff.formats.errors import BadOption, Parameter
from mmdiff.formats.store.manifest import Json


@dataclass(frozen=True)
class Column:
    """A column: its name, the name of its type in Arrow, and a value for each row."""

    name: str
    type: str
    values: Sequence[Any]


def arrow_table(columns: Sequence[Column], summary: Json, needed_for: str) -> Any:
    """The columns as a `pyarrow.Table`, with a summary as JSON in the metadata of its schema."""
    pa, _ = arrow(needed_for)
    types = {"int32": pa.int32(), "int64": pa.int64(), "float32": pa.float32(), "string": pa.string()}
    arrays = {column.name: pa.array(column.values, types[column.type]) for column in columns}
    return pa.table(arrays).replace_schema_metadata({"mmdiff": json.dumps(summary)})


def ending_of(file: Path, what: str) -> str:
    """The ending of a file that a table can be written to; others are refused, and Parquet without pyarrow."""
    ending = file.suffix.lower()
    if ending not in WRITERS:
        raise BadOption(
            Parameter("file", str(file)), f": {what} are written to {', '.join(WRITERS)}. Name a file with such an ending."
        )
    if ending == ".parquet":
        arrow("writing .parquet")
    return ending


def _write_parquet(columns: Sequence[Column], summary: Json, stream: IO[bytes]) -> None:
    arrow("writing .parquet")[1].write_table(arrow_table(columns, summary, "writing .parquet"), stream)


def _write_csv(columns: Sequence[Column], summary: Json, stream: IO[bytes]) -> None:  # noqa: ARG001
    lines = [",".join(column.name for column in columns)]
    texts = [["" if value is None else cell(_plain(column, value)) for value in column.values] for column in columns]
    lines += [",".join(row) for row in zip(*texts, strict=True)]
    stream.write("".join(f"{line}\n" for line in lines).encode())


def _write_json_lines(columns: Sequence[Column], summary: Json, stream: IO[bytes]) -> None:  # noqa: ARG001
    for row in zip(*(column.values for column in columns), strict=True):
        fields = [f'"{column.name}": {_json(column, value)}' for column, value in zip(columns, row, strict=True)]
        stream.write(("{" + ", ".join(fields) + "}\n").encode())


def _plain(column: Column, value: Any) -> str:
    return str(np.float32(value)) if column.type == "float32" else str(value)


def _json(column: Column, value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if value is None or column.type == "string" else _plain(column, value)


WRITERS: dict[str, Callable[[Sequence[Column], Json, IO[bytes]], None]] = {
    ".csv": _write_csv,
    ".jsonl": _write_json_lines,
    ".parquet": _write_parquet,
}

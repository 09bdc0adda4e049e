"""Labels or ids by name: a file, a pattern of files, or a column of the very tables that the embeddings are read from.

A name that is no file is a column where the source is a table: `import photos.parquet --labels label`. Several tables give the
values of their rows one after the other, in the order of the embeddings.
"""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mmdiff.formats.errors import BadLabels, CountMismatch, UnreadableSource
from mmdiff.formats.sources.arrow import ENDINGS, ArrowFile
from mmdiff.formats.sources.base import Column
from mmdiff.formats.sources.columns.reading import read_part
from mmdiff.formats.sources.datasets import is_dataset, open_dataset
from mmdiff.formats.sources.many import concatenate_columns
from mmdiff.formats.sources.npz import read_npz
from mmdiff.formats.sources.parquet import open_parquet
from mmdiff.formats.sources.rawfile import RawFile
from mmdiff.formats.sources.safetensors import read_tensors
from mmdiff.formats.sources.spec import SEPARATOR, exists, expand_spec

_SHOWN = 20


@dataclass(frozen=True)
class ColumnFiles:
    """Labels or ids in files: each with the column to read, None for the one that fits."""

    parts: tuple[tuple[Path, str | None], ...]

    @property
    def name(self) -> str:
        """The name in messages and manifests."""
        names = [str(path) if column is None else f"{path}{SEPARATOR}{column}" for path, column in self.parts]
        return names[0] if len(names) == 1 else f"{names[0]} ... {names[-1]} ({len(names)} parts)"

    @property
    def name_without_folders(self) -> str:
        return ColumnFiles(tuple((Path(path.name), column) for path, column in self.parts)).name

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that is read, in order."""
        return tuple(file for path, _ in self.parts for file in (open_dataset(path).files if is_dataset(path) else (path,)))

    def read(self, rows: int) -> Column:
        """The values of all files; `rows` is the number of embeddings, beyond which nothing is read."""
        if len(self.parts) == 1:
            return read_part(*self.parts[0], rows)
        columns, found = [], 0
        for path, column in self.parts:
            columns.append(read_part(path, column))
            found += len(columns[-1])
            if found > rows:
                raise CountMismatch(f"{self.name}: {found:,} values or more for {rows:,} rows. Give one for each row.")
        return concatenate_columns(columns, self.name)

    def class_names(self) -> dict[int, str] | None:
        """The names of class numbers that come with the columns, if any."""
        names: dict[int, str] = {}
        for path, column in self.parts:
            found = open_dataset(path).class_names(column) if column is not None and is_dataset(path) else None
            for number, name in (found or {}).items():
                if names.setdefault(number, name) != name:
                    raise BadLabels(
                        f"{path}{SEPARATOR}{column}: class {number} is called {name!r} here, but {names[number]!r} in a folder "
                        "before it. Import them with the same class names."
                    )
        return names or None


def find_column(name: str, sources: Sequence[str]) -> ColumnFiles:
    """The files of labels or ids: `name` is a file, a pattern, or a column of the tables among `sources`."""
    if exists(name) or not sources:
        return ColumnFiles(tuple(expand_spec(name)))
    parts = [path for source in sources for path, _ in expand_spec(source)]
    # One table is opened where the name is no column, and each once where it is.
    first = columns_of(parts[0])
    if first is not None and name in first:
        return ColumnFiles(tuple((_table_with(path, name), name) for path in parts))
    if first is None or SEPARATOR in name or glob.has_magic(name):
        return ColumnFiles(tuple(expand_spec(name)))
    raise UnreadableSource(
        f"{name}: no such file, and no such column in {parts[0]}, which has {_listed(first)}. Name one of them, or a file."
    )


def _table_with(path: Path, column: str) -> Path:
    found = columns_of(path)
    if found is None:
        raise UnreadableSource(f"{path}: not a table, so it has no column {column!r}. Give the values of all rows in files.")
    if column not in found:
        raise UnreadableSource(f"{path}: no column {column!r}, found {_listed(found)}. All tables must have the column.")
    return path


def columns_of(path: Path) -> list[str] | None:
    """The columns of a table or the arrays of a file; None for formats that hold one array."""
    if is_dataset(path):
        return list(open_dataset(path).tables[0].names)
    ending = path.suffix.lower()
    if ending == ".parquet":
        with open_parquet(RawFile(path)) as opened:
            return list(opened.schema_arrow.names)
    if ending in ENDINGS:
        return list(ArrowFile(path).names)
    if ending in (".npz", ".safetensors"):
        return list(read_npz(path) if ending == ".npz" else read_tensors(path))
    return None


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(columns[:_SHOWN]) + (", ..." if len(columns) > _SHOWN else "")

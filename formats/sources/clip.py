"""A folder as clip-retrieval writes it: img_emb/img_emb_0.npy, ... and, if kept, metadata/metadata_0.parquet, ...

Both kinds of file may also lie side by side in one folder. Parts are taken in the order of their numbers, from 0 on.
"""

from __future__ import annotations

import re
from functools import cached_property
from itertools import count
from pathlib import Path

from mmdiff.formats.errors import CountMismatch, UnreadableSource
from mmdiff.formats.sources.base import Column
from mmdiff.formats.sources.many import Concatenated, concatenate_columns
from mmdiff.formats.sources.npy import NpySource
from mmdiff.formats.sources.parquet import open_parquet
from mmdiff.formats.sources.parquet_column import read_parquet_column
from mmdiff.formats.sources.rawfile import RawFile

ID_COLUMNS = ("image_path", "key", "url")


def is_clip(folder: Path) -> bool:
    return bool(_numbered(folder, "img_emb", "npy"))


class ClipSource(Concatenated):
    """The numbered parts of a folder, with ids from the metadata when there are any."""

    def __init__(self, folder: Path) -> None:
        embeddings = _numbered(folder, "img_emb", "npy")
        self._metadata = _numbered(folder, "metadata", "parquet")
        parts = max((*embeddings, *self._metadata)) + 1
        _refuse_gaps(folder, "img_emb", "npy", embeddings, parts)
        if self._metadata:
            _refuse_gaps(folder, "metadata", "parquet", self._metadata, parts)
        super().__init__([NpySource(embeddings[number]) for number in sorted(embeddings)], str(folder))
        self._columns: list[set[str]] = []
        for number, part in enumerate(self.parts[: len(self._metadata)]):
            with open_parquet(RawFile(self._metadata[number])) as opened:
                rows = opened.metadata.num_rows
                self._columns.append(set(opened.schema_arrow.names))
            if rows != part.rows:
                raise CountMismatch(
                    f"{part.name} has {part.rows:,} rows, but {self._metadata[number]} has {rows:,}. Write part "
                    f"{number} again, or leave the metadata out."
                )

    @property
    def files(self) -> tuple[Path, ...]:
        return (*super().files, *(self._metadata[number] for number in sorted(self._metadata)))

    @cached_property
    def id_column(self) -> str | None:
        """The first of the usual id columns that all parts have."""
        if not self._columns:
            return None
        common = set.intersection(*self._columns)
        return next((column for column in ID_COLUMNS if column in common), None)

    def ids(self) -> Column | None:
        if self.id_column is None:
            return None
        paths = (self._metadata[number] for number in sorted(self._metadata))
        return concatenate_columns([read_parquet_column(path, self.id_column) for path in paths])


def _numbered(folder: Path, stem: str, ending: str) -> dict[int, Path]:
    """The files stem_NUMBER.ending of the folder stem, or else of the folder itself."""
    pattern = re.compile(rf"{stem}_([0-9]+)\.{ending}")
    inside = folder / stem if (folder / stem).is_dir() else folder
    found: dict[int, Path] = {}
    for path in sorted(inside.iterdir()):
        if match := pattern.fullmatch(path.name):
            number = int(match[1])
            if number in found:
                raise UnreadableSource(f"{folder}: {found[number].name} and {path.name} are both part {number}. Remove one.")
            found[number] = path
    return found


def _refuse_gaps(folder: Path, stem: str, ending: str, found: dict[int, Path], parts: int) -> None:
    if len(found) < parts:
        gap = next(number for number in count() if number not in found)
        raise UnreadableSource(
            f"{folder}: {stem}_{gap}.{ending} is missing ({len(found):,} of {parts:,} are there). Add it, or name the "
            "files to read, as in 'FOLDER/*.npy'."
        )

"""Folders of the Hugging Face library `datasets`, as `save_to_disk` writes them.

`state.json` names the parts, which are Arrow streams; `dataset_info.json` describes the columns, and gives the class names of
those of type ClassLabel. A folder of several splits has `dataset_dict.json` and a folder for each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mmdiff.formats.errors import UnreadableSource, shortened
from mmdiff.formats.sources.arrow import ArrowFile, ArrowSource
from mmdiff.formats.sources.documents import read_json
from mmdiff.formats.sources.many import Concatenated
from mmdiff.formats.sources.parquet import RowGroupCache

_STATE, _INFO, _SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
# Rows chosen from the parts, which older versions saved beside them.
_SELECTIONS = ("_indices_data_files", "_indices_files")


def is_dataset(folder: Path) -> bool:
    """Whether a folder was written by `save_to_disk`."""
    return (folder / _STATE).is_file() or (folder / _SPLITS).is_file()


@dataclass(frozen=True)
class Dataset:
    """A dataset of one split: its parts in order, and the descriptions of its columns."""

    folder: Path
    parts: tuple[Path, ...]
    features: dict[str, Any]

    @property
    def files(self) -> tuple[Path, ...]:
        info = self.folder / _INFO
        return (*self.parts, self.folder / _STATE, *([info] if info.is_file() else []))

    @cached_property
    def tables(self) -> tuple[ArrowFile, ...]:
        """The parts that have rows."""
        tables = tuple(table for table in map(ArrowFile, self.parts) if table.rows)
        if not tables:
            raise UnreadableSource(f"{self.folder}: holds no rows. Check how it was written.")
        return tables

    def class_names(self, column: str) -> dict[int, str] | None:
        """The names of class numbers where a column is of type ClassLabel, or of lists of it."""
        feature = self.features.get(column)
        if isinstance(feature, list) and len(feature) == 1:
            feature = feature[0]
        if isinstance(feature, dict) and "feature" in feature:
            feature = feature["feature"]
        if not isinstance(feature, dict) or feature.get("_type") != "ClassLabel":
            return None
        names = feature.get("names")
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise UnreadableSource(
                f"{self.folder / _INFO}: the class names of {column} are {shortened(names)}, expected a list of names. "
                "Correct it there."
            )
        return dict(enumerate(names))


def open_dataset(folder: Path) -> Dataset:
    """The dataset in a folder; of a folder of splits the only one."""
    if not (folder / _STATE).is_file():
        return open_dataset(_only_split(folder))
    state = _object(folder / _STATE)
    if any(state.get(key) for key in _SELECTIONS):
        raise UnreadableSource(
            f"{folder}: a selection of rows from other files. Save the rows themselves: flatten_indices() before save_to_disk."
        )
    entries = state.get("_data_files")
    if not isinstance(entries, list) or not entries:
        raise UnreadableSource(f"{folder / _STATE}: names no data files. Save the dataset again with save_to_disk.")
    names = [entry.get("filename") if isinstance(entry, dict) else entry for entry in entries]
    for name in names:
        if not isinstance(name, str) or not _is_plain(name):
            raise UnreadableSource(
                f"{folder / _STATE}: found {shortened(name)}, expected the name of a file in the same folder. Correct it."
            )
    info = folder / _INFO
    features = _object(info).get("features") if info.is_file() else None
    return Dataset(folder, tuple(folder / str(name) for name in names), features if isinstance(features, dict) else {})


def _only_split(folder: Path) -> Path:
    splits = _object(folder / _SPLITS).get("splits")
    found = [name for name in splits if isinstance(name, str)] if isinstance(splits, list) else []
    there = [folder / name for name in found if _is_plain(name) and (folder / name / _STATE).is_file()]
    if len(there) == 1:
        return there[0]
    choice = f"Name one: {', '.join(map(str, there))}" if there else "Save it again with save_to_disk"
    raise UnreadableSource(f"{folder}: a dataset of {len(there)} splits. {choice}.")


def _is_plain(name: str) -> bool:
    """Whether a name is that of an entry of a folder: nothing outside it is read, whatever a file says."""
    # JSON can spell half a character, which no path has.
    return name not in ("", ".", "..") and not any(sign in "/\0" or "\ud800" <= sign <= "\udfff" for sign in name)


def _object(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise UnreadableSource(
            f"{path}: found {shortened(content)}, expected an object. Save the dataset again with save_to_disk."
        )
    return content


class DatasetSource(Concatenated):
    """A list column of a dataset: the one that `inner` names, or the only one of readable values."""

    def __init__(self, folder: Path, inner: str | None, cache: RowGroupCache) -> None:
        self._dataset = open_dataset(folder)
        parts: list[ArrowSource] = []
        for table in self._dataset.tables:
            parts.append(ArrowSource(table, inner, cache))
            inner = parts[0].column
        super().__init__(parts, f"{folder}::{inner}")

    @property
    def files(self) -> tuple[Path, ...]:
        return self._dataset.files

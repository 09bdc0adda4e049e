"""Files of labels by id: `.csv`, Parquet, and JSON lines (`.jsonl`, `.ndjson`), with a column of ids and one of labels.

The columns are found by their names, id or ids and label, labels or class, unless the user names others. An empty label, null
or an empty list means "none". Several labels of a row are a list in Parquet and JSON lines; in a CSV file they are separated by
a text that the user names.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmdiff.formats.errors import BadLabels, BadOption, Parameter, Placeholder, UnreadableSource, shortened
from mmdiff.formats.sources.base import Column
from mmdiff.formats.sources.columns.in_memory import column_of
from mmdiff.formats.sources.columns.integers import integers_or_strings
from mmdiff.formats.sources.columns.parquet import read_parquet_column
from mmdiff.formats.sources.limits import reason
from mmdiff.formats.sources.parquet import open_parquet
from mmdiff.formats.sources.rawfile import RawFile
from mmdiff.formats.sources.text import read_cells, read_text
from mmdiff.formats.storage.strings import Strings

_NAMES = {"ids": ("id", "ids"), "labels": ("label", "labels", "class")}
_JSON_LINES = (".jsonl", ".ndjson")


@dataclass(frozen=True)
class LabelTable:
    """Ids and labels as read, a row each; `name` is the file, and row i is called by its `unit` and `numbers[i]`."""

    name: str
    ids: Column
    labels: Column
    unit: str
    numbers: Sequence[int | str]

    def place(self, row: int) -> str:
        """A row in messages: `labels.csv, line 3`."""
        return f"{self.name}, {self.unit} {self.numbers[row]}"


def read_label_file(path: Path, ids: str | None = None, labels: str | None = None, separator: str | None = None) -> LabelTable:
    """The ids and labels of a file; `ids` and `labels` name its columns, `separator` stands between labels in a CSV file."""
    ending = path.suffix.lower()
    if separator is not None and ending != ".csv":
        raise BadOption(
            Parameter("separator", separator), f": {path} is not a CSV file. Give several labels of a row as a list there."
        )
    if separator == "":
        raise BadOption(Parameter("separator", separator), ": expected a text, such as ';'.")
    if ending == ".csv":
        return _from_csv(path, ids, labels, separator)
    if ending == ".parquet":
        return _from_parquet(path, ids, labels)
    if ending in _JSON_LINES:
        return _from_json_lines(path, ids, labels)
    raise UnreadableSource(
        f"{path}: labels by id are read from .csv, .parquet and JSON lines ({', '.join(_JSON_LINES)}), "
        f"not from {path.suffix or 'a file without ending'}. Convert it to one of these."
    )


def label_table(labels: Any, name: str) -> LabelTable:
    """A mapping of ids to a label, a list of labels or None, as the same table that a file gives."""
    rows = list(labels)
    if not rows:
        raise BadLabels(f"{name}: no rows. Give a label for each id.")
    values = [_as_list(value) for value in labels.values()]
    return LabelTable(name, column_of(rows, "ids"), column_of(values, name), "id", [str(each) for each in rows])


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple | set | np.ndarray) else [value]


def _from_csv(path: Path, ids: str | None, labels: str | None, separator: str | None) -> LabelTable:
    rows = read_cells(path)
    _, header = next(rows, (0, []))
    of_ids, of_labels = (header.index(_chosen(path, key, name, header)) for key, name in (("ids", ids), ("labels", labels)))
    lines, id_texts, lists = [], [], []
    for line, cells in rows:
        if cells == [""]:
            continue
        if len(cells) != len(header):
            raise UnreadableSource(
                f"{path}, line {line}: {len(cells)} cells, expected {len(header)} as in line 1. Fix the line; a comma "
                "within a value needs quotes around the value."
            )
        lines.append(line)
        id_texts.append(cells[of_ids])
        lists.append([cells[of_labels]] if separator is None else [text.strip() for text in cells[of_labels].split(separator)])
    _refuse_no_rows(path, lines)
    lengths = np.array([len(texts) for texts in lists], np.int64)
    texts = integers_or_strings(Strings.of(text for texts in lists for text in texts))
    table = Column.of_lists(texts, lengths, str(path))
    return LabelTable(str(path), Column(integers_or_strings(Strings.of(id_texts))), table, "line", lines)


def _from_parquet(path: Path, ids: str | None, labels: str | None) -> LabelTable:
    with open_parquet(RawFile(path)) as opened:
        names = opened.schema_arrow.names
    chosen = [_chosen(path, key, name, names) for key, name in (("ids", ids), ("labels", labels))]
    found_ids, found_labels = (read_parquet_column(path, name) for name in chosen)
    return LabelTable(str(path), found_ids, found_labels, "row", range(len(found_ids)))


def _from_json_lines(path: Path, ids: str | None, labels: str | None) -> LabelTable:
    lines, found_ids, lists = [], [], []
    names: tuple[str, str] | None = None
    for number, text in enumerate(read_text(path).split("\n"), 1):
        if not text.strip():
            continue
        try:
            entry = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UnreadableSource(
                f"{path}, line {number}: not readable as JSON ({reason(error)}). Correct it there."
            ) from None
        if not isinstance(entry, dict):
            raise UnreadableSource(
                f'{path}, line {number}: found {shortened(entry)}, expected an object such as {{"id": 17, "label": "cat"}}.'
            )
        if names is None:
            names = _chosen(path, "ids", ids, list(entry)), _chosen(path, "labels", labels, list(entry))
        for name in names:
            if name not in entry:
                raise UnreadableSource(
                    f"{path}, line {number}: no {name!r} in it, as in earlier lines. Write null for a label that is removed."
                )
        lines.append(number)
        found_ids.append(entry[names[0]])
        lists.append(_as_list(entry[names[1]]))
    _refuse_no_rows(path, lines)
    return LabelTable(str(path), column_of(found_ids, f"{path}, ids"), column_of(lists, f"{path}, labels"), "line", lines)


def _refuse_no_rows(path: Path, lines: Sequence[int]) -> None:
    if not lines:
        raise UnreadableSource(f"{path}: holds no rows. Check how it was written.")


def _chosen(path: Path, key: str, wanted: str | None, present: Sequence[str]) -> str:
    """The column that the user names, or the only one with a usual name."""
    usual = _NAMES[key]
    fitting = [name for name in present if name.strip().lower() in usual] if wanted is None else [wanted]
    found = [name for name in present if name in fitting]
    if len(found) == 1:
        return found[0]
    what = repr(wanted) if wanted is not None else " or ".join(usual)
    problem = f"no column {what}" if not found else f"{len(found)} columns {what}"
    raise UnreadableSource(
        f"{path}: {problem} among {shortened(', '.join(present) or 'nothing at all', str)}. Name the column with ",
        Parameter(key, Placeholder("NAME")),
        ".",
    )

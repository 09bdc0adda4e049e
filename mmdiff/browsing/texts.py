"""Texts of rows: a column of a table with a value for each row of the collection, in its order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mmdiff.formats.errors import BadOption, CountMismatch, Parameter
from mmdiff.formats.sources.columns.files import find_column
from mmdiff.formats.storage.strings import Strings

SHORT = 300
LONG = 20_000
"""Characters of a text that are shown in a list of rows, and of one row."""


@dataclass(frozen=True)
class Texts:
    """The text of each row, in memory."""

    values: Strings

    @classmethod
    def read(cls, given: str, rows: int, memory: int) -> Texts:
        """The texts of `file::column`; refused unless there is one for each row, and they fit into a quarter of the memory."""
        column = find_column(given, ()).read(rows)
        if column.per_row != 1:
            raise BadOption(Parameter("texts", given), f": {column.per_row} values for each row. Name a column with one text.")
        if len(column) != rows:
            raise CountMismatch(
                Parameter("texts", given), f": {len(column):,} texts for {rows:,} rows of the collection. Give one for each."
            )
        values = column.values
        texts = values if isinstance(values, Strings) else Strings.of("" if each == -1 else str(each) for each in values)
        needed = texts.offsets.nbytes + texts.utf8.nbytes
        if needed > memory // 4:
            raise BadOption(
                Parameter("texts", given),
                f": {needed:,} bytes of text, more than a quarter of the memory. Allow more: ",
                Parameter("memory", 4 * needed),
            )
        return cls(texts)

    def text(self, row: int, most: int = SHORT) -> str | None:
        """The text of a row, its end cut off beyond `most` characters; None for rows that have been added since."""
        if row >= len(self.values):
            return None
        # A character takes up to four bytes.
        first, last = (int(offset) for offset in self.values.offsets[row : row + 2])
        found = self.values.utf8[first : min(last, first + 4 * most + 4)].tobytes().decode(errors="ignore")
        return found if len(found) <= most else found[:most] + "..."

    def __len__(self) -> int:
        return len(np.asarray(self.values.offsets)) - 1

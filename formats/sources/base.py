"""What every reader of other people's embeddings offers: rows by number, from any thread, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.strings import Strings

Rows = NDArray[Any]

READABLE_DTYPES = tuple(np.dtype(name) for name in ("float16", "float32", "float64", "uint8", "int8"))


@dataclass(frozen=True)
class Column:
    """Labels or ids as read: integers or strings, `per_row` of them for each row (row-major, padded with -1 or "").

    In a column of integers -1 stands for "none", in a column of strings the empty string does.
    """

    values: NDArray[np.int64] | Strings
    per_row: int = 1

    def __len__(self) -> int:
        return len(self.values) // self.per_row


class Source(Protocol):
    """A matrix of embeddings in somebody's file."""

    @property
    def name(self) -> str:
        """What the user calls it: `vectors.npy`, `data.h5::embeddings`."""

    @property
    def rows(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of what `read` returns, in native byte order; one of READABLE_DTYPES."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that is read, in order."""

    def read(self, start: int, stop: int) -> Rows:
        """Rows start..stop-1 as a C-contiguous array of its own. May be called from several threads at once."""

    def locate(self, row: int) -> str:
        """Where the user finds a row: `part_2.npy, row 17`."""

    def ids(self) -> Column | None:
        """The ids that come with the file, if any."""

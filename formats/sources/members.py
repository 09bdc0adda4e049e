"""Named arrays in one file (`file.npz::member`, `file.safetensors::tensor`), read by position as from a `.npy` file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.sources.base import Matrix, Rows
from mmdiff.formats.sources.npy import NpyHeader, read_rows
from mmdiff.formats.sources.rawfile import Bytes
from mmdiff.formats.sources.spec import choose_array


@dataclass(frozen=True)
class Member:
    """An array within a file; values of type `bfloat16` lie there as the upper halves of float32.

    `stored` is the number of its bytes in the file where they are compressed.
    """

    file: Bytes
    header: NpyHeader
    bfloat16: bool = False
    stored: int | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the values that `read` returns, but for the byte order."""
        return np.dtype(np.float32) if self.bfloat16 else self.header.dtype

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start..stop-1, C-contiguous and in native byte order."""
        rows = read_rows(self.file, self.header, start, stop)
        return (rows.astype(np.uint32) << 16).view(np.float32) if self.bfloat16 else rows


Members = dict[str, Member | UnreadableSource]
"""The arrays of a file by name; of one that cannot be read, the error that says why."""


def open_member(members: Mapping[str, Member | UnreadableSource], name: str) -> Member:
    """The array with this name."""
    member = members[name]
    if isinstance(member, UnreadableSource):
        raise member
    return member


class MemberSource(Matrix):
    """A 2-D array: the one that `inner` names, or the only one of readable values."""

    def __init__(self, path: Path, inner: str | None, read_members: Callable[[Path], Members]) -> None:
        members = read_members(path)
        if inner is None and len(members) == 1:
            (inner,) = members
        # An array that cannot be read is named in messages, but never chosen by itself.
        arrays = {
            name: ((), np.dtype(object)) if isinstance(member, UnreadableSource) else (member.header.shape, member.dtype)
            for name, member in members.items()
        }
        chosen = choose_array(str(path), inner, arrays)
        self._member = open_member(members, chosen)
        super().__init__(f"{path}::{chosen}", self._member.header.shape, self._member.dtype, (path,))

    def _read(self, start: int, stop: int) -> Rows:
        return self._member.read(start, stop)

"""Labels or ids from arrays of numpy: integers, whole floats, or fixed-width strings. Pickles are never loaded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.sources.base import Column
from mmdiff.formats.sources.columns.arrow_values import refuse_more
from mmdiff.formats.sources.columns.integers import int64_or_strings, integers_or_strings, whole_numbers
from mmdiff.formats.sources.limits import readable
from mmdiff.formats.sources.many import concatenate_strings
from mmdiff.formats.sources.members import Members, open_member
from mmdiff.formats.sources.npy import NpyHeader, read_header, read_rows
from mmdiff.formats.sources.rawfile import Bytes, RawFile
from mmdiff.formats.sources.spec import choose_column
from mmdiff.formats.storage.strings import Strings

# Each fixed-width string takes the space of the longest, so they are converted in blocks.
BLOCK_BYTES = 64 << 20

_LAST_CODE = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)


def read_npy_column(path: Path) -> Column:
    """A 1-D array, or a 2-D array with several labels per row."""
    file = RawFile(path)
    return column_of_array(file, read_header(file))


def read_member_column(path: Path, inner: str | None, members: Members) -> Column:
    """The array `inner` of a file; by default the only one, or the only one named label, labels, class or id."""
    name = choose_column(str(path), inner, members)
    member = open_member(members, name)
    if member.bfloat16:
        raise UnreadableSource(f"{path}::{name}: values of type bfloat16, expected integers or strings. Save it as such.")
    if member.stored is not None:
        refuse_more(member.file.name, member.file.size, member.stored, (*member.header.shape, 1)[0])
    return column_of_array(member.file, member.header)


def column_of_array(file: Bytes, header: NpyHeader) -> Column:
    """The column in an array of one or two dimensions."""
    if len(header.shape) not in (1, 2):
        raise UnreadableSource(
            f"{file.name}: has {len(header.shape)} dimensions (shape {header.shape}), expected 1, or 2 for several labels "
            "per row. Save one row per embedding."
        )
    if 0 in header.shape:
        raise UnreadableSource(f"{file.name}: holds no rows (shape {header.shape}). Check how it was written.")
    with readable(file.name, "labels or ids"):
        return Column(_values(file, header), (*header.shape, 1)[1])


def _values(file: Bytes, header: NpyHeader) -> NDArray[np.int64] | Strings:
    if header.dtype.kind in "SU":
        read = partial(read_rows, file, header)
        return integers_or_strings(fixed_width_strings(read, header.shape, header.dtype, file.name))
    if header.dtype.kind not in "iuf":
        raise UnreadableSource(
            f"{file.name}: holds values of type {header.dtype}, expected integers or strings. Save it as such."
        )
    values = read_rows(file, header, 0, header.shape[0]).reshape(-1)
    return whole_numbers(values, file.name) if header.dtype.kind == "f" else int64_or_strings(values)


def fixed_width_strings(
    read: Callable[[int, int], NDArray[Any]], shape: tuple[int, ...], dtype: np.dtype[Any], name: str
) -> Strings:
    """numpy's strings of fixed width, which `read` gives by rows, without their padding."""
    rows, per_row = (*shape, 1)[:2]
    block = max(1, BLOCK_BYTES // max(1, dtype.itemsize * per_row))
    parts = []
    for start in range(0, rows, block):
        fixed = read(start, min(start + block, rows)).reshape(-1)
        try:
            parts.append(_flat(fixed))
        except ValueError as error:
            raise UnreadableSource(
                f"{name}, rows {start:,} to {start + len(fixed) // per_row:,}: text that is not valid Unicode "
                f"({error}). Save the strings again as UTF-8 or as numpy unicode."
            ) from error
    return concatenate_strings(parts)


def _flat(fixed: NDArray[Any]) -> Strings:
    """Fixed-width strings as UTF-8 without their padding."""
    if fixed.dtype.kind == "U":
        codes = _characters(fixed, np.uint32)
        # numpy raises SystemError where it meets such a code.
        if codes.max(initial=0) > _LAST_CODE or np.any((codes >= _SURROGATES[0]) & (codes <= _SURROGATES[1])):
            raise ValueError("a code that is not a character")
        if codes.max(initial=0) < 128:
            return _packed(codes, np.char.str_len(fixed))
        fixed = np.char.encode(fixed, "utf-8")
    lengths = np.char.str_len(fixed)
    flat = _packed(_characters(fixed, np.uint8), lengths)
    flat.utf8.tobytes().decode()
    # The bytes may be valid together, and still have a character split between two strings.
    if np.any((flat.utf8[flat.offsets[:-1][lengths > 0]] & 0xC0) == 0x80):
        raise ValueError("a string starts within a character")
    return flat


def _characters(fixed: NDArray[Any], unit: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
    width = fixed.dtype.itemsize // np.dtype(unit).itemsize
    return np.frombuffer(fixed.tobytes(), unit).reshape(len(fixed), width)


def _packed(characters: NDArray[Any], lengths: NDArray[np.int64]) -> Strings:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    kept = np.arange(characters.shape[1]) < lengths[:, None]
    return Strings(offsets, characters[kept].astype(np.uint8))

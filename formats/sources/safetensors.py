"""Tensors in a `.safetensors` file: eight bytes with the length of a JSON header, the header, and the values one after another.

The header is compared with the file before anything is read: each tensor must have the bytes that its shape needs, and all
tensors together must fill the file without gaps, as the format demands.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from mmdiff.formats.errors import UnreadableSource, shortened
from mmdiff.formats.sources.limits import reason
from mmdiff.formats.sources.members import Member, Members
from mmdiff.formats.sources.npy import NpyHeader
from mmdiff.formats.sources.rawfile import RawFile, first_bytes

_PREFIX = 8
# The limit of the original library is 100 MB, for models of very many tensors.
_MOST_HEADER = 16 << 20
_MOST_DIMENSIONS = 32
_METADATA = "__metadata__"

_DTYPES = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "BOOL": "|u1"},
    **{"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1"},
}


def read_tensors(path: Path) -> Members:
    """All tensors of a file by name, without their values."""
    file = RawFile(path)
    header, data_start = _header(file)
    members: Members = {}
    spans = []
    for name, entry in header.items():
        if name != _METADATA:
            members[name], span = _tensor(file, name, entry, data_start)
            spans.append(span)
    filled = 0
    for start, stop in sorted(spans):
        if start != filled:
            problem = "overlap" if start < filled else "leave a gap"
            raise UnreadableSource(f"{path}: its tensors {problem} at byte {start:,} of the values. Copy or write it again.")
        filled = stop
    if filled != file.size - data_start:
        raise UnreadableSource(
            f"{path}: the tensors have {filled:,} bytes, but {file.size - data_start:,} follow the header. It is damaged: "
            "copy or write it again."
        )
    return members


def _header(file: RawFile) -> tuple[dict[str, Any], int]:
    """The header as a dict, and the position of the first value."""
    prefix = first_bytes(file, _PREFIX)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < _PREFIX or length > file.size - _PREFIX:
        raise UnreadableSource(
            f"{file.name}: a header of {length:,} bytes in a file of {file.size:,}. It is truncated, or no .safetensors "
            "file: copy or write it again."
        )
    if length > _MOST_HEADER:
        raise UnreadableSource(
            f"{file.name}: a header of {length:,} bytes, expected at most {_MOST_HEADER:,}. Save the embeddings in a file of "
            "their own."
        )
    content = np.empty(length, np.uint8)
    file.read_into(content, _PREFIX)
    try:
        header = json.loads(content.tobytes().decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise UnreadableSource(
            f"{file.name}: a header that is not readable as JSON ({reason(error)}). Copy or write it again."
        ) from None
    if not isinstance(header, dict):
        raise UnreadableSource(f"{file.name}: a header that is no table of tensors. Copy or write it again.")
    return header, _PREFIX + length


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _tensor(file: RawFile, name: str, entry: Any, data_start: int) -> tuple[Member | UnreadableSource, tuple[int, int]]:
    """A tensor, and the bytes it takes, counted from the first value."""
    where = f"{file.name}::{shortened(name, str)}"
    fields: dict[str, Any] = entry if isinstance(entry, dict) else {}
    kind, shape, span = fields.get("dtype", 0), fields.get("shape", 0), fields.get("data_offsets", 0)
    if not isinstance(kind, str) or not _are_sizes(shape) or not _are_sizes(span) or len(span) != 2 or span[0] > span[1]:
        raise UnreadableSource(f"{where}: a damaged entry in the header, {shortened(entry)}. Copy or write it again.")
    if (code := _DTYPES.get(kind)) is None:
        problem = f"{where}: values of type {shortened(kind, str)}, expected one of {', '.join(_DTYPES)}. Convert it to F32."
        return UnreadableSource(problem), (span[0], span[1])
    dtype = np.dtype(code)
    needed = math.prod(shape) * dtype.itemsize
    if needed != span[1] - span[0]:
        raise UnreadableSource(
            f"{where}: {' x '.join(map(str, shape))} {kind} take {needed:,} bytes, but it has {span[1] - span[0]:,}. "
            "It is damaged: copy or write it again."
        )
    part = file.within(data_start + span[0], needed, where)
    return Member(part, NpyHeader(tuple(shape), False, dtype, 0), bfloat16=kind == "BF16"), (span[0], span[1])


def _are_sizes(values: Any) -> bool:
    if not isinstance(values, list) or len(values) > _MOST_DIMENSIONS:
        return False
    return all(type(value) is int and 0 <= value < 1 << 63 for value in values)

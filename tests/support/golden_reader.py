"""A reader of mmdiff stores with numpy and JSON only, written from docs/formats.md alone."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def manifest(store: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((store / name / "zarr.json").read_text())["attributes"]["mmdiff"]
    return found


def array(store: Path, name: str, array_name: str) -> NDArray[Any]:
    """All chunks of an array, each checked against the checksum after it and the one in the manifest."""
    entry = manifest(store, name)["arrays"][array_name]
    planes = entry["shape"][0] if len(entry["shape"]) == 3 else 1
    shape, rows = entry["shape"][len(entry["shape"]) == 3 :], entry["rows_per_chunk"]
    chunks = []
    for number, crc in enumerate(entry["crc32c"]):
        plane, chunk = divmod(number, -(-shape[0] // rows))
        key = ["c", *([str(plane)] if len(entry["shape"]) == 3 else []), str(chunk), *("0" for _ in shape[1:])]
        data = (store / name / array_name / ".".join(key)).read_bytes()
        assert crc32c(data[:-4]) == int.from_bytes(data[-4:], "little") == int(crc, 16), key
        chunks.append(np.frombuffer(data[:-4], np.dtype(entry["dtype"]).newbyteorder("<")).reshape(rows, *shape[1:]))
    if not chunks:
        return np.empty(entry["shape"], entry["dtype"])
    each = len(chunks) // planes
    whole = [np.concatenate(chunks[plane * each : (plane + 1) * each])[: shape[0]] for plane in range(planes)]
    return np.stack(whole) if len(entry["shape"]) == 3 else whole[0]


def strings(store: Path, name: str, column: str) -> list[str]:
    offsets, utf8 = array(store, name, f"{column}_offsets"), array(store, name, f"{column}_utf8").tobytes()
    return [utf8[start:stop].decode() for start, stop in pairwise(offsets)]


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli), bit by bit over a table of one byte."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _entry(value: int) -> int:
    for _ in range(8):
        value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value


_TABLE = [_entry(byte) for byte in range(256)]

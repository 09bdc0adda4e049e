"""Mutations of small valid files: bytes of any format, and edits that keep JSON, TOML, `.npy` headers and archives well-formed.

Everything is drawn from one `random.Random`, so a case is reproduced by its seed.
"""

from __future__ import annotations

import io
import json
import re
import struct
import zipfile
from random import Random
from typing import Any

import numpy as np

Files = dict[str, bytes]
"""An input: the files of a folder by their path in it."""

NUMBERS: tuple[int, ...] = (0, 1, 2, 7, 127, 128, 255, 256, 32767, 65535, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
NUMBERS += (1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 10**20)
VALUES: tuple[Any, ...] = (*NUMBERS, *(-number for number in NUMBERS if number), 10**400, None, True, False, 0.5, -0.0, 1e308)
VALUES += (float("nan"), float("inf"), "", "x", "\ud800", "a" * 5000, "../../etc/passwd", "\x00", "1")
VALUES += ([], {}, [[]], [0], {"a": 1})
_TOML: tuple[str, ...] = (
    "1",
    "-1",
    "0",
    "9223372036854775808",
    "1e400",
    "nan",
    "inf",
    "true",
    '""',
    '"x"',
    "[]",
    "{}",
    "[[]]",
    "[1, 1]",
)
_TOML += ('"' + "y" * 3000 + '"', "1979-05-27", "9" * 400, "0x" + "f" * 4000, "9" * 5000, "[" * 60, '"""', "'''", "a.b")
_TOML += ("{a = 1}", '"\\ud800"')
_CELLS = (b"", b'"', b"-1", b"9223372036854775808", b"9" * 5000, b"1e5", b"\xff", b"\x00", b",", b"\r", b"nan", b"\xed\xa0\x80")
_DTYPES: tuple[str, ...] = (
    "<f4",
    ">f4",
    "<f8",
    "<f2",
    "|u1",
    "|i1",
    "<i8",
    "<u8",
    "<U2",
    ">U3",
    "|S3",
    "|O",
    "<U0",
    "|V8",
    "<c8",
    "|b1",
)
_DTYPES += ("<M8[s]", "<f16", "nonsense", "<f4,<f4", "(2,)<f4", "<U999999999", "")


def mutate(random: Random, files: Files, others: Files) -> Files:
    """A mutation of one of the files; `others` is another valid input, to splice from."""
    name = random.choice(sorted(name for name in files if files[name]))
    if len(files) > 1 and random.random() < 0.05:
        return {key: content for key, content in files.items() if key != name}
    content, other = files[name], random.choice(list(others.values()))
    return {**files, name: mutate_file(random, name, content, other)}


def mutate_file(random: Random, name: str, content: bytes, other: bytes) -> bytes:
    """A mutation of one file, by its ending or at random."""
    ending = name.rpartition(".")[2]
    known = {"json": _edit_json, "zarray": _edit_json, "zattrs": _edit_json, "zgroup": _edit_json, "toml": _edit_toml}
    known |= {"npy": _edit_npy, "npz": _edit_npz, "csv": _edit_lines, "txt": _edit_lines}
    if ending in known and random.random() < 0.7:
        content = known[ending](random, content)
        if random.random() < 0.8:
            return content
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        content = _edit_bytes(random, content, other)
    return content


def _edit_bytes(random: Random, content: bytes, other: bytes) -> bytes:
    raw = bytearray(content or b"\0")
    at, end = sorted((random.randrange(len(raw)), random.randrange(len(raw))))
    match random.randrange(11):
        case 0 | 1:
            raw[at] ^= 1 << random.randrange(8)
        case 2:
            raw[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
        case 3 | 4:
            code = random.choice("<>") + random.choice("BHIQ")
            size = struct.calcsize(code)
            raw[at : at + size] = struct.pack(code, random.choice(NUMBERS) % (1 << (8 * size)))
        case 5:
            del raw[at:]
        case 6:
            del raw[at : min(end, at + 64) + 1]
        case 7:
            raw[at:at] = raw[at:end] or random.randbytes(random.randrange(1, 16))
        case 8:
            start = random.randrange(len(other) or 1)
            raw[at : at + random.randrange(64)] = other[start : start + random.randrange(1, 64)]
        case 9:
            return _edit_number(random, bytes(raw))
        case 10:
            raw[at:end] = bytes(end - at) if random.random() < 0.5 else random.randbytes(end - at)
    return bytes(raw)


def _edit_number(random: Random, content: bytes) -> bytes:
    """Replaces one number that is written in digits."""
    found = list(re.finditer(rb"[0-9]+", content))
    if not found:
        return content + b"9"
    chosen = random.choice(found)
    number = random.choice((*NUMBERS, -1, 10**30))
    return content[: chosen.start()] + str(number).encode() + content[chosen.end() :]


def _edit_json(random: Random, content: bytes) -> bytes:
    try:
        document = json.loads(content)
    except ValueError:
        return _edit_number(random, content)
    for _ in range(random.choice((1, 1, 2))):
        document = _edit_node(random, document)
    text = json.dumps(document)
    if random.random() < 0.02:
        depth = random.choice((50, 1000, 20_000))
        text = "[" * depth + text + "]" * random.choice((0, depth))
    return text.encode(errors="surrogatepass")


def _edit_node(random: Random, node: Any) -> Any:
    """The tree with one node replaced, removed, repeated, wrapped or renamed."""
    if isinstance(node, dict | list) and node and random.random() < 0.85:
        keys: list[Any] = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = random.choice(keys)
        copied = node.copy()
        match random.randrange(8):
            case 0:
                del copied[key]
            case 1 if isinstance(copied, list):
                copied.append(copied[key])
            case 1 if isinstance(copied, dict):
                copied[random.choice(("", "a", "\ud800", "run", "../x", str(key) + "x"))] = copied.pop(key)
            case _:
                copied[key] = _edit_node(random, copied[key])
        return copied
    if random.random() < 0.15:
        return random.choice(([node], {"a": node}, str(node), [node, node]))
    return random.choice(VALUES)


def _edit_toml(random: Random, content: bytes) -> bytes:
    lines = content.decode(errors="replace").split("\n")
    at = random.randrange(len(lines))
    key, equals, _ = lines[at].partition("=")
    match random.randrange(6):
        case 0 | 1 | 2 if equals:
            lines[at] = f"{key}= {random.choice(_TOML)}"
        case 3:
            lines.insert(random.randrange(len(lines)), lines[at])
        case 4:
            del lines[at]
        case _:
            deep = ".".join("a" * random.choice((2, 20, 40, 3000)))
            lines.insert(
                at, random.choice((f"{deep} = 1", f"[{deep}]", f"[[{deep}]]", "x = " + "[" * 500, "[data]", "[[methods]]"))
            )
    return "\n".join(lines).encode(errors="replace")


def _edit_lines(random: Random, content: bytes) -> bytes:
    lines = content.split(b"\n")
    at = random.randrange(len(lines))
    cells = lines[at].split(b",")
    cells[random.randrange(len(cells))] = random.choice(
        (
            b"",
            b'"',
            b"-1",
            b"9223372036854775808",
            b"9" * 5000,
            b"1e5",
            b"\xff",
            b"\x00",
            b",",
            b"\r",
            b"nan",
            b"\xed\xa0\x80",
            b"x" * 200,
        )
    )
    lines[at] = b",".join(cells)
    return b"\n".join(lines)


def _edit_npy(random: Random, content: bytes) -> bytes:
    """The same values under another header."""
    try:
        values = np.load(io.BytesIO(content), allow_pickle=False)
    except Exception:  # an array that was edited before
        return content
    header: dict[str, Any] = {"descr": values.dtype.str, "fortran_order": False, "shape": values.shape}
    sizes: tuple[Any, ...] = (*NUMBERS, -1, 10**30, True, 1.5, None, "a")
    match random.randrange(5):
        case 0 | 1:
            shape = list(values.shape)
            shape.insert(random.randrange(len(shape) + 1), random.choice(sizes))
            header["shape"] = tuple(shape[random.randrange(2) :])
        case 2:
            header["descr"] = random.choice(_DTYPES)
        case 3:
            header["fortran_order"] = random.choice((True, 0, "x", None))
        case 4:
            del header[random.choice(list(header))]
    text = repr(header).encode() + random.choice((b"\n", b"", b" " * 50 + b"\n"))
    version = random.choice((b"\1\0", b"\1\0", b"\2\0", b"\3\0"))
    data: bytes = values.tobytes()
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text + data


def _edit_npz(random: Random, content: bytes) -> bytes:
    """The same archive with one member edited, removed or added, and right checksums."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    chosen = random.choice(sorted(members))
    match random.randrange(8):
        case 0:
            del members[chosen]
        case 1:
            members[chosen] = members[random.choice(sorted(members))]
        case _:
            members[chosen] = mutate_file(random, chosen, members[chosen], b"\0")
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name, member in members.items():
            archive.writestr(zipfile.ZipInfo(name), member)
    return stream.getvalue()

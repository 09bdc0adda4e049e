"""Small documents that users write: TOML configs and JSON files. Regular files only, of bounded size and nesting.

Python's TOML parser needs time that grows with the square of the number of parts of a dotted key, and recurses into nested
arrays, so both are counted before it runs. Tables may still add up to more levels, which are counted in the result.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.sources.limits import reason
from mmdiff.formats.sources.text import read_text

TOML_BYTES = 256 << 10
JSON_BYTES = 16 << 20
MOST_LEVELS = 32
_MOST_BITS = 8192

# Strings and comments, in which dots and brackets mean nothing. A string of many lines may end in two quotes of its own.
# Strings without an end match too: else the search would begin again at each of their quotes, in quadratic time.
_OPAQUE = re.compile(
    r"""
    \"{3} (?: [^\\] | \\[\s\S] )*? (?: \"{3,5} | \\?\Z )
    | '{3} [\s\S]*? (?: '{3,5} | \Z )
    | \" (?: [^"\\\n] | \\. )* \"?
    | ' [^'\n]* '?
    | \# [^\n]*
    """,
    re.VERBOSE,
)
_BETWEEN_KEYS = re.compile(r"[\n,=\[\]{}]")
_BRACKETS = re.compile(r"[\[\]{}]")


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, whose numbers can be written into messages."""
    text = read_text(path, TOML_BYTES)
    _refuse_deep(path, text)
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableSource(f"{path}: not readable as TOML ({reason(error)}). Correct it there.") from None
    _refuse_beyond_bounds(path, found)
    return found


def _refuse_deep(path: Path, text: str) -> None:
    bare = _OPAQUE.sub("x", text)
    level = deepest = 0
    for bracket in _BRACKETS.findall(bare):
        level = level + 1 if bracket in "[{" else max(0, level - 1)
        deepest = max(deepest, level)
    parts = max(part.count(".") for part in _BETWEEN_KEYS.split(bare)) + 1
    _refuse_levels(path, max(deepest, parts))


def _refuse_levels(path: Path, levels: int) -> None:
    if levels > MOST_LEVELS:
        raise UnreadableSource(
            f"{path}: not readable as TOML: nested {levels:,} levels deep, expected at most {MOST_LEVELS}. Correct it there."
        )


def _refuse_beyond_bounds(path: Path, found: dict[str, Any]) -> None:
    """Refuses values that are nested too deep for functions that recurse, and numbers that are too long for a message."""
    values: list[tuple[int, Any]] = [(0, found)]
    while values:
        level, value = values.pop()
        _refuse_levels(path, level)
        if isinstance(value, dict | list):
            inner = value.values() if isinstance(value, dict) else value
            values += [(level + isinstance(each, dict | list), each) for each in inner]
        elif isinstance(value, int) and value.bit_length() > _MOST_BITS:
            # Python refuses to write numbers of more than 4,300 digits.
            raise UnreadableSource(f"{path}: a number of {value.bit_length():,} bits; those of TOML have 64. Correct it there.")


def read_json(path: Path, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The content of a JSON file; `pairs` makes an object of its keys and values, by default a dict."""
    try:
        return json.loads(read_text(path, JSON_BYTES), object_pairs_hook=pairs)
    except UnreadableSource:
        raise
    except (ValueError, RecursionError) as error:
        raise UnreadableSource(f"{path}: not readable as JSON ({reason(error)}). Correct it there.") from None

"""Tables of a config as they are read: every key is known, every value of the right type, and a slip is named as such.

A message says which file, which table and which key, what was found, and what is valid there, the nearest first.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TypeVar

from mmdiff.formats.errors import BadOption
from mmdiff.formats.manifest import Json

Value = TypeVar("Value")
Check = Callable[[Any], Value | None]
"""What a raw value stands for; None if it is not of the type that is asked for."""


class Table:
    """One table of a config. `where` is how people find it: `table1.toml, [data]`."""

    def __init__(self, where: str, values: Json) -> None:
        self.where, self._values = where, values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """Names the first key that nothing here asks for, with the nearest one that something does."""
        valid = list(known)
        for key in self._values:
            if key not in valid:
                self.refuse(f"unknown key {key!r}.{nearest(key, valid)} Valid here: {', '.join(valid)}.")

    def refuse(self, problem: str) -> NoReturn:
        raise BadOption(f"{self.where}: {problem}")

    def get(self, key: str, check: Check[Value], expected: str, default: Value | None = None) -> Value:
        """The value of a key, which must be there if it has no default."""
        if key not in self._values:
            if default is None:
                self.refuse(f"the key {key!r} is missing. Give it {expected}.")
            return default
        return self._checked(key, self._values[key], check, expected)

    def each(self, key: str, check: Check[Value], expected: str) -> list[Value]:
        """A value, or a list of several different ones; the key must be there."""
        found = self.get(key, lambda raw: raw, f"{expected}, or a list of such")
        values = [self._checked(key, value, check, expected) for value in (found if isinstance(found, list) else [found])]
        if not values:
            self.refuse(f"{key} = []: nothing to try. Give it {expected}, or a list of such.")
        repeated = [value for place, value in enumerate(values) if value in values[:place]]
        if repeated:
            self.refuse(f"{key}: {repeated[0]!r} twice. Leave one of them out.")
        return values

    def choice(self, key: str, valid: Sequence[str], default: str | None = None) -> str:
        return self.get(key, one_of(valid), f"one of {', '.join(valid)}", default)

    def table(self, key: str) -> Table:
        """A table within this one; an empty one where there is none."""
        found = self._values.get(key, {})
        if not isinstance(found, dict):
            self.refuse(f"{key} = {found!r}: not a table. Write [{key}] and its keys below it.")
        return Table(f"{self.where.split(', ')[0]}, [{key}]", found)

    def tables(self, key: str) -> list[Json]:
        """The tables of a list, as they are."""
        found = self._values.get(key, [])
        if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found) or not found:
            self.refuse(f"at least one table [[{key}]] is needed. Write [[{key}]] and its keys below it.")
        return found

    def _checked(self, key: str, raw: Any, check: Check[Value], expected: str) -> Value:
        value = check(raw)
        if value is None:
            near = nearest(raw, expected.removeprefix("one of ").split(", ")) if isinstance(raw, str) else ""
            self.refuse(f"{key} = {raw!r}: expected {expected}.{near}")
        return value


def nearest(word: str, valid: Sequence[str]) -> str:
    """A question, where one of the valid words is so like the one that was written that it may be meant."""
    found = difflib.get_close_matches(word.lower(), valid, n=1, cutoff=0.5)
    return f" Did you mean {found[0]!r}?" if found else ""


def text(raw: Any) -> str | None:
    return raw if isinstance(raw, str) and raw else None


def flag(raw: Any) -> bool | None:
    return raw if isinstance(raw, bool) else None


def whole(least: int) -> Check[int]:
    """A whole number of at least so much."""
    return lambda raw: raw if isinstance(raw, int) and not isinstance(raw, bool) and raw >= least else None


def number(raw: Any) -> float | None:
    """A finite number."""
    return float(raw) if isinstance(raw, int | float) and not isinstance(raw, bool) and math.isfinite(raw) else None


def positive(raw: Any) -> float | None:
    value = number(raw)
    return value if value is not None and value > 0 else None


def not_negative(raw: Any) -> float | None:
    value = number(raw)
    return value if value is not None and value >= 0 else None


def one_of(valid: Sequence[str]) -> Check[str]:
    return lambda raw: raw if isinstance(raw, str) and raw in valid else None

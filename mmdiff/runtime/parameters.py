"""Bounds of numeric parameters, checked before anything starts: no number can overflow, hang or become NaN later.

Every check returns the value in its own type, or refuses it with a sentence that names the parameter and the valid range.
"""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from mmdiff.formats.errors import BadOption, Parameter

# Counts of anything: rows, classes and iterations are numbered by 32 bits.
MOST = (1 << 31) - 1

# Random seeds are 32-bit numbers in Faiss and in other tools.
MOST_SEED = MOST

# Far above any machine; a larger number is a mistake.
MOST_THREADS = 1 << 16


def as_whole(raw: Any, least: int, most: int) -> int | None:
    """A whole number within bounds, or None. Truth values are no numbers."""
    if isinstance(raw, bool) or not isinstance(raw, Integral):
        return None
    found = int(raw)
    return found if least <= found <= most else None


def as_number(raw: Any, least: float, most: float) -> float | None:
    """A finite number within bounds, or None."""
    if isinstance(raw, bool) or not isinstance(raw, Real):
        return None
    try:
        number = float(raw)
    except OverflowError:
        return None
    return number if math.isfinite(number) and least <= number <= most else None


def whole(name: str, value: Any, least: int, most: int, hint: str = "") -> int:
    """A whole number within bounds; anything else is refused."""
    found = as_whole(value, least, most)
    if found is None:
        raise BadOption(Parameter(name, value), f": expected a whole number from {least:,} to {most:,}.{_after(hint)}")
    return found


def number(name: str, value: Any, least: float, most: float, hint: str = "") -> float:
    """A finite number within bounds; anything else is refused."""
    found = as_number(value, least, most)
    if found is None:
        raise BadOption(Parameter(name, value), f": expected a number from {least:g} to {most:g}.{_after(hint)}")
    return found


def random_seed(value: Any) -> int:
    """A random seed."""
    return whole("seed", value, 0, MOST_SEED)


def as_flag(raw: Any) -> bool | None:
    """A truth value, or None; numpy's count too."""
    return bool(raw) if isinstance(raw, bool) or type(raw).__name__ in ("bool_", "bool") else None


def flag(name: str, value: Any) -> bool:
    """A truth value; anything else is refused."""
    found = as_flag(value)
    if found is None:
        raise BadOption(Parameter(name, value), ": expected true or false.")
    return found


def text(name: str, value: Any) -> str:
    """Text that files can be written with: no lone surrogates, which stand for bytes that are not UTF-8."""
    if not isinstance(value, str):
        raise BadOption(Parameter(name, value), ": expected text.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadOption(Parameter(name, value), ": not valid UTF-8. Use other characters.") from None
    return value


def _after(hint: str) -> str:
    return f" {hint}" if hint else ""

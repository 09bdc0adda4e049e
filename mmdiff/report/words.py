"""Figures as people read them on a page: shares, sizes, durations, moments."""

from __future__ import annotations

from datetime import datetime

# A figure and its unit stay on one line.
_SPACE = "\N{NO-BREAK SPACE}"


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f}{_SPACE}%"


def interval(low: float, high: float) -> str:
    return f"{100 * low:.1f}\N{EN DASH}{100 * high:.1f}"


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.{0 if unit == 'B' else 1}f}{_SPACE}{unit}"
        count /= 1024
    return f"{count:.2f}{_SPACE}TiB"


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f}{_SPACE}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = (f"{hours} h", f"{minutes:02d} min") if hours else (f"{minutes} min", f"{rest:02d} s")
    return " ".join(parts).replace(" ", _SPACE)


def moment(iso: str) -> str:
    return datetime.fromisoformat(iso).strftime("%-d %B %Y, %H:%M UTC")


def listed(items: list[str]) -> str:
    """`a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""


def shortened(title: str, length: int) -> str:
    return title if len(title) <= length else title[: length - 1].rstrip(" ,") + "…"


def sentence(text: str) -> str:
    """Text that begins with a capital, unless it begins with the name of an artifact."""
    return text if "/" in text.partition(" ")[0] else text[:1].upper() + text[1:]


def value(given: object) -> str:
    """A parameter or a fact, in a few characters."""
    if given is None:
        return "none"
    if isinstance(given, bool):
        return "yes" if given else "no"
    if isinstance(given, int):
        return f"{given:,}"
    if isinstance(given, float):
        return f"{given:.4g}"
    if isinstance(given, list):
        return f"{len(given)} values" if len(given) > 6 else ", ".join(map(value, given))
    if isinstance(given, dict):
        return ", ".join(f"{key} {value(inner)}" for key, inner in given.items())
    return str(given)

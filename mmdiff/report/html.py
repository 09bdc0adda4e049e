"""HTML from function calls, and values as text: shares, sizes, durations, moments.

`tag` and `join` escape every string that is not `Markup`, so class names and ids never become markup. Control characters are
written as escapes (`\\x1b`), so that they are seen and the page stays valid.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from html import escape

_VOID = {"meta", "link", "img", "br", "circle", "line", "path", "rect", "polyline", "use"}

# Control characters, overrides of the writing direction, and what is left of undecodable bytes.
_INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Markup(str):
    """A string that is HTML or SVG already."""

    __slots__ = ()


def visible(text: str) -> str:
    """Text with control characters written as escapes, such as `\\n` and `\\x1b`."""
    return _INVISIBLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


Child = str | int | Iterable["Child"] | None


def tag(element: str, *children: Child, **attributes: str | int | float | bool | None) -> Markup:
    """An element. Attributes: `class_` gives class, `stroke_width` gives stroke-width; None and False are omitted."""
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    # SVG requires empty elements to be closed; HTML allows it.
    return Markup(f"<{element}{written}/>" if element in _VOID else f"<{element}{written}>{join(children)}</{element}>")


def join(children: Iterable[Child]) -> Markup:
    """Elements and escaped texts, concatenated."""
    parts: list[str] = []
    for child in children:
        if isinstance(child, Markup):
            parts.append(child)
        elif isinstance(child, str | int):
            parts.append(escape(visible(str(child))))
        elif child is not None:
            parts.append(join(child))
    return Markup("".join(parts))


def _attribute(key: str, value: str | int | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return f' {name}="{escape(visible(text))}"'


def table(
    head: Iterable[Child], rows: Iterable[Iterable[Child]], caption: str, numbers_from: int = 1, class_: str = ""
) -> Markup:
    """A table that scrolls horizontally if it is wider than the page; the first cell of each row is a header.

    Columns from `numbers_from` on are aligned as numbers.
    """
    columns = list(head)

    def kind(place: int) -> str | None:
        return "number" if place >= numbers_from else None

    body = [
        tag(
            "tr",
            [
                tag("th", cell, scope="row", class_=kind(place)) if place == 0 else tag("td", cell, class_=kind(place))
                for place, cell in enumerate(row)
            ],
        )
        for row in rows
    ]
    header = tag("tr", [tag("th", cell, scope="col", class_=kind(place)) for place, cell in enumerate(columns)])
    inner = tag("table", tag("caption", tag("span", caption)), tag("thead", header), tag("tbody", body))
    # A scrolling region needs keyboard focus and a label.
    return tag("div", inner, class_=f"scroll {class_}".strip(), tabindex=0, role="region", aria_label=caption)


# Keeps a figure and its unit on one line.
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
    """Items as `a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""


def shortened(title: str, length: int) -> str:
    """Text of at most so many characters."""
    title = visible(title)
    return title if len(title) <= length else title[: length - 1].rstrip(" ,") + "…"


def sentence(text: str) -> str:
    """Text with a capital first letter, unless it begins with the name of an artifact."""
    return text if "/" in text.partition(" ")[0] else text[:1].upper() + text[1:]


def value(given: object) -> str:
    """A parameter or fact of a manifest as short text."""
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

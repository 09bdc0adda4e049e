"""HTML from function calls: text is escaped unless it is markup already, so that nothing of the user's becomes markup."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_VOID = {"meta", "link", "img", "br", "circle", "line", "path", "rect", "polyline", "use"}


class Markup(str):
    """Text that is HTML or SVG."""

    __slots__ = ()


Child = str | int | Iterable["Child"] | None


def tag(element: str, *children: Child, **attributes: str | int | float | bool | None) -> Markup:
    """An element. Attributes: `class_` for class, `stroke_width` for stroke-width; None and False are left out."""
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    # Elements of SVG without content must be closed; HTML does not mind.
    return Markup(f"<{element}{written}/>" if element in _VOID else f"<{element}{written}>{join(children)}</{element}>")


def join(children: Iterable[Child]) -> Markup:
    """Elements and texts after each other."""
    parts: list[str] = []
    for child in children:
        if isinstance(child, Markup):
            parts.append(child)
        elif isinstance(child, str | int):
            parts.append(escape(str(child)))
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
    return f' {name}="{escape(text)}"'


def table(
    head: Iterable[Child], rows: Iterable[Iterable[Child]], caption: str, numbers_from: int = 1, class_: str = ""
) -> Markup:
    """A table that scrolls within itself where it is wider than the page; the first cell of a row is its header."""
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
    # What scrolls must be reachable by keyboard, and say what it is.
    return tag("div", inner, class_=f"scroll {class_}".strip(), tabindex=0, role="region", aria_label=caption)

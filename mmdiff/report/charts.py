"""Line charts as inline SVG (paper, section 4): accuracies against iterations, seeds per class or fusion weights.

Colours are CSS variables of the page, text is real text, and each line carries its label at its end. A figure is the drawing,
a caption of one sentence, and the values as a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mmdiff.report.html import Markup, percent, table, tag, visible

# In drawing units: about the width of a phone; the page enlarges a drawing by at most a third.
WIDTH, HEIGHT = 380, 250
_LEFT, _TOP, _BOTTOM = 40, 14, 40
_FONT, _LINE = 11.5, 13.0
_LEADER = 14
_COLORS = 6
_LABEL_CHARACTERS, _LABEL_LINES = 15, 3
_LABEL_TOP, _LABEL_BOTTOM = 4, HEIGHT - 22
# The y axis covers at least two percentage points, so that a flat line has a scale too.
_LEAST_SPAN = 0.02


@dataclass(frozen=True)
class Point:
    """A share (0 to 1) at x; `low` and `high` are the ends of its whisker."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Line:
    """Points from left to right; the one at x = `chosen` is circled."""

    label: str
    points: Sequence[Point]
    chosen: float | None = None


@dataclass(frozen=True)
class Chart:
    """Shares (0 to 1) against x. `key` is the element id of the figure; `spread` names what the whiskers are."""

    key: str
    title: str
    caption: str
    x_title: str
    y_title: str
    lines: Sequence[Line]
    log_x: bool = False
    from_zero: bool = False
    spread: str | None = None
    x_text: Callable[[float], str] = lambda x: f"{x:g}"


def figure(chart: Chart) -> Markup:
    """The chart with its title, caption and values."""
    values = tag("details", tag("summary", "Values"), _values(chart), class_="values")
    return tag(
        "figure",
        tag("p", chart.title, class_="chart-title"),
        _drawing(chart),
        tag("figcaption", chart.caption),
        values,
        class_="chart",
        id=chart.key,
    )


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round values that cover a range, about `most` of them."""
    span = max(high - low, 1e-9)
    raw = span / (most - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(size * power for size in (1, 2, 2.5, 5, 10) if size * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(place * step, 10) for place in range(first, last + 1)]


def spread_labels(wanted: Sequence[float], heights: Sequence[float], low: float, high: float) -> list[float]:
    """The vertical middles of labels: as near as possible to the wanted ones, in the same order, without overlap.

    Labels that would overlap form a group, which is centred on the mean of the places its members want.
    """
    groups: list[tuple[list[int], float, float]] = []

    def within(middle: float, height: float) -> float:
        return min(max(middle, low + height / 2), high - height / 2)

    for i in sorted(range(len(wanted)), key=lambda i: wanted[i]):
        members, height = [i], heights[i]
        middle = within(wanted[i], height)
        while groups and groups[-1][1] + groups[-1][2] / 2 > middle - height / 2:
            before = groups.pop()
            members, height = before[0] + members, before[2] + height
            middle = within(sum(wanted[j] for j in members) / len(members), height)
        groups.append((members, middle, height))
    placed = [0.0] * len(wanted)
    for members, middle, height in groups:
        top = middle - height / 2
        for i in members:
            placed[i] = top + heights[i] / 2
            top += heights[i]
    return placed


def _with_span(low: float, high: float) -> tuple[float, float]:
    """A range of shares, widened within 0 to 1 where it is narrower than `_LEAST_SPAN`."""
    if high - low >= _LEAST_SPAN:
        return low, high
    start = min(max((low + high - _LEAST_SPAN) / 2, 0.0), 1.0 - _LEAST_SPAN)
    return start, start + _LEAST_SPAN


class _Scales:
    """Maps values to coordinates of the drawing."""

    def __init__(self, chart: Chart, right: float) -> None:
        points = [point for line in chart.lines for point in line.points]
        lows = [point.y if point.low is None else point.low for point in points]
        highs = [point.y if point.high is None else point.high for point in points]
        self.y_ticks = ticks(*_with_span(0.0 if chart.from_zero else max(0.0, min(lows)), min(1.0, max(highs))))
        self.log = chart.log_x
        self.xs = sorted({point.x for point in points})
        self.right = right
        low, high = self._at(self.xs[0]), self._at(self.xs[-1])
        # A single x is drawn in the middle.
        self.x_range = (low, high) if high > low else (low - 1, high + 1)
        self.y_range = (self.y_ticks[0], self.y_ticks[-1])

    def _at(self, x: float) -> float:
        return math.log(x) if self.log else x

    def x(self, x: float) -> float:
        low, high = self.x_range
        return _LEFT + 10 + (self._at(x) - low) / (high - low) * (self.right - _LEFT - 20)

    def y(self, y: float) -> float:
        low, high = self.y_range
        return HEIGHT - _BOTTOM - (y - low) / (high - low) * (HEIGHT - _BOTTOM - _TOP)

    def x_ticks(self) -> list[float]:
        """Every x if the labels fit side by side, else the round ones among them."""
        most = max(2, int((self.right - _LEFT) / 28))
        if len(self.xs) <= most or self.log:
            return self.xs
        return [
            tick for tick in ticks(self.xs[0], self.xs[-1], most) if any(math.isclose(tick, x, abs_tol=1e-9) for x in self.xs)
        ]


def _drawing(chart: Chart) -> Markup:
    labels = _label_lines([line.label for line in chart.lines])
    widest = max(len(text) for label in labels for text in label)
    scales = _Scales(chart, WIDTH - _LEADER - 4 - widest * _FONT * 0.56)
    names = (f"{chart.key}-title", f"{chart.key}-text")
    return tag(
        "svg",
        tag("title", chart.title, id=names[0]),
        tag("desc", chart.caption, id=names[1]),
        _axes(chart, scales),
        [_line(chart, line, number, scales) for number, line in enumerate(chart.lines)],
        _labels(chart, labels, scales),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_labelledby=" ".join(names),
    )


def _axes(chart: Chart, scales: _Scales) -> list[Markup]:
    parts = []
    for value in scales.y_ticks:
        y = scales.y(value)
        parts.append(tag("line", x1=_LEFT, x2=scales.right, y1=y, y2=y, class_="grid"))
        whole = all(abs(100 * tick - round(100 * tick)) < 1e-6 for tick in scales.y_ticks)
        text = f"{100 * value:.0f}" if whole else f"{100 * value:.1f}"
        parts.append(tag("text", text, x=_LEFT - 6, y=y + 4, text_anchor="end", class_="tick"))
    for value in scales.x_ticks():
        place = {"x": scales.x(value), "y": HEIGHT - _BOTTOM + 15}
        parts.append(tag("text", chart.x_text(value), text_anchor="middle", class_="tick", **place))
    middle = (_LEFT + scales.right) / 2
    parts.append(tag("text", chart.x_title, x=middle, y=HEIGHT - 6, text_anchor="middle", class_="axis"))
    turned = f"rotate(-90 10 {(HEIGHT - _BOTTOM + _TOP) / 2:.0f})"
    y_place = {"x": 10, "y": (HEIGHT - _BOTTOM + _TOP) // 2}
    parts.append(tag("text", f"{chart.y_title}, %", text_anchor="middle", class_="axis", transform=turned, **y_place))
    return parts


def _line(chart: Chart, line: Line, number: int, scales: _Scales) -> Markup:
    places = [(scales.x(point.x), scales.y(point.y)) for point in line.points]
    parts = [tag("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in places), class_="line")]
    for point, (x, y) in zip(line.points, places, strict=True):
        if point.low is not None and point.high is not None:
            parts.append(tag("line", x1=x, x2=x, y1=scales.y(point.low), y2=scales.y(point.high), class_="whisker"))
        if line.chosen is not None and math.isclose(point.x, line.chosen):
            parts.append(tag("circle", cx=x, cy=y, r=7, class_="chosen"))
        tooltip = f"{line.label}, {chart.x_title} {chart.x_text(point.x)}: {_point_text(point)}"
        parts.append(tag("g", tag("title", tooltip), _mark(number, x, y)))
    return tag("g", parts, class_=f"series s{number % _COLORS}")


def _mark(number: int, x: float, y: float) -> Markup:
    """The mark of a point. Shapes differ as well as colours, so that lines can be told apart without colour."""
    shape = number % 4
    if shape == 0:
        return tag("circle", cx=x, cy=y, r=3.2, class_="mark")
    if shape == 1:
        return tag("rect", x=x - 2.9, y=y - 2.9, width=5.8, height=5.8, class_="mark")
    corners = (0, -4, 3.8, 3, -3.8, 3) if shape == 2 else (0, -4.2, 4.2, 0, 0, 4.2, -4.2, 0)
    pairs = " L".join(f"{x + dx:.1f} {y + dy:.1f}" for dx, dy in zip(corners[::2], corners[1::2], strict=True))
    return tag("path", d=f"M{pairs}Z", class_="mark")


def _labels(chart: Chart, labels: Sequence[Sequence[str]], scales: _Scales) -> list[Markup]:
    """The label of each line, joined to the end of the line by a leader."""
    ends = [scales.y(line.points[-1].y) for line in chart.lines]
    heights = _label_heights(labels)
    parts = []
    for number, (middle, label) in enumerate(zip(spread_labels(ends, heights, _LABEL_TOP, _LABEL_BOTTOM), labels, strict=True)):
        first = middle - (len(label) - 1) * _LINE / 2 + 4
        texts = [tag("tspan", text, x=scales.right + _LEADER, y=first + row * _LINE) for row, text in enumerate(label)]
        x = scales.x(chart.lines[number].points[-1].x) + 5
        leader = tag("line", x1=x, x2=scales.right + _LEADER - 3, y1=ends[number], y2=middle, class_="leader")
        parts.append(tag("g", leader, tag("text", texts, class_="label"), class_=f"s{number % _COLORS}"))
    return parts


def _label_lines(labels: Sequence[str]) -> list[list[str]]:
    """Labels broken into lines: at most three each, or fewer where all of them together would be taller than the drawing."""
    for most in range(_LABEL_LINES, 1, -1):
        broken = [_wrapped(label, most) for label in labels]
        if sum(_label_heights(broken)) <= _LABEL_BOTTOM - _LABEL_TOP:
            return broken
    return [_wrapped(label, 1) for label in labels]


def _label_heights(labels: Sequence[Sequence[str]]) -> list[float]:
    return [len(label) * _LINE + 2 for label in labels]


def _wrapped(label: str, most: int) -> list[str]:
    lines = [""]
    for word in visible(label).split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > _LABEL_CHARACTERS:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    short = [text if len(text) <= _LABEL_CHARACTERS + 3 else text[: _LABEL_CHARACTERS + 2] + "…" for text in lines]
    return short if len(short) <= most else [*short[: most - 1], short[most - 1].rstrip("…") + "…"]


def _point_text(point: Point) -> str:
    if point.low is None or point.high is None:
        return percent(point.y)
    return f"{percent(point.y)} ({100 * point.low:.1f} to {100 * point.high:.1f})"


def _values(chart: Chart) -> Markup:
    xs = sorted({point.x for line in chart.lines for point in line.points})
    at = [{point.x: point for point in line.points} for line in chart.lines]
    head = [chart.x_title, *(line.label for line in chart.lines)]
    rows = [[chart.x_text(x), *(_point_text(points[x]) if x in points else "" for points in at)] for x in xs]
    spread = "" if chart.spread is None else f"; in brackets {chart.spread}"
    return table(head, rows, f"{chart.title}: {chart.y_title}{spread}")

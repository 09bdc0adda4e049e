"""Charts are drawn for any accuracies: every coordinate is finite and inside the view box, flat lines included."""

from __future__ import annotations

import math
import re
import string
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmdiff.report.charts import HEIGHT, WIDTH, Chart, Line, Point, figure, spread_labels, ticks

VERTICAL = {"y", "y1", "y2", "cy"}
HORIZONTAL = {"x", "x1", "x2", "cx"}

shares = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.5, 1.0]))
labels = st.text(string.ascii_letters + " ", max_size=80)


@st.composite
def points(draw: st.DrawFn) -> list[Point]:
    """One to 25 points with whiskers around some of them, as evaluations and experiments give them."""
    xs = range(1, 1 + draw(st.integers(1, 25)))
    found = []
    for x in xs:
        low, middle, high = sorted(draw(st.tuples(shares, shares, shares)))
        found.append(Point(x, middle, low, high) if draw(st.booleans()) else Point(x, middle))
    return found


def drawing(lines: list[Line], log_x: bool = False, from_zero: bool = False) -> ElementTree.Element:
    chart = Chart(
        key="key",
        title="title",
        caption="caption",
        x_title="iteration",
        y_title="accuracy",
        lines=lines,
        log_x=log_x,
        from_zero=from_zero,
    )
    found = re.search(r"<svg.*?</svg>", figure(chart), re.DOTALL)
    assert found is not None
    return ElementTree.fromstring(found[0])


def coordinates(svg: ElementTree.Element) -> tuple[list[float], list[float]]:
    """All horizontal and all vertical coordinates of a drawing."""
    across: list[float] = []
    down: list[float] = []
    for element in svg.iter():
        across += [float(value) for name, value in element.items() if name in HORIZONTAL]
        down += [float(value) for name, value in element.items() if name in VERTICAL]
        pairs = re.findall(r"([^\sMLZ,]+)[\s,]([^\sMLZ,]+)", element.get("points", "") + element.get("d", ""))
        across += [float(x) for x, _ in pairs]
        down += [float(y) for _, y in pairs]
    return across, down


def check_inside(svg: ElementTree.Element) -> None:
    across, down = coordinates(svg)
    assert all(math.isfinite(value) for value in (*across, *down))
    assert 0 <= min(across) <= max(across) <= WIDTH
    assert 0 <= min(down) <= max(down) <= HEIGHT


@given(st.lists(st.tuples(labels, points()), min_size=1, max_size=6), st.booleans(), st.booleans())
def test_any_accuracies_are_drawn_inside_the_view_box(
    series: list[tuple[str, list[Point]]], log_x: bool, from_zero: bool
) -> None:
    check_inside(drawing([Line(label, own) for label, own in series], log_x, from_zero))


@pytest.mark.parametrize("value", [0.0, 0.37, 1.0])
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("from_zero", [False, True])
def test_flat_line_is_drawn_among_several_ticks(value: float, count: int, from_zero: bool) -> None:
    svg = drawing([Line("flat", [Point(x, value, value, value) for x in range(count)])], from_zero=from_zero)
    check_inside(svg)
    texts = [element.text for element in svg.iter("text") if element.get("text-anchor") == "end"]
    assert len(texts) >= 2
    assert len(set(texts)) == len(texts)


def test_six_labels_of_three_lines_stay_in_the_drawing() -> None:
    label = "logistic regression, out-of-domain:20000, prior power 0.25"
    check_inside(drawing([Line(f"{label} {number}", [Point(0, 1.0), Point(1, 0.99)]) for number in range(6)]))


@given(st.lists(st.tuples(st.floats(0, 250), st.sampled_from([15.0, 28.0])), min_size=1, max_size=6))
def test_labels_never_overlap_and_keep_their_order(wanted: list[tuple[float, float]]) -> None:
    places, heights = [place for place, _ in wanted], [height for _, height in wanted]
    found = spread_labels(places, heights, 4, 228)
    order = np.argsort(found)
    for one, other in pairwise(order):
        assert found[other] - found[one] >= (heights[one] + heights[other]) / 2 - 1e-6
        assert places[one] <= places[other]
    assert min(found[i] - heights[i] / 2 for i in range(len(found))) >= 4 - 1e-6
    assert max(found[i] + heights[i] / 2 for i in range(len(found))) <= 228 + 1e-6


@given(st.floats(0, 1), st.floats(0, 1), st.integers(3, 8))
def test_ticks_are_few_and_cover_the_range(one: float, other: float, most: int) -> None:
    low, high = min(one, other), max(one, other)
    found = ticks(low, high, most)
    assert found[0] <= low + 1e-6
    assert found[-1] >= high - 1e-6
    assert 1 <= len(found) <= most + 1

"""The picture at the top of the README: a few labels spread over the neighbour graph of many rows, computed by mmdiff."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

ROWS, LABELS, NEIGHBOURS = 750, 6, 12
# Iterations after which the second and the third panel show the rows.
SOME, MANY = 4, 30
COLOURS = ("#0b7a75", "#d1600f", "#7b3fa0")
_GREY, _INK, _GROUND = "#b9b6ad", "#20252b", "#fbfaf6"
_SIDE, _GAP, _TOP = 300, 24, 52


class Spread(NamedTuple):
    """Rows in the plane with their true arm, the label of each (-1: none), the graph, and predictions after iterations."""

    places: np.ndarray
    truth: np.ndarray
    labels: np.ndarray
    edges: np.ndarray
    classes: dict[int, np.ndarray]

    def reached(self, iterations: int) -> float:
        """The share of rows that a label has reached."""
        return float((self.classes[iterations] >= 0).mean())

    def right(self, iterations: int) -> float:
        """The share of rows without a label whose class is right."""
        hidden = self.labels < 0
        return float((self.classes[iterations] == self.truth)[hidden].mean())


def spread() -> Spread:
    """Three arms of a spiral with two labels each; their labels spread along the arms."""
    import mmdiff

    rng = np.random.default_rng(7)
    truth = np.arange(ROWS) % len(COLOURS)
    along = np.sqrt(rng.uniform(0.04, 1, ROWS))
    angle = 2 * np.pi * (0.8 * along + truth / len(COLOURS))
    places = along[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1) + rng.normal(scale=0.036, size=(ROWS, 2))
    labels = np.full(ROWS, -1)
    for arm in range(len(COLOURS)):
        own = np.flatnonzero(truth == arm)
        for at in (0.45, 0.92):
            labels[own[np.abs(along[own] - at).argmin()]] = arm
    # On a small piece of a sphere, inner products of unit rows order neighbours as distances in the plane do.
    lifted = np.column_stack([places, np.full(ROWS, 6.0)])
    graph = mmdiff.knn_graph(lifted, k=NEIGHBOURS, index="flat")
    classes = {count: mmdiff.diffuse(graph, labels, iterations=count).predict() for count in (SOME, MANY)}
    matrix: Any = graph.to_scipy().tocoo()
    edges = np.stack([matrix.row, matrix.col], axis=1)
    return Spread(places, truth, labels, edges[edges[:, 0] < edges[:, 1]], classes)


def picture(found: Spread | None = None) -> str:
    """The picture as SVG, on a ground of its own, so that it is the same on light and dark pages."""
    found = found or spread()
    width, height = 3 * _SIDE + 4 * _GAP, _SIDE + _TOP + _GAP
    titles = (
        (f"{ROWS} rows, {LABELS} labels", f"each row knows its {NEIGHBOURS} nearest neighbours"),
        (f"{SOME} iterations", f"labels have reached {100 * found.reached(SOME):.0f} % of the rows"),
        (f"{MANY} iterations", f"{100 * found.reached(MANY):.4g} % reached, {100 * found.right(MANY):.4g} % right"),
    )
    low, high = found.places.min(axis=0), found.places.max(axis=0)
    middle, span = (low + high) / 2, (high - low).max() * 1.04
    at = np.rint(((found.places - middle) / span + 0.5) * _SIDE * 2) / 2
    lines = "".join(f"M{_point(at[first])}L{_point(at[second])}" for first, second in found.edges)
    panels = []
    for place, (title, text) in enumerate(titles):
        own = (found.labels, found.classes[SOME], found.classes[MANY])[place]
        dots = [_dots(at[(own == arm) & (found.labels < 0)], colour) for arm, colour in enumerate(COLOURS)]
        seeds = [_dots(at[found.labels == arm], colour, 7) for arm, colour in enumerate(COLOURS)]
        panels.append(
            f'<g transform="translate({_GAP + place * (_SIDE + _GAP)},{_GAP})">'
            f'<text y="18" class="title">{title}</text><text y="42">{text}</text>'
            f'<g transform="translate(0,{_TOP})"><use href="#edges"/>'
            f"{_dots(at[(own < 0)], _GREY)}{''.join(dots)}{''.join(seeds)}</g></g>"
        )
    style = (
        f"text{{font:14px 'DejaVu Sans',Verdana,Helvetica,Arial,sans-serif;fill:#5b626b}}"
        f".title{{font-size:20px;font-weight:600;fill:{_INK}}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        f"<title>Six labels spread over {ROWS} rows along the graph of nearest neighbours</title><style>{style}</style>"
        f'<defs><path id="edges" d="{lines}" stroke="#dcd9d0" stroke-width=".6"/></defs>'
        f'<rect width="{width}" height="{height}" rx="8" fill="{_GROUND}"/>\n' + "\n".join(panels) + "</svg>\n"
    )


def _point(place: np.ndarray) -> str:
    return f"{place[0]:g} {place[1]:g}"


def _dots(places: np.ndarray, colour: str, size: float = 2.6) -> str:
    """Dots of one colour as one path: lines of length zero with round ends, those of labels with a light rim."""
    line = "".join(f"M{_point(place)}h0" for place in places)
    rim = f'<path d="{line}" stroke="{_INK}" stroke-width="{2 * size + 3:g}" stroke-linecap="round"/>' if size > 5 else ""
    return f'{rim}<path d="{line}" stroke="{colour}" stroke-width="{2 * size:g}" stroke-linecap="round"/>'

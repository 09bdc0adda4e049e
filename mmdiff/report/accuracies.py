"""Sections of the HTML report on accuracy: all scores, against iterations, against fusion weights, and by class (section 4)."""

from __future__ import annotations

from collections.abc import Iterator

from mmdiff.formats.store.manifest import Json
from mmdiff.report.charts import Chart, Line, Point, figure
from mmdiff.report.gathering import Findings
from mmdiff.report.html import Markup, interval, listed, percent, sentence, shortened, table, tag

GROUPS = {"all": "all classes", "novel": "novel classes"}
_LINES = 6
_CLASSES = 40
_TITLE = 34


def accuracy_section(findings: Findings) -> Iterator[Markup]:
    """A table of all scores after the last iteration of each, with bootstrap intervals."""
    evaluation = findings.evaluation
    if evaluation is None:
        return
    compared = comparable(findings)
    points = _points(compared[0])
    yield tag("p", f"{points}. The interval below each figure is the 95 % bootstrap interval. Ties count as errors.")
    columns = [(group, top) for group in _groups(compared[0]) for top in ("top1", "top5")]
    best = {column: max(_last(found, *column)["accuracy"] for found in compared) for column in columns}
    rows = []
    for found in evaluation["scores"]:
        other = "" if found in compared else _points(found)
        cells = [
            _figure(_last(found, *column), not other and _last(found, *column)["accuracy"] == best[column])
            if column[0] in _groups(found)
            else "no points"
            for column in columns
        ]
        rows.append([_name(found, other), *cells])
    head = ["scores", *(f"{_top(top)}, {GROUPS[group]}" for group, top in columns)]
    yield table(head, rows, "Accuracy after the last iteration", class_="figures")
    for note in evaluation["notes"]:
        yield tag("p", sentence(note), class_="note")


def comparable(findings: Findings) -> list[Json]:
    """The scores with the most classes. Fewer classes are easier, so such scores are not compared with these."""
    scores = (findings.evaluation or {"scores": []})["scores"]
    most = max((points_of(found)["classes"] for found in scores), default=0)
    return [found for found in scores if points_of(found)["classes"] == most]


def points_of(found: Json) -> Json:
    """The counts of the points of an evaluation: test points, or held-out rows."""
    points: Json = found["test"] if "test" in found else found["held_out"]
    return points


def _points(found: Json) -> str:
    points = points_of(found)
    what = _count(points["labelled"], "labelled test point" if "test" in found else "held-out row")
    text = f"{what} of {_count(points['classes'], 'class', 'classes')}"
    novel = points.get("novel")
    if novel is None:
        return text
    return f"{text}, {novel['points']:,} of them of {_count(novel['classes'], 'novel class', 'novel classes')}"


def _count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def _groups(found: Json) -> list[str]:
    return [group for group in GROUPS if found["iterations"][-1].get(group)]


def _last(found: Json, group: str, top: str) -> Json:
    return dict(found["iterations"][-1][group][top])


def _name(found: Json, other: str) -> list[Markup | str]:
    iteration = found["iterations"][-1]["iteration"]
    about = [other] if other else []
    about += [] if iteration is None else [f"iteration {iteration}"]
    about += [f"weight {found['weight']:g}"] if "weight" in found else []
    name = str(found["artifact"]).rpartition("/")[2]
    return [name, tag("small", ", ".join(about))] if about else [name]


def _figure(given: Json, best: bool) -> Markup:
    """An accuracy above its interval, as text and as a bar."""
    style = f"--low:{given['low']:.4f};--high:{given['high']:.4f};--at:{given['accuracy']:.4f}"
    return tag(
        "span",
        tag("b" if best else "span", percent(given["accuracy"]), class_="value"),
        tag("span", class_="track", style=style, aria_hidden="true"),
        tag("small", interval(given["low"], given["high"])),
        class_="interval",
    )


def iteration_section(findings: Findings) -> Iterator[Markup]:
    """Accuracy and reach of each diffusion against the iteration (paper, figure 4)."""
    charts: list[Chart] = []
    for found in (findings.evaluation or {"scores": []})["scores"]:
        if found["method"] == "diffusion" and len(found["iterations"]) > 1 and len(charts) < _LINES:
            charts.append(_accuracy_chart(found))
    reached = [
        Line(name.removeprefix("scores/"), [Point(step["iteration"], step["nonzero"]) for step in scores["facts"]["steps"]])
        for name, scores in findings.scores.items()
        if scores["method"] == "diffusion" and len(scores["facts"].get("steps", [])) > 1
    ][:_LINES]
    if reached:
        first, last = reached[0].points[0], reached[0].points[-1]
        caption = (
            f"In {reached[0].label}, {percent(first.y, 2)} of the entries of the label matrix are non-zero at the start and "
            f"{percent(last.y)} after iteration {last.x:g}, among the rows that were computed."
        )
        charts.append(Chart("reach", "Reach of the labels", caption, "iteration", "non-zero entries", reached, from_zero=True))
    if charts:
        yield tag(
            "p",
            "Accuracy peaks after a few iterations: too few leave points unreached, too many blur the classes.",
        )
        yield tag("div", [figure(chart) for chart in charts], class_="charts")


def _accuracy_chart(found: Json) -> Chart:
    lines = [
        Line(
            f"{_top(top)} {'' if group == 'all' else group}".strip(),
            [_point(one, group, top) for one in found["iterations"]],
        )
        for top in ("top5", "top1")
        for group in _groups(found)
    ]
    name = str(found["artifact"]).rpartition("/")[2]
    top5 = lines[0].points
    best = max(top5, key=lambda point: point.y)
    caption = (
        f"Top-5 accuracy of {name} on all classes is {percent(top5[0].y)} after iteration {top5[0].x:g}, {percent(best.y)} "
        f"at its best after iteration {best.x:g}, and {percent(top5[-1].y)} after iteration {top5[-1].x:g}."
    )
    key = f"iterations-{name}"
    spread = "the 95 % bootstrap interval"
    return Chart(key, f"Accuracy against iteration: {name}", caption, "iteration", "accuracy", lines, spread=spread)


def _point(plane: Json, group: str, top: str) -> Point:
    given = plane[group][top]
    return Point(plane["iteration"], given["accuracy"], given["low"], given["high"])


def fusion_section(findings: Findings) -> Iterator[Markup]:
    """Accuracy against the weight of late fusion (paper, supplement)."""
    charts = []
    for name, scores in findings.scores.items():
        curve = scores["facts"].get("curve")
        if scores["method"] != "fusion" or not curve:
            continue
        weight = scores["facts"]["weight"]
        lines = [Line(_top(top), [Point(p["weight"], p[top]) for p in curve], weight) for top in ("top5", "top1")]
        ends = curve[0]["top5"], curve[-1]["top5"]
        at = min(curve, key=lambda point: abs(point["weight"] - weight))
        short = name.removeprefix("scores/")
        caption = (
            f"Top-5 accuracy is {percent(ends[0])} at weight 0 (second scores only), {percent(ends[1])} at weight 1 (first "
            f"scores only), and {percent(at['top5'])} at {weight:g}, the circled weight of these scores."
        )
        charts.append(Chart(f"weights-{short}", f"Fusion weight: {short}", caption, "weight", "accuracy", lines))
    if charts:
        yield tag("div", [figure(chart) for chart in charts[:_LINES]], class_="charts")


def class_section(findings: Findings) -> Iterator[Markup]:
    """Accuracy by class for the best scores: all classes or the best and worst, and predictions for the worst."""
    if findings.evaluation is None:
        return
    found = max(comparable(findings), key=lambda scores: float(_last(scores, "all", "top1")["accuracy"]))
    name = str(found["artifact"]).rpartition("/")[2]
    classes = sorted(
        (entry for entry in found["per_class"] if entry["points"]), key=lambda entry: (-entry["top1"], -entry["top5"])
    )
    shown = classes if len(classes) <= _CLASSES else [*classes[: _CLASSES // 2], *classes[-_CLASSES // 2 :]]
    which = "All classes" if shown is classes else f"The best and the worst {_CLASSES // 2} of {len(classes):,} classes"
    yield tag(
        "p",
        f"{which} of {name}, the scores with the highest top-1 accuracy. The dark bar is top-1, the pale bar top-5 accuracy.",
    )
    rows = [
        [
            tag("span", shortened(entry["class"], _TITLE), title=entry["class"]),
            tag("span", class_="bar two", style=f"--value:{entry['top1']:.4f};--more:{entry['top5']:.4f}", aria_hidden="true"),
            percent(entry["top1"], 0),
            percent(entry["top5"], 0),
            f"{entry['points']:,}",
        ]
        for entry in shown
    ]
    yield table(["class", "", "top-1", "top-5", "points"], rows, f"Accuracy by class: {name}", 2, "bars")
    worst = [
        [
            tag("span", shortened(entry["class"], _TITLE), title=entry["class"]),
            percent(entry["top1"], 0),
            listed([f"{shortened(m['class'] or 'undecided', _TITLE)} ({m['points']})" for m in entry["taken_for"]]) or "none",
        ]
        for entry in found["worst"]
    ]
    yield tag("h3", "Predictions for the worst classes")
    yield table(["class", "top-1", "wrong predictions (points)"], worst, f"The worst classes: {name}", 9)


def _top(top: str) -> str:
    return top.replace("top", "top-")

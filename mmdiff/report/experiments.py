"""Sections of the HTML report on experiment results: means and deviations over draws, and the paper's figures (section 4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmdiff.formats.store.manifest import Json
from mmdiff.report.charts import Chart, Line, Point, figure
from mmdiff.report.gathering import Findings
from mmdiff.report.html import Markup, duration, listed, percent, table, tag

FIGURES = {"top5": "top-5 accuracy, all classes", "novel_top5": "top-5 accuracy, novel classes"}
_LINES = 6


def experiment_section(findings: Findings) -> Iterator[Markup]:
    for experiment in findings.experiments:
        name = str(experiment["artifact"]).removeprefix("reports/")
        yield tag("h3", name, id=f"experiment-{name}")
        yield from _experiment(name, experiment)


def _experiment(name: str, experiment: Json) -> Iterator[Markup]:
    lines = experiment["facts"]["lines"]
    reported = _reported(lines)
    group = reported[0]["group"]
    tests, parameters = experiment["facts"]["tests"][group], experiment["parameters"]
    chosen = (
        "on the validation group and applied to the test group, which is shown"
        if group == "test"
        else "on these test points, so the accuracies are optimistically biased"
    )
    yield tag(
        "p",
        f"{parameters['draws']} {'draw' if parameters['draws'] == 1 else 'draws'} of seeds, {tests['all']:,} test points, "
        f"{tests['novel']:,} of them of novel classes; "
        f"computed in {duration(experiment['seconds'])}. Hyper-parameters were chosen {chosen}.",
    )
    for changed in experiment["changed"]:
        yield tag("p", f"{changed} has changed since these results were computed.", class_="note")
    spread = "mean ± standard deviation over draws" if parameters["draws"] > 1 else "one draw, so the spread is unknown"
    for key, title in FIGURES.items():
        yield _table(reported, key, f"{title[0].upper()}{title[1:]}, %, {spread}", parameters["draws"] > 1)
    charts = [*_against_n(name, reported), *_against_iteration(name, lines), *_against_weight(name, lines)]
    if charts:
        yield tag("div", [figure(chart) for chart in charts], class_="charts")


def _reported(lines: Sequence[Json]) -> list[Json]:
    """The chosen candidates of the test group, or of the validation group without one."""
    last = lines[-1]["group"]
    return [line for line in lines if line["chosen"] and line["group"] == last]


def _title(line: Json) -> str:
    options = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in line["variant"].items())
    return f"{line['method']} ({options})" if options else str(line["method"])


def _full_title(line: Json) -> str:
    where = {None: "", "none": ", no background"}.get(line["background"], f", {line['background']}")
    return _title(line) + where


def _point(line: Json, key: str, step: int, x: float) -> Point:
    """The mean at a step (an iteration or a weight, by index), with a whisker of one standard deviation."""
    mean, std = line["mean"][key][step], line["std"][key][step]
    return Point(x, mean, max(0.0, mean - std), min(1.0, mean + std))


def _table(lines: Sequence[Json], key: str, caption: str, spread: bool) -> Markup:
    ns = list(dict.fromkeys(line["n"] for line in lines))
    cells = {(_title(line), line["background"], line["n"]): line for line in lines}
    best = {n: max(line["mean"][key][line["plane"]] for line in lines if line["n"] == n) for n in ns}
    rows = []
    for method, background in dict.fromkeys((_title(line), line["background"]) for line in lines):
        row = [_cell(cells.get((method, background, n)), key, best[n], spread) for n in ns]
        rows.append([method, background or "not used", *row])
    return table(["method", "background", *(f"n = {n}" for n in ns)], rows, caption, 2, "figures")


def _cell(line: Json | None, key: str, best: float, spread: bool) -> list[Markup | str]:
    if line is None:
        return [""]
    mean, std = line["mean"][key][line["plane"]], line["std"][key][line["plane"]]
    value = tag("b" if mean == best else "span", f"{100 * mean:.1f}")
    chosen = line["planes"][line["plane"]]
    at = {"diffusion": f"iteration {chosen}", "fusion": f"weight {chosen:g}"}.get(line["kind"], "")
    return [value, f" ± {100 * std:.1f}" if spread else "", *([tag("small", at)] if at else [])]


def _against_n(name: str, lines: Sequence[Json]) -> Iterator[Chart]:
    if len({line["n"] for line in lines}) < 2:
        return
    titles = list(dict.fromkeys(_full_title(line) for line in lines))[:_LINES]
    for key, title in FIGURES.items():
        drawn = []
        for name_of_line in titles:
            own = sorted((line for line in lines if _full_title(line) == name_of_line), key=lambda line: line["n"])
            drawn.append(Line(name_of_line, [_point(line, key, line["plane"], line["n"]) for line in own]))
        first, last = drawn[0].points[0].x, drawn[0].points[-1].x
        leads = [max(drawn, key=lambda line: line.points[end].y) for end in (0, -1)]
        caption = (
            f"With {first:g} seed{'s' if first > 1 else ''} per novel class the best is {leads[0].label} with "
            f"{percent(leads[0].points[0].y)}; with {last:g} it is {leads[1].label} with {percent(leads[1].points[-1].y)}."
        )
        yield Chart(
            f"{name}-n-{key}",
            title[0].upper() + title[1:],
            caption,
            "seeds per novel class (n)",
            "accuracy",
            drawn,
            log_x=True,
            spread="one standard deviation",
        )


def _against_iteration(name: str, lines: Sequence[Json]) -> Iterator[Chart]:
    """Accuracy and reach on the validation group, for the median n."""
    own = [line for line in lines if line["kind"] == "diffusion" and line["group"] == lines[0]["group"]]
    own = [line for line in own if line["chosen"] and len(line["planes"]) > 1]
    if not own:
        return
    ns = sorted({line["n"] for line in own})
    n = ns[len(ns) // 2] if len(ns) != 2 else ns[0]
    shown = [line for line in own if line["n"] == n][:_LINES]
    accuracy = [
        Line(
            _full_title(line),
            [_point(line, "top5", step, x) for step, x in enumerate(line["planes"])],
            line["planes"][line["plane"]],
        )
        for line in shown
    ]
    stops = listed([f"{line.chosen:g} for {line.label}" for line in accuracy])
    about = f"{name}, n = {n}"
    yield Chart(
        f"{name}-iterations",
        f"Accuracy against iteration ({about})",
        f"On the validation group the best iteration, circled, is {stops}.",
        "iteration",
        "top-5 accuracy",
        accuracy,
        spread="one standard deviation",
    )
    reach = [
        Line(_full_title(line), [Point(x, y) for x, y in zip(line["planes"], line["nonzero"], strict=True)]) for line in shown
    ]
    ends = listed([f"{percent(line.points[-1].y)} for {line.label}" for line in reach])
    caption = f"After iteration {reach[0].points[-1].x:g} the share of non-zero entries is {ends}."
    yield Chart(f"{name}-reach", f"Non-zero rate ({about})", caption, "iteration", "non-zero entries", reach, from_zero=True)


def _against_weight(name: str, lines: Sequence[Json]) -> Iterator[Chart]:
    """One chart for each fusion and background, with one line for each n."""
    own = [line for line in lines if line["kind"] == "fusion" and line["group"] == lines[0]["group"] and line["chosen"]]
    for number, title in enumerate(list(dict.fromkeys(_full_title(line) for line in own))[:_LINES]):
        theirs = [line for line in own if _full_title(line) == title][:_LINES]
        drawn = [
            Line(
                f"n = {line['n']}",
                [_point(line, "top5", step, x) for step, x in enumerate(line["planes"])],
                line["planes"][line["plane"]],
            )
            for line in theirs
        ]
        weights = listed([f"{line.chosen:g} for {line.label}" for line in drawn])
        caption = f"0 is diffusion alone, 1 logistic regression alone; the chosen weight, circled, is {weights}."
        bare = [Line(line.label, [Point(point.x, point.y) for point in line.points], line.chosen) for line in drawn]
        yield Chart(f"{name}-weights-{number}", f"Fusion weight: {title}", caption, "weight", "top-5 accuracy", bare)

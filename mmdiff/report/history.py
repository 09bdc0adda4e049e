"""Sections of the HTML report on how results came about: paths from seeds to test points, and the runs of the store.

Paths are rows of nodes (paper, "Qualitative results"). Runs are shown with command, parameters, time and memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from mmdiff.explain.stage import point_of
from mmdiff.formats.store.manifest import Json
from mmdiff.report.gathering import Findings
from mmdiff.report.html import Markup, duration, join, listed, moment, percent, sentence, shortened, size, table, tag, value

_ROLES = {"seed": "seed", "background": "background", "test": "test point"}
_TITLE = 48


def path_section(findings: Findings) -> Iterator[Markup]:
    if not findings.explained:
        return
    name = str(findings.explained_scores).removeprefix("scores/")
    points = "test points" if "test" in findings.explained[0] else "rows"
    yield tag(
        "p",
        f"Paths of labels to some {points} in {name}: going back from the point, the node with the largest contribution "
        "after each iteration. The figure on an arrow is its share of the next node's score. A node can follow itself.",
    )
    for found in findings.explained:
        yield _point(found)


def _point(found: Json) -> Markup:
    test, what = point_of(found), "test point" if "test" in found else "row"
    truth, predicted = listed([shortened(label, _TITLE) for label in test["labels"]]), test["predicted"]
    right = predicted in test["labels"]
    verdict = "not labelled" if not truth else "right" if right else "wrong"
    prediction = "No class is predicted" if predicted is None else f"Predicted: {shortened(predicted, _TITLE)}"
    return tag(
        "article",
        tag("h3", f"{sentence(what)} {test['id']} ", tag("span", verdict, class_=f"verdict {verdict.split()[0]}")),
        None if right else tag("p", f"True class: {truth}. {prediction}." if truth else f"{prediction}."),
        [_path(path, found) for path in found["paths"]],
        [tag("p", sentence(note), class_="note") for note in found["notes"]],
        class_="explained",
    )


def _path(path: Json, found: Json) -> Markup:
    roles = [key for key in ("true", "predicted") if path[key]]
    rank = "not among the best classes of the row" if path["rank"] is None else f"rank {path['rank']}"
    about = f" {' and '.join(roles) or 'requested'} class, {rank}"
    heading = tag(
        "p", tag("b", shortened(path["class"], _TITLE), title=path["class"]), tag("small", about), class_="path-title"
    )
    if not path["steps"]:
        return tag(
            "div", heading, tag("p", f"No label of this class arrives within {found['iterations']} iterations.", class_="note")
        )
    test, what = point_of(found), "test point" if "test" in found else "row"
    items = []
    for place, step in enumerate(path["steps"]):
        stays = place > 0 and all(step[key] == path["steps"][place - 1][key] for key in ("role", "id"))
        items.append(tag("li", _node(step, f"iteration {step['iteration']}", stays), _arrow(step["share"])))
    items.append(tag("li", _node(test, "score", False)))
    label = f"Path of {path['class']} to {what} {test['id']}"
    chain = tag("ol", items, class_="path" if "image" in test else "path plain")
    return tag("div", heading, tag("div", chain, class_="scroll", tabindex=0, role="region", aria_label=label))


def _node(step: Json, when: str, stays: bool) -> list[Markup]:
    role = _ROLES[step["role"]]
    picture = []
    if "image" in step:
        alt = f"{role} {step['id']}"
        picture = [
            tag("span", "no image", class_="picture missing")
            if step["image"] is None
            else tag("img", src=step["image"], alt=alt, class_="picture", loading="lazy")
        ]
    return [
        *picture,
        tag("span", "stays" if stays else role, class_=f"role {step['role']}"),
        tag("b", step["id"], class_="id"),
        tag("small", when),
    ]


def _arrow(share: float) -> Markup:
    return tag("span", tag("span", percent(share, 0), class_="share"), class_="arrow")


_LEAST = 0.004


def run_section(findings: Findings) -> Iterator[Markup]:
    stages = sorted((line for line in findings.artifacts if line["seconds"] is not None), key=lambda line: line["started"])
    if not stages:
        yield tag("p", "The store is empty. Begin with an import of the background.")
        return
    longest = max(line["seconds"] for line in stages) or 1.0
    largest = max(line["peak_memory"] for line in stages) or 1
    slow = max(stages, key=lambda line: line["seconds"])
    yield tag(
        "p",
        f"All stages took {duration(sum(line['seconds'] for line in stages))} on {_machine(stages[-1])}; the longest was "
        f"{slow['artifact']} with {duration(slow['seconds'])}. Peak memory was {size(largest)}. "
        "Stages of one command share its peak.",
    )
    rows = [
        [
            line["artifact"],
            _bar(line["seconds"] / longest),
            duration(line["seconds"]),
            _bar(line["peak_memory"] / largest),
            size(line["peak_memory"]),
            size(line["bytes"]),
        ]
        for line in stages
    ]
    head = ["artifact", "", "time", "", "peak memory", "on disk"]
    yield table(head, rows, "Time and memory of each stage", 1, "bars")
    yield tag("h3", "Commands")
    commands = dict.fromkeys(line["command"] for line in stages)
    lines = tag("code", Markup("\n".join(join([command]) for command in commands)))
    yield tag("pre", lines, class_="scroll", tabindex=0, role="region", aria_label="Commands")
    yield tag("h3", "Parameters and facts")
    yield from (_details(line) for line in findings.artifacts)


def _machine(line: Json) -> str:
    return f"{line['cores']} core{'' if line['cores'] == 1 else 's'} of {line['host']}"


def _bar(share: float) -> Markup:
    return tag("span", class_="bar", style=f"--value:{max(share, _LEAST):.4f}", aria_hidden="true")


def _details(line: Json) -> Markup:
    shapes = ", ".join(f"{name} {' x '.join(f'{n:,}' for n in shape)}" for name, shape in line["shapes"].items())
    rows = [["made", moment(line["started"])], ["arrays", shapes]]
    rows += [[key.replace("_", " "), value(given)] for key, given in line["parameters"].items()]
    rows += [[key.replace("_", " "), value(given)] for key, given in line["facts"].items() if key not in ("lines", "curve")]
    if line["versions"]:
        rows.append(["versions", value(line["versions"])])
    stale = tag("span", "; ".join(line["stale"]), class_="stale") if line["stale"] else None
    return tag(
        "details",
        tag("summary", line["artifact"], [" ", stale] if stale else None),
        table(["name", "value"], rows, f"Parameters and facts of {line['artifact']}", 9, "facts"),
    )

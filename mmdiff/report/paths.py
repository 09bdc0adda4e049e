"""Diffusion paths as a row of nodes, from a seed to a test point (paper, "Qualitative results")."""

from __future__ import annotations

from collections.abc import Iterator

from mmdiff.formats.manifest import Json
from mmdiff.report.gathering import Findings
from mmdiff.report.html import Markup, tag
from mmdiff.report.words import listed, percent, sentence, shortened

_ROLES = {"seed": "seed", "background": "background", "test": "test point"}
_TITLE = 48


def path_section(findings: Findings) -> Iterator[Markup]:
    if not findings.explained:
        return
    name = str(findings.explained_scores).removeprefix("scores/")
    yield tag(
        "p",
        f"How labels came to some test points in {name}: back from the point, the node that contributed most after each "
        "iteration. The figure on an arrow is its share of what the next node has. A node can follow itself.",
    )
    for found in findings.explained:
        yield _point(found)


def _point(found: Json) -> Markup:
    test = found["test"]
    truth, predicted = listed([shortened(label, _TITLE) for label in test["labels"]]), test["predicted"]
    right = predicted in test["labels"]
    verdict = "not labelled" if not truth else "right" if right else "wrong"
    taken = "Taken for nothing" if predicted is None else f"Taken for {shortened(predicted, _TITLE)}"
    return tag(
        "article",
        tag("h3", f"Test point {test['id']} ", tag("span", verdict, class_=f"verdict {verdict.split()[0]}")),
        None if right else tag("p", f"It is {truth}. {taken}." if truth else f"{taken}."),
        [_path(path, found) for path in found["paths"]],
        [tag("p", sentence(note), class_="note") for note in found["notes"]],
        class_="explained",
    )


def _path(path: Json, found: Json) -> Markup:
    roles = [word for word, key in (("its class", "true"), ("what it is taken for", "predicted")) if path[key]]
    about = f" {' and '.join(roles) or 'as asked for'}, rank {path['rank']}"
    heading = tag(
        "p", tag("b", shortened(path["class"], _TITLE), title=path["class"]), tag("small", about), class_="path-title"
    )
    if not path["steps"]:
        return tag(
            "div", heading, tag("p", f"No label of it comes here within {found['iterations']} iterations.", class_="note")
        )
    test = found["test"]
    items = []
    for place, step in enumerate(path["steps"]):
        stays = place > 0 and all(step[key] == path["steps"][place - 1][key] for key in ("role", "id"))
        items.append(tag("li", _node(step, f"iteration {step['iteration']}", stays), _arrow(step["share"])))
    items.append(tag("li", _node(test, "score", False)))
    label = f"Path of {path['class']} to test point {test['id']}"
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

"""Writes the HTML report: one self-contained page with accuracies, charts, experiment results, classes, paths and runs.

The page has no scripts and loads nothing, except thumbnails if images are given as a URL; its Content-Security-Policy forbids
everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

from mmdiff.export.target import check_place, whole_file
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Store
from mmdiff.report.accuracies import accuracy_section, class_section, comparable, fusion_section, iteration_section
from mmdiff.report.audits import audit_section
from mmdiff.report.experiments import experiment_section
from mmdiff.report.gathering import Findings, Request, gather
from mmdiff.report.history import path_section, run_section
from mmdiff.report.html import Markup, join, moment, percent, sentence, tag
from mmdiff.runtime.progress import Progress, silent

SECTIONS: dict[str, tuple[str, Callable[[Findings], Iterator[Markup]]]] = {
    "accuracy": ("Accuracy", accuracy_section),
    "iterations": ("Iterations", iteration_section),
    "fusion": ("Fusion", fusion_section),
    "experiments": ("Experiments", experiment_section),
    "classes": ("Classes", class_section),
    "audit": ("Audit", audit_section),
    "paths": ("Paths", path_section),
    "runs": ("Runs", run_section),
}


def sections(findings: Findings) -> dict[str, Markup]:
    """The sections that are not empty."""
    made = {key: join(section(findings)) for key, (_, section) in SECTIONS.items()}
    return {key: content for key, content in made.items() if content}


def page(findings: Findings, parts: dict[str, Markup]) -> str:
    """The HTML of the whole page."""
    title = f"{Path(findings.store).name}: mmdiff report"
    images = "data:" if findings.images_from is None else f"data: {findings.images_from}"
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src {images}"
    style = files("mmdiff.report").joinpath("style.css").read_text("utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    contents = tag("ul", [tag("li", tag("a", SECTIONS[key][0], href=f"#{key}")) for key in parts])
    body = tag(
        "body",
        tag("a", "Skip to the content", href="#content", class_="skip"),
        tag("header", _lead(findings), tag("nav", contents, aria_label="Contents")),
        tag(
            "main",
            [tag("p", sentence(note), class_="note") for note in findings.notes],
            [
                tag("section", tag("h2", SECTIONS[key][0], id=f"{key}-title"), content, id=key, aria_labelledby=f"{key}-title")
                for key, content in parts.items()
            ],
            id="content",
        ),
        _foot(findings),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _lead(findings: Findings) -> list[Markup]:
    tiles = [tag("div", tag("dt", name), tag("dd", text)) for name, text in _tiles(findings)]
    return [
        tag("p", "mmdiff report", class_="kicker"),
        tag("h1", Path(findings.store).name),
        tag("p", _summary(findings), class_="lead"),
        tag("dl", tiles, class_="tiles") if tiles else Markup(""),
    ]


def _summary(findings: Findings) -> str:
    """The best result in one sentence."""
    if findings.evaluation is None:
        return "The runs of this store, with their time and memory."
    best = max(comparable(findings), key=lambda found: found["iterations"][-1]["all"]["top5"]["accuracy"])
    figures = best["iterations"][-1]["all"]
    name, points = str(best["artifact"]).rpartition("/")[2], "test points" if "test" in best else "held-out rows"
    chosen = " The fusion weight was chosen on these test points, so this is optimistically biased."
    return (
        f"The best scores, {name}, rank the true class of {percent(figures['top1']['accuracy'])} of the {points} first, and "
        f"of {percent(figures['top5']['accuracy'])} among the first five.{chosen if best.get('weight_chosen_on') else ''}"
    )


def _tiles(findings: Findings) -> Iterator[tuple[str, str]]:
    by_name = {line["artifact"]: line for line in findings.artifacts}
    for role, title in (("background", "rows"), ("appended", "appended"), ("seeds", "seeds"), ("test", "test points")):
        line = by_name.get(f"descriptors/{role}")
        if line is not None:
            yield title, f"{line['shapes']['vectors'][0]:,}"
    classes = by_name.get("descriptors/seeds", {}).get("facts", {}).get("classes")
    if classes:
        yield "classes", f"{classes:,}"
    graph: Json | None = by_name.get("graph/W")
    if graph is not None:
        yield "edges", f"{graph['facts']['edges']:,}"


def _foot(findings: Findings) -> Markup:
    started = [line["started"] for line in findings.artifacts if line["started"]]
    text = [f"Made by mmdiff from the store {findings.store}"]
    if started:
        text.append(f", whose last stage ran on {moment(max(started))}")
    text.append(". ")
    text.append(
        "This file is self-contained; it loads nothing."
        if findings.images_from is None
        else f"Thumbnails are loaded from {findings.images_from}; everything else is in this file."
    )
    return tag("footer", tag("p", text))


__all__ = ["Request", "write_report"]


def write_report(store: Store, out: Path, request: Request, progress: Progress = silent) -> Json:
    """Writes the page; returns its file, size, sections and notes."""
    check_place(out, store)
    findings = gather(store, request, progress)
    parts = sections(findings)
    content = page(findings, parts).encode()
    with whole_file(out) as stream:
        stream.write(content)
    return {"file": str(out), "bytes": len(content), "sections": list(parts), "notes": findings.notes}

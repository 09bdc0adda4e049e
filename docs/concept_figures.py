"""Tables and plots of docs/concepts.md and docs/choosing.md, from the saved results of docs/experiments."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS / "experiments" / "results"

Line = dict[str, Any]

_METHODS = {"diffusion": "diffusion", "logreg": "logistic regression", "fusion": "both (fusion)"}
_COLOURS = ("#0b7a75", "#d1600f", "#7b3fa0", "#4a5560")
_BACKGROUNDS = {
    "none": "none",
    "out-of-domain:4000": "4,000 rows of other classes",
    "out-of-domain": "20,000 rows of other classes",
}


def updated(page: str) -> str:
    """A page whose tables between marks such as `<!-- by labels -->` are those of the results."""
    for mark, table in TABLES.items():
        content = "\n".join(table())
        page = re.sub(
            rf"(?s)(<!-- {mark} -->\n).*(<!-- /{mark} -->)", lambda found, c=content: f"{found[1]}{c}\n{found[2]}", page
        )
    return page


def plots(folder: Path) -> None:
    """Accuracy against labels per class, and against iterations, as SVG."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.hashsalt": "mmdiff", "svg.fonttype": "none", "font.size": 9, "axes.grid": True}
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for axis, accuracy, title in zip(axes, ("top5", "novel_top5"), ("all 80 classes", "the 40 novel classes"), strict=True):
        for (method, name), colour, mark in zip(_METHODS.items(), _COLOURS, "os^", strict=False):
            own = _of_method(method)
            axis.errorbar(
                [line["n"] for line in own],
                [line[accuracy][0] for line in own],
                [line[accuracy][1] for line in own],
                marker=mark,
                color=colour,
                label=name,
                capsize=2,
            )
        axis.set(title=title, xlabel="labels per novel class", ylabel="top-5 accuracy, %", xscale="log")
        axis.set_xticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
        axis.minorticks_off()
        axis.legend(frameon=False)
    figure.savefig(folder / "accuracy-labels.svg", metadata={"Date": None})
    pyplot.close(figure)

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for line, colour, mark in zip(_curves("in-domain"), _COLOURS, "os^D", strict=False):
        iterations = range(len(line["curve"]))
        style = {"marker": mark, "markersize": 4, "color": colour, "label": f"k = {line['variant']['k']}"}
        left.plot(iterations, line["curve"], **style)
        right.plot(iterations, line["nonzero"], **style)
    left.set(xlabel="iteration", ylabel="top-5 accuracy, %")
    right.set(xlabel="iteration", ylabel="pairs of row and class reached, %")
    right.legend(frameon=False)
    figure.savefig(folder / "accuracy-iterations.svg", metadata={"Date": None})
    pyplot.close(figure)


def _lines(name: str) -> list[Line]:
    found: list[Line] = json.loads((RESULTS / f"{name}.json").read_text())["lines"]
    return found


def _of_method(method: str) -> list[Line]:
    """In-domain results of the test group, by the number of labels per novel class."""
    found = [line for line in _lines("table2") if line["group"] == "test" and line["method"] == method]
    return sorted(found, key=lambda line: int(line["n"]))


def _curves(background: str) -> list[Line]:
    return sorted(
        (line for line in _lines("nonzero") if line["background"] == background), key=lambda line: int(line["variant"]["k"])
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def _bold_best(figures: Sequence[float]) -> list[str]:
    best = max(figures)
    return [f"**{figure:.1f}**" if figure == best else f"{figure:.1f}" for figure in figures]


def _by_labels() -> list[str]:
    by_method = {method: {line["n"]: line for line in _of_method(method)} for method in _METHODS}
    rows = []
    for n in by_method["diffusion"]:
        cells = [_bold_best([own[n][accuracy][0] for own in by_method.values()]) for accuracy in ("top5", "novel_top5")]
        rows.append([str(n), *cells[0], *cells[1]])
    names = [f"{name}, {classes}" for classes in ("all", "novel") for name in _METHODS.values()]
    return _table(["labels per novel class", *names], rows)


def _by_background() -> list[str]:
    lines = [line for line in _lines("table3") if line["group"] == "test" and line["method"] == "diffusion"]
    found = {(line["background"], line["n"]): line["top5"][0] for line in lines}
    found |= {("in-domain", line["n"]): line["top5"][0] for line in _of_method("diffusion")}
    columns = sorted({n for _, n in found})
    names = {
        "none": "none",
        "out-of-domain": "20,000 rows of other classes",
        "in-domain": "the unlabelled rows of the same classes",
    }
    rows = ([text, *(f"{found[name, n]:.1f}" for n in columns)] for name, text in names.items())
    return _table(["background", *(f"{n} label{'s' * (n > 1)}" for n in columns)], rows)


def _by_k() -> list[str]:
    found = {
        (line["background"], line["variant"]["k"]): line["top5"][0] for line in _lines("k_by_size") if line["group"] == "test"
    }
    columns = sorted({k for _, k in found})
    rows = ([text, *(f"{found[name, k]:.1f}" for k in columns)] for name, text in _BACKGROUNDS.items())
    return _table(["background", *(f"k = {k}" for k in columns)], rows)


def _by_iteration() -> list[str]:
    curves = _curves("in-domain")
    rows = ([f"k = {line['variant']['k']}", *_bold_best(line["curve"])] for line in curves)
    return _table(["iteration", *map(str, range(len(curves[0]["curve"])))], rows)


TABLES: dict[str, Callable[[], list[str]]] = {
    "by labels": _by_labels,
    "by background": _by_background,
    "by k": _by_k,
    "by iteration": _by_iteration,
}

"""Results as HTML: what a notebook shows for a store, a graph, scores and summaries.

The HTML runs no script and loads nothing. It takes its colours from the notebook: text and bars have the colour of the text
around them, rules are half transparent grey, so that light and dark themes are both legible. Styles stand on the elements,
because a style sheet would hold for the whole notebook. Class names, ids and paths are escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mmdiff import text
from mmdiff.errors import MmdiffError
from mmdiff.report.html import Child, Markup, tag

if TYPE_CHECKING:
    from mmdiff.arrays import Graph
    from mmdiff.results import Evaluation, Scores, Summary
    from mmdiff.store_reading import StoreReader

# Entries of a long list, rows of scores and classes of a row that are shown.
_ENTRIES, _SCORED_ROWS, _BEST = 20, 5, 3
# Characters of a value, and of the name of a class among scores.
_LONGEST, _LONGEST_CLASS = 500, 36
# Columns of a table that a dict of dicts becomes; with more they stand one below the other.
_COLUMNS = 8

_RULE = "1px solid rgba(128,128,128,.4)"
_CELL = "padding:.2em .9em .2em 0;vertical-align:top;white-space:normal;background:none;border:0;"
_BAR_WIDTH = 80

# Figures in summaries that are numbers of bytes, and seconds.
_BYTES = {"bytes", "memory", "memory_limit", "peak_memory", "scratch", "artifact", "disk_free", "read", "on_disk"}
_SECONDS = {"seconds"}
# Whole numbers that are names and not counts.
_NAMES = {"id", "row"}


def store_html(store: StoreReader) -> str:
    """The artifacts of a store: content, size, and whether they are up to date."""
    place = str(store._place)
    try:
        found = store.inspect() if store._exists else {"artifacts": [], "unnamed": []}
    except MmdiffError as error:
        return _block("Store", place, tag("div", str(error)))
    lines = found["artifacts"]
    if not lines:
        return _block("Store", place, tag("div", "no artifacts yet"))
    rows = [
        [tag("b", line["artifact"]), line["what"], text.size(line["bytes"]), _moment(line["made"]), _staleness(line["stale"])]
        for line in lines
    ]
    shown = _table(("artifact", "content", "on disk", "made", "up to date"), rows, numbers={2})
    unused = sum(item["bytes"] for item in found["unnamed"])
    total = text.size(sum(line["bytes"] for line in lines))
    left = f"; {text.size(unused)} without a name, which store.gc() removes" if found["unnamed"] else ""
    return _block("Store", place, shown, _note(f"{text.count(len(lines), 'artifact')}, {total}{left}"))


def graph_html(graph: Graph) -> str:
    """Nodes, edges, weights and size of a graph."""
    own = graph.internal
    arrays: list[Any] = [own.indptr, own.indices, own.scale, own.weights, own.order]
    facts = [
        ["nodes", f"{graph.nodes:,}"],
        ["edges", f"{graph.edges:,}"],
        ["edges of a node, on average", f"{graph.edges / max(1, graph.nodes):.1f}"],
        ["weights", "1 or 2, none stored" if own.weights is None else str(own.weights.dtype)],
        ["arrays", text.size(sum(array.nbytes for array in arrays if array is not None))],
    ]
    return _block("Graph", "W = D⁻¹ (W₀ + W₀ᵀ)", _table(None, facts))


def scores_html(scores: Scores) -> str:
    """The first rows of scores, with the classes that do best."""
    name = "" if scores._artifact is None else scores._artifact.name
    kept = f", iterations kept: {', '.join(map(str, scores.iterations))}" if scores.iterations else ""
    about = f"{text.count(len(scores), 'row')}, {text.count(len(scores.classes), 'class', 'classes')}{kept}"
    block = np.asarray(scores.scores[:_SCORED_ROWS])
    if not block.size:
        return _block("Scores", name, tag("div", about))
    best = np.argsort(-block, axis=1, kind="stable")[:, :_BEST]
    predicted = type(scores)(block, scores.classes, _zero_is_unreached=scores._zero_is_unreached).predict()
    rows = []
    for row, columns in enumerate(best):
        reached = predicted[row] is not None and not (isinstance(predicted[row], np.integer) and predicted[row] < 0)
        cells: list[Child] = [f"{row:,}"]
        if not reached:
            cells += [_note("no label has arrived"), *[""] * (len(columns) - 1)]
        else:
            top = float(block[row, columns[0]])
            cells += [_score(scores.classes[column], float(block[row, column]), top) for column in columns]
        rows.append(cells)
    titles = ["row", *("best class", "second", "third")[: best.shape[1]]]
    more = f"{about}; {len(scores) - len(rows):,} more rows" if len(scores) > len(rows) else about
    return _block("Scores", name, _table(titles, rows), _note(more))


def evaluation_html(evaluation: Evaluation) -> str:
    """Accuracies with their 95 % intervals, as a table with bars."""
    if "scores" not in evaluation:
        rows = [["", f"{evaluation['points']:,}", *_accuracies(evaluation)]]
        return _block("Evaluation", "", _table(["", "points", *_tops(evaluation)], rows, numbers={1}))
    rows, tops = [], dict[str, None]()
    for found in evaluation["scores"]:
        for step in found["iterations"]:
            for group, figures in step.items():
                if group == "iteration" or not figures:
                    continue
                tops |= dict.fromkeys(_tops(figures))
                iteration = "" if step["iteration"] is None else str(step["iteration"])
                rows.append([tag("b", found["artifact"]), iteration, group, *_accuracies(figures)])
    shown = _table(["scores", "iteration", "classes", *tops], rows, numbers={1})
    return _block("Evaluation", "", shown, *(_note(note) for note in evaluation.get("notes", ())))


def summary_html(summary: Summary) -> str:
    """A summary as a table, with tables in it."""
    return tag("div", _value("", summary), style="overflow-x:auto;max-width:100%")


def _values(given: dict[str, Any]) -> Child:
    """A dict as rows of names and values."""
    return _table(None, [[_title(key), _value(key, inner)] for key, inner in given.items()])


def _value(key: str, given: Any) -> Child:
    """A value of a summary: dicts and lists of dicts become tables."""
    if isinstance(given, dict) and given:
        entries = list(given.values())
        keys = {key for entry in entries if isinstance(entry, dict) for key in entry}
        if len(entries) > 1 and len(keys) <= _COLUMNS and all(isinstance(entry, dict) and entry for entry in entries):
            return _entries([{"": name, **entry} for name, entry in given.items()])
        return _values(given)
    if isinstance(given, list) and given and all(isinstance(entry, dict) for entry in given):
        return _entries(given)
    return _short(key, given)


def _entries(entries: Sequence[dict[str, Any]]) -> Child:
    """Dicts as rows of a table; the columns are their keys."""
    keys = list(dict.fromkeys(key for entry in entries for key in entry))
    rows = [[_short(key, entry.get(key, "")) for key in keys] for entry in entries[:_ENTRIES]]
    numbers = {place for place, key in enumerate(keys) if isinstance(entries[0].get(key), int | float)}
    more = len(entries) - len(rows)
    return [_table([_title(key) for key in keys], rows, numbers), _note(f"and {more:,} more") if more else None]


def _short(key: str, given: Any) -> str:
    """A value as text on one line."""
    if given is None or isinstance(given, bool):
        return {True: "yes", False: "no", None: "-"}[given]
    if isinstance(given, int | float) and key in _BYTES:
        return text.size(given)
    if isinstance(given, int | float) and key in _SECONDS:
        return text.duration(given) if given >= 1 else f"{given * 1000:.3g} ms"
    if isinstance(given, int):
        return str(given) if key in _NAMES else f"{given:,}"
    if isinstance(given, float):
        return f"{given:.4g}"
    if isinstance(given, dict):
        return ", ".join(f"{_title(name)} {_short(name, inner)}" for name, inner in given.items()) or "-"
    if isinstance(given, list | tuple):
        between = "; " if given and isinstance(given[0], dict) else ", "
        shown = between.join(_short("", inner) for inner in given[:_ENTRIES]) or "-"
        return shown if len(given) <= _ENTRIES else f"{shown} and {len(given) - _ENTRIES:,} more"
    return _shortened(given) or "-"


def _score(class_: Any, score: float, best: float) -> Child:
    share = max(0.0, min(1.0, score / best)) if best > 0 else 0.0
    return [_bar(share), _note(f"{score:.3g}", "span"), f" {_shortened(class_, _LONGEST_CLASS)}"]


def _tops(figures: dict[str, Any]) -> list[str]:
    return [f"top-{name[3:]}" for name in figures if name.startswith("top")]


def _accuracies(figures: dict[str, Any]) -> list[Child]:
    return [
        [
            _bar(found["accuracy"]),
            f"{100 * found['accuracy']:.1f} % ",
            _note(f"{100 * found['low']:.1f} to {100 * found['high']:.1f}", "span"),
        ]
        for name, found in figures.items()
        if name.startswith("top")
    ]


def _bar(share: float) -> Markup:
    """A bar of a share of the full width, on a track."""
    filled = f"display:block;height:100%;width:{100 * share:.0f}%;background:currentColor;opacity:.6;border-radius:2px"
    track = f"display:inline-block;height:.55em;width:{_BAR_WIDTH}px;background:rgba(128,128,128,.25);border-radius:2px"
    return tag("span", tag("span", style=filled), style=f"{track};margin-right:.6em")


def _block(kind: str, name: str, *content: Child) -> str:
    head = tag("div", tag("b", kind), " ", tag("code", name) if name else None, style="margin-bottom:.3em")
    return tag("div", head, *content, style="overflow-x:auto;max-width:100%")


def _table(
    head: Sequence[Child] | None, rows: Iterable[Sequence[Child]], numbers: set[int] | frozenset[int] = frozenset()
) -> Markup:
    def row(cells: Sequence[Child], element: str, style: str) -> Markup:
        return tag(
            "tr",
            [
                tag(element, cell, style=f"{_CELL}text-align:{'right' if place in numbers else 'left'};{style}")
                for place, cell in enumerate(cells)
            ],
            style="background:none",
        )

    titles = None if head is None else tag("thead", row(head, "th", f"border-bottom:{_RULE};font-weight:normal;opacity:.75"))
    body = tag("tbody", [row(cells, "td", "") for cells in rows])
    return tag("table", titles, body, style="border-collapse:collapse;border:0;margin:0")


def _note(content: str, element: str = "div") -> Markup:
    return tag(element, content, style="opacity:.75")


def _staleness(reasons: list[str]) -> str:
    return f"no: {'; '.join(reasons)}" if reasons else "yes"


def _moment(iso: str) -> str:
    return iso[:16].replace("T", " ")


def _title(key: object) -> str:
    return str(key).replace("_", " ")


def _shortened(given: object, most: int = _LONGEST) -> str:
    title = text.printable(given)
    return title if len(title) <= most else f"{title[: most - 1].rstrip(' ,')}…"

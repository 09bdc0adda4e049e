"""Runs the cells of example.ipynb and writes their outputs into it, without Jupyter. A part of `make docs`.

.venv/bin/python docs/example_notebook.py

Edit the cells in the notebook itself. Outputs that differ in nothing but moments and folders stay as they are.
"""

from __future__ import annotations

import ast
import io
import json
import math
import os
import re
import shutil
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
NOTEBOOK = DOCS / "example.ipynb"
Json = dict[str, Any]

_PASSING = (
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d"), "MOMENT"),
    (re.compile(r"/[\w./-]*?/(?=animals\b)"), "FOLDER/"),
    (re.compile(r"-[0-9a-f]{24}\b"), "-OBJECT"),
)
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")


def executed(notebook: Json, folder: Path = DOCS) -> Json:
    """The notebook with the outputs of its cells, which run one after the other in `folder`."""
    names: Json = {"__name__": "__main__"}
    before = Path.cwd()
    os.chdir(folder)
    try:
        cells, count = [], 0
        for cell in notebook["cells"]:
            ran = {}
            if cell["cell_type"] == "code":
                count += 1
                ran = {"execution_count": count, "outputs": _run("".join(cell["source"]), names, count)}
            cells.append({**cell, **ran})
    finally:
        os.chdir(before)
        shutil.rmtree(names.get("folder", ""), ignore_errors=True)
    return {**notebook, "cells": cells}


def _run(source: str, names: Json, count: int) -> list[Json]:
    """The output of a cell: the text that it prints, and its value if it ends in an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    outputs: list[Json] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())})
    if value is not None:
        shown = {"text/plain": _lines(repr(value))}
        if hasattr(value, "_repr_html_"):
            shown = {"text/html": _lines(value._repr_html_()), **shown}
        outputs.append({"data": shown, "execution_count": count, "metadata": {}, "output_type": "execute_result"})
    return outputs


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def is_current(known: Json, found: Json) -> bool:
    """Whether two runs show the same, apart from moments and folders; figures may differ a little between processors."""
    one, other = _without_passing(known), _without_passing(found)
    if _NUMBER.sub("", one) != _NUMBER.sub("", other):
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(mine == yours or _near(mine, yours) for mine, yours in pairs)


def _near(one: str, other: str) -> bool:
    mine, yours = (float(text.replace(",", "")) for text in (one, other))
    # Whole numbers are counts, or widths of bars in percent.
    return math.isclose(mine, yours, rel_tol=0.05) or ("." not in one + other and abs(mine - yours) <= 2)


def _without_passing(notebook: Json) -> str:
    text = written(notebook)
    for pattern, name in _PASSING:
        text = pattern.sub(name, text)
    return text


def written(notebook: Json) -> str:
    """The notebook as its file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def refresh() -> None:
    """Brings the outputs of the notebook up to date."""
    known = json.loads(NOTEBOOK.read_text())
    found = executed(known)
    if not is_current(known, found):
        NOTEBOOK.write_text(written(found))


if __name__ == "__main__":
    refresh()

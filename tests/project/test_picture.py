"""Pictures: every row of the table in `docs/inspect.svg` is one line, and `docs/spreading.svg` shows what mmdiff computes."""

from __future__ import annotations

import importlib.util
import re
from collections import defaultdict
from types import ModuleType
from xml.etree import ElementTree

import pytest

from tests.support.paths import DOCS

SVG = "{http://www.w3.org/2000/svg}"
HEAD = ["artifact", "content"]

Lines = list[list[tuple[float, str]]]


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lines_of(svg: str) -> Lines:
    """The lines of the terminal from top to bottom: the texts of each, with their x."""
    found: dict[float, list[tuple[float, str]]] = defaultdict(list)
    for text in ElementTree.fromstring(svg).iter(f"{SVG}text"):
        if text.get("clip-path") is not None and text.text is not None and text.text.strip():
            found[float(text.attrib["y"])].append((float(text.attrib["x"]), text.text.strip()))
    return [sorted(found[y]) for y in sorted(found)]


def table_of(lines: Lines) -> Lines:
    """The head of the table of `mmdiff inspect`, and all lines below it up to the next command."""
    first = next(place for place, line in enumerate(lines) if [text for _, text in line[:2]] == HEAD)
    last = next(place for place in range(first, len(lines)) if lines[place][0][1].startswith("$"))
    return lines[first:last]


def check_table(svg: str) -> None:
    head, *rows = table_of(lines_of(svg))
    columns = [x for x, _ in head]
    assert len(rows) >= 5
    for row in rows:
        name, *cells = row
        assert re.match(r"[├└]\s\w+/\w+$", name[1]), f"a line without an artifact: {row}"
        # One cell below each title: on the same line, not split, and where the column begins.
        assert [x for x, _ in cells] == pytest.approx(columns[1:]), f"cells of {name[1]} are not in their columns"


def test_every_row_of_the_table_is_one_line() -> None:
    check_table((DOCS / "inspect.svg").read_text())


def test_the_picture_is_not_wider_than_it_can_be_read() -> None:
    lines = lines_of((DOCS / "inspect.svg").read_text())
    assert max(x for line in lines for x, _ in line) < 135 * 12.2


def test_a_new_picture_is_not_torn_either(generate: ModuleType) -> None:
    check_table(generate.picture())


def test_the_picture_of_the_readme_shows_what_mmdiff_computes(generate: ModuleType) -> None:
    module = generate.beside("spreading_picture")
    found = module.spread()
    assert (found.labels >= 0).sum() == module.LABELS
    assert 0.3 < found.reached(module.SOME) < 0.7
    assert found.reached(module.MANY) == found.right(module.MANY) == 1
    assert (DOCS / "spreading.svg").read_text() == module.picture(found), "run `make docs`"

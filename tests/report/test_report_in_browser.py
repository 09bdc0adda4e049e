"""The HTML report in a real browser: it fits a phone and a laptop, logs no errors, and has a dark scheme."""

from __future__ import annotations

import json
import re
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from mmdiff.formats.store.store import Store
from mmdiff.report.stage import Request, write_report
from tests.support.browser import CHROMIUM, WHY_NOT, visit
from tests.support.experiments import publish_experiment
from tests.support.worlds import make_world

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)

# Opens all details, measures the page, and appends the result to it.
MEASURE = """<script>
for (const folded of document.querySelectorAll("details")) folded.open = true;
const wide = [...document.querySelectorAll("body *")].filter(
  (element) => !element.closest(".scroll, svg, .skip") && element.getBoundingClientRect().right > innerWidth + 0.5);
const texts = [...document.querySelectorAll("svg text")].map((element) => element.getBoundingClientRect());
const drawings = [...document.querySelectorAll("svg")].map((element) => element.parentElement.getBoundingClientRect());
const found = {
  window: innerWidth,
  content: document.documentElement.scrollWidth,
  wide: wide.map((element) => element.outerHTML.slice(0, 80)),
  outside: texts.filter((text) => !drawings.some((d) =>
    d.left <= text.left && text.right <= d.right && d.top <= text.top && text.bottom <= d.bottom)).length,
  smallest: Math.min(...[...document.querySelectorAll("svg")].map((svg) =>
    parseFloat(getComputedStyle(svg.querySelector("text")).fontSize) * svg.getBoundingClientRect().width / 380)),
  background: getComputedStyle(document.body).backgroundColor,
  pictures: [...document.images].filter((image) => image.complete && image.naturalWidth > 0).length,
  images: document.images.length,
};
const result = document.createElement("pre");
result.id = "measured";
result.textContent = JSON.stringify(found);
document.body.append(result);
</script>"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with everything in it."""
    world = make_world(tmp_path_factory.mktemp("world"))
    publish_experiment(world / "store", "table-3")
    file = world / "report.html"
    write_report(Store.open(world / "store"), file, Request("owl", str(world / "images")))
    return file


# A headless window cannot be as narrow as a phone, but a frame in it can.
FRAME = """<!doctype html><meta charset="utf-8"><title>frame</title><style>body {{ margin: 0 }} iframe {{ border: 0 }}</style>
<iframe width="{width}" height="2000" srcdoc="{page}"></iframe>
<script>
onload = () => {{
  const result = document.createElement("pre");
  result.id = "measured";
  result.textContent = document.querySelector("iframe").contentDocument.getElementById("measured").textContent;
  document.body.append(result);
}};
</script>"""


def measured(report: Path, folder: Path, width: int, dark: bool) -> dict[str, Any]:
    """Measures a copy of the page with a script that its policy would forbid."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*/>', "", report.read_text())
    text = text.replace("</body>", f"{MEASURE}</body>").replace('loading="lazy"', "")
    page = folder / "frame.html"
    page.write_text(FRAME.format(width=width, page=escape(text)))
    seen = visit(page, folder, 1500, dark)
    assert seen.console == []
    found = re.search(r'<pre id="measured">(.*?)</pre>', seen.dom, re.DOTALL)
    assert found is not None
    return dict(json.loads(unescape(found[1])))


@pytest.mark.parametrize(("width", "dark"), [(390, False), (1440, True)])
def test_page_fits_its_window(report: Path, tmp_path: Path, width: int, dark: bool) -> None:
    found = measured(report, tmp_path, width, dark)
    assert found["window"] == width
    assert found["content"] <= width
    assert found["wide"] == []
    assert found["outside"] == 0
    assert found["smallest"] >= 9
    assert found["images"] == found["pictures"] > 0
    assert found["background"] == ("rgb(19, 22, 25)" if dark else "rgb(251, 250, 247)")


def test_unchanged_page_logs_nothing_to_the_console(report: Path, tmp_path: Path) -> None:
    seen = visit(report, tmp_path, 1440)
    assert seen.console == []
    assert "</html>" in seen.dom


def test_console_errors_are_seen(tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text("<!doctype html><title>x</title><script>nothing.at.all()</script>")
    assert any("nothing is not defined" in line for line in visit(page, tmp_path, 390).console)

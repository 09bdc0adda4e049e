"""The page as it is seen: contrast in both schemes, narrow windows, keys and roles, and lists of ten thousand suggestions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import mmdiff
from tests.support.browser import CHROMIUM, WHY_NOT
from tests.support.devtools import Browser, Page
from tests.support.served import Served, serve

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)

ROWS, CLASSES = 12_000, 6
VIEWS = ("#/label", "#/rows", "#/row/17", "#/artifacts", "#/artifact/graph/W?array=indptr")
SHOWN = {
    "#/label": "document.querySelectorAll('#grid .card .face').length > 5",
    "#/rows": "document.querySelector('#results a')",
    "#/row/17": "document.querySelector('#row-path:not([aria-busy]) .path')",
    "#/artifacts": "document.querySelector('#tree a')",
    "#/artifact/graph/W?array=indptr": "document.querySelector('.values td') && document.querySelectorAll('.chart').length > 1",
}
TWO_FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
CELLS = "document.querySelectorAll('#grid .card').length"
FOCUSED = "document.activeElement.querySelector('.open').getAttribute('href')"

# The texts that do not stand out from what is painted behind them: a ratio below 4.5, or 3 where they are large (WCAG 2.2, AA).
FAINT = """(() => {
  const parse = (text) => { const n = text.match(/[\\d.]+/g).map(Number); return {rgb: n.slice(0, 3), a: n[3] ?? 1}; };
  const light = (rgb) => rgb.map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const over = (top, a, below) => top.map((c, i) => a * c + (1 - a) * below[i]);
  const behind = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) {
      const color = parse(getComputedStyle(e).backgroundColor);
      if (color.a) layers.push(color);
      if (color.a === 1) break;
    }
    return layers.reverse().reduce((below, layer) => over(layer.rgb, layer.a, below), [255, 255, 255]);
  };
  const faint = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !element.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
    if (element.closest(".unseen, noscript, select, title")) continue;
    const style = getComputedStyle(element);
    let opacity = 1;
    for (let e = element; e; e = e.parentElement) opacity *= Number(getComputedStyle(e).opacity);
    const below = behind(element);
    const ink = parse(element instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [light(over(ink.rgb, ink.a * opacity, below)), light(below)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize);
    const least = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    seen += 1;
    if (ratio < least) faint.push(`${ratio.toFixed(2)}: ${element.outerHTML.slice(0, 100)}`);
  }
  return {seen, faint: [...new Set(faint)]};
})()"""

# What reaches beyond the window, other than what scrolls by itself.
WIDE = """[document.documentElement.scrollWidth, ...[...document.querySelectorAll('body *')].filter((element) =>
  element.checkVisibility() && !element.closest('.scroll, .chips, .skip, svg')
    && element.getBoundingClientRect().right > innerWidth + 0.5)
  .map((element) => element.outerHTML.slice(0, 80))]"""

# Controls and pictures without a name that can be read aloud.
UNNAMED = """[...document.querySelectorAll(
    'button, input, select, a, img, [role=img], [role=grid], [role=gridcell], [role=region]')]
  .filter((element) => element.checkVisibility() && !(
    element.getAttribute('aria-label') || element.getAttribute('aria-labelledby') || element.textContent.trim()
    || element.labels?.length || (element.tagName === 'IMG' && element.getAttribute('alt') !== null)))
  .map((element) => element.outerHTML.slice(0, 80))"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Many rows with a few labels, ids and no pictures."""
    random = np.random.default_rng(0)
    classes = random.integers(0, CLASSES, ROWS)
    vectors = (random.normal(size=(ROWS, 16)) + 3 * np.eye(16)[classes]).astype(np.float32)
    folder: Path = tmp_path_factory.mktemp("many")
    store = mmdiff.open(folder / "store", create=True)
    labels = [f"class {classes[row]}" if row < 60 else None for row in range(ROWS)]
    store.add(vectors, ids=[f"row-{row:05d}" for row in range(ROWS)], labels=labels)
    store.build_graph(k=5, recall=0.8)
    with serve(folder / "store") as running:
        running.wait(lambda status: status["state"] == "idle" and status["accuracy"] is not None)
        yield running


@pytest.fixture(scope="module")
def page(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        opened = browser.open(served.address)
        opened.wait(SHOWN["#/label"])
        yield opened
        assert opened.console == []


def show(page: Page, view: str) -> None:
    page.evaluate(f"location.hash = '{view}'")
    page.wait(SHOWN[view])


def start_over(page: Page, dark: bool = False) -> None:
    """Reloads the page without a selection."""
    page.look(1440, 900, dark)
    page.evaluate("sessionStorage.clear(); location.hash = '#/label'")
    page.reload()
    page.wait(SHOWN["#/label"])


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_texts_stand_out_from_what_is_behind_them(page: Page, dark: bool) -> None:
    start_over(page, dark)
    for view in VIEWS:
        show(page, view)
        if view == "#/label":
            page.evaluate("document.querySelector('.card').focus()")
            page.press(" ")
            page.press("ArrowRight")
            page.press("Delete")
            page.wait("document.querySelector('[data-state=skipped]')")
            page.press(" ")
            page.type("cl")
        found = page.evaluate(FAINT)
        assert found["faint"] == [], view
        assert found["seen"] > 10, view
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(19, 22, 25)" if dark else "rgb(251, 250, 247)")


@pytest.mark.parametrize("width", [390, 820, 1920])
def test_page_fits_its_window(page: Page, width: int) -> None:
    page.look(width, 844)
    for view in VIEWS:
        show(page, view)
        assert page.evaluate(WIDE) == [width], view
        assert page.evaluate(UNNAMED) == [], view


def test_ten_thousand_suggestions_are_never_more_than_a_page_of_elements(page: Page) -> None:
    start_over(page)
    page.evaluate("document.querySelector('.card').focus()")
    first = page.evaluate(FOCUSED)
    # The list becomes longer where its end is reached.
    page.press("End")
    page.wait("document.getElementById('listed').textContent.startsWith('10,000 suggestions')")
    page.press("Home")
    for key in ("PageDown", "ArrowDown", "End"):
        page.press(key)
        page.wait("document.activeElement.querySelector('.face')")
        assert page.evaluate(CELLS) <= 80
    assert page.evaluate("document.activeElement.ariaColIndex !== null && document.activeElement.index") == 9_999
    assert page.evaluate(FOCUSED) != first
    # Scrolling as fast as a wheel can, without losing the card that has the focus.
    height = page.evaluate("document.documentElement.scrollHeight")
    for step in range(10, 0, -1):
        page.evaluate(f"scrollTo(0, {height * step // 10}); {TWO_FRAMES}")
        assert 0 < page.evaluate(CELLS) <= 100
    page.wait("[...document.querySelectorAll('#grid .card')].filter((card) => card.dataset.state !== 'empty').length > 20")
    assert page.evaluate("document.activeElement.index") == 9_999
    page.press("Home")
    assert page.evaluate(FOCUSED) == first


def test_page_is_used_without_a_mouse(page: Page) -> None:
    start_over(page)
    reached: list[str] = []
    for _ in range(20):
        page.press("Tab")
        reached.append(
            page.evaluate(
                "document.activeElement.id || document.activeElement.getAttribute('role') || document.activeElement.textContent"
            )
        )
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
        if reached[-1] == "gridcell":
            break
    assert {"Label", "Rows", "Artifacts", "combobox", "accept", "skip", "undo", "gridcell"} <= set(reached)
    page.press("?")
    page.wait("document.getElementById('help').open")
    page.press("Escape")
    page.wait("!document.getElementById('help').open")
    page.press("Enter", shift=True)
    page.wait("location.hash.startsWith('#/row/') && document.querySelector('#row h1')")

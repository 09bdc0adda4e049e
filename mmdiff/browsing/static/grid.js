// A grid of any number of cards, of which only those near the window are in the page.
//
// It scrolls with the page. Cells carry the roles of an ARIA grid, one of them can be focused at a time, and the one that is
// focused stays in the page wherever it is scrolled to, so that the keyboard does not lose its place.

import { h } from "./dom.js";

const BEYOND = 2;

export class Grid {
  total = 0;
  focused = 0;
  columns = 1;
  #lines = new Map();
  #asked = false;

  /**
   * `draw(cell, index)` fills a cell and sets its state; `need(first, last)` is told which cells are shown.
   * `clear()` says how many pixels at the top and at the bottom of the window are under bars.
   * Sizes are the custom properties --card-width, --card-height and --gap of the element, in rem.
   */
  constructor(element, { draw, need, clear }) {
    Object.assign(this, { element, draw, need, clear });
    new ResizeObserver(() => this.update()).observe(element);
    addEventListener("scroll", () => this.update(), { passive: true });
    addEventListener("resize", () => this.update());
  }

  setTotal(total) {
    this.total = total;
    this.focused = Math.max(0, Math.min(this.focused, total - 1));
    this.update();
  }

  /** Draws at the next frame. */
  update() {
    if (this.#asked) return;
    this.#asked = true;
    requestAnimationFrame(() => {
      this.#asked = false;
      this.#render();
    });
  }

  #measure() {
    const style = getComputedStyle(this.element);
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const size = (name) => parseFloat(style.getPropertyValue(name)) * rem;
    const gap = size("--gap");
    this.columns = Math.max(1, Math.floor((this.element.clientWidth + gap) / (size("--card-width") + gap)));
    this.line = size("--card-height") + gap;
    this.element.style.setProperty("--columns", String(this.columns));
  }

  /** The first and last line near the window. */
  #window() {
    const top = this.element.getBoundingClientRect().top;
    const lines = Math.ceil(this.total / this.columns);
    const first = Math.max(0, Math.floor(-top / this.line) - BEYOND);
    return [Math.min(first, lines), Math.min(lines, Math.ceil((innerHeight - top) / this.line) + BEYOND)];
  }

  /** The first and last index whose cards are whole in the window. */
  inWindow() {
    const top = this.element.getBoundingClientRect().top;
    const [above, below] = this.clear();
    const first = Math.max(0, Math.ceil((above - top) / this.line));
    const end = Math.max(first + 1, Math.floor((innerHeight - below - top) / this.line));
    return [first * this.columns, Math.min(this.total, end * this.columns) - 1];
  }

  #render() {
    if (!this.element.checkVisibility()) return;
    this.#measure();
    const lines = Math.ceil(this.total / this.columns);
    this.element.style.setProperty("height", `${lines * this.line}px`);
    this.element.setAttribute("aria-rowcount", String(lines));
    this.element.setAttribute("aria-colcount", String(this.columns));
    const [first, end] = this.#window();
    const kept = this.element.contains(document.activeElement) ? Math.floor(this.focused / this.columns) : null;
    for (const [number, line] of this.#lines) {
      if ((number < first || number >= end) && number !== kept) {
        line.remove();
        this.#lines.delete(number);
      }
    }
    const wanted = Array.from({ length: end - first }, (_, i) => first + i);
    if (kept !== null && kept < lines && !wanted.includes(kept)) wanted.push(kept);
    for (const number of wanted) this.#line(number);
    if (end > first) this.need(first * this.columns, Math.min(this.total, end * this.columns) - 1);
  }

  #line(number) {
    let line = this.#lines.get(number);
    if (!line) {
      line = h("div", { role: "row", class: "line", "aria-rowindex": number + 1 });
      this.#lines.set(number, line);
      // Lines follow each other in the document as they do on the page.
      const next = [...this.#lines.keys()].filter((other) => other > number).sort((a, b) => a - b)[0];
      this.element.insertBefore(line, next === undefined ? null : this.#lines.get(next));
    }
    line.style.setProperty("transform", `translateY(${number * this.line}px)`);
    const size = Math.min(this.columns, this.total - number * this.columns);
    while (line.children.length > size) line.lastChild.remove();
    while (line.children.length < size) line.append(h("div", { role: "gridcell", class: "card" }));
    for (const [column, cell] of [...line.children].entries()) {
      const index = number * this.columns + column;
      cell.index = index;
      cell.setAttribute("aria-colindex", String(column + 1));
      cell.tabIndex = index === this.focused ? 0 : -1;
      this.draw(cell, index);
    }
  }

  cell(index) {
    return this.#lines.get(Math.floor(index / this.columns))?.children[index % this.columns] ?? null;
  }

  /** Makes a cell the one that the tabulator key leads to; scrolls there and focuses it if asked to. */
  focus(index, take = true) {
    if (!this.total) return;
    this.focused = Math.max(0, Math.min(index, this.total - 1));
    if (take) {
      this.scrollTo(this.focused);
      this.#render();
      this.cell(this.focused)?.focus({ preventScroll: true });
    }
    this.update();
  }

  /** Scrolls the page as little as possible until the cell is between the bars at the top and the bottom. */
  scrollTo(index) {
    const [above, below] = this.clear();
    const top = this.element.getBoundingClientRect().top + Math.floor(index / this.columns) * this.line;
    const bottom = top + this.line;
    if (top < above) scrollBy({ top: top - above, behavior: "instant" });
    else if (bottom > innerHeight - below) scrollBy({ top: bottom - innerHeight + below, behavior: "instant" });
  }

  /** The index that a key leads to, or null if it is not one that moves. */
  target(key) {
    const page = Math.max(1, Math.floor(innerHeight / this.line) - 1) * this.columns;
    const steps = {
      ...{ ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns },
      ...{ PageUp: -page, PageDown: page, Home: -this.focused, End: this.total - 1 - this.focused },
    };
    if (!(key in steps)) return null;
    const to = this.focused + steps[key];
    if (key === "ArrowUp" && to < 0) return this.focused;
    return Math.max(0, Math.min(to, this.total - 1));
  }
}

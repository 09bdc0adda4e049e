// Small drawings: a histogram with axes, a line of history, a bar of confidence.

import { h, svg } from "./dom.js";
import { count, figure, share } from "./format.js";

const WIDTH = 520, HEIGHT = 190, LEFT = 52, BOTTOM = 26, TOP = 10, RIGHT = 12;

/** A histogram, and its values as a table for those who want to read or hear them. */
export function histogram({ edges, counts, sampled }, title, unit) {
  const most = Math.max(1, ...counts);
  const [low, high] = [edges[0], edges.at(-1)];
  const x = (value) => LEFT + ((value - low) / (high - low || 1)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - (value / most) * (HEIGHT - BOTTOM - TOP);
  const bars = counts.map((n, i) => {
    const [from, to] = [x(edges[i]), x(edges[i + 1])];
    const gap = to - from > 3 ? 1 : 0;
    return svg(
      "rect",
      { class: "column", x: from, width: Math.max(0.5, to - from - gap), y: y(n), height: HEIGHT - BOTTOM - y(n) },
      svg("title", {}, `${figure(edges[i])} to ${figure(edges[i + 1])}: ${count(n)}`),
    );
  });
  const ticks = steps(most, 3).map((value) => [
    svg("line", { class: "rule", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
    svg("text", { class: "tick", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, short(value)),
  ]);
  const along = [low, low + (high - low) / 2, high].map((value, i) =>
    svg("text", { class: "tick", x: x(value), y: HEIGHT - 8, "text-anchor": ["start", "middle", "end"][i] }, figure(Number(value.toPrecision(4)))),
  );
  const total = counts.reduce((sum, n) => sum + n, 0);
  return h(
    "figure",
    { class: "chart" },
    h("div", { class: "chart-title" }, title),
    svg(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}: ${count(total)} ${unit} from ${figure(low)} to ${figure(high)}` },
      ticks,
      bars,
      along,
    ),
    h("figcaption", {}, sampled ? `${count(total)} ${unit}, a sample of ${count(sampled)}.` : `${count(total)} ${unit}.`),
    h(
      "details",
      {},
      h("summary", {}, "Values"),
      h(
        "div",
        { class: "scroll", tabindex: "0", role: "region", "aria-label": `Values of ${title}` },
        h(
          "table",
          {},
          h("thead", {}, h("tr", {}, ["from", "to", unit].map((name) => h("th", { scope: "col", class: "number" }, name)))),
          h(
            "tbody",
            {},
            counts.map((n, i) => h("tr", {}, [figure(edges[i]), figure(edges[i + 1]), count(n)].map((text) => h("td", { class: "number" }, text)))),
          ),
        ),
      ),
    ),
  );
}

/** Round steps from zero up to a largest value. */
function steps(most, wanted) {
  const rough = most / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 5, 10].map((n) => n * power).find((size) => size >= rough));
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, i) => i * step);
}

const short = (n) => new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(n);

/** Shares over time, in the order of points; the last one has a dot. */
export function sparkline(values, name) {
  const known = values.filter((value) => value !== null && value !== undefined);
  if (known.length < 2) return null;
  const [width, height] = [72, 22];
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const at = known.map((value, i) => [2 + (i / (known.length - 1)) * (width - 6), 3 + (1 - (value - low) / (high - low || 1)) * (height - 6)]);
  const [x, y] = at.at(-1);
  return svg(
    "svg",
    { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${name}: ${share(known[0])} to ${share(known.at(-1))}` },
    svg("polyline", { points: at.map((point) => point.map((n) => n.toFixed(1)).join(",")).join(" ") }),
    svg("circle", { cx: x, cy: y, r: 2.2 }),
  );
}

/** A share as a bar; its value is said in words next to it. */
export const meter = (value) => h("span", { class: "meter", "aria-hidden": "true", style: { "--value": String(value ?? 0) } });

// The view of artifacts: the tree of the store, and one artifact with where it is from, its facts, arrays and histograms.

import { histogram } from "./charts.js";
import { $, h, put } from "./dom.js";
import { age, bytes, count, duration, figure, moment, shape, value } from "./format.js";
import { Gone, Refused, server } from "./server.js";

const PAGE = 50;
// Histograms that say something about an artifact as a whole; those of other arrays are drawn with their rows.
const UNITS = { degrees: "nodes", similarities: "entries" };

let at = null; // the name of the artifact that is shown
let array = null; // {name, start} of the page of rows
let opened = 0; // counts artifacts, so that a late answer for another one is dropped

export function start() {
  server.addEventListener("changed", () => $("artifacts").hidden || tree());
  server.addEventListener("connection", () => server.connection === "here" && !$("artifacts").hidden && tree());
}

export function show({ name, parameters }) {
  $("artifacts").dataset.some = String(Boolean(name));
  const wanted = parameters.get("array");
  const next = wanted ? { name: wanted, start: Number(parameters.get("start") ?? 0) } : null;
  const same = name === at && $("values");
  [at, array] = [name ?? null, next];
  tree();
  if (!at) put($("artifact"), h("p", { class: "empty" }, "Choose an artifact."));
  else if (same) values();
  else {
    scrollTo({ top: 0, behavior: "instant" });
    load();
  }
}

const address = (name, parameters = {}) => {
  const query = new URLSearchParams(parameters);
  return `#/artifact/${name.split("/").map(encodeURIComponent).join("/")}${query.size ? `?${query}` : ""}`;
};

/** What the server answers, or null where it does not; a refusal is shown in the element. */
async function ask(element, path, parameters) {
  try {
    return await server.get(path, parameters);
  } catch (error) {
    if (error instanceof Refused) put(element, h("p", { class: "note" }, error.message));
    else if (!(error instanceof Gone)) throw error;
    return null;
  }
}

async function tree() {
  const answer = await ask($("tree"), "artifacts", {});
  if (!answer) return;
  const folders = Map.groupBy(answer.artifacts, ({ name }) => (name.includes("/") ? name.slice(0, name.indexOf("/")) : ""));
  const most = Math.max(1, ...answer.artifacts.map((artifact) => artifact.bytes));
  const total = answer.artifacts.reduce((sum, artifact) => sum + artifact.bytes, 0);
  const focus = document.activeElement?.getAttribute("href");
  put(
    $("tree"),
    h("p", { class: "soft" }, `${count(answer.artifacts.length)} artifacts, ${bytes(total)}`),
    ...[...folders].map(([folder, artifacts]) =>
      h("section", { class: "folder" }, h("h2", {}, folder || "store"), h("ul", { class: "results" }, artifacts.map((artifact) => leaf(artifact, folder, most)))),
    ),
  );
  if (focus?.startsWith("#/artifact/")) $("tree").querySelector(`a[href="${CSS.escape(focus)}"]`)?.focus({ preventScroll: true });
}

function leaf({ name, bytes: size, age: seconds, stale, summary }, folder, most) {
  return h(
    "li",
    {},
    h(
      "a",
      { href: address(name), "aria-current": name === at ? "true" : null },
      h("span", { class: "id" }, folder ? name.slice(folder.length + 1) : name),
      h("span", { class: "what" }, bytes(size), ", ", age(seconds)),
      summary ? h("span", { class: "summary" }, summary) : null,
      stale ? h("span", { class: "stale" }, stale) : null,
      h("span", { class: "meter", "aria-hidden": "true", style: { "--value": size / most } }),
    ),
  );
}

async function load() {
  const [name, mine] = [at, (opened += 1)];
  const answer = await ask($("artifact"), "artifact", { name });
  if (!answer || mine !== opened) return;
  const stale = answer.inputs.filter((input) => input.stale);
  put(
    $("artifact"),
    h("p", { class: "back" }, h("a", { href: "#/artifacts" }, "← All artifacts")),
    h("h1", { tabindex: "-1" }, answer.name),
    h("p", { class: "soft" }, `${answer.kind}, schema ${answer.schema}. Made ${moment(answer.created)} in ${duration(answer.seconds)}.`),
    answer.command ? h("pre", { class: "scroll", tabindex: "0" }, h("code", {}, answer.command)) : null,
    stale.length ? h("p", { class: "note" }, stale.map((input) => `${input.name}: ${input.stale} `)) : null,
    h("div", { id: "histograms", class: "charts" }),
    h(
      "div",
      { class: "tables" },
      facts("Facts", answer.facts),
      facts("Parameters", answer.parameters),
      answer.inputs.length ? section("Made from", h("ul", { class: "inputs" }, answer.inputs.map(input))) : null,
      facts("Software", answer.software),
    ),
    section(
      "Arrays",
      h(
        "div",
        { class: "scroll", tabindex: "0", role: "region", "aria-label": "Arrays" },
        h(
          "table",
          { class: "plain" },
          h("thead", {}, h("tr", {}, ["Name", "Type", "Shape", "Size"].map((text, i) => h("th", { scope: "col", class: i > 1 ? "number" : null }, text)))),
          h("tbody", {}, answer.arrays.map((entry) => arrayLine(name, entry))),
        ),
      ),
    ),
    h("div", { id: "values" }),
  );
  for (const what of answer.histograms) if (what in UNITS) draw(what, mine);
  values();
}

const section = (title, content) => h("section", {}, h("h2", {}, title), content);
const input = ({ name, stale }) => h("li", {}, h("a", { href: address(name) }, name), stale ? h("span", { class: "stale" }, " has changed since") : null);

function facts(title, table) {
  const entries = Object.entries(table);
  if (!entries.length) return null;
  return section(title, h("table", { class: "facts" }, h("tbody", {}, entries.map(([name, x]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, value(x)))))));
}

function arrayLine(artifact, { name, dtype, shape: sizes, bytes: size }) {
  const here = array?.name === name;
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, h("a", { href: address(artifact, { array: name }), "aria-current": here ? "true" : null }, name)),
    h("td", {}, dtype),
    h("td", { class: "number" }, shape(sizes)),
    h("td", { class: "number" }, bytes(size)),
  );
}

async function draw(what, mine) {
  const place = h("div");
  $("histograms").append(place);
  const answer = await ask(place, "histogram", { artifact: at, array: what });
  if (answer && mine === opened) put(place, histogram(answer, what.charAt(0).toUpperCase() + what.slice(1), UNITS[what]));
}

/** A page of rows of the chosen array, and its histogram. */
async function values() {
  const place = $("values");
  if (!place) return;
  for (const anchor of $("artifact").querySelectorAll("tbody th a")) {
    if (anchor.textContent === array?.name) anchor.setAttribute("aria-current", "true");
    else anchor.removeAttribute("aria-current");
  }
  if (!array) {
    put(place);
    return;
  }
  const [name, wanted, mine] = [at, array, opened];
  const answer = await ask(place, "rows", { artifact: name, array: wanted.name, start: wanted.start, count: PAGE });
  if (!answer || mine !== opened || array !== wanted) return;
  const end = answer.start + answer.rows.length;
  const step = (text, to, can) => (can ? h("a", { href: address(name, { array: wanted.name, start: Math.max(0, to) }) }, text) : h("span", { class: "soft" }, text));
  const fresh = place.dataset.array !== wanted.name;
  place.dataset.array = wanted.name;
  const chart = fresh ? h("div", { id: "array-histogram", class: "charts" }) : $("array-histogram");
  const title = h("h2", { tabindex: "-1" }, wanted.name);
  put(
    place,
    title,
    chart,
    h(
      "p",
      { class: "pages" },
      answer.rows.length ? `${count(answer.start)} to ${count(end - 1)} of ${count(answer.total)} rows` : `No rows of ${count(answer.total)}`,
      answer.truncated ? ", the first values of each" : "",
      h("span", { class: "steps" }, step("← Before", answer.start - PAGE, answer.start > 0), step("After →", end, end < answer.total)),
    ),
    h(
      "div",
      { class: "scroll values", tabindex: "0", role: "region", "aria-label": `Rows of ${wanted.name}` },
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "row"), answer.columns.map((column) => h("th", { scope: "col", class: "number" }, column)))),
        h("tbody", {}, answer.rows.map((row, i) => h("tr", {}, h("th", { scope: "row" }, count(answer.start + i)), row.map((x) => h("td", { class: "number" }, x === null ? "–" : figure(x)))))),
      ),
    ),
  );
  if (!fresh) return;
  const drawn = await ask(chart, "histogram", { artifact: name, array: wanted.name });
  if (drawn) put(chart, histogram(drawn, `Values of ${wanted.name}`, "values"));
  else if (chart.querySelector(".note")) chart.querySelector(".note").className = "soft";
}

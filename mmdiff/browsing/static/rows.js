// The view of rows: a search by id, and one row with its neighbours, path, labels and duplicates.

import { meter } from "./charts.js";
import { address, face, labels, link } from "./cards.js";
import { ClassField, classes } from "./classes.js";
import { $, h, put, say } from "./dom.js";
import { count, moment, rows as rowsOf, share, similarity } from "./format.js";
import { saving } from "./saving.js";
import { Gone, Refused, server } from "./server.js";

const PAGE = 50;
const PAUSE = 150;

let store;
let at = null; // {row, role} that is shown
let shown = null; // what the server said about it
let found = [];
let searched = null;
let search = null; // aborts the one before
let looking = null;

export function start(of) {
  store = of;
  let timer = null;
  $("query").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => look(0), PAUSE);
  });
  $("search").addEventListener("submit", async (event) => {
    event.preventDefault();
    clearTimeout(timer);
    await look(0);
    if (found.length) location.hash = address(found[0]);
  });
  $("more").addEventListener("click", () => look(found.length));
  saving.addEventListener("change", () => shown && state());
  saving.addEventListener("saved", ({ detail }) => {
    const change = shown && shown.role !== "test" && detail.changes.find(({ rows }) => rows.includes(shown.row));
    if (!change) return;
    Object.assign(shown, { given: change.labels, source: change.labels.length ? "given" : null });
    state();
    say(`Saved: ${change.labels.join(", ") || "no label"} for ${rowsOf(change.rows.length)}.`);
  });
  server.addEventListener("changed", () => !$("rows").hidden && refresh());
  server.addEventListener("connection", () => server.connection === "here" && !$("rows").hidden && refresh());
}

export function show({ row, role }) {
  if (searched === null) look(0);
  const next = row === undefined ? null : { row: Number(row), role: role ?? "" };
  $("rows").dataset.some = String(next !== null);
  const moved = next?.row !== at?.row || next?.role !== at?.role;
  at = next;
  if (at === null) {
    shown = null;
    put($("row"), h("p", { class: "empty" }, "Choose a row, or search for its id."));
  } else {
    load(moved);
    if (moved) scrollTo({ top: 0, behavior: "instant" });
  }
  mark();
}

function refresh() {
  if (at !== null) load(false);
  look(0, Math.min(100, Math.max(PAGE, found.length)));
}

// ---- Search ----

async function look(from, size = PAGE) {
  search?.abort();
  search = new AbortController();
  const { signal } = search;
  searched = $("query").value.trim();
  try {
    const answer = await server.get("search", { q: searched, start: from, count: size }, signal);
    found = from ? [...found, ...answer.rows] : answer.rows;
    const plain = searched ? `${answer.more ? "more than " : ""}${rowsOf(answer.total)} found` : "In their order";
    $("found").textContent = answer.total ? plain : `No id begins with “${searched}”.`;
    $("more").hidden = !answer.more;
    $("results").replaceChildren(...found.map(result));
    mark();
  } catch (error) {
    if (error instanceof Refused) $("found").textContent = error.message;
    else if (error instanceof Gone) searched = null;
    else if (error.name !== "AbortError") throw error;
  }
}

function result(row) {
  const what = row.given.length ? labels(row.given) : row.label === null ? null : h("span", { class: "soft" }, row.label, " ", share(row.confidence));
  return h("li", {}, h("a", { href: address(row) }, h("span", { class: "id" }, row.id), h("span", { class: "what" }, what, row.role === "test" ? " test" : null)));
}

function mark() {
  const here = at && address({ row: at.row, role: at.role });
  for (const anchor of $("results").querySelectorAll("a")) {
    if (anchor.getAttribute("href") === here) anchor.setAttribute("aria-current", "true");
    else anchor.removeAttribute("aria-current");
  }
}

// ---- One row ----

async function load(moved) {
  looking?.abort();
  looking = new AbortController();
  const { signal } = looking;
  try {
    const asked = { row: at.row, role: at.role || null };
    const row = await server.get("row", { ...asked, path: 0 }, signal);
    const input = $("row").querySelector("input");
    shown = row;
    if (!moved && input?.value) {
      // A refresh does not take away what is being typed.
      state();
      return;
    }
    const typing = input !== null && document.activeElement === input;
    const focus = $("row").contains(document.activeElement);
    draw(row);
    if (moved) say(`${row.id}. ${row.neighbours.length} neighbours.`);
    if (focus) ((!moved && typing && $("row").querySelector("input")) || $("row").querySelector("h1")).focus({ preventScroll: true });
    // The path takes longer on a large graph, so it comes by itself.
    const full = await server.get("row", asked, signal);
    put($("row-path"), path(full));
  } catch (error) {
    if (error instanceof Refused) {
      shown = null;
      put($("row"), h("p", { class: "note" }, error.message));
    } else if (!(error instanceof Gone) && error.name !== "AbortError") throw error;
  }
}

function draw(row) {
  const others = [...new Set([row.row, ...row.duplicates.filter((other) => other.role !== "test").map((other) => other.row)])];
  put(
    $("row"),
    h("p", { class: "back" }, h("a", { href: "#/rows" }, "← All rows")),
    h(
      "div",
      { class: "hero" },
      face({ ...row, id: row.id }, store),
      h(
        "div",
        { class: "facts" },
        h("h1", { tabindex: "-1" }, row.id),
        h("p", { class: "soft" }, `row ${count(row.row)}, ${role(row.role)}`),
        h("p", { id: "row-labels", class: "labels" }),
        confidence(row),
        row.role === "test" || row.role === "seeds" ? null : form(row, others),
      ),
    ),
    section("Nearest neighbours", row.neighbours.length ? h("div", { class: "minis" }, row.neighbours.map((other) => link(other, store, `similarity ${similarity(other.similarity)}`))) : "No lists of neighbours yet."),
    h("section", { id: "row-path", "aria-busy": "true" }, h("h2", {}, "Diffusion path"), h("p", { class: "soft" }, "Being computed.")),
    row.duplicates.length ? section("Near-duplicates", h("div", { class: "minis" }, row.duplicates.map((other) => link(other, store)))) : null,
    row.history.length ? section("Labels over time", history(row.history)) : null,
  );
  state();
}

const role = (name) => ({ background: "of the collection", appended: "appended to the collection", seeds: "a seed", test: "a test point" })[name] ?? name;
const section = (title, content) => h("section", {}, h("h2", {}, title), typeof content === "string" ? h("p", { class: "soft" }, content) : content);

/** The labels, and what is on its way to become them. */
function state() {
  const line = $("row-labels");
  if (!line) return;
  const writing = shown.role === "test" ? null : saving.of(shown.row);
  const known = writing?.labels ?? shown.given;
  const word = { saving: "saving", waiting: "waits for the server", failed: `not saved: ${writing?.error}` }[writing?.state];
  put(line, known.length ? labels(known) : h("span", { class: "soft" }, "No label"), word ? h("span", { class: "word" }, word) : null);
}

function confidence(row) {
  if (row.source === "given") return null;
  if (row.label === null) return h("p", { class: "soft" }, "Not predicted yet.");
  const line = (label, value) =>
    h("tr", {}, h("th", { scope: "row" }, label), h("td", { class: "number" }, share(value, 1)), h("td", {}, meter(value)));
  return h(
    "table",
    { class: "confidences" },
    h("caption", {}, "Predicted"),
    h("tbody", {}, line(row.label, row.confidence), row.second === null || row.second === undefined ? null : line(row.second, row.second_confidence)),
  );
}

function form(row, others) {
  const give = (label) => {
    const wanted = group?.checked ? others : [row.row];
    saving.label([{ rows: wanted, labels: label === null ? [] : [label] }]);
    if (label !== null) classes.use(label);
    return true;
  };
  const field = new ClassField({ label: `Class for ${row.id}`, choose: give, likely: () => (row.label === null ? [] : [row.label]) });
  const group = others.length > 1 ? h("input", { type: "checkbox", checked: true }) : null;
  return h(
    "div",
    { class: "give" },
    field.element,
    row.source === "predicted" ? h("button", { type: "button", onclick: () => give(row.label) }, "Accept prediction") : null,
    row.given.length ? h("button", { type: "button", onclick: () => give(null) }, "Remove label") : null,
    group ? h("label", { class: "check" }, group, `${count(others.length - 1)} ${others.length === 2 ? "duplicate" : "duplicates"} too`) : null,
  );
}

function path(row) {
  $("row-path").removeAttribute("aria-busy");
  if (!row.path?.length) return [h("h2", {}, "Diffusion path"), h("p", { class: "soft" }, row.path_note ?? "No label has reached this row yet.")];
  const steps = h(
    "ol",
    { class: "path" },
    row.path.map((step) =>
      h("li", {}, link(step, store), step.weight === null || step.weight === undefined ? null : h("span", { class: "weight" }, `weight ${step.weight.toPrecision(3)}`)),
    ),
  );
  return [h("h2", {}, `Diffusion path of its score for ${row.path_label}`), steps];
}

function history(changes) {
  return h(
    "table",
    { class: "plain" },
    h("thead", {}, h("tr", {}, ["Labels", "Batch", "Time", "From"].map((name) => h("th", { scope: "col" }, name)))),
    h(
      "tbody",
      {},
      changes.map((change) =>
        h(
          "tr",
          {},
          h("td", {}, change.labels.length ? labels(change.labels) : "removed"),
          h("td", {}, change.batch ?? "–"),
          h("td", {}, change.time === null ? "–" : moment(change.time)),
          h("td", {}, change.source ?? "–"),
        ),
      ),
    ),
  );
}

// The view that labels: suggestions as a grid, a selection, and what is done to it by keys and clicks.

import { face, labels as given, prediction, address } from "./cards.js";
import { ClassField, classes } from "./classes.js";
import { $, h, say, show as showIn } from "./dom.js";
import { count, rows, share } from "./format.js";
import { Grid } from "./grid.js";
import { complain } from "./progress.js";
import { saving } from "./saving.js";
import { Gone, Refused, server } from "./server.js";
import { Suggestions } from "./suggestions.js";

const LISTED = 60;
const CALM = 1500;
const MARGIN = 8;

const list = new Suggestions();
let store, grid, field;
let chosen = new Map(); // row number -> row
let skipped = new Set();
let anchor = 0; // where a selection by Shift begins
let aimed = null; // the row that typing began on, when none is selected
let touched = 0; // when something was last done in the grid
let lost = false; // a new list took the row away that the focus was on

export function start(of) {
  store = of;
  const kind = store.images ? "pictures" : store.texts ? "texts" : "ids";
  $("grid").dataset.kind = kind;
  recall();
  grid = new Grid($("grid"), { draw, need: (first, last) => list.need(first, last), clear });
  field = new ClassField({ label: "Class for the selected rows", choose: (label) => give(label), leave: () => grid.focus(grid.focused), likely });
  field.input.addEventListener("focus", bar);
  field.input.addEventListener("blur", () => {
    aimed = null;
    bar();
  });
  const apply = h("button", { type: "button", class: "primary", onclick: () => field.chosen !== null && field.input.value && give(field.chosen) && field.clear() }, "Apply");
  // The field keeps its completions until the button has read them.
  apply.addEventListener("pointerdown", (event) => event.preventDefault());
  $("entry").append(field.element, apply);
  const element = $("grid");
  element.addEventListener("click", clicked);
  element.addEventListener("keydown", pressed);
  element.addEventListener("focusin", (event) => {
    const cell = event.target.closest(".card");
    if (cell && cell.index !== grid.focused) grid.focus(cell.index, false);
    bar();
  });
  element.addEventListener("focusout", () => requestAnimationFrame(bar));
  addEventListener("keydown", anywhere);
  for (const [id, action] of Object.entries({ accept, skip, undo, renew, "keys-help": () => $("help").showModal() })) $(id).addEventListener("click", action);
  // Buttons that act on the card with the focus leave the focus there.
  for (const id of ["accept", "skip"]) $(id).addEventListener("pointerdown", (event) => event.preventDefault());
  $("by").value = list.by;
  $("by").addEventListener("change", () => {
    chosen.clear();
    list.order($("by").value);
    grid.focus(0, false);
    remember();
  });
  list.addEventListener("change", redraw);
  list.addEventListener("offer", () => settle());
  list.addEventListener("renewed", renewed);
  classes.addEventListener("change", classList);
  saving.addEventListener("change", redraw);
  saving.addEventListener("saved", ({ detail }) => saved(detail));
  saving.addEventListener("undone", ({ detail }) => undone(detail));
  server.addEventListener("changed", () => shown() && list.refresh());
  server.addEventListener("connection", () => {
    if (server.connection !== "here") list.doubt();
    else if (shown()) list.refresh();
  });
  if (store.graph) list.refresh();
}

const shown = () => store.graph && !$("label").hidden;

export function show() {
  grid.update();
  if (shown()) list.refresh();
  redraw();
}

/** What of the window lies under the head and the bar, which is at the bottom on a phone. */
function clear() {
  const { top, bottom } = document.querySelector(".bar").getBoundingClientRect();
  const head = document.querySelector(".top").getBoundingClientRect().bottom;
  return top > innerHeight / 2 ? [head + MARGIN, innerHeight - top] : [bottom + MARGIN, 0];
}

// ---- What is remembered in this tab, for a reload ----

function recall() {
  try {
    const kept = JSON.parse(sessionStorage.getItem(`label:${store.path}`)) ?? {};
    chosen = new Map((kept.chosen ?? []).map((row) => [row.row, row]));
    skipped = new Set(kept.skipped ?? []);
  } catch {
    sessionStorage.removeItem(`label:${store.path}`);
  }
}

function remember() {
  const kept = [...chosen.values()].map(({ row, id, label, group, given: labels }) => ({ row, id, label, group, given: labels }));
  sessionStorage.setItem(`label:${store.path}`, JSON.stringify({ chosen: kept, skipped: [...skipped] }));
}

// ---- Drawing ----

function redraw() {
  if (grid.total !== list.total) grid.setTotal(list.total);
  else grid.update();
  $("grid").setAttribute("aria-busy", String(list.computing && !list.total));
  const nothing = !store.graph
    ? store.missing
    : (list.problem ??
      (list.total ? null : list.computing ? "Suggestions are being computed. This page shows them when they are there." : "There is nothing to suggest: labels reach every row."));
  $("empty").hidden = nothing === null;
  $("empty").textContent = nothing ?? "";
  $("grid").hidden = nothing !== null;
  bar();
}

function draw(cell, index) {
  const row = list.at(index);
  const writing = row && saving.of(row.row);
  const known = row ? (writing?.labels ?? row.given) : [];
  const state = !row ? "empty" : writing ? writing.state : known.length ? "saved" : skipped.has(row.row) ? "skipped" : "open";
  cell.dataset.state = state;
  cell.setAttribute("aria-selected", String(Boolean(row && chosen.has(row.row))));
  cell.toggleAttribute("data-aimed", Boolean(row && aimed?.row === row.row));
  if (!row) {
    cell.setAttribute("aria-label", `Suggestion ${index + 1}, being loaded`);
    showIn(cell, `blank ${index}`, () => null);
    return;
  }
  const pair = pairOf(row);
  const signature = JSON.stringify([row, known, state, writing?.error]);
  if (cell.face !== row.row || !cell.querySelector(".face")) {
    cell.shown = null;
    cell.face = row.row;
    cell.kept = face(row, store);
  }
  cell.setAttribute("aria-label", describe(row, state, known));
  showIn(cell, signature, () => [
    cell.kept,
    h("span", { class: "picked", "aria-hidden": "true" }),
    h("a", { class: "open", href: address(row), tabindex: "-1", "aria-label": `Open ${row.id}`, title: "Open this row (Shift Enter)" }, "↗"),
    h(
      "div",
      { class: "about" },
      h("div", { class: "head" }, $("grid").dataset.kind === "ids" ? null : h("span", { class: "id" }, row.id), pair ? h("span", { class: "badge", title: "near-duplicates" }, `+${pair}`) : null),
      h("div", { class: "why" }, why(row)),
      known.length || writing
        ? h("div", { class: "labels" }, known.length ? given(known) : h("span", { class: "given" }, "no label"), h("span", { class: "word" }, word(state)))
        : [prediction(row), state === "skipped" ? h("span", { class: "word" }, "skipped") : null],
    ),
  ]);
}

const pairOf = (row) => (row.group ?? []).filter((other) => other !== row.row).length;
const word = (state) => ({ saving: "saving", waiting: "waits", failed: "not saved", saved: "" })[state] ?? "";

function why({ reaches, nearest_label: nearest, similarity }) {
  const first = reaches ? `reaches ${count(reaches)} new ${reaches === 1 ? "row" : "rows"}` : "reached already";
  return nearest === null || nearest === undefined ? first : [first, ", near ", h("b", {}, nearest), similarity === null ? "" : ` ${similarity.toFixed(2)}`];
}

function describe(row, state, known) {
  const parts = [String(row.id), row.reaches ? `would reach ${rows(row.reaches)}` : "reached already"];
  if (row.nearest_label !== null && row.nearest_label !== undefined) parts.push(`nearest label ${row.nearest_label}`);
  if (known.length) parts.push(`labelled ${known.join(", ")}`);
  else if (row.label !== null && row.label !== undefined) parts.push(`predicted ${row.label}, ${share(row.confidence)}`);
  const more = pairOf(row);
  if (more) parts.push(`${more} near-${more === 1 ? "duplicate" : "duplicates"}`);
  if (state === "skipped" || word(state)) parts.push(word(state) || "skipped");
  return parts.join(", ");
}

function bar() {
  const targets = targetRows();
  const all = withGroups(targets);
  const predicted = targets.filter((row) => row.label !== null && row.label !== undefined);
  const name = targets.length === 1 ? targets[0].id : `${count(targets.length)} rows`;
  const more = all.length - targets.length;
  $("aim").textContent = !targets.length
    ? "Select rows to label"
    : `${chosen.size ? "Selected" : "At"}: ${name}${more ? `, with ${count(more)} ${more === 1 ? "duplicate" : "duplicates"}` : ""}`;
  $("aim").dataset.some = String(targets.length > 0);
  for (const id of ["accept", "skip"]) $(id).setAttribute("aria-disabled", String(id === "accept" ? !predicted.length : !targets.length));
  for (const button of document.querySelectorAll("#balance button, #chips button")) button.setAttribute("aria-disabled", String(!targets.length));
  const listed = list.total ? `${count(list.total)} suggestions` : "";
  $("listed").textContent = list.computing && list.total ? `${listed}, new ones are being computed` : listed;
  $("renew").hidden = list.offered === null;
  $("group-option").hidden = !groups();
}

let seen = 0;
let grouped = false;
function groups() {
  // Asked once for each list: whether the audit for duplicates has run is the same for all of its rows.
  if (seen !== list.version && list.total) {
    seen = list.version;
    grouped = false;
  }
  for (let i = 0; !grouped && i < Math.min(list.total, LISTED); i += 1) grouped = Boolean(list.at(i) && pairOf(list.at(i)));
  return grouped;
}

function classList() {
  const all = classes.ordered();
  const shown = all.slice(0, LISTED);
  const most = Math.max(1, ...shown.map((entry) => entry.given));
  const button = ({ label, given: labelled, predicted }, chip) => {
    const key = classes.keyOf(label);
    return h(
      "button",
      { type: "button", title: String(label), onclick: () => give(label), onpointerdown: (event) => event.preventDefault() },
      key || !chip ? h("kbd", { class: key ? null : "none" }, key ?? "") : null,
      h("span", { class: "name" }, label),
      chip ? null : [h("span", { class: "number" }, count(labelled)), h("span", { class: "of" }, count(predicted))],
      chip ? null : h("span", { class: "meter", "aria-hidden": "true", style: { "--value": labelled / most } }),
    );
  };
  const signature = JSON.stringify(shown.map((entry) => [entry, classes.keyOf(entry.label)]));
  showIn($("balance"), signature, () => [
    shown.length ? null : h("p", { class: "soft" }, "None yet. Select rows and type a name."),
    shown.map((entry) => button(entry, false)),
    all.length > shown.length ? h("p", { class: "soft" }, `and ${count(all.length - shown.length)} more: type their names`) : null,
  ]);
  showIn($("chips"), signature, () => shown.filter(({ label }) => classes.keyOf(label)).map((entry) => button(entry, true)));
  bar();
}

// ---- Which rows an action is for ----

/** The selected rows; without any, the one that has the focus or that typing began on. */
function targetRows() {
  if (chosen.size) return [...chosen.values()];
  if (aimed) return [aimed];
  const row = $("grid").contains(document.activeElement) ? list.at(grid.focused) : null;
  return row ? [row] : [];
}

/** Numbers of these rows, and of their duplicates where that is wanted. */
function withGroups(targets) {
  const wanted = targets.flatMap((row) => [row.row, ...($("with-group").checked ? (row.group ?? []) : [])]);
  return [...new Set(wanted)];
}

const likely = () => [...new Set(targetRows().map((row) => row.label))].filter((label) => label !== null && label !== undefined);

/** The targets, unless a new list just took the focused row away: then the key was meant for another one. */
function sure() {
  const targets = targetRows();
  if (lost && !chosen.size && targets.length) {
    lost = false;
    say(`The suggestions are new. Now at ${targets[0].id}.`);
    return [];
  }
  if (!targets.length) say("Select rows first.");
  return targets;
}

// ---- What is done to them ----

function give(label) {
  const targets = sure();
  if (!targets.length) return false;
  saving.label([{ rows: withGroups(targets), labels: [label] }]);
  classes.use(label);
  next(targets);
  return true;
}

function accept() {
  const targets = sure().filter((row) => row.label !== null && row.label !== undefined);
  if (!targets.length) return;
  const changes = new Map();
  const taken = new Set();
  for (const row of targets) {
    const members = withGroups([row]).filter((other) => !taken.has(other));
    for (const member of members) taken.add(member);
    changes.set(row.label, [...(changes.get(row.label) ?? []), ...members]);
  }
  saving.label([...changes].filter(([, members]) => members.length).map(([label, members]) => ({ rows: members, labels: [label] })));
  for (const label of changes.keys()) classes.use(label);
  next(targets);
}

function skip() {
  const targets = sure();
  if (!targets.length) return;
  const back = targets.every((row) => skipped.has(row.row));
  for (const row of targets) {
    if (back) skipped.delete(row.row);
    else skipped.add(row.row);
  }
  say(back ? `${rows(targets.length)} no longer skipped.` : `${rows(targets.length)} skipped.`);
  next(targets);
}

/** Selects nothing, and goes to the next card that waits for a label. */
function next(targets) {
  chosen.clear();
  aimed = null;
  remember();
  const places = targets.map((row) => list.find(row.row)).filter((at) => at >= 0);
  const keyboard = $("grid").contains(document.activeElement) || document.activeElement === field.input;
  let at = places.length ? Math.max(...places) + 1 : grid.focused;
  while (at < list.total - 1 && list.at(at) && !open(list.at(at))) at += 1;
  anchor = Math.min(at, list.total - 1);
  touched = performance.now();
  if (keyboard) grid.focus(anchor);
  else grid.focus(anchor, false);
  redraw();
  settle();
}

const open = (row) => !row.given.length && !saving.of(row.row) && !skipped.has(row.row);

async function undo() {
  try {
    await saving.undo();
  } catch (error) {
    if (!(error instanceof Gone || error instanceof Refused)) throw error;
    complain(`Not undone. ${error.message}`);
  }
}

function saved({ changes, answer }) {
  for (const change of changes) list.patch(change.rows, { given: change.labels, source: change.labels.length ? "given" : null });
  const total = changes.reduce((sum, change) => sum + change.rows.length, 0);
  const what = changes.length === 1 ? (changes[0].labels.join(", ") || "no label") : `${changes.length} classes`;
  say(`Saved: ${what} for ${rows(total)}. ${count(answer.labelled)} labelled.`);
}

function undone({ rows: numbers, unsent }) {
  if (numbers === null) say("There is nothing to undo.");
  else {
    // Rows that had another label before show it once the server was asked.
    if (!unsent) list.patch(numbers, { given: [], source: null });
    say(`Undone: the labels of ${rows(numbers.length)}.`);
    list.refresh();
  }
}

// ---- A new list ----

/** Takes a new list by itself when nothing is selected or typed and the hands rest. */
function settle() {
  if (list.offered === null) return;
  const rest = performance.now() - touched;
  const busy = chosen.size || aimed || field.input.value || saving.entries.length;
  if (!busy && rest >= CALM) list.take();
  else setTimeout(settle, Math.max(100, CALM - rest));
}

function renew() {
  list.take();
  scrollTo({ top: 0, behavior: "instant" });
}

function renewed() {
  const cell = $("grid").contains(document.activeElement) ? grid.cell(grid.focused) : null;
  const at = cell ? list.find(cell.face) : -1;
  if (cell && at < 0) lost = true;
  let first = 0;
  while (at < 0 && first < list.total - 1 && list.at(first) && !open(list.at(first))) first += 1;
  grid.setTotal(list.total);
  anchor = at < 0 ? first : at;
  grid.focus(anchor, cell !== null);
  say(`New suggestions: ${count(list.total)}.`);
  redraw();
}

// ---- Clicks and keys ----

function toggle(index, on = null) {
  const row = list.at(index);
  if (!row) return;
  if (on ?? !chosen.has(row.row)) chosen.set(row.row, row);
  else chosen.delete(row.row);
}

function range(from, to) {
  for (let i = Math.min(from, to); i <= Math.max(from, to); i += 1) toggle(i, true);
}

function clicked(event) {
  const cell = event.target.closest(".card");
  if (!cell || event.target.closest("a, button")) return;
  touched = performance.now();
  lost = false;
  if (event.shiftKey) range(anchor, cell.index);
  else {
    toggle(cell.index);
    anchor = cell.index;
  }
  grid.focus(cell.index, false);
  cell.focus({ preventScroll: true });
  remember();
  redraw();
}

function pressed(event) {
  const { key } = event;
  if (event.altKey || event.isComposing) return;
  touched = performance.now();
  const control = event.ctrlKey || event.metaKey;
  const to = control ? null : grid.target(key);
  if (to !== null) {
    lost = false;
    if (event.shiftKey) {
      range(anchor, to);
      remember();
    } else anchor = to;
    grid.focus(to);
    redraw();
  } else if (control && key.toLowerCase() === "a") {
    range(...grid.inWindow());
    remember();
    redraw();
    say(`${rows(chosen.size)} selected.`);
  } else if (control) return;
  else if (key === " ") {
    if (event.repeat) return event.preventDefault();
    toggle(grid.focused);
    anchor = grid.focused;
    remember();
    redraw();
  } else if (key === "Escape") {
    chosen.clear();
    remember();
    redraw();
  } else if (key === "Delete" || key === "Backspace") skip();
  else if (key === "Enter" && event.shiftKey) {
    const row = list.at(grid.focused);
    if (row) location.hash = address(row);
  } else if (key === "Enter") type("");
  else if (/^[0-9]$/.test(key)) {
    if (event.repeat) return event.preventDefault();
    const label = key === "0" ? null : classes.ofKey(Number(key));
    if (key === "0") accept();
    else if (label !== null) give(label);
    else say(`No class has the key ${key} yet.`);
  } else if (key.length === 1 && /[\p{L}_-]/u.test(key)) type(key);
  else return;
  event.preventDefault();
}

/** Goes to the field with a first letter, for the card where the focus was. */
function type(letter) {
  const row = list.at(grid.focused);
  if (lost && !chosen.size) {
    sure();
    return;
  }
  if (!chosen.size && row) aimed = row;
  field.input.value = letter;
  const keep = aimed;
  field.input.focus();
  aimed = keep;
  field.input.dispatchEvent(new Event("input"));
  redraw();
}

function anywhere(event) {
  if (!shown() || $("help").open) return;
  const typing = event.target.closest?.("input, select, textarea");
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z" && !event.shiftKey && !(typing && typing.value && typing.type === "text")) {
    event.preventDefault();
    undo();
  } else if (event.key === "?" && !typing) {
    event.preventDefault();
    $("help").showModal();
  }
}

// Starts the page: which store it is, and which view the address asks for.

import * as artifacts from "./artifacts.js";
import { classes } from "./classes.js";
import { $, h } from "./dom.js";
import { rows as rowsOf } from "./format.js";
import * as label from "./label.js";
import * as progress from "./progress.js";
import * as rows from "./rows.js";
import { Gone, Refused, server } from "./server.js";

const VIEWS = { label, rows, artifacts };
const scrolled = {};
let current = null;

/** The view and what it should show, from the part of the address behind #. */
function route(store) {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/").map(decodeURIComponent);
  const parameters = new URLSearchParams(query ?? "");
  if (name === "row" || name === "test") return ["rows", { row: rest[0], role: name === "test" ? "test" : null, parameters }];
  if (name === "artifact") return ["artifacts", { name: rest.join("/"), parameters }];
  if (name in VIEWS) return [name, { parameters }];
  return [store.graph ? "label" : "rows", { parameters }];
}

function go(store) {
  const [name, target] = route(store);
  if (current !== name) {
    if (current) scrolled[current] = scrollY;
    for (const view of Object.keys(VIEWS)) $(view).hidden = view !== name;
    for (const link of document.querySelectorAll("nav a")) {
      if (link.dataset.view === name) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    const before = current;
    current = name;
    VIEWS[name].show(target);
    if (before) scrollTo({ top: scrolled[name] ?? 0, behavior: "instant" });
  } else VIEWS[name].show(target);
  document.title = `${{ label: "Label", rows: "Rows", artifacts: "Artifacts" }[name]} · ${store.name}`;
}

async function start() {
  let store = null;
  while (store === null) {
    try {
      store = await server.get("store");
    } catch (error) {
      if (!(error instanceof Gone || error instanceof Refused)) throw error;
      $("run-text").textContent = "No answer";
      $("alerts").replaceChildren(h("p", { class: "note" }, `${error.message} This page tries again.`));
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
  $("store-name").textContent = store.name;
  $("store-name").title = store.path;
  $("store-size").textContent = `${rowsOf(store.rows)}, ${store.dims} dimensions`;
  server.addEventListener("changed", () => classes.load());
  for (const view of Object.values(VIEWS)) view.start(store);
  progress.start(store);
  await Promise.all([server.poll(), classes.load()]);
  addEventListener("hashchange", () => go(store));
  go(store);
  // The link that skips to the content moves the focus, and leaves the address of the view alone.
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    $("main").focus();
  });
  document.documentElement.dataset.ready = "true";
}

start();

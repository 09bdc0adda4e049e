// The strip of figures above the suggestions, the state of the background run, and what is said when something is not well.

import { sparkline } from "./charts.js";
import { $, h, say, show } from "./dom.js";
import { age, count, rows, share } from "./format.js";
import { saving } from "./saving.js";
import { server } from "./server.js";

const STATES = { waiting: "Waits for a pause", running: "Running", failed: "Failed" };

export function start(store) {
  const redraw = () => {
    strip(store);
    run();
    alerts();
  };
  server.addEventListener("status", redraw);
  server.addEventListener("connection", () => {
    if (server.connection !== "here") say("The server does not answer.");
    else if (server.status !== null) say("The server answers again.");
    redraw();
  });
  saving.addEventListener("change", redraw);
  redraw();
}

let complaint = null;

/** Says what did not work, until it is read. */
export function complain(text) {
  complaint = text;
  alerts();
}

/** How far a figure moved since the point of history before. */
function moved(history, name) {
  const known = history.map((point) => point[name]).filter((value) => value !== null && value !== undefined);
  if (known.length < 2) return null;
  const points = Math.round(1000 * (known.at(-1) - known.at(-2))) / 10;
  if (!points) return null;
  return h("span", { class: points > 0 ? "up" : "down" }, `${points > 0 ? "+" : "−"}${Math.abs(points).toFixed(1)}`);
}

const reached = (point) => (typeof point.coverage === "object" ? (point.coverage && point.coverage.reached / point.coverage.rows) : point.coverage);
const hit = (point) => (typeof point.accuracy === "object" ? (point.accuracy && point.accuracy.top1) : point.accuracy);

function strip(store) {
  const { status } = server;
  if (status === null) return;
  const { labelled, accuracy, coverage, confident, balance, history } = status;
  const past = (history ?? []).map((point) => ({ labelled: point.labelled, accuracy: hit(point), coverage: reached(point) }));
  const given = balance.map((entry) => entry.given);
  const tiles = [
    ["Labelled", count(labelled), `of ${rows(store.rows)}`, null, null],
    [
      "Estimated accuracy",
      accuracy ? share(accuracy.top1) : "–",
      accuracy ? `${share(accuracy.low)} to ${share(accuracy.high)}, from ${rows(accuracy.rows)}` : "needs a few labels of each class",
      sparkline(past.map((point) => point.accuracy), "Estimated accuracy"),
      accuracy && moved(past, "accuracy"),
      accuracy && h("span", { class: "track", "aria-hidden": "true", style: { "--low": accuracy.low, "--high": accuracy.high, "--at": accuracy.top1 } }),
    ],
    [
      "Coverage",
      coverage ? share(coverage.reached / (coverage.rows || 1)) : "–",
      coverage ? `${count(coverage.reached)} rows are reached` : "rows that labels reach",
      sparkline(past.map((point) => point.coverage), "Coverage"),
      coverage && moved(past, "coverage"),
    ],
    ["Confident", confident ? share(confident.share) : "–", confident ? `of predictions at ${share(confident.at)} or more` : "share of sure predictions", null, null],
    [
      "Classes",
      count(status.classes),
      given.length ? `${count(Math.min(...given))} to ${count(Math.max(...given))} labels each` : "none yet",
      given.length > 1 ? columns(given) : null,
      null,
    ],
  ];
  show($("strip"), JSON.stringify([store.rows, status.version, labelled, accuracy, coverage, confident, given, past.length]), () =>
    tiles.map(([name, value, more, drawing, change, track]) =>
      h("div", { class: "tile" }, h("dt", {}, name), h("dd", {}, h("span", { class: "figure" }, value, change), drawing, track, h("small", {}, more))),
    ),
  );
}

/** The labels of each class as columns next to each other, at most as many as can be told apart. */
function columns(given) {
  const shown = given.toSorted((a, b) => b - a).slice(0, 36);
  return h(
    "span",
    { class: "columns", role: "img", "aria-label": `Labels of ${shown.length} classes, ${shown[0]} to ${shown.at(-1)}` },
    shown.map((n) => h("i", { style: { "--value": n / shown[0] } })),
  );
}

function run() {
  const { status, connection } = server;
  const [line, bar] = [$("run"), $("run-bar")];
  const unsent = saving.entries.length;
  const state = connection !== "here" ? "gone" : (status?.state ?? "idle");
  line.dataset.state = state;
  let text = connection === "gone" ? "No answer" : connection === "moved" ? "Moved" : "Connecting";
  if (state === "running") text = `${capital(status.stage ?? STATES.running)}${status.done === null ? "" : ` ${share(status.done)}`}`;
  else if (state in STATES) text = STATES[state];
  else if (state === "idle" && status) text = status.labelled ? `Up to date, ${age(status.since ?? 0)}` : "Ready";
  if (unsent && state !== "gone") text = saving.count("failed") ? "Not all is saved" : "Saving";
  $("run-text").textContent = text;
  bar.hidden = state !== "running" || status.done === null;
  bar.style.setProperty("--value", String(status?.done ?? 0));
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

function alerts() {
  const { status, connection } = server;
  const [waiting, failed] = [saving.count("waiting") + saving.count("saving"), saving.count("failed")];
  const here = connection === "here";
  const why = saving.entries.find((entry) => entry.state === "failed")?.error;
  const run = here && status?.state === "failed" ? (status.message ?? "The run in the background failed.") : null;
  show($("alerts"), JSON.stringify([connection, here ? 0 : waiting, failed, why, run, complaint]), () => [
    here
      ? null
      : h(
          "p",
          { class: "note" },
          connection === "gone"
            ? "The server does not answer. Start mmdiff browse again; this page goes on when it is back at this address."
            : "The server was started again with another address. Open the address that the command printed.",
          waiting ? ` The labels of ${rows(waiting)} are not saved yet; they wait here and are sent then.` : " Everything that was saved is kept.",
        ),
    failed
      ? h(
          "p",
          { class: "note" },
          `Not saved: the labels of ${rows(failed)}. ${why} `,
          h("button", { type: "button", onclick: () => saving.retry() }, "Try again"),
          " ",
          h("button", { type: "button", onclick: () => saving.giveUp() }, "Give up"),
        )
      : null,
    run ? h("p", { class: "note" }, run) : null,
    complaint ? h("p", { class: "note" }, `${complaint} `, h("button", { type: "button", onclick: () => complain(null) }, "Close")) : null,
  ]);
}

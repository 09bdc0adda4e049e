// The list of suggestions in pages: what is shown of it, what is asked for, and when a new list takes its place.
//
// The order never changes under the hands: a new list waits until it is taken, except for rows that were never shown. A list
// may grow at its end at any time.

import { Gone, Refused, server } from "./server.js";

const PAGE = 60;
const KEPT = 40;
const SETTLED = 60;

/** Emits "change" when rows arrive, "offer" when there is a new list, and "renewed" when it was taken. */
export class Suggestions extends EventTarget {
  total = 0;
  computing = true;
  version = null; // of the list that is shown
  offered = null; // the first page of a newer list
  problem = null;
  #by = "coverage";
  #pages = new Map();
  #asked = new Map();
  #wanted = [0, 0];
  #timer = null;
  #round = 0;

  get by() {
    return this.#by;
  }

  /** The row at a place of the list, or null where it has not arrived. */
  at(index) {
    return this.#pages.get(Math.floor(index / PAGE))?.[index % PAGE] ?? null;
  }

  /** The place of a row among those that have arrived, or -1. */
  find(row) {
    for (const [page, rows] of this.#pages) {
      const at = rows.findIndex((other) => other.row === row);
      if (at >= 0) return page * PAGE + at;
    }
    return -1;
  }

  /** Changes what is known about rows, until the server is asked again. */
  patch(rows, change) {
    for (const page of this.#pages.values()) for (const row of page) if (rows.includes(row.row)) Object.assign(row, change);
    this.#tell("change");
  }

  /** These rows are shown: asks for their pages once scrolling has settled. */
  need(first, last) {
    this.#wanted = [Math.floor(first / PAGE), Math.floor(last / PAGE)];
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#fetch(false), SETTLED);
  }

  /** Asks again for what is shown, since something changed. */
  refresh() {
    clearTimeout(this.#timer);
    return this.#fetch(true);
  }

  /** The server may be another one, whose numbers of versions say nothing about the list that is shown. */
  doubt() {
    if (this.version !== null) this.version = -1;
  }

  order(by) {
    this.#by = by;
    this.#start({ total: 0, computing: true, version: null, rows: [] });
    return this.refresh();
  }

  /** Shows the new list. */
  take() {
    if (this.offered === null) return;
    this.#start(this.offered);
    this.#tell("renewed");
  }

  #start(answer) {
    this.#round += 1;
    this.offered = null;
    this.#pages = new Map();
    this.#asked = new Map();
    this.#place(0, answer);
    if (answer.version === null) this.#pages.clear();
  }

  #place(page, answer) {
    Object.assign(this, { total: answer.total, computing: answer.computing, version: answer.version, problem: null });
    this.#pages.delete(page);
    // A list grows while it is found: a page that was its end is asked for again.
    for (const [old, rows] of this.#pages) if (rows.length < Math.min(PAGE, this.total - old * PAGE)) this.#pages.delete(old);
    this.#pages.set(page, answer.rows);
    // Pages that were shown longest ago go first.
    for (const old of this.#pages.keys()) {
      if (this.#pages.size <= KEPT) break;
      if (old < this.#wanted[0] || old > this.#wanted[1]) this.#pages.delete(old);
    }
    this.#tell("change");
  }

  async #fetch(again) {
    const [first, last] = this.#wanted;
    const pages = Array.from({ length: last - first + 1 }, (_, i) => first + i);
    await Promise.all(pages.filter((page) => again || !this.#pages.has(page)).map((page) => this.#page(page, again)));
  }

  async #page(page, again) {
    if (!again && this.#asked.has(page)) return;
    const [round, by] = [this.#round, this.#by];
    this.#asked.set(page, true);
    try {
      const answer = await server.get("suggestions", { start: page * PAGE, count: PAGE, by });
      if (round !== this.#round) return;
      await this.#answered(page, answer, round);
    } catch (error) {
      if (error instanceof Refused) {
        this.problem = error.message;
        this.#tell("change");
      } else if (!(error instanceof Gone)) throw error;
    } finally {
      if (round === this.#round) this.#asked.delete(page);
    }
  }

  async #answered(page, answer, round) {
    if (this.version === null || this.version === answer.version || this.total === 0) {
      this.#place(page, answer);
      return;
    }
    if (!answer.total && answer.computing) {
      // A server that has just started has no list yet; the one that is shown stays until it has.
      this.computing = true;
      this.#tell("change");
      return;
    }
    // Another list. What it knows about rows that are shown holds here too.
    for (const row of answer.rows) {
      const at = this.find(row.row);
      if (at >= 0) Object.assign(this.at(at), { given: row.given, label: row.label, confidence: row.confidence, margin: row.margin, source: row.source });
    }
    this.computing = answer.computing;
    const start = page === 0 ? answer : await server.get("suggestions", { start: 0, count: PAGE, by: this.#by });
    if (round !== this.#round) return;
    const unseen = !this.#pages.has(page);
    this.offered = start;
    if (unseen) this.take();
    else {
      this.#tell("change");
      this.#tell("offer");
    }
  }

  #tell(name) {
    this.dispatchEvent(new Event(name));
  }
}

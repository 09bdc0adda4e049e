// Labels on their way to the server: one after the other, in the order in which they were given.
//
// A label is saved when the server has said so. Without an answer it waits and is sent again, which is safe, since the same
// label twice is one label. A refused label stays here with the server's sentence until it is tried again or given up.

import { Gone, Refused, server } from "./server.js";

/** Emits "change" whenever an entry starts, fails or goes, "saved" and "undone" with the server's answer as detail. */
class Saving extends EventTarget {
  entries = []; // {changes: [{rows, labels}], state: "saving" | "waiting" | "failed", error}
  #sending = Promise.resolve();
  #busy = false;

  constructor() {
    super();
    server.addEventListener("connection", () => {
      if (server.connection === "here") this.#sending = this.#send();
    });
  }

  /** Gives rows their labels, one batch for all changes. An empty list of labels removes. */
  label(changes) {
    this.entries.push({ changes, state: "saving", error: null });
    this.#changed();
    this.#sending = this.#send();
  }

  /** Takes the last batch back: a refused one, else the last one that the store has. */
  async undo() {
    await this.#sending;
    const unsent = this.entries.findLast(({ state }) => state === "failed");
    if (unsent) {
      this.#drop(unsent);
      this.#emit("undone", { rows: unsent.changes.flatMap((change) => change.rows), unsent: true });
      return;
    }
    if (this.entries.length) throw new Gone("Labels still wait for the server, so nothing was undone.");
    const answer = await server.post("undo", {});
    this.#emit("undone", { rows: answer.undone?.rows ?? null, unsent: false });
    server.poll();
  }

  retry() {
    for (const entry of this.entries) if (entry.state === "failed") Object.assign(entry, { state: "saving", error: null });
    this.#changed();
    this.#sending = this.#send();
  }

  giveUp() {
    for (const entry of this.entries.filter((entry) => entry.state === "failed")) this.#drop(entry);
  }

  /** What is on its way for a row: {state, labels, error}, or null. */
  of(row) {
    for (const entry of this.entries.toReversed()) {
      const change = entry.changes.find(({ rows }) => rows.includes(row));
      if (change) return { state: entry.state, labels: change.labels, error: entry.error };
    }
    return null;
  }

  count(state) {
    const changes = this.entries.filter((entry) => entry.state === state).flatMap((entry) => entry.changes);
    return changes.reduce((sum, { rows }) => sum + rows.length, 0);
  }

  async #send() {
    if (this.#busy) return this.#sending;
    this.#busy = true;
    try {
      for (;;) {
        const entry = this.entries.find(({ state }) => state !== "failed");
        if (!entry) break;
        const { changes } = entry;
        entry.state = "saving";
        try {
          const answer = await server.post("label", changes.length === 1 ? changes[0] : { changes });
          this.#drop(entry);
          this.#emit("saved", { changes, answer });
        } catch (error) {
          if (error instanceof Refused) Object.assign(entry, { state: "failed", error: error.message });
          else if (error instanceof Gone) Object.assign(entry, { state: "waiting" });
          else throw error;
          this.#changed();
          if (error instanceof Gone) break;
        }
      }
    } finally {
      this.#busy = false;
      server.poll();
    }
  }

  #drop(entry) {
    this.entries = this.entries.filter((other) => other !== entry);
    this.#changed();
  }

  #changed() {
    this.#emit("change", null);
  }

  #emit(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}

export const saving = new Saving();
addEventListener("beforeunload", (event) => {
  if (saving.entries.length) event.preventDefault();
});

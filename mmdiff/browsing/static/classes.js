// The classes of the store: their counts, the number keys that stand for nine of them, and a field that completes their names.

import { h } from "./dom.js";
import { count } from "./format.js";
import { Gone, Refused, server } from "./server.js";

const KEYS = 9;
const OFFERED = 8;

/** Emits "change" when counts or keys change. */
class Classes extends EventTarget {
  all = []; // {label, given, predicted}, as the server lists them
  named = true;
  #keys = new Array(KEYS).fill(null);
  #recent = [];

  async load() {
    try {
      this.all = (await server.get("classes")).classes;
    } catch (error) {
      if (error instanceof Gone || error instanceof Refused) return;
      throw error;
    }
    this.named = this.all.length === 0 || this.all.some(({ label }) => typeof label === "string");
    this.#assign();
    this.dispatchEvent(new Event("change"));
  }

  /** The class of a number key from 1 to 9, or null. */
  ofKey = (key) => this.#keys[key - 1] ?? null;
  keyOf = (label) => this.#keys.indexOf(label) + 1 || null;

  /** A class was used: it is offered before others, and gets a key if one is free. */
  use(label) {
    this.#recent = [label, ...this.#recent.filter((other) => other !== label)].slice(0, OFFERED);
    this.#take(label);
    this.dispatchEvent(new Event("change"));
  }

  // A key keeps its class, since fingers remember it. Free keys go to the classes with most labels, then most predictions.
  #assign() {
    for (const { label } of this.all) if (/^[1-9]$/.test(label) && !this.#keys[label - 1]) this.#keys[label - 1] = label; // class 3 is key 3
    const order = this.all.toSorted((a, b) => b.given - a.given || (b.predicted ?? 0) - (a.predicted ?? 0));
    for (const { label } of order) this.#take(label);
  }

  #take(label) {
    if (this.#keys.includes(label)) return;
    const free = this.#keys.indexOf(null);
    if (free >= 0) this.#keys[free] = label;
  }

  /** Classes with a key in the order of keys, then the others by their labels and predictions. */
  ordered() {
    const rest = this.all.filter(({ label }) => !this.keyOf(label));
    rest.sort((a, b) => b.given - a.given || (b.predicted ?? 0) - (a.predicted ?? 0));
    const keyed = this.#keys.filter((label) => label !== null);
    return [...keyed.map((label) => this.all.find((entry) => entry.label === label) ?? { label, given: 0, predicted: null }), ...rest];
  }

  /** Classes for a typed text: equal, then beginning with it, then a word that does, then containing it; last a new class. */
  completions(text, likely = []) {
    const wanted = text.trim().toLowerCase();
    const rank = ({ label }) => {
      const name = String(label).toLowerCase();
      if (!wanted) return likely.includes(label) ? 0 : this.#recent.includes(label) ? 1 : 2;
      if (name === wanted) return 0;
      if (name.startsWith(wanted)) return 1;
      const at = name.indexOf(wanted);
      return at < 0 ? null : /[\s,_/-]/.test(name[at - 1]) ? 2 : 3;
    };
    const found = this.all.map((entry) => ({ ...entry, rank: rank(entry) })).filter((entry) => entry.rank !== null);
    found.sort((a, b) => a.rank - b.rank || b.given - a.given || (b.predicted ?? 0) - (a.predicted ?? 0));
    const offered = found.slice(0, OFFERED);
    const fresh = this.#fresh(text.trim());
    return fresh !== null && found[0]?.rank !== 0 ? [...offered, { label: fresh, fresh: true }] : offered;
  }

  #fresh(text) {
    if (!text) return null;
    if (this.named) return text;
    return /^\d+$/.test(text) && Number.isSafeInteger(Number(text)) ? Number(text) : null;
  }
}

export const classes = new Classes();

let fields = 0;

/** A text field with completions. Calls `choose(label)` on Enter or click, `leave()` on Escape; `likely()` names probable classes. */
export class ClassField {
  #options = [];
  #active = -1;

  constructor({ label, choose, leave = () => {}, likely = () => [] }) {
    Object.assign(this, { choose, leave, likely });
    const list = `completions-${(fields += 1)}`;
    this.list = h("ul", { id: list, role: "listbox", "aria-label": "Classes", class: "completions", hidden: true });
    this.input = h("input", {
      ...{ type: "text", role: "combobox", "aria-label": label, "aria-controls": list, "aria-expanded": "false" },
      ...{ "aria-autocomplete": "list", autocomplete: "off", autocapitalize: "off", spellcheck: "false", placeholder: "Class name" },
      ...{ oninput: () => this.#complete(), onfocus: () => this.#complete(), onblur: () => this.#close() },
      onkeydown: (event) => this.#key(event),
    });
    this.element = h("div", { class: "field" }, this.input, this.list);
  }

  /** What Enter would choose, or null. */
  get chosen() {
    return this.#options[Math.max(0, this.#active)]?.label ?? null;
  }

  clear() {
    this.input.value = "";
    this.#close();
  }

  #complete() {
    this.#options = classes.completions(this.input.value, this.likely());
    this.#active = this.input.value.trim() && this.#options.length ? 0 : -1;
    this.#draw();
  }

  #close() {
    this.#options = [];
    this.#active = -1;
    this.#draw();
  }

  #draw() {
    const open = this.#options.length > 0;
    this.list.hidden = !open;
    this.input.setAttribute("aria-expanded", String(open));
    this.list.replaceChildren(...this.#options.map((option, index) => this.#option(option, index)));
    if (this.#active < 0) this.input.removeAttribute("aria-activedescendant");
    else this.input.setAttribute("aria-activedescendant", this.list.children[this.#active].id);
  }

  #option({ label, given, predicted, fresh }, index) {
    const take = (event) => {
      event.preventDefault();
      this.#choose(label);
    };
    const known = [given ? `${count(given)} given` : null, predicted ? `${count(predicted)} predicted` : null].filter(Boolean);
    return h(
      "li",
      { id: `${this.list.id}-${index}`, role: "option", "aria-selected": String(index === this.#active), onpointerdown: take },
      fresh ? h("span", { class: "name" }, "New class ", h("b", {}, label)) : h("span", { class: "name" }, label),
      h("small", {}, known.join(", ")),
    );
  }

  #key(event) {
    if (event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return;
    const { key } = event;
    if (key === "ArrowDown" || key === "ArrowUp") {
      if (!this.#options.length) this.#options = classes.completions(this.input.value, this.likely());
      const size = this.#options.length;
      if (size) this.#active = (this.#active + (key === "ArrowDown" ? 1 : this.#active < 0 ? 0 : -1) + size) % size;
      this.#draw();
    } else if (key === "Enter") {
      // An empty field labels nothing, unless a class was pointed at.
      if (this.#active >= 0) this.#choose(this.#options[this.#active].label);
    } else if (key === "Escape") {
      if (this.input.value) this.clear();
      else {
        this.#close();
        this.leave();
      }
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  #choose(label) {
    if (this.choose(label) !== false) this.clear();
  }
}

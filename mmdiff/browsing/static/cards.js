// How a row looks: its picture, text or id, its labels and its prediction.

import { meter } from "./charts.js";
import { h } from "./dom.js";
import { share } from "./format.js";

export const address = ({ row, role }) => (role === "test" ? `#/test/${row}` : `#/row/${row}`);
export const query = ({ row, role }) => (role === "test" ? { row, role } : { row });

/** The picture or the text of a row; its id where it has neither. */
export function face(row, store) {
  if (row.image) {
    const image = h("img", { src: `api/image?${new URLSearchParams(query(row))}`, alt: `Picture of ${row.id}`, decoding: "async" });
    image.addEventListener("error", () => image.replaceWith(blank("no picture")));
    return h("div", { class: "face picture" }, image);
  }
  if (row.text) return h("div", { class: "face text" }, h("p", {}, row.text));
  if (store.images || store.texts) return h("div", { class: "face" }, blank(store.images ? "no picture" : "no text"));
  return h("div", { class: "face id-only" }, h("span", {}, row.id));
}

const blank = (text) => h("span", { class: "blank" }, text);

/** The predicted class with its confidence, as text and as a bar. */
export function prediction({ label, confidence }) {
  if (label === null || label === undefined) return h("div", { class: "prediction none" }, "no prediction yet");
  return h(
    "div",
    { class: "prediction", title: `predicted: ${label}, confidence ${share(confidence)}` },
    h("span", { class: "name" }, label),
    h("span", { class: "confidence" }, share(confidence)),
    meter(confidence),
  );
}

export const labels = (given) => given.map((label) => h("span", { class: "given" }, label));

/** A small card that leads to its row, with one more line about why it is here. */
export function link(row, store, more = null) {
  return h(
    "a",
    { class: "mini", href: address(row) },
    face(row, store),
    h("span", { class: "id" }, row.id, row.role === "test" ? h("span", { class: "role" }, " test") : null),
    more ? h("span", { class: "why" }, more) : null,
    row.given.length ? h("span", { class: "labels" }, labels(row.given)) : prediction(row),
  );
}

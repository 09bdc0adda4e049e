// Elements made from text: whatever the server sends goes through here and is never read as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element with properties and children; strings and numbers become text nodes, null and false are left out. */
export function h(name, properties = {}, ...children) {
  return fill(set(document.createElement(name), properties), children);
}

/** The same for drawings. */
export function svg(name, attributes = {}, ...children) {
  return fill(set(document.createElementNS(SVG, name), attributes), children);
}

function set(element, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  return element;
}

function fill(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** Replaces what an element holds, if the signature of the new content is another one. */
export function show(element, signature, make) {
  if (element.shown === signature) return;
  element.shown = signature;
  put(element, make());
}

/** Replaces what an element holds; null and false are left out. */
export function put(element, ...children) {
  element.replaceChildren();
  return fill(element, children);
}

export const $ = (id) => document.getElementById(id);

/** Says something to a screen reader, after what it is saying now. */
export function say(text) {
  const line = $("said");
  // The same sentence twice is only read twice if the text changes.
  line.textContent = line.textContent === text ? `${text}\u00a0` : text;
}

// Numbers, sizes, times and shares as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const count = (n) => (n === null || n === undefined ? "–" : whole.format(n));
export const rows = (n) => `${count(n)} ${n === 1 ? "row" : "rows"}`;
export const share = (x, digits = 0) => (x === null || x === undefined ? "–" : `${(100 * x).toFixed(digits)} %`);
export const similarity = (x) => (x === null || x === undefined ? "–" : x.toFixed(3));

/** A few significant digits, without an exponent where it can be avoided. */
export function figure(x) {
  if (typeof x !== "number") return String(x);
  if (Number.isInteger(x)) return Math.abs(x) < 1e15 ? whole.format(x) : x.toExponential(3);
  const size = Math.abs(x);
  return size !== 0 && (size < 1e-4 || size >= 1e9) ? x.toExponential(3) : String(Number(x.toPrecision(5)));
}

export function bytes(n) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let power = 0;
  while (n >= 1000 && power < units.length - 1) [n, power] = [n / 1000, power + 1];
  return `${power && n < 100 ? n.toFixed(1) : Math.round(n)} ${units[power]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 100) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

export const age = (seconds) => (seconds < 5 ? "just now" : `${duration(seconds)} ago`);

/** A point in time, given in ISO 8601 or in seconds since 1970. */
export function moment(value) {
  const time = typeof value === "number" ? new Date(value * 1000) : new Date(value);
  return Number.isNaN(time.getTime()) ? String(value) : time.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });
}

export const shape = (sizes) => sizes.map(count).join(" × ");

/** A parameter or fact: lists and tables as text that can be read. */
export function value(x) {
  if (x === null || x === undefined) return "–";
  if (typeof x === "boolean") return x ? "yes" : "no";
  if (typeof x === "number") return figure(x);
  if (Array.isArray(x)) return x.map(value).join(", ") || "–";
  if (typeof x === "object") return Object.entries(x).map(([key, part]) => `${key} ${value(part)}`).join(", ") || "–";
  return String(x);
}

// Elements and numbers. Text goes into the page as text only, whatever it is.

const SVG = "http://www.w3.org/2000/svg";
const TIMES = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
const THOUSANDS = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
const BINARY = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];

export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

export function button(text, onclick, attributes = {}) {
  return el("button", { type: "button", onclick, ...attributes }, text);
}

/** Three significant digits without an exponent, thousands grouped. */
export function significant(value) {
  if (Math.abs(value) < 1e-4 && value !== 0) return value.toExponential(1);
  return Number(value.toPrecision(3)).toLocaleString("en", { maximumFractionDigits: 12 });
}

function scaled(value, units) {
  return units.find(([size]) => Math.abs(value) >= size * 0.9995) ?? units.at(-1);
}

export function seconds(value) {
  if (value === null || value === undefined) return "unknown";
  const [scale, unit] = scaled(value, TIMES);
  return `${significant(value / scale)} ${unit}`;
}

export function interval(value, low, high) {
  if (value === null || low === null || high === null) return seconds(value);
  const [scale] = scaled(value, TIMES);
  return `${seconds(value)} [${significant(low / scale)}, ${significant(high / scale)}]`;
}

/** `31.2 TFLOP/s`. */
export function rate(value, unit) {
  const [scale, prefix] = scaled(value, THOUSANDS);
  return `${significant(value / scale)} ${prefix}${unit}`.trimEnd();
}

/** `256 KiB`. */
export function bytes(value) {
  const [scale, unit] = scaled(value, BINARY);
  return `${significant(value / scale)} ${unit}`;
}

export function dollars(value) {
  return `$${value >= 1000 ? significant(value) : value.toPrecision(3)}`;
}

export function percent(share, digits = 0) {
  return `${(100 * share).toFixed(digits)} %`;
}

/** A page of the server that opens beside this one. */
export function link(path, text) {
  return el("a", { href: path, target: "_blank", rel: "noopener" }, text);
}

export function scrolling(label, content) {
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, content);
}

/** Offers a file to be kept. */
export function download(name, content, type) {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

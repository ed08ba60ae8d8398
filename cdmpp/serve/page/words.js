// Elements and numbers. Text goes into the page as text only, whatever it is.

const UNITS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
const SVG = "http://www.w3.org/2000/svg";

export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

export function seconds(value) {
  if (value === null || value === undefined) return "?";
  const [scale, unit] = UNITS.find(([size]) => Math.abs(value) >= size) ?? UNITS.at(-1);
  return `${significant(value / scale)} ${unit}`;
}

export function interval(value, low, high) {
  if (value === null || low === null || high === null) return seconds(value);
  const [scale] = UNITS.find(([size]) => Math.abs(value) >= size) ?? UNITS.at(-1);
  return `${seconds(value)} [${significant(low / scale)}, ${significant(high / scale)}]`;
}

/** Returns five evenly spaced times from 0 to the whole, in one unit. */
export function axisTexts(total) {
  const [scale, unit] = UNITS.find(([size]) => total >= size) ?? UNITS.at(-1);
  return [0, 0.25, 0.5, 0.75, 1].map((part) => (part ? `${significant((part * total) / scale)} ${unit}` : "0"));
}

export function percent(share, digits = 0) {
  return `${(100 * share).toFixed(digits)} %`;
}

export function significant(value) {
  return Math.abs(value) >= 999.5 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
}

export function table(titles, rows, attributes = {}) {
  const isText = (place) => /^(text|wrap|bar)$/.test(rows[0]?.[place]?.className ?? "");
  const head = titles.map((title, place) => el("th", { scope: "col", class: isText(place) ? "text" : null }, title));
  const lines = rows.map((cells) =>
    el("tr", {}, ...cells.map((cell) => (cell instanceof HTMLTableCellElement ? cell : el("td", {}, cell)))),
  );
  return el("table", attributes, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...lines));
}

/** A page of the server that opens beside this one. */
export function link(path, text) {
  return el("a", { href: path, target: "_blank", rel: "noopener" }, text);
}

export function scrolling(label, content) {
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, content);
}

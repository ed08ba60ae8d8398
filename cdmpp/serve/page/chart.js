// Charts, on Observable Plot: axes with units, whiskers, hover, and a picture to keep.

import { button, download, el, seconds, svg } from "./words.js";

const { Plot } = globalThis.libraries;
const TIMES = [1e-9, 2e-9, 5e-9].flatMap((one) => Array.from({ length: 13 }, (_, power) => one * 10 ** power));

/** Options of an axis of seconds on a log scale, with ticks at round times. */
export function timeAxis(values, label, most = 8) {
  const low = Math.min(...values), high = Math.max(...values);
  const edge = Math.max(1.08, (high / low) ** 0.04);
  const domain = [low / edge, high * edge];
  return { type: "log", domain, ticks: ticks(domain, most), tickFormat: seconds, label, labelOffset: 38, grid: true };
}

function ticks([low, high], most) {
  const within = TIMES.filter((one) => one >= low && one <= high).toSorted((a, b) => a - b);
  if (within.length >= 2 && within.length <= most) return within;
  if (within.length > most) {
    const tens = within.filter((one) => Number(one.toExponential()[0]) === 1);
    return tens.length <= most ? tens : tens.filter((_, place) => place % Math.ceil(tens.length / most) === 0);
  }
  return Array.from({ length: 4 }, (_, place) => Number((low * (high / low) ** ((place + 0.5) / 4)).toPrecision(2)));
}

/** A chart that is as wide as its place, drawn anew when that changes, with a button for a PNG. */
export function chart(label, draw, { name = "chart", note = "" } = {}) {
  const place = el("div", { class: "chart-place", tabindex: 0, role: "group", "aria-label": `${label}; scrolls where it is narrow` });
  const box = el("figure", { class: "chart" },
    place, el("p", { class: "tools" }, button("PNG", () => save(place.querySelector("svg"), name), { "aria-label": `${label} as a picture` }), note && el("span", { class: "soft" }, note)));
  let width = 0;
  new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (!now || now === width) return;
    width = now;
    const made = draw(Math.max(300, now));
    const [drawn] = made.tagName === "svg" ? [made] : made.getElementsByTagName("svg");
    for (const part of drawn.querySelectorAll("[aria-label]")) { // a name needs a role: only the whole has one
      part.dataset.mark = part.getAttribute("aria-label");
      part.removeAttribute("aria-label");
    }
    drawn.setAttribute("role", "img");
    drawn.setAttribute("aria-label", label);
    place.replaceChildren(made);
  }).observe(place);
  return box;
}

/** Ticks of a log scale at powers of ten, or at 1, 2 and 5 where those are few. */
export function powers([low, high]) {
  const tens = Array.from({ length: 40 }, (_, place) => Number(`1e${place - 12}`)).filter((one) => one >= low && one <= high);
  return tens.length > 2 ? tens : [1, 2, 5].flatMap((one) => Array.from({ length: 40 }, (_, place) => Number(`${one}e${place - 12}`))).filter((one) => one >= low && one <= high).toSorted((a, b) => a - b);
}

export function plot(width, options) {
  return Plot.plot({ width, style: { fontSize: "12px", background: "none", fontFamily: "inherit", overflow: "visible" }, ...options });
}

/**
 * Latencies as bars with their intervals on one axis, the fastest first.
 *
 * Rows: {label, latency_s, low_s, high_s, isDoubtful, title}.
 */
export function latencyBars(rows, { label, name }) {
  const known = rows.filter((one) => one.latency_s !== null).toSorted((a, b) => a.latency_s - b.latency_s);
  const ends = known.flatMap((one) => [one.low_s ?? one.latency_s, one.latency_s, one.high_s ?? one.latency_s]);
  const longest = Math.max(...known.map((one) => one.label.length));
  return chart(label, (width) => {
    const isNarrow = width < 560;
    const left = isNarrow ? 8 : Math.min(270, 20 + 6.8 * longest), right = 150;
    const x = timeAxis(ends, "predicted latency, 90 % interval (log scale) →", Math.floor((width - left) / 90));
    const [low] = x.domain;
    return plot(width, {
      marginLeft: left, marginRight: isNarrow ? 20 : right, marginTop: 8, marginBottom: 44, height: 54 + (isNarrow ? 50 : 34) * known.length, x,
      y: { domain: known.map((one) => one.label), label: null, axis: isNarrow ? null : "left", tickSize: 0 },
      marks: [
        Plot.barX(known, { x1: low, x2: "latency_s", y: "label", fill: "var(--bar)", insetTop: isNarrow ? 24 : 6, insetBottom: 6, rx2: 3 }),
        Plot.link(known, { x1: "low_s", x2: "high_s", y: "label", dy: isNarrow ? 9 : 0, stroke: "currentColor", strokeWidth: 1.5, markerStart: tick, markerEnd: tick }),
        Plot.dot(known, { x: "latency_s", y: "label", dy: isNarrow ? 9 : 0, r: 4, fill: "var(--accent)", stroke: "var(--paper)" }),
        isNarrow ? Plot.text(known, { x: low, y: "label", dy: -12, text: (one) => `${one.label}: ${one.text}`, textAnchor: "start" }) : null,
        isNarrow ? null : Plot.text(known, { y: "label", frameAnchor: "right", dx: right - 4, textAnchor: "end", text: "text", fontWeight: 600 }),
        Plot.tip(known, Plot.pointerY({ x: "latency_s", y: "label", title: "title" })),
      ],
    });
  }, { name });
}

/** The end of a whisker; Plot's own markers have no such one. */
function tick(color) {
  return svg("marker", { viewBox: "-5 -5 10 10", markerWidth: 8, markerHeight: 8, orient: "auto", fill: "none", stroke: color, "stroke-width": 1.5 },
    svg("path", { d: "M0,-4v8" }));
}

/** A text beside a point, see `placedTexts`, readable across lines; null where it has no place. */
export function beside(one, place, options) {
  if (!place) return null;
  const [dx, dy, textAnchor] = place;
  return Plot.text([one], { dx, dy: dy - 4, textAnchor, stroke: "var(--paper)", strokeWidth: 4, fill: "currentColor", ...options });
}

const PLACES = [[9, 4, "start"], [-9, 4, "end"], [0, -10, "middle"], [0, 19, "middle"], [9, -9, "start"], [9, 18, "start"], [-9, -9, "end"], [-9, 18, "end"]];

/** Texts at points that no other text or point covers: [dx, dy, anchor] for each, null where none fits. */
export function placedTexts(points, size, width, places = PLACES) {
  const taken = points.map(({ x, y }) => [x - 5, y - 5, x + 5, y + 5]);
  const clash = (a) => taken.some((b) => a[0] < b[2] && a[2] > b[0] && a[1] < b[3] && a[3] > b[1]);
  return points.map(({ x, y, text }) => {
    if (!text) return null;
    const wide = text.length * size * 0.56;
    for (const [dx, dy, anchor] of places) {
      const left = x + dx - (anchor === "end" ? wide : anchor === "middle" ? wide / 2 : 0);
      const box = [left, y + dy - size, left + wide, y + dy + 3];
      if (left < 0 || box[2] > width || clash(box)) continue;
      taken.push(box);
      return [dx, dy, anchor];
    }
    return null;
  });
}

/** Keeps a chart as a PNG, with the colours that it has on the page. */
async function save(drawn, name) {
  if (!drawn) return;
  const copy = drawn.cloneNode(true);
  const originals = [drawn, ...drawn.querySelectorAll("*")];
  for (const [place, one] of [copy, ...copy.querySelectorAll("*")].entries()) {
    const style = getComputedStyle(originals[place]);
    for (const key of ["fill", "stroke", "color", "font-size", "font-family", "font-weight", "opacity"]) one.style.setProperty(key, style.getPropertyValue(key));
  }
  const { width, height } = drawn.getBoundingClientRect();
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  const text = new XMLSerializer().serializeToString(copy);
  const picture = new Image();
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await picture.decode();
  const canvas = el("canvas", { width: 2 * width, height: 2 * height });
  const pen = canvas.getContext("2d");
  pen.fillStyle = getComputedStyle(document.body).backgroundColor;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(picture, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => download(`${name}.png`, blob));
}

// When the kernels of a network run: a lane for each queue, time as the axis, with zoom.

import { button, el, percent, seconds, svg } from "./words.js";

const { select, zoom, zoomIdentity } = globalThis.libraries;
const KINDS = 7;
const LANE = 34, TOP = 4, AXIS = 24;

/** Returns the picture; `pick` is called with the number of a kernel that was clicked. */
export function timeline(row, pick) {
  const total = Math.max(...row.timeline.map((one) => one.start_s + one.time_s));
  const series = seriesOf(row.timeline);
  const lanes = [...new Set(row.timeline.flatMap((one) => one.lanes))].sort();
  const height = TOP + LANE * lanes.length + AXIS;
  const picture = svg("svg", { class: "lane", height, "aria-hidden": "true" });
  let width = 0, view = zoomIdentity;
  const move = zoom().scaleExtent([1, 2000]).on("zoom", ({ transform }) => { view = transform; draw(); });
  const chosen = select(picture).call(move).on("wheel.zoom", null);
  picture.addEventListener("wheel", (event) => { // the page scrolls unless Ctrl is held
    if (!event.ctrlKey) return;
    event.preventDefault();
    chosen.call(move.scaleBy, 2 ** (-event.deltaY * 0.004), [event.offsetX, 0]);
  }, { passive: false });
  new ResizeObserver(([entry]) => {
    width = entry.contentRect.width;
    move.extent([[0, 0], [width, height]]).translateExtent([[0, 0], [width, height]]);
    draw();
  }).observe(picture);

  function draw() {
    if (!width) return;
    const x = (time) => view.applyX((width * time) / total);
    const marked = picture.querySelector(".chosen")?.dataset.kernel;
    const bars = lanes.flatMap((lane, place) => row.timeline.filter((one) => one.lanes.includes(lane)).map((one) => {
      const from = x(one.start_s), to = x(one.start_s + one.time_s);
      const kernel = row.kernels[one.kernel];
      return svg("rect", {
        class: `series-${series.get(one.kind) ?? 0}${String(one.kernel) === marked ? " chosen" : ""}`, "data-kernel": one.kernel,
        x: from, width: Math.max(0.5, to - from - (to - from > 4 ? 1 : 0)), y: TOP + place * LANE, height: LANE - 4, onclick: () => pick(one.kernel),
      }, svg("title", {}, `${kernel.name}: ${seconds(one.time_s)} from ${seconds(one.start_s)}${kernel.low_s ? `; alone ${seconds(kernel.low_s)} to ${seconds(kernel.high_s)}` : ""}`));
    }));
    const start = (total * view.invertX(0)) / width, end = (total * view.invertX(width)) / width;
    const marks = times(start, end, Math.max(2, Math.floor(width / 110)));
    picture.replaceChildren(...bars, ...marks.map((time) => svg("text", { x: Math.min(width - 4, Math.max(2, x(time))), y: height - 7, "text-anchor": x(time) < 20 ? "start" : x(time) > width - 30 ? "end" : "middle" }, time ? seconds(Number(time.toPrecision(6))) : "0 s")));
  }

  return el("figure", { class: "timeline", "aria-label": `Timeline of ${row.network} on ${row.device}; the table of kernels has its numbers` },
    lanes.length > 1 ? el("p", { class: "soft" }, `Lanes: ${lanes.join(", ")}`) : null,
    picture, legend(row.timeline, series),
    el("p", { class: "tools" }, button("+", () => chosen.call(move.scaleBy, 2), { "aria-label": "Zoom in on the timeline" }), button("−", () => chosen.call(move.scaleBy, 0.5), { "aria-label": "Zoom out of the timeline" }),
      button("←", () => chosen.call(move.translateBy, 150 / view.k, 0), { "aria-label": "Earlier" }), button("→", () => chosen.call(move.translateBy, -150 / view.k, 0), { "aria-label": "Later" }),
      button("Whole run", () => chosen.call(move.transform, zoomIdentity)), el("span", { class: "soft" }, "Drag to move, Ctrl and the wheel to zoom.")));
}

/** Marks the calls of a kernel. */
export function markKernel(box, kernel) {
  for (const rect of box.querySelectorAll(".timeline rect")) rect.classList.toggle("chosen", Number(rect.dataset.kernel) === kernel);
}

/** Round times between two. */
function times(start, end, most) {
  const rough = (end - start) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const found = [];
  for (let place = Math.ceil(start / step - 1e-9); place * step <= end * (1 + 1e-9); place += 1) found.push(place * step);
  return found;
}

function kinds(calls) {
  const found = new Map();
  for (const one of calls) found.set(one.kind, (found.get(one.kind) ?? 0) + one.time_s);
  return [...found].sort((a, b) => b[1] - a[1]);
}

function seriesOf(calls) {
  return new Map(kinds(calls).slice(0, KINDS).map(([kind], place) => [kind, place + 1]));
}

function legend(calls, series) {
  const known = kinds(calls);
  const whole = known.reduce((sum, [, time]) => sum + time, 0);
  const rest = known.slice(KINDS);
  const entries = known.slice(0, KINDS).map(([kind, time]) => [series.get(kind), kind, time]);
  if (rest.length) entries.push([0, `${rest.length} more kinds`, rest.reduce((sum, [, time]) => sum + time, 0)]);
  return el("ul", { class: "legend", "aria-label": "Kinds of kernels and their share of the time" }, ...entries.map(([number, kind, time]) =>
    el("li", {}, el("i", { class: `series-${number}` }), `${kind} ${time < whole / 200 ? "< 1 %" : percent(time / whole)}`)));
}

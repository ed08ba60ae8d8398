// When the kernels of a network run: a lane for each queue, the whole time as the axis.

import { axisTexts, el, percent, seconds, svg } from "./words.js";

const KINDS = 7;
const WIDTH = 1000;

/** Returns the picture; `pick` is called with the number of a kernel that was clicked. */
export function timeline(row, pick) {
  const total = Math.max(...row.timeline.map((one) => one.start_s + one.time_s));
  const series = seriesOf(row.timeline);
  const lanes = [...new Set(row.timeline.flatMap((one) => one.lanes))].sort();
  return el("figure", { class: "timeline", "aria-label": `Timeline of ${row.network} on ${row.device}; the table of kernels has its numbers` },
    ...lanes.flatMap((lane) => [
      lanes.length > 1 ? el("p", { class: "soft" }, lane) : null,
      svg("svg", { viewBox: `0 0 ${WIDTH} 40`, preserveAspectRatio: "none", "aria-hidden": "true" },
        ...row.timeline.filter((one) => one.lanes.includes(lane)).map((one) => {
          const width = (WIDTH * one.time_s) / total;
          return svg("rect", {
            class: `series-${series.get(one.kind) ?? 0}${width > 4 ? " wide" : ""}`, "data-kernel": one.kernel,
            x: (WIDTH * one.start_s) / total, width: Math.max(0.4, width), y: 0, height: 40, onclick: () => pick(one.kernel),
          }, svg("title", {}, `${row.kernels[one.kernel].name}: ${seconds(one.time_s)}`));
        })),
    ]),
    el("div", { class: "axis", "aria-hidden": "true" }, ...axisTexts(total).map((text) => el("span", {}, text))),
    legend(row.timeline, series));
}

/** Marks the calls of a kernel. */
export function markKernel(box, kernel) {
  for (const rect of box.querySelectorAll("rect")) rect.classList.toggle("chosen", Number(rect.dataset.kernel) === kernel);
}

function times(calls) {
  const found = new Map();
  for (const one of calls) found.set(one.kind, (found.get(one.kind) ?? 0) + one.time_s);
  return [...found].sort((a, b) => b[1] - a[1]);
}

function seriesOf(calls) {
  return new Map(times(calls).slice(0, KINDS).map(([kind], place) => [kind, place + 1]));
}

function legend(calls, series) {
  const known = times(calls);
  const whole = known.reduce((sum, [, time]) => sum + time, 0);
  const rest = known.slice(KINDS);
  const entries = known.slice(0, KINDS).map(([kind, time]) => [series.get(kind), kind, time]);
  if (rest.length) entries.push([0, `${rest.length} more kinds`, rest.reduce((sum, [, time]) => sum + time, 0)]);
  return el("ul", { class: "legend", "aria-label": "Kinds of kernels and their share of the time" }, ...entries.map(([number, kind, time]) =>
    el("li", {}, el("i", { class: `series-${number}` }), `${kind} ${time < whole / 200 ? "< 1 %" : percent(time / whole)}`)));
}

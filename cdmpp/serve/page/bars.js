// Latencies as bars with their intervals, on one log scale.

import { el, interval, scrolling, svg, table } from "./words.js";

/** Rows of programs or networks on devices; `action` makes what stands at the end of each. */
export function bars(found, what, action) {
  const known = found.filter((one) => one.latency_s !== null);
  const ends = known.flatMap((one) => [one.latency_s, one.low_s ?? one.latency_s, one.high_s ?? one.latency_s]).map(Math.log10);
  const scale = { low: Math.floor(Math.min(...ends)), high: Math.ceil(Math.max(...ends)) };
  const ordered = found.toSorted((a, b) => (a.latency_s ?? Infinity) - (b.latency_s ?? Infinity));
  const rows = ordered.map((one) => [
    el("td", {}, one.name || one.operator || what),
    el("td", { class: "text" }, one.device),
    ...(one.latency_s === null ? [el("td", { class: "wrap", colspan: 3 }, `no latency: ${one.reason}`)] : [
      el("td", {}, interval(one.latency_s, one.low_s, one.high_s) + (one.out_of_distribution ? " !" : "")),
      el("td", { class: "bar" }, bar(one, scale)),
      el("td", {}, action(one)),
    ]),
  ]);
  const titles = [what, "device", "latency [90 %]", "on a log scale", ""];
  return scrolling("Predictions", table(titles, rows, { class: "answer" }));
}

function bar(one, scale) {
  const place = (value) => (98 * (Math.log10(value) - scale.low)) / Math.max(1, scale.high - scale.low) + 1;
  const low = place(one.low_s ?? one.latency_s), high = place(one.high_s ?? one.latency_s);
  return svg("svg", { viewBox: "0 0 100 18", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { class: "span", x: low, y: 4, width: Math.max(0.5, high - low), height: 10 }),
    svg("rect", { class: "dot", x: place(one.latency_s) - 0.4, y: 1, width: 0.8, height: 16 }));
}

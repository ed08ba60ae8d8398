// Pictures of a comparison: time and cost with the Pareto line, bars by rank, and curves over concurrency.

import { beside, chart, latencyBars, placedTexts, plot, powers, timeAxis } from "./chart.js";
import { dollars, el, interval, seconds, significant } from "./words.js";

const { Plot } = globalThis.libraries;
const SIZE = 12; // px of the texts beside points

export function comparedCharts(known, item) {
  const priced = known.filter((one) => one.cost_usd_per_million !== null);
  const text = (one) => interval(one.latency_s, one.low_s, one.high_s);
  const bars = latencyBars(known.slice(0, 40).map((one) => ({
    ...one, label: `${one.rank === null ? "" : `${one.rank}${one.is_tied ? "=" : ""}  `}${one.device}`, text: text(one), isTied: one.is_tied,
    title: `${one.device}\n${text(one)}${one.is_tied ? `\ntied at rank ${one.rank}` : ""}`,
  })), { label: "Latency of every device with its 90 % interval; = marks ties", name: "compare-latency" });
  return [el("div", { class: "two" }, bars, priced.length > 1 ? costChart(priced, item) : "")];
}

/** Time against cost; as cost follows time, an interval is a slanted line. */
function costChart(cells, item) {
  const scale = (one, end) => one.cost_usd_per_million * (one[end] ?? one.latency_s) / one.latency_s;
  const points = cells.map((one) => ({ ...one, y1: scale(one, "low_s"), y2: scale(one, "high_s"), x1: one.low_s ?? one.latency_s, x2: one.high_s ?? one.latency_s }));
  const front = points.filter((one) => one.is_on_front).toSorted((a, b) => a.latency_s - b.latency_s);
  const ordered = points.toSorted((a, b) => Boolean(b.is_on_front) - Boolean(a.is_on_front));
  const label = `Time against cost of ${cells.length} devices with a price; the line is the Pareto front`;
  return chart(label, (width) => {
    const height = Math.round(Math.min(460, Math.max(320, width * 0.62)));
    const x = timeAxis(points.flatMap((one) => [one.x1, one.x2]), "latency, log scale →", Math.floor(width / 90));
    const costs = points.flatMap((one) => [one.y1, one.y2]);
    const domain = [Math.min(...costs) / 1.15, Math.max(...costs) * 1.15];
    const y = { type: "log", domain, tickFormat: dollars, ticks: powers(domain), grid: true, label: `↑ USD per million ${item}s, log scale` };
    const scales = plot(width, { height, marginLeft: 62, marginRight: 24, marginBottom: 44, x, y }).scale;
    const at = ordered.map((one) => ({ x: scales("x").apply(one.latency_s), y: scales("y").apply(one.cost_usd_per_million), text: one.device }));
    const places = placedTexts(at, SIZE, width);
    return plot(width, {
      height, marginLeft: 62, marginRight: 24, marginBottom: 44, x, y,
      marks: [
        Plot.link(points, { x1: "x1", y1: "y1", x2: "x2", y2: "y2", stroke: "var(--soft)", strokeOpacity: 0.45, strokeWidth: 1.2 }),
        Plot.line(front, { x: "latency_s", y: "cost_usd_per_million", stroke: "var(--accent)", strokeWidth: 2, curve: "step-after", strokeDasharray: "5 4" }),
        Plot.dot(points.filter((one) => !one.is_on_front), { x: "latency_s", y: "cost_usd_per_million", r: 4.5, fill: "var(--soft)", stroke: "var(--paper)" }),
        Plot.dot(front, { x: "latency_s", y: "cost_usd_per_million", r: 6, fill: "var(--accent)", stroke: "var(--paper)" }),
        ...ordered.map((one, place) => beside(one, places[place], { x: "latency_s", y: "cost_usd_per_million", text: "device", fontWeight: one.is_on_front ? 700 : 400 })),
        Plot.tip(points, Plot.pointer({ x: "latency_s", y: "cost_usd_per_million", title: (one) => `${one.device}${one.is_on_front ? " (nothing beats it in both)" : ""}\n${interval(one.latency_s, one.low_s, one.high_s)}\n${dollars(one.cost_usd_per_million)} per million ${item}s [${dollars(one.y1)}, ${dollars(one.y2)}]` })),
      ],
    });
  }, { name: "compare-cost", note: "Slanted lines are 90 % intervals (cost follows time); the dashed line is the Pareto front." });
}

export function loadCharts(loads) {
  const series = [...new Set(loads.map((one) => one.device))];
  const colour = (one) => `var(--series-${1 + (series.indexOf(one.device) % 7)})`;
  const last = series.map((device) => loads.filter((one) => one.device === device).toSorted((a, b) => b.concurrency - a.concurrency)[0]);
  const draw = (name, label, axes, marks) => chart(label, (width) => {
    const height = Math.round(Math.min(460, Math.max(320, width * 0.62)));
    const made = axes(width);
    const scale = plot(width, { height, marginLeft: 62, marginRight: 84, marginBottom: 44, ...made }).scale;
    const places = placedTexts(last.map((one) => ({ x: scale("x").apply(one[marks[0]]), y: scale("y").apply(one[marks[1]]), text: one.device })), SIZE, width);
    return plot(width, {
      height, marginLeft: 62, marginRight: 84, marginBottom: 44, ...made,
      marks: [
        ...(marks[2] ? series.map((device, place) => Plot.link(loads.filter((one) => one.device === device), { // side by side
          x1: marks[0], x2: marks[0], y1: marks[2], y2: marks[3], dx: 3 * (place - (series.length - 1) / 2), stroke: colour, strokeOpacity: 0.6, strokeWidth: 1.5,
        })) : []),
        Plot.line(loads, { x: marks[0], y: marks[1], z: "device", stroke: colour, strokeWidth: 2, sort: "concurrency" }),
        Plot.dot(loads, { x: marks[0], y: marks[1], fill: colour, r: 3.5 }),
        ...last.map((one, place) => beside(one, places[place], { x: marks[0], y: marks[1], text: "device" })),
        Plot.tip(loads, Plot.pointer({ x: marks[0], y: marks[1], title: (one) => `${one.device}, ${one.concurrency} in flight\na token ${interval(one.tpot_s, one.tpot_s_low, one.tpot_s_high)}\n${significant(one.tokens_per_s_gpu)} tokens/s a device` })),
      ],
    });
  }, { name });
  const times = loads.flatMap((one) => [one.tpot_s_low, one.tpot_s_high]);
  const { grid, label: _, ...vertical } = timeAxis(times, "");
  const users = [...new Set(loads.map((one) => one.concurrency))];
  const rates = loads.map((one) => one.tokens_per_s_gpu);
  const domain = [Math.min(...rates) / 1.2, Math.max(...rates) * 1.2];
  const tokens = { type: "log", domain, grid: true, tickFormat: significant, ticks: powers(domain), label: "↑ tokens/s per device, log scale" };
  return [el("div", { class: "two" },
    draw("load-latency", "Time per token over requests in flight, with 90 % intervals",
      () => ({ x: { type: "log", base: 2, domain: [Math.min(...users) / 1.15, Math.max(...users) * 1.15], label: "requests in flight →", labelOffset: 38, ticks: users, tickFormat: String }, y: { ...vertical, grid, tickFormat: seconds, label: "↑ time per token, log scale" } }),
      ["concurrency", "tpot_s", "tpot_s_low", "tpot_s_high"]),
    draw("load-throughput", "Throughput against time per token, one dot per concurrency",
      (width) => ({ x: timeAxis(loads.map((one) => one.tpot_s), "time per token, log scale →", Math.floor(width / 90)), y: tokens }), ["tpot_s", "tokens_per_s_gpu"]))];
}

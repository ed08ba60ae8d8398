// Run folders side by side: learning curves, errors by task, worst programs.

import { chart, plot, powers, timeAxis } from "./chart.js";
import { $, ask, busy, copyLink, isOpen, remember } from "./shared.js";
import { sortable } from "./table.js";
import { el, link, percent, scrolling, seconds, significant } from "./words.js";

const MOST = 6;
const { Plot } = globalThis.libraries;
let known = [];

export function wireRuns() {
  $("runs").addEventListener("submit", (event) => {
    event.preventDefault();
    compare();
    remember({ view: "runs", run: chosen().join("\n") });
  });
}

export async function restoreRuns(asked) {
  const isWell = await busy("runs-status", "Reading…", async () => {
    const found = await ask("/v1/runs");
    known = found.runs;
    $("runs").hidden = !known.length;
    if (!known.length) throw new Error(found.folder === null
      ? "This server shows no run folders; start it with --runs DIR." : `No run folders in ${found.folder}.`);
  });
  if (!isWell) return;
  const wanted = new Set((asked.get("run") ?? "").split("\n"));
  const fine = known.filter((one) => one.problem === null);
  $("runs-choice").replaceChildren(...fine.map((one) => el("label", {},
    el("input", { type: "checkbox", value: one.name, checked: wanted.has(one.name) }), one.name,
    el("small", {}, `${one.kind}; ${one.devices.length} devices`))));
  $("runs-problems").replaceChildren(...known.filter((one) => one.problem !== null).map((one) => el("li", {}, `${one.name}: ${one.problem}`)));
  for (const box of [...$("runs-choice").querySelectorAll("input")].slice(0, asked.has("run") ? 0 : MOST)) box.checked = true;
  await compare();
}

function chosen() {
  return [...$("runs-choice").querySelectorAll("input:checked")].map((box) => box.value);
}

async function compare() {
  $("runs-compared").replaceChildren();
  await busy("runs-status", "Comparing…", async () => {
    const names = chosen();
    if (!names.length || names.length > MOST) throw new Error(`Expected 1 to ${MOST} runs: choose them above.`);
    const query = new URLSearchParams(names.map((name) => ["run", name]));
    const { compared } = await ask(`/v1/runs/compared?${query}`);
    $("runs-compared").replaceChildren(...facts(compared.runs),
      el("div", { class: "two" }, el("div", {}, ...points(compared)), el("div", {}, ...curves(compared.runs))), ...tasks(compared), ...worst(compared));
  });
}

function mark(place) {
  return el("i", { class: `swatch series-${place + 1}` });
}

function facts(runs) {
  const names = runs.map((one, place) => el("th", { scope: "col" }, mark(place), one.name));
  const test = (one, key) => one.test[one.kind]?.[key] ?? Object.values(one.test)[0]?.[key] ?? null;
  const shown = (value, write) => (value === null || value === undefined ? "–" : write(value));
  const lines = [
    ["model", (one) => one.kind], ["seed", (one) => String(one.seed ?? "–")],
    ["test programs", (one) => shown(test(one, "n"), String)],
    ["MAPE", (one) => shown(test(one, "mape"), (value) => percent(value, 1))],
    ["median APE", (one) => shown(test(one, "median_ape"), (value) => percent(value, 1))],
    ["log error", (one) => shown(test(one, "mean_log_error"), significant)],
    ["Spearman by task", (one) => shown(test(one, "spearman_by_task"), significant)],
    ["MAPE of the constant", (one) => shown(one.test.constant?.mape, (value) => percent(value, 1))],
    ["MAPE of the roofline", (one) => shown(one.test.roofline?.mape, (value) => percent(value, 1))],
    ["MAPE of the oracle", (one) => shown(one.test.oracle?.mape, (value) => percent(value, 1))],
    ["training", (one) => shown(one.training_s, seconds)],
    ["trained on", (one) => one.devices.join(", ")], ["data", (one) => one.data_hash.slice(0, 16)],
    ["split", (one) => one.split],
    ["report", (one) => (!one.has_report ? "none" : isOpen() ? link(`/v1/runs/report?${new URLSearchParams({ run: one.name })}`, "report.html") : "report.html in its folder")],
  ];
  const rows = lines.map(([title, of]) => el("tr", {}, el("th", { scope: "row" }, title), ...runs.map((one) => el("td", { class: "wrap" }, of(one)))));
  const differs = new Set(runs.map((one) => `${one.data_hash} ${one.split}`)).size > 1;
  return [
    scrolling("What the runs are", el("table", { class: "facts" }, el("thead", {}, el("tr", {}, el("td", {}), ...names)), el("tbody", {}, ...rows))),
    differs ? el("p", { class: "warning" }, "These runs are of different data or splits: their test parts differ, so their errors are not comparable.") : "",
  ];
}

function curves(runs) {
  const entries = runs.flatMap((one, place) => one.curve.flatMap((entry) => ["validation", "training"].map((part) => ({
    run: one.name, place, kind: one.kind, part, epoch: entry.epoch, loss: entry[`${part}_loss`],
  })))).filter((entry) => entry.loss > 0);
  const kinds = [...new Set(entries.map((entry) => entry.kind))]; // losses of different kinds have no common scale
  return [
    ...(kinds.length ? [el("h2", {}, "Learning curves")] : []),
    ...kinds.map((kind) => curve(kind, entries.filter((entry) => entry.kind === kind))),
    kinds.length ? legend(runs, "Solid: validation; dashed: training. Kinds of models have charts of their own: their losses are of different scales.") : "",
  ];
}

function curve(kind, entries) {
  const domain = [Math.min(...entries.map((one) => one.loss)) / 1.1, Math.max(...entries.map((one) => one.loss)) * 1.1];
  return chart(`Loss by epoch of ${kind}`, (width) => plot(width, {
    height: 320, marginLeft: 56, marginRight: 16, marginBottom: 44, x: { label: "epoch →", labelOffset: 38, tickFormat: "d", ticks: Math.min(8, Math.max(...entries.map((one) => one.epoch))) },
    y: { type: "log", domain, ticks: powers(domain), tickFormat: significant, grid: true, label: `↑ loss of ${kind}, log scale` },
    marks: ["validation", "training"].map((part) => Plot.line(entries.filter((one) => one.part === part), {
      x: "epoch", y: "loss", z: "run", stroke: (one) => colour(one.place), strokeWidth: part === "training" ? 1.2 : 2.5, strokeDasharray: part === "training" ? "4 3" : null,
    })).concat(Plot.tip(entries, Plot.pointer({ x: "epoch", y: "loss", title: (one) => `${one.run}, ${one.part}\nepoch ${one.epoch}: ${significant(one.loss)}` }))),
  }), { name: `curves-${kind}` });
}

const colour = (place) => `var(--series-${place + 1})`;

function legend(runs, text) {
  return el("div", {}, el("ul", { class: "legend", "aria-label": "Runs by colour" }, ...runs.map((one, place) => el("li", {}, mark(place), one.name))), el("p", { class: "soft" }, text));
}

function points(compared) {
  const all = compared.points.flatMap((some, place) => some.map((one) => ({ ...one, place, run: compared.runs[place].name })));
  if (!all.length) return [];
  const values = all.flatMap((one) => [one.measured_s, one.predicted_s]);
  const ends = [Math.min(...values), Math.max(...values)];
  return [
    el("h2", {}, "Predicted beside measured"),
    chart("Predicted against measured latency of test programs", (width) => {
      const side = Math.min(width, 620);
      return plot(side, {
        height: Math.round(side * 0.8), marginLeft: 68, marginBottom: 44, x: timeAxis(values, "measured latency, log scale →", Math.floor(side / 100)),
        y: { ...timeAxis(values, "↑ predicted latency, log scale"), labelOffset: undefined },
        marks: [
          Plot.line([ends, ends].map((_, place) => [ends[place], ends[place]]), { stroke: "currentColor" }),
          ...[2, 0.5].map((factor) => Plot.line(ends.map((end) => [end, end * factor]), { stroke: "currentColor", strokeOpacity: 0.5, strokeDasharray: "4 3", clip: true })),
          Plot.dot(all, { x: "measured_s", y: "predicted_s", fill: (one) => colour(one.place), fillOpacity: 0.7, r: 3 }),
          Plot.tip(all, Plot.pointer({ x: "measured_s", y: "predicted_s", title: (one) => `${one.words}\n${one.device}, ${one.run}\nmeasured ${seconds(one.measured_s)}\npredicted ${seconds(one.predicted_s)} (${significant(one.predicted_s / one.measured_s)} ×)` })),
        ],
      });
    }, { name: "predicted" }),
    legend(compared.runs, "Up to 400 test programs of a run. On the solid line predictions are exact; between the dashed lines they are off by less than 2 ×."),
  ];
}

function tasks(compared) {
  const columns = [
    { key: "task", title: "task", isText: true, value: (one) => one.words, more: [["key", (one) => one.task]] }, { key: "device", title: "device", isText: true, value: (one) => one.device },
    ...compared.runs.flatMap((run, place) => [
      { key: `factor-${place}`, title: run.name, value: (one) => one.runs[place] && Math.exp(one.runs[place].median_log_error), show: (one) => (one.runs[place] ? `${significant(Math.exp(one.runs[place].median_log_error))} ×` : "–") },
      { key: `n-${place}`, title: "n", value: (one) => one.runs[place]?.n ?? null },
    ]),
  ];
  return [
    el("h2", {}, "Errors by task"),
    el("p", { class: "soft" }, "Error factor of the median program of a task in the test part, too high or too low; the worst tasks of any run."),
    sortable("Errors by task", columns, compared.tasks, { name: "tasks" }),
  ];
}

function worst(compared) {
  const columns = [
    { key: "task", title: "task", isText: true, value: (one) => one.words, more: [["program", (one) => one.program_id]] }, { key: "device", title: "device", isText: true, value: (one) => one.device },
    { key: "measured", title: "measured", unit: "s", value: (one) => one.measured_s, show: (one) => seconds(one.measured_s) },
    ...compared.runs.map((run, place) => ({
      key: `run-${place}`, title: run.name, unit: "s", value: (one) => one.runs[place]?.predicted_s ?? null,
      show: (one) => {
        const found = one.runs[place];
        if (found === null) return "–";
        return found.part === "test" ? `${seconds(found.predicted_s)} (${significant(found.predicted_s / one.measured_s)} ×)` : `in its ${found.part} part`;
      },
    })),
  ];
  return [
    el("h2", {}, "Worst programs"),
    el("p", { class: "soft" }, "Predicted, and how many times the measured time that is; of the test parts, the worst of any run."),
    sortable("Worst programs", columns, compared.worst, { name: "worst", tools: [copyLink()] }),
  ];
}

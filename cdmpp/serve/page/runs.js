// Run folders side by side: learning curves, errors by task, worst programs.

import { $, ask, busy, isOpen, remember } from "./shared.js";
import { el, link, percent, scrolling, seconds, significant, svg, table } from "./words.js";

const MOST = 6;
const WIDTH = 640, HEIGHT = 300, EDGE = 46;
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
  if (asked.has("run")) await compare();
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
    $("runs-compared").replaceChildren(...facts(compared.runs), ...curves(compared.runs), ...tasks(compared), ...worst(compared));
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
    differs ? el("p", { class: "warning" }, "These runs are of different data or splits: their test parts differ, so their errors do not compare.") : "",
  ];
}

function curves(runs) {
  const known = runs.map((one) => one.curve.filter((entry) => entry.training_loss > 0 || entry.validation_loss > 0));
  if (!known.some((curve) => curve.length)) return [];
  const losses = known.flat().flatMap((entry) => [entry.training_loss, entry.validation_loss]).filter((value) => value > 0);
  const low = Math.log(Math.min(...losses)), size = Math.log(Math.max(...losses)) - low || 1;
  const last = Math.max(...known.flat().map((entry) => entry.epoch));
  const x = (epoch) => EDGE + ((epoch - 1) / Math.max(1, last - 1)) * (WIDTH - 2 * EDGE);
  const y = (loss) => HEIGHT - EDGE - ((Math.log(loss) - low) / size) * (HEIGHT - 2 * EDGE);
  const line = (curve, key) => curve.filter((entry) => entry[key] > 0).map((entry) => `${x(entry.epoch).toFixed(1)},${y(entry[key]).toFixed(1)}`).join(" ");
  const marks = [0, 0.5, 1].map((part) => Math.exp(low + part * size));
  return [
    el("h2", {}, "Learning curves"),
    svg("svg", { class: "front curves", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": "Loss by epoch of every run: validation solid, training dashed" },
      ...marks.flatMap((loss) => [
        svg("line", { x1: EDGE, x2: WIDTH - EDGE, y1: y(loss), y2: y(loss) }),
        svg("text", { x: EDGE - 6, y: y(loss) + 4, "text-anchor": "end" }, significant(loss)),
      ]),
      svg("text", { x: 4, y: 14 }, "loss, log scale"),
      svg("text", { x: EDGE, y: HEIGHT - 18 }, "1"), svg("text", { x: WIDTH - EDGE, y: HEIGHT - 18, "text-anchor": "end" }, `epoch ${last}`),
      ...known.flatMap((curve, place) => [
        svg("polyline", { class: `line-${place + 1} thin`, points: line(curve, "training_loss") }),
        svg("polyline", { class: `line-${place + 1}`, points: line(curve, "validation_loss") }),
      ])),
    el("ul", { class: "legend", "aria-label": "Runs by colour" }, ...runs.map((one, place) => el("li", {}, mark(place), one.name))),
    el("p", { class: "soft" }, "Solid: validation; dashed: training. The losses of different kinds of models are not of one scale."),
  ];
}

function tasks(compared) {
  const rows = compared.tasks.map((one) => [
    el("td", {}, one.task), el("td", { class: "text" }, one.device),
    ...one.runs.flatMap((run) => (run === null ? ["–", ""] : [`${significant(Math.exp(run.median_log_error))} ×`, String(run.n)])),
  ]);
  const titles = ["task", "device", ...compared.runs.flatMap((one) => [one.name, "n"])];
  return [
    el("h2", {}, "Errors by task"),
    el("p", { class: "soft" }, "The factor by which the middle program of a task is off in the test part, too high or too low; the worst tasks of any run."),
    scrolling("Errors by task", table(titles, rows)),
  ];
}

function worst(compared) {
  const rows = compared.worst.map((one) => [
    el("td", {}, one.task), el("td", { class: "text" }, one.device), one.program_id.slice(0, 12), seconds(one.measured_s),
    ...one.runs.map((run) => (run === null ? "–" : run.part === "test" ? `${seconds(run.predicted_s)} (${significant(run.predicted_s / one.measured_s)} ×)` : `in its ${run.part} part`)),
  ]);
  return [
    el("h2", {}, "Worst programs"),
    el("p", { class: "soft" }, "Predicted, and how many times the measured time that is; of the test parts, the worst of any run."),
    scrolling("Worst programs", table(["task", "device", "program", "measured", ...compared.runs.map((one) => one.name)], rows)),
  ];
}

// Tables of results: chosen by suite, data set, device and metric; sorted by any column.

import { chart, plot, powers } from "./chart.js";
import { $, ask, busy, copyLink, isOpen, remember } from "./shared.js";
import { sortable } from "./table.js";
import { el, link, percent, seconds, significant } from "./words.js";

const { Plot } = globalThis.libraries;
const FACETS = ["suite", "dataset", "split", "device", "group"];
const WORDS = { suite: "Suite", dataset: "Data set", split: "Split", device: "Device", group: "Group" };
let board = null;
let place = { metric: "", sort: "", down: false };

export function wireResults() {
  $("results").addEventListener("submit", (event) => event.preventDefault());
  $("results").addEventListener("change", (event) => {
    if (event.target.id === "results-table") load({}).then(rememberIt);
    else if (event.target.id === "results-metric") narrow();
    else load(chosen()).then(rememberIt);
  });
}

export async function restoreResults(asked) {
  await busy("results-status", "Reading…", async () => {
    const found = await ask("/v1/results");
    $("results").hidden = !found.tables.length;
    $("results-table").replaceChildren(...found.tables.map((one) => el("option", { value: one.name }, one.title)));
    if (!found.tables.length) throw new Error(found.folder === null
      ? "This server shows no results; start it with --results DIR." : `No results in ${found.folder}.`);
    const wanted = found.tables.find((one) => one.name === asked.get("table"));
    $("results-table").value = (wanted ?? found.tables.find((one) => one.has_numbers) ?? found.tables[0]).name;
  });
  if ($("results").hidden) return;
  place = { metric: asked.get("metric") ?? "", sort: asked.get("sort") ?? "", down: asked.get("down") === "1" };
  await load(Object.fromEntries(FACETS.filter((name) => asked.has(name)).map((name) => [name, asked.get(name)])));
}

function chosen() {
  return Object.fromEntries((board?.facets ?? []).map((one) => [one.name, $(`results-${one.name}`)?.value ?? one.chosen]));
}

async function load(facts) {
  await busy("results-status", "Reading…", async () => {
    const name = encodeURIComponent($("results-table").value);
    board = (await ask(`/v1/results/${name}?${new URLSearchParams(facts)}`)).board;
  });
  if (!board) return;
  const many = board.facets.filter(({ values }) => values.length > 1);
  $("results-facets").replaceChildren(...many.map(({ name, values, chosen: value }) => el("span", {},
    el("label", { for: `results-${name}` }, WORDS[name]),
    el("select", { id: `results-${name}` }, ...values.map((one) => el("option", { value: one, selected: one === value }, one || "–"))))));
  if (!board.columns.some((one) => one.key === place.metric)) place.metric = "";
  place.metric ||= board.columns.find((one) => one.better)?.key ?? board.columns[0]?.key ?? "";
  $("results-metric").replaceChildren(...board.columns.map((one) => el("option", { value: one.key, selected: one.key === place.metric }, one.title)));
  $("results-metric-field").hidden = !board.columns.length;
  draw();
}

function narrow() {
  place = { ...place, metric: $("results-metric").value };
  draw();
  rememberIt();
}

function rememberIt() {
  remember({ view: "results", table: $("results-table").value, ...chosen(), metric: place.metric, sort: place.sort, down: place.down ? "1" : "" });
}

function draw() {
  $("results-board").replaceChildren(
    ...(board.lines.length ? [metricChart(), boardTable()] : [el("p", {}, "This result has no table; see its page.")]),
    ...said());
}

/** The chosen metric of every model, the best first, with what looks at the answers set apart. */
function metricChart() {
  const column = board.columns.find((one) => one.key === place.metric);
  if (!column) return "";
  const sign = column.better === "high" ? -1 : 1;
  const lines = board.lines.map((line) => ({ model: line.model, ...line.values[column.key] })).filter((one) => one.mean !== null).toSorted((a, b) => sign * (a.mean - b.mean));
  if (!lines.length) return "";
  const better = { low: "lower is better", high: "higher is better" }[column.better] ?? "";
  const means = lines.map((one) => one.mean);
  const least = Math.min(...means), most = Math.max(...means);
  const isLog = least > 0 && most > 30 * least;
  const domain = isLog ? [least / 1.5, most * 1.5] : [Math.min(0, least * 1.15), Math.max(0, most * 1.15)];
  const within = (value) => Math.min(domain[1], Math.max(domain[0], value)); // an interval beyond the axis ends at its edge
  return chart(`${column.title} of every model`, (width) => {
    const left = Math.min(width * 0.45, 20 + 7 * Math.max(...lines.map((one) => one.model.length)));
    const count = Math.max(2, Math.floor((width - left - 80) / 80)); // of ticks
    return plot(width, {
      marginLeft: left, marginRight: 80, marginTop: 8, marginBottom: 44, height: 54 + 26 * lines.length,
      x: { type: isLog ? "log" : "linear", domain, label: `${column.title}${better && `, ${better}`}${isLog ? ", log scale" : ""} →`, labelOffset: 38, grid: true, ticks: isLog ? powers(domain).filter((_, place, all) => place % Math.ceil(all.length / count) === 0) : count, tickFormat: (value) => text(value, column.unit) },
      y: { domain: lines.map((one) => one.model), label: null, tickSize: 0 },
      marks: [
        Plot.barX(lines, { x1: isLog ? domain[0] : 0, x2: "mean", y: "model", fill: (one) => (isReference(one) ? "var(--line)" : "var(--bar)"), insetTop: 4, insetBottom: 4 }),
        Plot.link(lines.filter((one) => one.half), { x1: (one) => within(one.mean - one.half), x2: (one) => within(one.mean + one.half), y: "model", stroke: "currentColor", strokeWidth: 1.5 }),
        Plot.text(lines, { y: "model", frameAnchor: "right", dx: 76, textAnchor: "end", text: (one) => text(one.mean, column.unit), fontWeight: 600 }),
        Plot.tip(lines, Plot.pointerY({ x: "mean", y: "model", title: (one) => `${one.model}\n${column.title} ${text(one.mean, column.unit)}${one.half === null ? "" : ` ± ${text(one.half, column.unit)}`}` })),
      ],
    });
  }, { name: `results-${board.name}`, note: "Lines: 95 % intervals over seeds. Grey: references that use the measured results." });
}

function boardTable() {
  const best = new Map(board.columns.filter((one) => one.better).map((one) => {
    const known = board.lines.filter((line) => !isReference(line)).map((line) => line.values[one.key].mean).filter((mean) => mean !== null);
    return [one.key, one.better === "low" ? Math.min(...known) : Math.max(...known)];
  }));
  const columns = [
    { key: "model", title: "model", isText: true, value: (line) => line.model },
    { key: "seeds", title: "seeds", value: (line) => line.seeds },
    { key: "n", title: "n", value: (line) => (line.n === null ? null : Math.round(line.n)) },
    ...board.columns.map((one) => ({
      key: one.key, title: one.title, unit: one.unit, value: (line) => line.values[one.key].mean,
      show: (line) => {
        const { mean, half } = line.values[one.key];
        const isBest = !isReference(line) && mean !== null && mean === best.get(one.key);
        return el(isBest ? "b" : "span", {}, text(mean, one.unit), half === null ? null : el("small", {}, ` ± ${text(half, one.unit)}`));
      },
      more: [[`${one.title} ±`, (line) => line.values[one.key].half]],
    })),
  ];
  return sortable("Table of results", columns, board.lines, {
    name: board.name, class: "board", sort: place.sort ? { key: place.sort, down: place.down } : null, rowClass: (line) => (isReference(line) ? "oracle" : null),
    onSort: ({ key, down }) => { place = { ...place, sort: key, down }; rememberIt(); },
    tools: [copyLink(), el("span", { class: "soft" }, "Means over seeds ± the half width of their 95 % interval; bold is the best of a column.")],
  });
}

/** What looks at the answers is out of competition. */
const isReference = (line) => /oracle|noise.floor/.test(line.model);

function text(value, unit) {
  if (value === null) return "–";
  if (unit === "percent") return percent(value, 1);
  return unit === "seconds" ? seconds(value) : significant(value);
}

function said() {
  const facts = Object.entries(board.facts);
  const path = `/v1/results/${encodeURIComponent(board.name)}/page`;
  return [
    board.has_page && isOpen() ? el("p", {}, link(path, "Its page, with plots")) : "",
    ...Object.entries(board.verdict).map(([title, found]) => el("details", {},
      el("summary", {}, `What follows: ${title}`), el("ul", {}, ...found.map((one) => el("li", {}, one))))),
    facts.length ? el("dl", {}, ...facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])) : "",
  ];
}

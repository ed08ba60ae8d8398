// Tables of results: chosen by suite, data set, device and metric; sorted by any column.

import { $, ask, busy, isOpen, remember } from "./shared.js";
import { el, link, percent, scrolling, seconds, significant } from "./words.js";

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
  $("results-metric").replaceChildren(el("option", { value: "" }, "all"), ...board.columns.map((one) =>
    el("option", { value: one.key, selected: one.key === place.metric }, one.title)));
  $("results-metric-field").hidden = !board.columns.length;
  draw();
}

function narrow() {
  place = { ...place, metric: $("results-metric").value };
  if (place.metric) place.sort = place.metric;
  draw();
  rememberIt();
}

function rememberIt() {
  remember({ view: "results", table: $("results-table").value, ...chosen(), metric: place.metric, sort: place.sort, down: place.down ? "1" : "" });
}

function draw() {
  const columns = board.columns.filter((one) => !place.metric || one.key === place.metric);
  const column = columns.find((one) => one.key === place.sort);
  const sign = place.down ? -1 : 1;
  const value = (line) => (place.sort === "model" ? line.model : line.values[column?.key]?.mean ?? null);
  const lines = place.sort ? board.lines.toSorted((a, b) => order(value(a), value(b), sign)) : board.lines;
  $("results-board").replaceChildren(
    board.lines.length ? scrolling("Table of results", boardTable(columns, lines)) : el("p", {}, "Its numbers are not kept in a table here; see its page."),
    el("p", { class: "soft" }, board.lines.length ? "Means over seeds ± the half width of their 95 % interval." : ""),
    ...said());
}

function order(a, b, sign) {
  if (a === null || b === null) return (a === null) - (b === null);
  return sign * (typeof a === "string" ? a.localeCompare(b) : a - b);
}

function boardTable(columns, lines) {
  const best = new Map(columns.filter((one) => one.better).map((one) => {
    const known = lines.filter((line) => !isReference(line)).map((line) => line.values[one.key].mean).filter((mean) => mean !== null);
    return [one.key, one.better === "low" ? Math.min(...known) : Math.max(...known)];
  }));
  const head = [["model", "model"], [null, "seeds"], [null, "n"], ...columns.map((one) => [one.key, one.title])];
  return el("table", { class: "board" },
    el("thead", {}, el("tr", {}, ...head.map(([key, title]) => heading(key, title)))),
    el("tbody", {}, ...lines.map((line) => el("tr", { class: isReference(line) ? "oracle" : null },
      el("td", {}, line.model), el("td", {}, String(line.seeds)), el("td", {}, line.n === null ? "" : String(Math.round(line.n))),
      ...columns.map((one) => {
        const { mean, half } = line.values[one.key];
        return el("td", { class: !isReference(line) && mean === best.get(one.key) ? "best" : null },
          text(mean, one.unit), half === null ? null : el("small", {}, `± ${text(half, one.unit)}`));
      })))));
}

/** What looks at the answers is out of competition. */
const isReference = (line) => /oracle|noise.floor/.test(line.model);

function heading(key, title) {
  if (key === null) return el("th", { scope: "col" }, title);
  const state = place.sort !== key ? "none" : place.down ? "descending" : "ascending";
  const mark = { none: "", ascending: " ▲", descending: " ▼" }[state];
  return el("th", { scope: "col", "aria-sort": state }, el("button", { type: "button", class: "sort", onclick: () => {
    place = { ...place, sort: key, down: place.sort === key && !place.down };
    draw();
    rememberIt();
    $("results-board").querySelector(`[aria-sort="ascending"] button, [aria-sort="descending"] button`).focus();
  } }, title + mark));
}

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

// Which device: a transformer on all of them, as a picture of time and cost and as a table.

import { $, ask, busy, remember } from "./shared.js";
import { el, interval, scrolling, significant, svg, table } from "./words.js";

const GIB = 2 ** 30;
const WIDTH = 640, HEIGHT = 300, EDGE = 46;

const FIELDS = ["shape", "pass", "tokens", "objective"];

export function wireCompare() {
  $("compare").addEventListener("submit", (event) => {
    event.preventDefault();
    remember({ view: "compare", ...Object.fromEntries(FIELDS.map((name) => [name, $(name).value])) });
    compare();
  });
}

export async function restoreCompare(asked) {
  if (!asked.has("shape")) return;
  for (const name of FIELDS) $(name).value = asked.get(name) ?? $(name).value;
  await compare();
}

async function compare() {
  $("compared").replaceChildren();
  await busy("compare-status", "Comparing…", async () => {
    const tokens = [Number($("tokens").value)];
    const body = { transformers: [$("shape").value], [$("pass").value]: tokens, all_devices: true, objective: $("objective").value };
    $("compared").replaceChildren(...compared((await ask("/v1/compare", body)).cells));
  });
}

function compared(cells) {
  const known = cells.filter((one) => one.latency_s !== null);
  const notes = [...new Set(known.flatMap((one) => one.reasons))];
  const marks = (one) => one.reasons.map((text) => `[${notes.indexOf(text) + 1}]`).join("");
  const rows = known.map((one) => [
    `${one.device}${one.is_on_front ? " *" : ""} ${marks(one)}`.trim(),
    one.rank === null ? "-" : `${one.rank}${one.is_tied ? "=" : ""}`, interval(one.latency_s, one.low_s, one.high_s),
    one.memory_bytes === null ? "?" : `${significant(one.memory_bytes / GIB)} GiB`,
    one.fits === null ? "?" : one.fits ? "yes" : "no",
    one.cost_usd_per_million === null ? "?" : `$${significant(one.cost_usd_per_million)}`,
    el("td", { class: "text" }, one.method ?? ""),
  ]);
  const without = cells.length - known.length;
  const unpriced = known.filter((one) => one.cost_usd_per_million === null).length;
  return [
    picture(known.filter((one) => one.cost_usd_per_million !== null)),
    scrolling("Devices compared", table(["device", "rank", "latency [90 %]", "memory", "fits", "for a million tokens", "answered by"], rows)),
    ...notes.map((text, place) => el("p", { class: "soft" }, `[${place + 1}] ${text}`)),
    el("p", { class: "soft" }, `= cannot be told apart from others of this rank: their intervals overlap. * nothing is both faster and cheaper, as far as prices are known.${unpriced ? ` ${unpriced} devices have no known price: they are in the table alone.` : ""}${without ? ` ${without} devices have no answer.` : ""}`),
  ];
}

function picture(cells) {
  if (cells.length < 2) return "";
  const x = axis(cells.map((one) => one.latency_s), EDGE, WIDTH - EDGE);
  const y = axis(cells.map((one) => one.cost_usd_per_million), HEIGHT - EDGE, EDGE / 2);
  const dots = cells.flatMap((one) => {
    const at = { cx: x(one.latency_s), cy: y(one.cost_usd_per_million) };
    return [
      svg("circle", { ...at, r: one.is_on_front ? 6 : 4, class: one.is_on_front ? "dot" : "span" }, svg("title", {}, one.device)),
      ...(one.is_on_front ? [svg("text", { x: at.cx + 9, y: at.cy + 4 }, one.device)] : []),
    ];
  });
  return svg("svg", { class: "front", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img",
    "aria-label": "Time against cost of every device that has both; the table below has the numbers" },
    svg("text", { x: WIDTH / 2 - 60, y: HEIGHT - 12 }, "slower, log scale →"),
    svg("text", { x: 4, y: 14 }, "↑ dearer, log scale"), ...dots);
}

function axis(values, from, to) {
  const logs = values.map(Math.log);
  const low = Math.min(...logs), size = Math.max(...logs) - low || 1;
  return (value) => from + ((Math.log(value) - low) / size) * (to - from);
}

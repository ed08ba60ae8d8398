// An explained program: its painted lines, its stores, and what it might be instead.

import { columnWords } from "./columns.js";
import { sideBySide } from "./editor.js";
import { registry } from "./shared.js";
import { sortable } from "./table.js";
import { button, el, interval, percent, seconds, significant } from "./words.js";

const HIDDEN = /^\s*T\.(reads|writes)\(|^# from |^$/;

/** `hasLines` where the lines have to be shown here: no editor shows them. */
export function explained(one, { note = null, hasLines = true } = {}) {
  const title = el("h2", { tabindex: -1 }, `Where the time goes: ${one.name || "program"} on ${one.device}`);
  const box = el("section", { "aria-label": `Why ${one.name} takes its time` }, title);
  if (note) box.append(note);
  if (one.latency_s === null || one.text === null) {
    box.append(el("p", {}, one.reason ?? "No store does any work."));
    return box;
  }
  box.append(el("p", { class: "verdict" }, el("b", {}, interval(one.latency_s, one.low_s, one.high_s)), ` ${one.text}.`));
  const place = rooflineOf(one);
  if (place) box.append(el("p", {}, el("a", { href: place }, `On the roofline of ${one.device}`)));
  if (hasLines) box.append(listing(one.lines));
  box.append(el("h3", {}, "Suggested rewrites"), one.counterfactuals.length ? rewrites(one) : el("p", { class: "soft" }, `None applies: ${one.no_counterfactual}`));
  box.append(el("h3", {}, "Stores"), stores(one));
  if (one.nearest.length) {
    box.append(el("details", {}, el("summary", {}, "Similar measured programs"), nearest(one.nearest)));
  }
  return box;
}

/** The address of the rooflines with the program's point; null where its operations or traffic are not known. */
function rooflineOf(one) {
  const { peak_fp32_flop_per_s: peak, mem_bandwidth_bytes_per_s: bandwidth } = registry.get(one.device) ?? {};
  const sum = (key) => one.leaves.reduce((total, leaf) => total + (leaf.limits_s?.[key] ?? 0), 0);
  const flop = sum("operations") * peak, bytes = sum("memory") * bandwidth;
  if (!(flop > 0 && bytes > 0)) return null;
  const facts = { view: "devices", devices: one.device, point: `${one.name} as predicted`, intensity: (flop / bytes).toPrecision(4), rate: (flop / one.latency_s).toPrecision(4) };
  return `#${new URLSearchParams(facts)}`;
}

function listing(lines) {
  const shown = lines.filter((line) => !HIDDEN.test(line.text));
  const painted = shown.map((line, place) => el("span", { class: `heat-${Math.min(10, Math.round(10 * (line.share ?? 0)))}` },
    el("i", { class: "number" }, String(place + 1)), el("b", {}, line.share === null ? "" : percent(line.share)), `${line.text}\n`));
  return el("pre", { class: "painted", tabindex: 0, role: "region", "aria-label": "The program with shares of the time" }, ...painted);
}

function rewrites(one) {
  const now = one.lines.map((line) => line.text).filter((text) => !HIDDEN.test(text)).join("\n");
  const place = el("div", { class: "rewrite" });
  const cards = one.counterfactuals.toSorted((a, b) => a.latency_s - b.latency_s).map((change) => {
    const gain = change.ratio < 1 ? `${percent(1 - change.ratio)} faster` : `${percent(change.ratio - 1)} slower`;
    const card = button("", () => {
      for (const other of cards) other.setAttribute("aria-expanded", other === card);
      place.replaceChildren(
        el("p", {}, `Now ${interval(one.latency_s, one.low_s, one.high_s)}; changed ${interval(change.latency_s, change.low_s, change.high_s)}: predicted ${gain}.`),
        sideBySide(now, body(change.script)));
    }, { class: `card ${change.ratio < 1 ? "good" : ""}`, "aria-expanded": "false" });
    card.append(el("b", {}, gain), el("span", {}, change.what), el("small", {}, interval(change.latency_s, change.low_s, change.high_s)));
    return card;
  });
  return el("div", {},
    one.counterfactuals.some((change) => change.ratio < 1) ? null : el("p", {}, "No change is predicted to be faster."),
    el("p", { class: "soft" }, "Predicted, not measured; legal by TVM's schedule. Of such changes to programs that are scheduled already, four in five made no difference when measured."),
    el("div", { class: "cards" }, ...cards), place);
}

/** A function of a script, without what imports and wraps it, as the lines of the explanation are. */
function body(script) {
  const lines = script.split("\n").filter((line) => !HIDDEN.test(line) && !/^@I\.ir_module|^class /.test(line));
  const inner = lines.length && lines[0].startsWith("    ") ? lines.map((line) => line.slice(4)) : lines;
  return inner.join("\n");
}

function stores({ leaves, unknown_rates: unknown }) {
  const bound = unknown?.length ? "nominal roofline" : "its roofline";
  const about = unknown?.length
    ? `The ${unknown.join(" and ")} of this device is not known; a nominal one is taken`
    : "Of the store alone, with its data in memory; data in a cache can be faster";
  return sortable("Stores", [
    { key: "store", title: "store", isText: true, value: (one) => `${one.leaf} to ${one.buffer}` },
    { key: "share", title: "share", value: (one) => one.share, show: (one) => percent(one.share, 1) },
    { key: "time", title: "time", unit: "s", value: (one) => one.seconds, show: (one) => seconds(one.seconds) },
    { key: "bound", title: bound, about, unit: "s", value: (one) => one.bound_s, show: (one) => (one.bound_s ? seconds(one.bound_s) : "–") },
    { key: "ahead", title: "next limit", about: "How far below its roofline the next limit is", value: (one) => one.ahead, show: (one) => (one.ahead === null ? "–" : `${significant(one.ahead)} ×`) },
    { key: "fits", title: "data in", isText: true, value: (one) => one.fits },
    { key: "limit", title: "bound by", isText: true, value: (one) => one.bound_text },
    { key: "loops", title: "loops around it", isText: true, value: (one) => loops(one.loops) },
  ], leaves, { name: "stores", class: "stores", sort: { key: "share", down: true } });
}

function loops(found) {
  return found.filter((loop) => loop.extent !== 1)
    .map((loop) => `${loop.var} ${loop.extent ?? "?"}${loop.kind === "serial" ? "" : ` ${loop.kind}`}`).join(", ");
}

function nearest(found) {
  return el("ul", { class: "nearest" }, ...found.map((one) => el("li", {},
    el("b", {}, one.operator || "program"), ` at distance ${significant(one.distance)}; it differs most in: `,
    one.differs.map((part) => `${columnWords(part.column)} ${significant(part.here)} (there ${significant(part.there)})`).join("; "))));
}


// An explained program: its painted lines, its stores, and what it might be instead.

import { el, interval, percent, scrolling, seconds, significant, table } from "./words.js";

const HIDDEN = /^\s*T\.(reads|writes)\(/;

export function explained(one, note = null) {
  const title = el("h2", { tabindex: -1 }, `${one.name || "program"} on ${one.device}`);
  const box = el("section", { "aria-label": `Why ${one.name} takes its time` }, title);
  if (note) box.append(note);
  if (one.latency_s === null || one.text === null) {
    box.append(el("p", {}, one.reason ?? "No store of it does any work."));
    return box;
  }
  box.append(
    el("p", {}, interval(one.latency_s, one.low_s, one.high_s), one.out_of_distribution ? " ! unlike what the model knows" : ""),
    el("p", {}, one.text),
    listing(one.lines),
    el("h3", {}, "Stores"),
    scrolling("Stores", stores(one.leaves)),
    el("h3", {}, "If it were changed"),
    one.counterfactuals.length ? changes(one.counterfactuals) : el("p", {}, `No change applies: ${one.no_counterfactual}`),
  );
  if (one.nearest.length) {
    box.append(el("h3", {}, "Measured tasks that it resembles"), scrolling("Measured tasks", nearest(one.nearest)));
  }
  return box;
}

function listing(lines) {
  const shown = lines.filter((line) => !HIDDEN.test(line.text));
  const painted = shown.map((line) => {
    const mark = line.share === null ? "" : percent(line.share);
    return el("span", { class: `heat-${Math.min(10, Math.round(10 * (line.share ?? 0)))}` }, el("b", {}, mark), `${line.text}\n`);
  });
  return el("pre", { class: "painted", tabindex: 0, role: "region", "aria-label": "The program with shares of the time" }, ...painted);
}

function stores(leaves) {
  const titles = ["store", "share", "time", "at the least", "the next limit", "data in", "bound by", "loops around it"];
  return table(titles, leaves.map((leaf) => [
    `${leaf.leaf} to ${leaf.buffer}`, percent(leaf.share, 1), seconds(leaf.seconds), seconds(leaf.bound_s),
    leaf.ahead === null ? "–" : `${significant(leaf.ahead)} ×`, leaf.fits,
    el("td", { class: "text" }, leaf.bound_text), el("td", { class: "text" }, loops(leaf.loops)),
  ]));
}

function loops(found) {
  return found.filter((loop) => loop.extent !== 1)
    .map((loop) => `${loop.var} ${loop.extent ?? "?"}${loop.kind === "serial" ? "" : ` ${loop.kind}`}`).join(", ");
}

function changes(found) {
  const rows = found.map((one) => [
    el("td", { class: "wrap" }, one.what), interval(one.latency_s, one.low_s, one.high_s), `${significant(one.ratio)} ×`, String(one.leaf),
  ]);
  const programs = found.map((one) =>
    el("details", {}, el("summary", {}, `The program: ${one.what}`), el("pre", { tabindex: 0 }, one.script)));
  return el("div", {},
    el("p", { class: "soft" }, "Predicted, not measured; legal by TVM's schedule. Of such changes of programs that are scheduled already, four in five made no difference when they were measured."),
    scrolling("Changes", table(["change", "predicted", "of now", "store"], rows)), ...programs);
}

function nearest(found) {
  return table(["task", "distance", "where it differs most"], found.map((one) => [
    one.operator || one.task.slice(0, 48), significant(one.distance),
    el("td", { class: "text" }, one.differs.map((part) =>
      `${part.column} ${significant(part.here)} (there ${significant(part.there)})`).join("; ")),
  ]));
}

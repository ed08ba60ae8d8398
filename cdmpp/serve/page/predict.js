// Programs: a kernel and its forms, latencies on devices, and where the time goes.

import { latencyBars } from "./chart.js";
import { deviceChips } from "./chips.js";
import { editor } from "./editor.js";
import { $, ask, busy, copyLink, onFile, packed, remember, say, unpacked } from "./shared.js";
import { sortable } from "./table.js";
import { explained } from "./why.js";
import { button, el, interval } from "./words.js";

const KINDS = { cpu: "CPU form", gpu: "GPU form" };
let gallery = [];
let forms = [{ kind: "cpu", text: "", devices: [] }]; // of one kernel; the editor has one of them
let at = 0;
let source = ""; // name of an example, or nothing
let write, chips;
let turn = 0; // what is asked later makes earlier answers void

export function wirePredict(devices, trained) {
  write = editor($("editor"), { onEdit: edited, onRun: run });
  chips = deviceChips($("device-choice"), devices, { trained, onChange: (names) => { forms[at].devices = names; } });
  $("ask").addEventListener("submit", (event) => { event.preventDefault(); run(); });
  onFile("file", readProgram);
}

export async function readProgram(file) {
  own(await file.text());
  say("status", `${file.name}: ${file.size} bytes. Choose devices and predict.`);
}

export async function restorePredict(asked) {
  if (!gallery.length) gallery = await (await fetch("/static/gallery/gallery.json")).json();
  if (asked.has("model")) $("model").value = asked.get("model");
  if (asked.has("program")) {
    let text;
    try {
      text = await unpacked(asked.get("program")).text();
    } catch {
      return say("status", "The program in this address cannot be read.", true);
    }
    own(text);
    forms[0].devices = (asked.get("devices") ?? "").split(",").filter(Boolean);
    chips.choose(forms[0].devices);
  } else {
    const example = gallery.find((one) => one.name === asked.get("example")) ?? gallery[0];
    await open(example, asked.get("form"));
    if (asked.has("devices")) {
      forms[at].devices = asked.get("devices").split(",").filter(Boolean);
      chips.choose(forms[at].devices);
    }
  }
  predict(asked.get("why") ?? undefined); // the page can be used meanwhile
}

/** Puts a program of somebody's own into the editor. */
function own(text) {
  source = "";
  forms = [{ kind: "", text, devices: chips.chosen() }];
  show(0);
}

function edited() {
  source = "";
  forms = [{ ...forms[at], kind: "", text: write.text() }];
  at = 0;
  tabs();
}

async function open(example, form) {
  source = example.name;
  forms = await Promise.all(example.forms.map(async (one) => ({
    kind: one.kind, devices: one.devices, text: await (await fetch(`/static/gallery/${one.file}`)).text(),
  })));
  show(Math.max(0, forms.findIndex((one) => one.kind === form)));
}

function show(place) {
  at = place;
  write.put(forms[at].text);
  chips.choose(forms[at].devices);
  tabs();
}

function tabs() {
  $("gallery").replaceChildren(...gallery.map((one) => button(one.title, async () => {
    await open(one);
    await run();
  }, { class: "chip", "data-example": one.name, "aria-pressed": String(one.name === source) })));
  $("forms").hidden = forms.length < 2;
  $("forms").replaceChildren(...(forms.length < 2 ? [] : forms.map((one, place) => button(KINDS[one.kind], () => {
    show(place);
    predict();
    rememberIt({});
  }, { class: "chip", "data-form": one.kind, "aria-pressed": String(place === at) }))));
}

async function run() {
  await predict();
  await rememberIt({});
}

async function rememberIt(facts) {
  const known = source
    ? { example: source, form: forms.length > 1 && at ? forms[at].kind : null }
    : { program: await packed(write.text()) };
  remember({ view: "predict", ...facts, ...known, devices: chips.chosen().join(","), model: $("model").value });
}

function entries(text) {
  const first = text.trimStart().split("\n", 1)[0];
  let value = null;
  try { value = JSON.parse(first); } catch { /* no line of JSON */ }
  if (value?.i && value?.r) return [{ records: text.split("\n").filter((line) => line.trim()) }];
  return [text.trimStart().startsWith("{") ? { tir_json: text } : { tvmscript: text }];
}

function question(form) {
  return { programs: entries(form.text), devices: form.devices, model: $("model").value || null };
}

async function predict(device) {
  const mine = ++turn;
  for (const id of ["answers", "why"]) $(id).replaceChildren();
  forms[at].text = write.text();
  forms[at].devices = chips.chosen();
  if (!forms[at].text.trim()) return say("status", "Expected a program: write one, open a file, or choose an example.", true);
  if (!forms[at].devices.length) return say("status", "Expected a device: choose one or more.", true);
  const isText = !entries(forms[at].text)[0].records;
  let found = [];
  const isWell = await busy("status", "Predicting…", async () => {
    const answers = await Promise.all(forms.map(async (form, place) => (await ask("/v1/predict", question(form))).predictions.map((one) => ({ ...one, place }))));
    if (mine !== turn) return;
    found = answers.flat();
    $("answers").replaceChildren(...answered(found));
  }, $("predict"));
  if (!isWell || mine !== turn || !isText) return;
  const first = found.find((one) => one.place === at && one.device === (device ?? forms[at].devices[0]) && one.latency_s !== null);
  if (first) await why(first.device, mine);
}

function answered(found) {
  const known = found.filter((one) => one.latency_s !== null);
  const many = new Set(known.map((one) => one.name)).size > 1;
  const label = (one) => `${many ? `${one.name || "program"} on ` : ""}${one.device}${forms.length > 1 ? ` (${one.place === at ? "" : "its "}${KINDS[forms[one.place].kind]})` : ""}`;
  const rows = known.map((one) => ({ ...one, label: label(one), text: interval(one.latency_s, one.low_s, one.high_s), title: `${one.name || "program"} on ${one.device}\n${interval(one.latency_s, one.low_s, one.high_s)}${one.out_of_distribution ? "\noutside of the training data" : ""}` }));
  const doubtful = known.filter((one) => one.out_of_distribution);
  const columns = [
    { key: "program", title: "program", isText: true, value: (one) => one.name || one.operator || "program" },
    { key: "device", title: "device", isText: true, value: (one) => one.device },
    { key: "latency", title: "latency [90 %]", unit: "s", value: (one) => one.latency_s, show: (one) => (one.latency_s === null ? el("span", { class: "reason" }, `no latency: ${one.reason}`) : interval(one.latency_s, one.low_s, one.high_s)), more: [["low (s)", (one) => one.low_s], ["high (s)", (one) => one.high_s]] },
    { key: "note", title: "details", isText: true, value: (one) => (one.latency_s === null || entries(forms[one.place].text)[0].records ? null : one.device), show: (one) => whyButton(one) },
  ];
  const without = found.filter((one) => one.latency_s === null);
  return [
    known.length ? latencyBars(rows, { label: "Predicted latencies with their 90 % intervals", name: "latencies" }) : "",
    ...doubtful.map((one) => el("p", { class: "soft" }, `! ${label(one)}: outside of the training data, so the interval is wide.`)),
    ...[...new Set(without.map((one) => one.reason))].slice(0, 2).map((reason) => el("p", { class: "soft" }, `No latency: ${reason}`)),
    el("details", { class: "numbers", open: known.length < 5 }, el("summary", {}, "Numbers"), sortable("Predictions", columns, found, { name: "predictions", tools: [copyLink()] })),
  ].filter(Boolean);
}

function whyButton(one) {
  if (one.latency_s === null || entries(forms[one.place].text)[0].records) return "";
  return button("Why?", async () => {
    if (one.place !== at) show(one.place);
    await why(one.device, turn);
    $("why").querySelector("h2")?.focus();
    await rememberIt({ why: one.device });
  }, { "aria-label": `Why does ${one.name || "it"} take its time on ${one.device}?` });
}

async function why(device, mine) {
  await busy("status", `Explaining the time on ${device}…`, async () => {
    const found = (await ask("/v1/explain", { ...question(forms[at]), devices: [device] })).explanations;
    if (mine !== turn) return;
    const isPainted = found.length === 1 && found[0].lines && write.paint(found[0].lines);
    $("why").replaceChildren(...found.map((one) => explained(one, { hasLines: !isPainted })));
  });
}


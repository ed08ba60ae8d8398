// Networks: a file or a sample, its latency on devices, its graph and timeline, its kernels, and why they take theirs.

import { latencyBars } from "./chart.js";
import { deviceChips } from "./chips.js";
import { graphOf, markNode } from "./graph.js";
import { $, ask, busy, copyLink, onFile, packed, remember, say, send, unpacked } from "./shared.js";
import { sortable } from "./table.js";
import { markKernel, timeline } from "./timeline.js";
import { explained } from "./why.js";
import { button, el, interval, percent, seconds } from "./words.js";

const SAMPLES = [["bert-layer", "BERT layer"], ["resnet-18", "ResNet-18"]];
const answers = new Map(); // what was asked already, so that going back is quick
let sent = null; // {network, name, packed}
let rows = [];
let shown = null;
let chips;

export function wireNetwork(devices, trained) {
  chips = deviceChips($("net-choice"), devices, { trained });
  chips.choose(["epyc-avx2-2c"]);
  $("samples").replaceChildren(...SAMPLES.map(([file, title]) => button(title, () => sample(file, title), { class: "chip", "data-sample": file })));
  onFile("net-file", readNetwork);
  $("net").addEventListener("submit", (event) => { event.preventDefault(); run(); });
}

export const isNetwork = (file) => /\.(onnx|pt2)$/i.test(file.name);

async function sample(file, title, isFirst = false) {
  clear();
  const isWell = await busy("net-status", `Sending ${title}…`, async () => keep(await (await fetch(`/static/gallery/${file}.onnx`)).blob(), title));
  if (!isWell) return;
  await predict();
  if (!isFirst) rememberIt({});
}

export async function readNetwork(file) {
  clear();
  sent = null;
  $("net-name").textContent = "";
  await busy("net-status", `Sending ${file.name}…`, () => keep(file, file.name));
}

async function run() {
  await predict();
  rememberIt({});
}

async function keep(data, name) {
  const found = await send("/v1/networks", data);
  sent = { network: found.network, name: name.replace(/\.(onnx|pt2)$/i, ""), packed: await packed(data) };
  $("net-name").textContent = `${sent.name}: ${found.size_bytes} bytes`;
}

export async function restoreNetwork(asked) {
  if (!asked.has("network")) return sent ? undefined : sample(...SAMPLES[0], true);
  clear();
  sent = { network: asked.get("network"), name: asked.get("name") ?? "network", packed: asked.get("file") };
  $("net-name").textContent = sent.name;
  chips.choose((asked.get("devices") ?? "").split(","));
  if (asked.has("model")) $("net-model").value = asked.get("model");
  if (sent.packed) {
    const isBack = await busy("net-status", `Sending ${sent.name}…`, async () => keep(await unpacked(sent.packed).blob(), sent.name));
    if (!isBack) return;
  }
  await predict();
  if (asked.has("at")) show(asked.get("at"));
  if (shown && asked.has("kernel")) await why(Number(asked.get("kernel")));
}

function rememberIt(facts) {
  if (!sent) return;
  remember({
    view: "network", network: sent.network, name: sent.name, file: sent.packed,
    devices: chips.chosen().join(","), model: $("net-model").value, ...facts,
  });
}

function clear() {
  rows = [];
  shown = null;
  for (const id of ["net-answers", "net-detail", "net-why"]) $(id).replaceChildren();
}

async function predict() {
  clear();
  const devices = chips.chosen();
  if (!sent) return say("net-status", "Expected a network: choose a sample, open an ONNX file or a .pt2 of torch.export, or drop one on the page.", true);
  if (!devices.length) return say("net-status", "Expected a device: choose one or more.", true);
  for (const [place, device] of devices.entries()) {
    const text = `Putting ${sent.name} together for ${device}, ${place + 1} of ${devices.length}; its kernels take a while…`;
    const isWell = await busy("net-status", text, async () => {
      rows.push(await row(device));
      $("net-answers").replaceChildren(...answered());
      if (!shown && rows.at(-1).latency_s !== null) show(device);
    }, $("net-predict"));
    if (!isWell) return;
  }
}

async function row(device) {
  const body = { network: sent.network, name: sent.name, devices: [device], model: $("net-model").value || null };
  const key = JSON.stringify(body);
  if (!answers.has(key)) answers.set(key, (await ask("/v1/network", body)).networks[0]);
  const found = answers.get(key);
  return { ...found, name: found.network, reason: found.reasons[0] };
}

function answered() {
  const known = rows.filter((one) => one.latency_s !== null);
  const text = (one) => interval(one.latency_s, one.low_s, one.high_s);
  const bars = rows.length > 1 && known.length
    ? latencyBars(known.map((one) => ({ ...one, label: one.device, text: text(one), title: `${one.network} on ${one.device}\n${text(one)}` })), { label: "Latency on every device with its 90 % interval", name: "network" })
    : null;
  return [
    bars,
    known.length > 1 ? el("p", { class: "chips", role: "group", "aria-label": "Device that is shown below" }, ...known.map((one) => button(one.device, () => {
      show(one.device);
      rememberIt({ at: one.device });
      $("net-detail").querySelector("h2").focus();
    }, { class: "chip", "data-at": one.device }))) : null,
    ...rows.filter((one) => one.latency_s === null).map((one) => el("p", {}, el("b", {}, one.device), `: no latency: ${one.reason}`)),
    ...known.filter((one) => one.reasons.length).map((one) => el("p", { class: "soft" }, `! on ${one.device}: ${one.reasons.join("; ")}`)),
  ].filter(Boolean);
}

function show(device) {
  shown = rows.find((one) => one.device === device && one.latency_s !== null) ?? null;
  $("net-why").replaceChildren();
  if (!shown) return;
  for (const chip of $("net-answers").querySelectorAll("[data-at]")) chip.setAttribute("aria-pressed", String(chip.dataset.at === device));
  const first = shown.kernels[0];
  $("net-detail").replaceChildren(
    el("h2", { tabindex: -1 }, `${shown.network} on ${shown.device}`),
    el("div", { class: "tiles answer" },
      tile(interval(shown.latency_s, shown.low_s, shown.high_s), "per iteration, untuned, 90 % interval"),
      tile(`${shown.kernels.length}`, `kernels, called ${shown.timeline.length} times`),
      tile(percent(first.share), `of the time in ${first.name}`)),
    el("h3", {}, "Graph: the stronger the colour, the slower"), graphOf(shown, pick),
    el("h3", {}, "Timeline"), timeline(shown, pick),
    el("h3", {}, "Kernels"), kernels());
}

function tile(value, text) {
  return el("div", { class: "tile" }, el("b", {}, value), el("span", {}, text));
}

function kernels() {
  const places = new Map(shown.kernels.map((kernel, place) => [kernel, place]));
  return sortable("Kernels", [
    { key: "name", title: "kernel", isText: true, value: (one) => one.name },
    { key: "share", title: "share", value: (one) => one.share, show: (one) => percent(one.share, 1) },
    { key: "calls", title: "calls", value: (one) => one.calls },
    { key: "time", title: "time of a call", unit: "s", value: (one) => one.in_network_s, show: (one) => seconds(one.in_network_s) },
    { key: "alone", title: "alone [90 %]", unit: "s", value: (one) => one.latency_s, show: (one) => interval(one.latency_s ?? null, one.low_s ?? null, one.high_s ?? null) },
    { key: "shapes", title: "shapes", isText: true, value: (one) => one.shapes.join(", ") },
    { key: "why", title: "details", isText: true, value: (one) => one.reason, show: (one) => (one.tvmscript === null ? one.reason ?? "no program" : button("Why?", () => pick(places.get(one)), { "aria-label": `Why does ${one.name} take its time?` })) },
  ], shown.kernels, { name: "kernels", class: "kernels stores", sort: { key: "share", down: true }, tools: [copyLink()] });
}

async function pick(place) {
  await why(place);
  rememberIt({ at: shown.device, kernel: place });
}

async function why(place) {
  const kernel = shown.kernels[place];
  if (!kernel) return;
  markKernel($("net-detail"), place);
  markNode($("net-detail"), place);
  if (kernel.tvmscript === null) return say("net-status", `${kernel.name}: ${kernel.reason ?? "it has no program"}`, true);
  await busy("net-status", `Explaining the time of ${kernel.name}…`, async () => {
    const body = { programs: [{ tvmscript: kernel.tvmscript }], devices: [shown.device], model: $("net-model").value || null };
    const [found] = (await ask("/v1/explain", body)).explanations;
    const text = `In the network ${seconds(kernel.in_network_s)} a call, called ${kernel.calls === 1 ? "once" : `${kernel.calls} times`}, ${percent(kernel.share, 1)} of its time; below is the kernel alone.`;
    $("net-why").replaceChildren(explained({ ...found, name: kernel.name }, { note: el("p", {}, text) }));
    $("net-why").querySelector("h2").focus();
  }, $("net-predict"));
}

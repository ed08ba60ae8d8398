// Networks: a file, its latency on devices, its timeline, its kernels, and why they take theirs.

import { bars } from "./bars.js";
import { $, ask, busy, choose, chosen, packed, remember, say, send, unpacked } from "./shared.js";
import { markKernel, timeline } from "./timeline.js";
import { el, interval, percent, scrolling, seconds, table } from "./words.js";
import { explained } from "./why.js";

const MOST = 8;
const answers = new Map(); // what was asked already, so that going back is quick
let sent = null; // {network, name, packed}
let rows = [];
let shown = null;

export function wireNetwork() {
  $("net-file").addEventListener("change", () => { if ($("net-file").files.length) readNetwork($("net-file").files[0]); });
  $("net").addEventListener("submit", async (event) => {
    event.preventDefault();
    await predict();
    rememberIt({});
  });
}

export const isNetwork = (file) => /\.(onnx|pt2)$/i.test(file.name);

export async function readNetwork(file) {
  clear();
  sent = null;
  $("net-name").textContent = "";
  await busy("net-status", `Sending ${file.name}…`, () => keep(file, file.name));
}

async function keep(bytes, name) {
  const found = await send("/v1/networks", bytes);
  sent = { network: found.network, name: name.replace(/\.(onnx|pt2)$/i, ""), packed: await packed(bytes) };
  $("net-name").textContent = `${sent.name}: ${found.size_bytes} bytes`;
}

export async function restoreNetwork(asked) {
  if (!asked.has("network")) return;
  clear();
  sent = { network: asked.get("network"), name: asked.get("name") ?? "network", packed: asked.get("file") };
  $("net-name").textContent = sent.name;
  choose("net-choice", asked.get("devices"));
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
    devices: chosen("net-choice").join(","), model: $("net-model").value, ...facts,
  });
}

function clear() {
  rows = [];
  shown = null;
  for (const id of ["net-answers", "net-detail", "net-why"]) $(id).replaceChildren();
}

async function predict() {
  clear();
  const devices = chosen("net-choice");
  if (!sent) return say("net-status", "Expected a network: open an ONNX file or a .pt2 of torch.export, or drop one on the page.", true);
  if (!devices.length) return say("net-status", "Expected a device: choose one or more.", true);
  for (const [place, device] of devices.entries()) {
    const text = `Putting ${sent.name} together for ${device}, ${place + 1} of ${devices.length}; its kernels take a while…`;
    const isWell = await busy("net-status", text, async () => {
      rows.push(await row(device));
      $("net-answers").replaceChildren(bars(rows, "network", lookButton), doubts());
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

function lookButton(one) {
  return el("button", { type: "button", "aria-label": `Kernels of ${one.network} on ${one.device}`, onclick: () => {
    show(one.device);
    rememberIt({ at: one.device });
    $("net-detail").querySelector("h2").focus();
  } }, "Kernels");
}

function doubts() {
  const marked = rows.filter((one) => one.latency_s !== null && one.reasons.length);
  return el("ul", { class: "soft" }, ...marked.map((one) => el("li", {}, `! on ${one.device} a guess: ${one.reasons.join("; ")}`)));
}

function show(device) {
  shown = rows.find((one) => one.device === device && one.latency_s !== null) ?? null;
  $("net-why").replaceChildren();
  if (!shown) return;
  $("net-detail").replaceChildren(
    el("h2", { tabindex: -1 }, `${shown.network} on ${shown.device}`),
    el("p", {}, `${interval(shown.latency_s, shown.low_s, shown.high_s)} an iteration, as TVM compiles it untuned: one kernel after another.`),
    timeline(shown, pick),
    el("h3", {}, `Kernels: ${shown.kernels.length}, called ${shown.timeline.length} times`),
    scrolling("Kernels", kernels(shown.kernels.slice(0, MOST), 0)));
  const rest = shown.kernels.slice(MOST);
  if (!rest.length) return;
  const share = rest.reduce((sum, kernel) => sum + kernel.share, 0);
  $("net-detail").append(el("details", {}, el("summary", {}, `${rest.length} more kernels with ${percent(share, 1)} of the time`),
    scrolling("More kernels", kernels(rest, MOST))));
}

function kernels(some, first) {
  const lines = some.map((kernel, place) => [
    kernel.name, percent(kernel.share, 1), String(kernel.calls), seconds(kernel.in_network_s),
    el("td", { class: "text" }, kernel.shapes.join(", ")),
    kernel.tvmscript === null ? el("td", { class: "wrap" }, kernel.reason ?? "no program") : el("td", {},
      el("button", { type: "button", "aria-label": `Why does ${kernel.name} take its time?`, onclick: () => pick(first + place) }, "Why?")),
  ]);
  return table(["kernel", "share", "calls", "time of one", "shapes", ""], lines, { class: "kernels" });
}

async function pick(place) {
  await why(place);
  rememberIt({ at: shown.device, kernel: place });
}

async function why(place) {
  const kernel = shown.kernels[place];
  if (!kernel) return;
  markKernel($("net-detail"), place);
  if (kernel.tvmscript === null) return say("net-status", `${kernel.name}: ${kernel.reason ?? "it has no program"}`, true);
  await busy("net-status", `Looking where the time of ${kernel.name} goes…`, async () => {
    const body = { programs: [{ tvmscript: kernel.tvmscript }], devices: [shown.device], model: $("net-model").value || null };
    const [found] = (await ask("/v1/explain", body)).explanations;
    const text = `In the network ${seconds(kernel.in_network_s)} a call, called ${kernel.calls === 1 ? "once" : `${kernel.calls} times`}, ${percent(kernel.share, 1)} of its time; below is the kernel alone.`;
    $("net-why").replaceChildren(explained({ ...found, name: kernel.name }, el("p", {}, text)));
    $("net-why").querySelector("h2").focus();
  }, $("net-predict"));
}

// The page: which view, what the server knows, and what is dropped on it.

import { restoreCompare, wireCompare } from "./compare.js";
import { isNetwork, readNetwork, restoreNetwork, wireNetwork } from "./network.js";
import { readProgram, restorePredict, wirePredict } from "./predict.js";
import { restoreResults, wireResults } from "./results.js";
import { restoreRuns, wireRuns } from "./runs.js";
import { $, ask, asked, fillDevices, filterDevices, remember, say, useToken } from "./shared.js";
import { el, significant, table } from "./words.js";

const RESTORE = {
  predict: restorePredict, network: restoreNetwork, compare: restoreCompare, results: restoreResults,
  runs: restoreRuns, devices: restoreDevices, models: () => {},
};
const COLUMNS = [
  ["name", "label"], ["kind", "kind"], ["vendor", "vendor"], ["architecture", "architecture"],
  ["core_count", "cores"], ["threads", "threads"], ["simd_bits", "SIMD bits"],
  ["peak_fp32_flop_per_s", "fp32 FLOP/s"], ["mem_bandwidth_bytes_per_s", "memory B/s"],
  ["l2_bytes", "L2 B"], ["l3_bytes", "L3 B"], ["trained_in", "trained in"],
];
let devices = [];

async function restore(isFirst) {
  const facts = asked(isFirst === true);
  if (facts === null) return;
  const view = facts.get("view") in RESTORE ? facts.get("view") : "predict";
  show(view);
  await RESTORE[view](facts);
}

function show(view) {
  for (const name of Object.keys(RESTORE)) $(`view-${name}`).hidden = name !== view;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

// What the server knows.

function restoreDevices(facts) {
  $("registry-filter").value = facts.get("filter") ?? "";
  list();
}

function list() {
  const wanted = $("registry-filter").value.toLowerCase();
  const shown = devices.filter((one) => JSON.stringify([one.name, one.kind, one.vendor, one.architecture]).toLowerCase().includes(wanted));
  $("registry-count").textContent = `${shown.length} of ${devices.length} devices`;
  const cell = (value) => (typeof value === "number" ? (value >= 1e6 ? value.toExponential(2) : significant(value)) : [value ?? ""].flat().join(", "));
  const rows = shown.map((one) => COLUMNS.map(([key]) => el("td", {}, cell(one[key]))));
  $("registry").replaceWith(table(COLUMNS.map(([, title]) => title), rows, { id: "registry" }));
}

function fill(models) {
  for (const id of ["model", "net-model"]) $(id).replaceChildren(...models.map((one) => el("option", { value: one.name }, one.name)));
  $("model-list").replaceChildren(...models.map((one) => el("section", {},
    el("h2", {}, one.name),
    el("dl", {}, ...[
      ["kind", one.kind], ["version", one.version], ["trained on", one.devices.join(", ")],
      ["intervals", one.has_intervals ? "yes" : "no: too few tasks to calibrate"],
      ["data", one.data_hash.slice(0, 16)], ["loaded", new Date(1000 * one.loaded_at).toISOString()],
      ["last error", one.last_error ?? "none"],
    ].flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])))));
  const trained = new Set(models.flatMap((one) => one.devices));
  for (const id of ["device-choice", "net-choice"]) fillDevices(id, devices, trained);
}

function read(file) {
  const view = isNetwork(file) ? "network" : "predict";
  show(view);
  remember({ view });
  return view === "network" ? readNetwork(file) : readProgram(file);
}

function wire() {
  wirePredict();
  wireNetwork();
  wireCompare();
  wireResults();
  wireRuns();
  filterDevices("device-filter", "device-choice");
  filterDevices("net-filter", "net-choice");
  $("registry-filter").addEventListener("input", () => {
    list();
    remember({ view: "devices", filter: $("registry-filter").value }, true);
  });
  $("token").addEventListener("submit", (event) => {
    event.preventDefault();
    useToken($("token-text").value);
    $("token").hidden = true;
    start();
  });
  for (const kind of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(kind, (event) => {
      event.preventDefault();
      document.body.classList.toggle("dropping", kind === "dragover");
      if (kind === "drop" && event.dataTransfer.files.length) read(event.dataTransfer.files[0]);
    });
  }
  addEventListener("hashchange", restore);
  addEventListener("popstate", restore);
}

async function start() {
  try {
    devices = (await ask("/v1/devices")).devices;
    fill((await ask("/v1/models")).models);
    say("status", "");
  } catch (error) {
    return say("status", error.message, true);
  }
  await restore(true);
  document.body.dataset.ready = "";
}

wire();
start();

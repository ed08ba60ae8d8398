// The page: which view, what the server knows, and what is dropped on it.

import { isCompared, readCompared, restoreCompare, wireCompare } from "./compare.js";
import { restoreDevices, wireDevices } from "./devices.js";
import { showModels } from "./models.js";
import { isNetwork, readNetwork, restoreNetwork, wireNetwork } from "./network.js";
import { readProgram, restorePredict, wirePredict } from "./predict.js";
import { restoreResults, wireResults } from "./results.js";
import { restoreRuns, wireRuns } from "./runs.js";
import { $, ask, asked, registry, remember, say, useToken } from "./shared.js";

const RESTORE = {
  predict: restorePredict, compare: restoreCompare, network: restoreNetwork, devices: restoreDevices, runs: restoreRuns,
  results: restoreResults, models: () => {},
};
let shown = "";
let isWired = false;

async function restore(isFirst) {
  const facts = asked(isFirst === true);
  if (facts === null) return;
  const view = facts.get("view") in RESTORE ? facts.get("view") : "predict";
  show(view);
  await RESTORE[view](facts);
}

function show(view) {
  shown = view;
  for (const name of Object.keys(RESTORE)) $(`view-${name}`).hidden = name !== view;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

/** A file goes to the view that is open where it takes such files, else to the one that does. */
function read(file) {
  if (shown === "compare" && isCompared(file)) return readCompared(file);
  const isConfig = /config.*\.json$/i.test(file.name);
  const view = isNetwork(file) ? "network" : isConfig ? "compare" : "predict";
  show(view);
  remember({ view });
  return { network: readNetwork, compare: readCompared, predict: readProgram }[view](file);
}

function listen() {
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
    const [{ devices }, { models }] = await Promise.all([ask("/v1/devices"), ask("/v1/models")]);
    if (!isWired) wire(devices, new Set(models.flatMap((one) => one.devices)));
    showModels(models);
    say("status", "");
  } catch (error) {
    return say("status", error.message, true);
  }
  await restore(true);
  document.body.dataset.ready = ""; // what is asked first may still be under way
}

function wire(devices, trained) {
  isWired = true;
  for (const one of devices) registry.set(one.name, one);
  wirePredict(devices, trained);
  wireNetwork(devices, trained);
  wireCompare(devices);
  wireDevices(devices);
  wireResults();
  wireRuns();
}

listen();
start();

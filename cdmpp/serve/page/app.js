// The page: what is asked stands in the address (after #), so a link brings a view back.

import { compared } from "./compare.js";
import { el, interval, scrolling, significant, svg, table } from "./words.js";
import { explained } from "./why.js";

const EXAMPLE = `@T.prim_func(s_tir=True)
def dense_relu(A: T.Buffer((256, 512), "float32"), B: T.Buffer((512, 256), "float32"), D: T.Buffer((256, 256), "float32")):
    C = T.sblock_alloc_buffer((256, 256), "float32")
    for i, j, k in T.grid(256, 256, 512):
        with T.sblock("matmul"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
    for i, j in T.grid(256, 256):
        with T.sblock("relu"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = T.max(C[vi, vj], T.float32(0))
`;
const VIEWS = ["predict", "compare", "devices", "models"];
const COMPARE = ["shape", "pass", "tokens", "objective"];
const MOST_IN_ADDRESS = 16000;
const COLUMNS = [
  ["name", "label"], ["kind", "kind"], ["vendor", "vendor"], ["architecture", "architecture"],
  ["core_count", "cores"], ["threads", "threads"], ["simd_bits", "SIMD bits"],
  ["peak_fp32_flop_per_s", "fp32 FLOP/s"], ["mem_bandwidth_bytes_per_s", "memory B/s"],
  ["l2_bytes", "L2 B"], ["l3_bytes", "L3 B"], ["trained_in", "trained in"],
];
const $ = (id) => document.getElementById(id);
let devices = [];
let token = sessionStorage.getItem("token");
let written = "";

async function ask(path, body) {
  const headers = { "Content-Type": "application/json" };
  if (token) headers.Authorization = `Bearer ${token}`;
  const answer = await fetch(path, body === undefined ? { headers } : { method: "POST", headers, body: JSON.stringify(body) });
  const value = await answer.json().catch(() => null);
  if (answer.status === 401) $("token").hidden = false;
  if (!answer.ok) throw new Error(value?.error?.text ?? `the server answers ${answer.status}`);
  return value;
}

// The address.

async function packed(text) {
  const stream = new Blob([text]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join("")).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (one) => one.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"))).text();
}

async function remember(facts) {
  const now = new URLSearchParams({ view: "predict", ...facts });
  const program = await packed($("program").value);
  if (program.length <= MOST_IN_ADDRESS) now.set("program", program);
  now.set("devices", chosen().join(","));
  now.set("model", $("model").value);
  written = `#${now}`;
  history.pushState(null, "", written);
}

async function restore() {
  if (location.hash === written && written) return;
  written = location.hash;
  const asked = new URLSearchParams(location.hash.slice(1));
  show(VIEWS.includes(asked.get("view")) ? asked.get("view") : "predict");
  $("registry-filter").value = asked.get("filter") ?? "";
  list();
  if (asked.has("shape")) {
    for (const name of COMPARE) $(name).value = asked.get(name) ?? $(name).value;
    return compare();
  }
  if (!asked.has("program")) return;
  try {
    $("program").value = await unpacked(asked.get("program"));
  } catch {
    return say("The program in this address cannot be read.", true);
  }
  if (asked.has("model")) $("model").value = asked.get("model");
  const labels = new Set(asked.get("devices").split(","));
  for (const box of $("device-choice").querySelectorAll("input")) box.checked = labels.has(box.value);
  await predict();
  if (asked.has("why")) await why(asked.get("why"));
}

function show(view) {
  for (const name of VIEWS) $(`view-${name}`).hidden = name !== view;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function say(text, isError = false) {
  $("status").textContent = text;
  $("status").className = isError ? "error" : "";
}

// Predictions.

function chosen() {
  return [...$("device-choice").querySelectorAll("input:checked")].map((box) => box.value);
}

function entries(text) {
  const first = text.trimStart().split("\n", 1)[0];
  let value = null;
  try { value = JSON.parse(first); } catch { /* no line of JSON */ }
  if (value?.i && value?.r) return [{ records: text.split("\n").filter((line) => line.trim()) }];
  return [text.trimStart().startsWith("{") ? { tir_json: text } : { tvmscript: text }];
}

function question() {
  return { programs: entries($("program").value), devices: chosen(), model: $("model").value || null };
}

async function busy(work, text) {
  $("predict").disabled = true;
  say(text);
  try {
    await work();
    say("");
  } catch (error) {
    say(error.message, true);
  } finally {
    $("predict").disabled = false;
  }
}

async function predict() {
  $("answers").replaceChildren();
  $("why").replaceChildren();
  if (!$("program").value.trim()) return say("Expected a program: paste one, open a file, or take the example.", true);
  if (!chosen().length) return say("Expected a device: choose one or more.", true);
  await busy(async () => {
    const found = (await ask("/v1/predict", question())).predictions;
    $("answers").replaceChildren(answers(found), marks(found));
  }, "Predicting…");
}

function answers(found) {
  const known = found.filter((one) => one.latency_s !== null);
  const ends = known.flatMap((one) => [one.latency_s, one.low_s ?? one.latency_s, one.high_s ?? one.latency_s]).map(Math.log10);
  const scale = { low: Math.floor(Math.min(...ends)), high: Math.ceil(Math.max(...ends)) };
  const isText = !entries($("program").value)[0].records;
  const ordered = found.toSorted((a, b) => (a.latency_s ?? Infinity) - (b.latency_s ?? Infinity));
  const rows = ordered.map((one) => [
    el("td", {}, one.name || one.operator || "program"),
    el("td", { class: "text" }, one.device),
    one.latency_s === null
      ? el("td", { class: "wrap", colspan: 3 }, `no latency: ${one.reason}`)
      : el("td", {}, interval(one.latency_s, one.low_s, one.high_s) + (one.out_of_distribution ? " !" : "")),
    ...(one.latency_s === null ? [] : [
      el("td", { class: "bar" }, bar(one, scale)),
      el("td", {}, isText ? whyButton(one) : ""),
    ]),
  ]);
  return scrolling("Predictions", table(["program", "device", "latency [90 %]", "on a log scale", ""], rows, { class: "answer" }));
}

function bar(one, scale) {
  const place = (value) => (98 * (Math.log10(value) - scale.low)) / Math.max(1, scale.high - scale.low) + 1;
  const low = place(one.low_s ?? one.latency_s), high = place(one.high_s ?? one.latency_s);
  return svg("svg", { viewBox: "0 0 100 18", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { class: "span", x: low, y: 4, width: Math.max(0.5, high - low), height: 10 }),
    svg("rect", { class: "dot", x: place(one.latency_s) - 0.4, y: 1, width: 0.8, height: 16 }));
}

function whyButton(one) {
  const label = `Why does ${one.name || "it"} take its time on ${one.device}?`;
  return el("button", { type: "button", "aria-label": label, onclick: async () => {
    await why(one.device);
    await remember({ why: one.device });
  } }, "Why?");
}

function marks(found) {
  const strange = found.filter((one) => one.out_of_distribution).length;
  return el("p", { class: "soft" }, strange
    ? `! ${strange} of ${found.length}: the program or the device is unlike what the model knows; the interval is widened.` : "");
}

async function why(device) {
  await busy(async () => {
    const body = { ...question(), devices: [device] };
    const found = (await ask("/v1/explain", body)).explanations;
    $("why").replaceChildren(...found.map(explained));
    $("why").querySelector("h2")?.focus();
  }, "Looking where the time goes…");
}

// Which device.

async function compare() {
  $("compare-status").className = "";
  $("compare-status").textContent = "Comparing…";
  $("compared").replaceChildren();
  try {
    const tokens = [Number($("tokens").value)];
    const body = { transformers: [$("shape").value], [$("pass").value]: tokens, all_devices: true, objective: $("objective").value };
    $("compared").replaceChildren(...compared((await ask("/v1/compare", body)).cells));
    $("compare-status").textContent = "";
  } catch (error) {
    $("compare-status").textContent = error.message;
    $("compare-status").className = "error";
  }
}

// What the server knows.

function list() {
  const wanted = $("registry-filter").value.toLowerCase();
  const shown = devices.filter((one) => JSON.stringify([one.name, one.kind, one.vendor, one.architecture]).toLowerCase().includes(wanted));
  $("registry-count").textContent = `${shown.length} of ${devices.length} devices`;
  const cell = (value) => (typeof value === "number" ? (value >= 1e6 ? value.toExponential(2) : significant(value)) : [value ?? ""].flat().join(", "));
  const rows = shown.map((one) => COLUMNS.map(([key]) => el("td", {}, cell(one[key]))));
  $("registry").replaceWith(table(COLUMNS.map(([, title]) => title), rows, { id: "registry" }));
}

function fill(models) {
  const names = models.map((one) => el("option", { value: one.name }, one.name));
  $("model").replaceChildren(...names);
  $("model-list").replaceChildren(...models.map((one) => el("section", {},
    el("h2", {}, one.name),
    el("dl", {}, ...[
      ["kind", one.kind], ["version", one.version], ["trained on", one.devices.join(", ")],
      ["intervals", one.has_intervals ? "yes" : "no: too few tasks to calibrate"],
      ["data", one.data_hash.slice(0, 16)], ["loaded", new Date(1000 * one.loaded_at).toISOString()],
      ["last error", one.last_error ?? "none"],
    ].flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])))));
  const trained = new Set(models.flatMap((one) => one.devices));
  const ordered = devices.toSorted((a, b) => trained.has(b.name) - trained.has(a.name) || a.name.localeCompare(b.name));
  $("device-choice").replaceChildren(...ordered.map((one) => el("label", {},
    el("input", { type: "checkbox", value: one.name }), one.name,
    trained.has(one.name) ? null : el("small", {}, "not trained on"))));
}

async function read(file) {
  $("program").value = await file.text();
  say(`${file.name}: ${file.size} bytes`);
}

function wire() {
  $("ask").addEventListener("submit", async (event) => {
    event.preventDefault();
    await predict();
    await remember({});
  });
  $("compare").addEventListener("submit", (event) => {
    event.preventDefault();
    written = `#${new URLSearchParams({ view: "compare", ...Object.fromEntries(COMPARE.map((name) => [name, $(name).value])) })}`;
    history.pushState(null, "", written);
    compare();
  });
  $("example").addEventListener("click", () => { $("program").value = EXAMPLE; });
  $("file").addEventListener("change", () => { if ($("file").files.length) read($("file").files[0]); });
  $("device-filter").addEventListener("input", () => {
    const wanted = $("device-filter").value.toLowerCase();
    for (const label of $("device-choice").children) label.hidden = !label.textContent.toLowerCase().includes(wanted);
  });
  $("registry-filter").addEventListener("input", () => {
    list();
    written = `#${new URLSearchParams({ view: "devices", filter: $("registry-filter").value })}`;
    history.replaceState(null, "", written);
  });
  $("token").addEventListener("submit", (event) => {
    event.preventDefault();
    token = $("token-text").value;
    sessionStorage.setItem("token", token);
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
    say("");
  } catch (error) {
    return say(error.message, true);
  }
  written = "";
  await restore();
  document.body.dataset.ready = "";
}

wire();
start();

// Which device: a network on many of them, as pictures of time, cost and load, and as a table.

import { deviceChips } from "./chips.js";
import { comparedCharts, loadCharts } from "./compare_charts.js";
import { $, ask, busy, copyLink, onFile, packed, remember, say, send, unpacked } from "./shared.js";
import { sortable } from "./table.js";
import { button, bytes, dollars, el, interval, significant } from "./words.js";

const PRESETS = [
  { id: "llama-3-8b", title: "Llama-3-8B", model: "meta-llama/Llama-3-8B" },
  { id: "qwen3-moe", title: "Qwen3-MoE 30B", model: "Qwen/Qwen3-30B-A3B" },
  { id: "deepseek-v3", title: "DeepSeek-V3", model: "deepseek-ai/DeepSeek-V3", gpus: 8 },
  { id: "resnet-50", title: "ResNet-50", network: "ResNet-50" },
  { id: "vit-b", title: "ViT-B/16", network: "ViT-B/16" },
  { id: "bert-large", title: "BERT-large", network: "BERT-large" },
];
const USUAL = ["h100", "h200", "b200", "gb300", "a100-sxm", "l40s", "l4", "rtx-pro-6000", "mi300x", "h20"];
const SETTINGS = [
  ["pass", "Pass", ["language"], [["decode_at", "next token"], ["prefill", "prompt"], ["load", "under load"]]],
  ["tokens", "Tokens in the cache or prompt", ["decode_at", "prefill"], 4096],
  ["input_tokens", "Tokens of a request", ["load"], 1024],
  ["output_tokens", "Tokens of its answer", ["load"], 512],
  ["backend", "Served by", ["load"], [["vllm", "vLLM"], ["sglang", "SGLang"], ["trtllm", "TensorRT-LLM"]]],
  ["server_options", "Launch options", ["load"], ""],
  ["batch", "Sequences at once", ["decode_at", "prefill"], 1],
  ["images", "Batch", ["network"], [["1", "1"], ["8", "8"], ["32", "32"]]],
  ["gpus", "Devices that share it", ["language"], [["1", "1"], ["2", "2"], ["4", "4"], ["8", "8"]]],
  ["objective", "Best by", ["decode_at", "prefill", "network"], [["latency", "latency"], ["cost", "cost"]]],
];
const CONCURRENCY = [1, 2, 4, 8, 16, 32, 64, 128];
let chosen = PRESETS[0]; // a preset, or {title, config} or {title, file}
let chips;

export function wireCompare(devices) {
  chips = deviceChips($("compare-devices"), devices, {});
  chips.choose(USUAL);
  $("compare-settings").replaceChildren(...SETTINGS.map(([name, title, , values]) => el("label", { "data-setting": name }, title,
    Array.isArray(values) ? el("select", { id: `compare-${name}` }, ...values.map(([value, text]) => el("option", { value }, text)))
      : el("input", { id: `compare-${name}`, ...(values ? { type: "number", min: 1, value: values } : { placeholder: "max_num_seqs=64" }) }))));
  setting("pass").addEventListener("change", fit);
  onFile("compare-file", readCompared);
  $("compare").addEventListener("submit", (event) => { event.preventDefault(); run(); });
  choose(chosen);
}

const setting = (name) => $(`compare-${name}`);

export const isCompared = (file) => /\.(json|onnx|pt2)$/i.test(file.name);

/** Takes a config.json, an ONNX file or a .pt2 and compares it. */
export async function readCompared(file) {
  const name = file.name.replace(/\.(json|onnx|pt2)$/i, "");
  const isWell = await busy("compare-status", `Reading ${file.name}…`, async () => {
    if (!/\.json$/i.test(file.name)) return choose({ title: name, file: (await send("/v1/networks", file)).network, packed: await packed(file) });
    let content = null;
    try { content = JSON.parse(await file.text()); } catch { /* said below */ }
    if (content === null || typeof content !== "object" || Array.isArray(content)) throw new Error(`${file.name}: expected Hugging Face's config.json, an object of JSON`);
    return choose({ title: content._name_or_path || (name === "config" ? content.model_type ?? "config.json" : name), config: content });
  });
  if (isWell) await run();
}

function choose(one) {
  chosen = one;
  if (one.gpus) setting("gpus").value = String(one.gpus);
  else if (one.model) setting("gpus").value = "1";
  $("presets").replaceChildren(...PRESETS.map((preset) => button(preset.title, () => { choose(preset); run(); },
    { class: "chip", "data-preset": preset.id, "aria-pressed": String(preset.id === one.id) })));
  $("compare-name").replaceChildren(...(one.id ? [] : ["Comparing ", el("b", {}, one.title), one.file ? ", as TVM compiles it untuned: seconds a device" : ""]));
  fit();
}

/** Shows the settings that count for what is chosen. */
function fit() {
  const kinds = chosen.file ? [] : chosen.network ? ["network"] : ["language", setting("pass").value];
  for (const [name, , needs] of SETTINGS) $("compare-settings").querySelector(`[data-setting="${name}"]`).hidden = !needs.some((need) => kinds.includes(need));
}

export async function restoreCompare(asked) {
  for (const [name, , , values] of SETTINGS) if (asked.has(name) || values === "") setting(name).value = asked.get(name) ?? "";
  if (asked.has("devices")) chips.choose(asked.get("devices").split(","));
  const preset = PRESETS.find((one) => one.id === asked.get("network"));
  try {
    if (asked.has("config")) choose({ title: asked.get("name"), config: JSON.parse(await unpacked(asked.get("config")).text()) });
    else if (asked.has("file") || asked.has("packed")) await restoreFile(asked);
    else if (preset) choose({ ...preset, gpus: asked.get("gpus") ?? preset.gpus });
    else choose(chosen);
  } catch (error) {
    return say("compare-status", `This address cannot be read: ${error.message}`, true);
  }
  await compare();
}

async function restoreFile(asked) {
  const known = asked.get("packed");
  const file = known ? (await send("/v1/networks", await unpacked(known).blob())).network : asked.get("file");
  choose({ title: asked.get("name"), file, packed: known });
}

async function run() {
  await compare();
  const values = Object.fromEntries(SETTINGS.map(([name]) => [name, $("compare-settings").querySelector(`[data-setting="${name}"]`).hidden ? null : setting(name).value]));
  remember({
    view: "compare", network: chosen.id ?? null, name: chosen.id ? null : chosen.title,
    config: chosen.config ? await packed(new TextEncoder().encode(JSON.stringify(chosen.config))) : null,
    file: chosen.packed ? null : chosen.file ?? null, packed: chosen.packed ?? null, ...values, devices: chips.chosen().join(","),
  });
}

async function compare() {
  $("compared").replaceChildren();
  if (!chips.chosen().length) return say("compare-status", "Expected a device: choose one or more.", true);
  await busy("compare-status", `Comparing ${chips.chosen().length} devices…`, async () => {
    if (chosen.file) return compareFile();
    const { cells, loads } = await ask("/v1/compare", { ...question(), devices: chips.chosen() });
    $("compared").replaceChildren(...(loads.length ? underLoad(loads) : compared(cells)));
  }, $("compare").querySelector("button.main"));
}

function question() {
  if (chosen.network) return { networks: [chosen.network], batch: [Number(setting("images").value)], objective: setting("objective").value };
  const gpus = Number(setting("gpus").value);
  const what = chosen.config ? { configs: [{ name: chosen.title.slice(0, 400), content: chosen.config }] } : { models: [chosen.model] };
  const shared = { ...what, tensor_parallel: [gpus], expert_parallel: hasExperts() ? gpus : 1 };
  const number = (name) => Number(setting(name).value);
  if (setting("pass").value === "load") {
    return { ...shared, under_load: { concurrency: CONCURRENCY, input_tokens: number("input_tokens"), output_tokens: number("output_tokens"), backend: setting("backend").value, server_options: setting("server_options").value.trim() || {} } };
  }
  return { ...shared, [setting("pass").value]: [number("tokens")], batch: [number("batch")], objective: setting("objective").value };
}

function hasExperts() {
  return chosen.config ? Object.keys(chosen.config).some((key) => /experts/.test(key)) : /moe|deepseek/.test(chosen.id);
}

/** A file's devices one after the other, as TVM compiles it; what is known already is shown meanwhile. */
async function compareFile() {
  const cells = [];
  const devices = chips.chosen();
  for (const [place, device] of devices.entries()) {
    say("compare-status", `Compiling ${chosen.title} for ${device}, ${place + 1} of ${devices.length}…`);
    const { networks: [one] } = await ask("/v1/network", { network: chosen.file, name: chosen.title.slice(0, 200), devices: [device] });
    cells.push({ network: chosen.title, batch: 1, degree: 1, item: "inference", method: "TVM, untuned", memory_bytes: null, cost_usd_per_million: null, ...one });
    const known = cells.filter((cell) => cell.latency_s !== null);
    for (const cell of known) cell.rank = 1 + known.filter((other) => (other.high_s ?? other.latency_s) < (cell.low_s ?? cell.latency_s)).length;
    for (const cell of known) cell.is_tied = known.filter((other) => other.rank === cell.rank).length > 1;
    $("compared").replaceChildren(...compared(cells));
  }
}

function compared(cells) {
  const known = cells.filter((one) => one.latency_s !== null);
  if (!known.length) return [missing(cells)];
  const first = known.filter((one) => one.rank === 1).map((one) => one.device);
  const objective = chosen.file ? "latency" : setting("objective").value;
  const item = known[0].item;
  const best = objective === "cost" ? "cheapest" : "fastest";
  const verdict = first.length > 1
    ? [el("b", {}, first.slice(0, 6).join(", ") + (first.length > 6 ? ` and ${first.length - 6} more` : "")), ` are tied as ${best}: their intervals overlap.`]
    : [el("b", {}, first[0] ?? known[0].device), ` is ${best}; its whole interval is ahead of all others.`];
  const columns = [
    { key: "rank", title: "rank", about: "1 and one more for every device that is surely better; = is a tie", value: (one) => one.rank, show: (one) => (one.rank === null ? "–" : `${one.rank}${one.is_tied ? "=" : ""}`) },
    { key: "device", title: "device", isText: true, value: (one) => one.device, show: (one) => el("span", {}, one.device, one.is_on_front ? el("b", { class: "soft", title: "on the Pareto line" }, " ◆") : "") },
    { key: "latency", title: "latency [90 %]", unit: "s", value: (one) => one.latency_s, show: (one) => interval(one.latency_s, one.low_s, one.high_s), more: [["low (s)", (one) => one.low_s], ["high (s)", (one) => one.high_s]] },
    { key: "rate", title: `${item}s/s`, value: (one) => one.throughput_per_s, show: (one) => (one.throughput_per_s ? significant(one.throughput_per_s) : "–") },
    { key: "cost", title: `$ per million ${item}s`, unit: "USD", value: (one) => one.cost_usd_per_million, show: (one) => (one.cost_usd_per_million === null ? "no price" : dollars(one.cost_usd_per_million)) },
    { key: "memory", title: "memory", unit: "B", value: (one) => one.memory_bytes, show: (one) => (one.memory_bytes === null ? "unknown" : `${bytes(one.memory_bytes)}${one.memory_limit_bytes ? ` of ${bytes(one.memory_limit_bytes)}` : ""}`) },
    { key: "energy", title: `J/${item}, at most`, unit: "J", value: (one) => one.energy_bound_j, show: (one) => (one.energy_bound_j ? significant(one.energy_bound_j) : "unknown") },
    { key: "method", title: "answered by", isText: true, value: (one) => one.method },
  ].filter((column) => !chosen.file || !["cost", "memory", "energy", "rate"].includes(column.key));
  return [
    el("h2", {}, `${known[0].network}${known[0].degree > 1 ? `, ${known[0].degree} devices each` : ""}`),
    el("p", { class: "verdict" }, ...verdict),
    ...comparedCharts(known, item),
    sortable("Devices compared", columns, known, { name: "compare", sort: { key: "rank" }, tools: [copyLink()] }),
    missing(cells), notes(known),
  ];
}

/** Why devices have no answer, those of one reason together. */
function missing(cells) {
  const without = Map.groupBy(cells.filter((one) => one.latency_s === null), (one) => (one.reasons.length ? one.reasons.map((text) => text.replaceAll(one.device, "it")).join("; ") : one.reason ?? "no answer"));
  if (!without.size) return el("span", {});
  return el("section", { class: "missing" }, el("h3", {}, "No answer"), el("ul", {}, ...[...without].map(([reason, some]) =>
    el("li", {}, el("b", {}, [...new Set(some.map((one) => one.device))].join(", ")), `: ${reason}`))));
}

function notes(known) {
  const all = Map.groupBy(known.flatMap((one) => one.reasons.map((text) => [text.replaceAll(one.device, "it"), one.device])), ([text]) => text);
  if (!all.size) return el("span", {});
  const count = new Set([...all.values()].flat().map(([, device]) => device)).size;
  return el("details", {}, el("summary", {}, `Notes on ${count} device${count > 1 ? "s" : ""}`), el("ul", { class: "soft" }, ...[...all].map(([text, some]) =>
    el("li", {}, `${[...new Set(some.map(([, device]) => device))].join(", ")}: ${text}`))));
}

function underLoad(loads) {
  const known = loads.filter((one) => one.tpot_s !== null);
  const columns = [
    { key: "device", title: "device", isText: true, value: (one) => one.device, show: (one) => `${one.gpus > 1 ? `${one.gpus} × ` : ""}${one.device}` },
    { key: "concurrency", title: "requests in flight", value: (one) => one.concurrency },
    { key: "tpot", title: "time per token [90 %]", unit: "s", value: (one) => one.tpot_s, show: (one) => interval(one.tpot_s, one.tpot_s_low, one.tpot_s_high) },
    { key: "ttft", title: "first token [90 %]", unit: "s", value: (one) => one.ttft_s, show: (one) => (one.ttft_s === null ? "queueing decides" : interval(one.ttft_s, one.ttft_s_low, one.ttft_s_high)) },
    { key: "rate", title: "tokens/s per device", value: (one) => one.tokens_per_s_gpu, show: (one) => significant(one.tokens_per_s_gpu) },
    { key: "cost", title: "$ per million tokens", unit: "USD", value: (one) => one.cost_usd_per_million, show: (one) => (one.cost_usd_per_million === null ? "no price" : dollars(one.cost_usd_per_million)) },
  ];
  const server = [setting("backend").selectedOptions[0].text, setting("server_options").value.trim()].filter(Boolean).join(", ");
  return [
    el("h2", {}, `${loads[0].network} under load: ${loads[0].input_tokens} tokens in, ${loads[0].output_tokens} out, ${server}`),
    ...(known.length ? [...loadCharts(known), sortable("Devices under load", columns, known, { name: "load", sort: { key: "device" }, tools: [copyLink()] })] : []),
    missing(loads.map((one) => ({ ...one, latency_s: one.tpot_s }))),
    notes(known),
  ];
}


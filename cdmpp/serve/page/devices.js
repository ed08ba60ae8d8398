// What is known of devices: a table with its sources, and rooflines with a program's point.

import { beside, chart, placedTexts, plot, powers } from "./chart.js";
import { deviceChips } from "./chips.js";
import { $, copyLink, remember } from "./shared.js";
import { sortable } from "./table.js";
import { bytes, el, rate, significant } from "./words.js";

const { Plot } = globalThis.libraries;
const flops = (value) => rate(value, "FLOP/s");
const COLUMNS = [
  ["name", "device"], ["kind", "kind"], ["vendor", "vendor"], ["architecture", "architecture"], ["core_count", "cores", significant],
  ["peak_fp32_flop_per_s", "fp32 peak", flops], ["peak_bf16_flop_per_s", "bf16 peak", flops], ["peak_fp8_flop_per_s", "fp8 peak", flops],
  ["mem_bandwidth_bytes_per_s", "bandwidth", (value) => rate(value, "B/s")], ["mem_bytes", "memory", bytes], ["l2_bytes", "L2", bytes],
  ["l3_bytes", "L3", bytes], ["tdp_w", "power", (value) => `${significant(value)} W`], ["trained_in", "training data"],
];
const ABOVE = [[4, -8, "start"], [4, 20, "start"], [60, -8, "start"], [60, 20, "start"], [140, -8, "start"], [140, 20, "start"]]; // or below the flat part
let devices = [];
let chips;
let sort = { key: "peak_fp32_flop_per_s", down: true };
let point = null; // {name, intensity, rate} of a program

export function wireDevices(all) {
  devices = all;
  chips = deviceChips($("roofline-choice"), devices, { only: (one) => one.mem_bandwidth_bytes_per_s && one.peak_fp32_flop_per_s, onChange: () => { draw(); rememberIt(); } });
  $("registry-filter").addEventListener("input", () => { list(); rememberIt(); });
}

export function restoreDevices(asked) {
  $("registry-filter").value = asked.get("filter") ?? "";
  chips.choose((asked.get("devices") ?? "a100,h100,b200,mi300x").split(","));
  if (asked.has("sort")) sort = { key: asked.get("sort"), down: asked.get("down") === "1" };
  point = Number(asked.get("intensity")) > 0 && Number(asked.get("rate")) > 0
    ? { name: asked.get("point") ?? "program", intensity: Number(asked.get("intensity")), rate: Number(asked.get("rate")) } : null;
  draw();
  list();
}

function rememberIt() {
  remember({ view: "devices", filter: $("registry-filter").value, devices: chips.chosen().join(","), sort: sort.key, down: sort.down ? "1" : "", point: point?.name ?? null, intensity: point?.intensity ?? null, rate: point?.rate ?? null }, true);
}

function list() {
  const wanted = $("registry-filter").value.toLowerCase();
  const shown = devices.filter((one) => [one.name, one.kind, one.vendor, one.architecture].join(" ").toLowerCase().includes(wanted));
  $("registry-count").textContent = `${shown.length} of ${devices.length} devices`;
  const columns = COLUMNS.map(([key, title, write]) => ({
    key, title, isText: !write,
    value: (one) => (Array.isArray(one[key]) ? (one[key].length ? "yes" : null) : one[key]),
    show: (one) => {
      const value = Array.isArray(one[key]) ? (one[key].length ? "yes" : null) : one[key];
      if (value === null || value === undefined) return el("span", { class: "soft" }, "–");
      if (key === "name") return el("button", { type: "button", class: "link", onclick: () => sources(one) }, value);
      return el("span", { title: one.sources?.[key] ?? null }, write ? write(value) : value);
    },
  }));
  $("registry").replaceChildren(sortable("Table of devices", columns, shown, { name: "devices", sort, onSort: (now) => { sort = now; rememberIt(); }, tools: [copyLink(), el("span", { class: "soft" }, "– is unknown. A device's name shows its sources.")] }));
}

function sources(one) {
  const known = COLUMNS.filter(([key]) => one.sources?.[key]);
  $("registry-sources").replaceChildren(el("h2", { tabindex: -1 }, `Sources: ${one.name}`),
    el("dl", {}, ...known.flatMap(([key, title, write]) => [el("dt", {}, `${title} ${write && one[key] !== null ? write(one[key]) : ""}`), el("dd", {}, one.sources[key])])),
    el("p", { class: "soft" }, el("code", {}, `cdmpp device show ${one.name}`), " prints all of them."));
  $("registry-sources").querySelector("h2").focus();
}

function draw() {
  const some = chips.chosen().map((name) => devices.find((one) => one.name === name));
  if (!some.length) return $("roofline").replaceChildren(el("p", { class: "soft" }, "Choose devices to see their rooflines."));
  const lines = some.map((one) => ({ name: one.name, peak: one.peak_fp32_flop_per_s, bandwidth: one.mem_bandwidth_bytes_per_s, ridge: one.peak_fp32_flop_per_s / one.mem_bandwidth_bytes_per_s }));
  const low = Math.min(0.25, point?.intensity ?? 1, ...lines.map((one) => one.ridge)) / 2, high = Math.max(200, point?.intensity ?? 1, ...lines.map((one) => one.ridge)) * 4;
  const colour = (place) => `var(--series-${1 + (place % 7)})`;
  const box = chart("Rooflines of the chosen devices: fp32 peak and memory bandwidth", (width) => {
    const x = { type: "log", domain: [low, high], label: "operations per byte of memory traffic (FLOP/B), log scale →", labelOffset: 38, tickFormat: significant, ticks: powers([low, high]), grid: true };
    const domain = [Math.min(point?.rate ?? Infinity, ...lines.map((one) => low * one.bandwidth)), 1.6 * Math.max(...lines.map((one) => one.peak))];
    const y = { type: "log", domain, label: "↑ attainable, log scale", tickFormat: flops, ticks: powers(domain), grid: true };
    const size = { marginBottom: 44, height: Math.round(Math.min(420, Math.max(300, width * 0.5))), marginLeft: 92, marginRight: 20, x, y };
    const scale = plot(width, size).scale;
    const places = placedTexts(lines.map((one) => ({ x: scale("x").apply(one.ridge), y: scale("y").apply(one.peak), text: one.name })), 12, width, ABOVE);
    const label = point && `${point.name}: ${flops(point.rate)}`;
    return plot(width, { ...size, marks: [
      ...lines.map((one, place) => Plot.line([[low, low * one.bandwidth], [one.ridge, one.peak], [high, one.peak]], { stroke: colour(place), strokeWidth: 2 })),
      Plot.dot(lines, { x: "ridge", y: "peak", fill: (one) => colour(lines.indexOf(one)), r: 4 }),
      ...lines.map((one, place) => beside(one, places[place], { x: "ridge", y: "peak", text: "name" })),
      ...(point ? [
        Plot.ruleX([point.intensity], { stroke: "currentColor", strokeDasharray: "4 3" }),
        Plot.dot([point], { x: "intensity", y: "rate", r: 6, symbol: "diamond", fill: "currentColor" }),
        beside(point, scale("x").apply(point.intensity) + 7.5 * label.length < width ? [10, 4, "start"] : [-10, 4, "end"], { x: "intensity", y: "rate", text: () => label, fontWeight: 700 }),
      ] : []),
      Plot.tip(lines, Plot.pointer({ x: "ridge", y: "peak", title: (one) => `${one.name}\nfp32 peak ${flops(one.peak)}\nbandwidth ${rate(one.bandwidth, "B/s")}\nfull speed from ${significant(one.ridge)} FLOP/B` })),
    ] });
  }, { name: "roofline" });
  $("roofline").replaceChildren(box);
}

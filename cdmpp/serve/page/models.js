// What the server answers with.

import { $ } from "./shared.js";
import { el } from "./words.js";

export function showModels(models) {
  for (const id of ["model", "net-model"]) $(id).replaceChildren(...models.map((one) => el("option", { value: one.name }, one.name)));
  $("model-list").replaceChildren(...models.map((one) => el("section", {},
    el("h2", {}, one.name),
    el("dl", {}, ...[
      ["kind", one.kind], ["version", one.version], ["trained on", one.devices.join(", ")],
      ["intervals", one.has_intervals ? "yes" : "no: too few tasks to calibrate"],
      ["data", one.data_hash.slice(0, 16)], ["loaded", new Date(1000 * one.loaded_at).toISOString()],
      ["last error", one.last_error ?? "none"],
    ].flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])))));
}

// Programs: latencies on devices, and why.

import { bars } from "./bars.js";
import { $, ask, busy, choose, chosen, packed, remember, say, unpacked } from "./shared.js";
import { el } from "./words.js";
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

export function wirePredict() {
  $("ask").addEventListener("submit", async (event) => {
    event.preventDefault();
    await predict();
    await rememberIt({});
  });
  $("example").addEventListener("click", () => { $("program").value = EXAMPLE; });
  $("file").addEventListener("change", () => { if ($("file").files.length) readProgram($("file").files[0]); });
}

export async function readProgram(file) {
  $("program").value = await file.text();
  say("status", `${file.name}: ${file.size} bytes`);
}

export async function restorePredict(asked) {
  if (!asked.has("program")) return;
  try {
    $("program").value = await unpacked(asked.get("program")).text();
  } catch {
    return say("status", "The program in this address cannot be read.", true);
  }
  if (asked.has("model")) $("model").value = asked.get("model");
  choose("device-choice", asked.get("devices"));
  await predict();
  if (asked.has("why")) await why(asked.get("why"));
}

async function rememberIt(facts) {
  remember({
    view: "predict", ...facts, program: await packed($("program").value),
    devices: chosen("device-choice").join(","), model: $("model").value,
  });
}

function entries(text) {
  const first = text.trimStart().split("\n", 1)[0];
  let value = null;
  try { value = JSON.parse(first); } catch { /* no line of JSON */ }
  if (value?.i && value?.r) return [{ records: text.split("\n").filter((line) => line.trim()) }];
  return [text.trimStart().startsWith("{") ? { tir_json: text } : { tvmscript: text }];
}

function question() {
  return { programs: entries($("program").value), devices: chosen("device-choice"), model: $("model").value || null };
}

async function predict() {
  $("answers").replaceChildren();
  $("why").replaceChildren();
  if (!$("program").value.trim()) return say("status", "Expected a program: paste one, open a file, or take the example.", true);
  if (!chosen("device-choice").length) return say("status", "Expected a device: choose one or more.", true);
  const isText = !entries($("program").value)[0].records;
  await busy("status", "Predicting…", async () => {
    const found = (await ask("/v1/predict", question())).predictions;
    $("answers").replaceChildren(bars(found, "program", (one) => (isText ? whyButton(one) : "")), marks(found));
  }, $("predict"));
}

function whyButton(one) {
  const label = `Why does ${one.name || "it"} take its time on ${one.device}?`;
  return el("button", { type: "button", "aria-label": label, onclick: async () => {
    await why(one.device);
    await rememberIt({ why: one.device });
  } }, "Why?");
}

function marks(found) {
  const strange = found.filter((one) => one.out_of_distribution).length;
  return el("p", { class: "soft" }, strange
    ? `! ${strange} of ${found.length}: the program or the device is unlike what the model knows; the interval is widened.` : "");
}

async function why(device) {
  await busy("status", "Looking where the time goes…", async () => {
    const body = { ...question(), devices: [device] };
    const found = (await ask("/v1/explain", body)).explanations;
    $("why").replaceChildren(...found.map(explained));
    $("why").querySelector("h2")?.focus();
  }, $("predict"));
}

// Devices as chips: chosen ones with a cross, the others found by name or by family.

import { button, el } from "./words.js";

const KINDS = { gpu: "GPUs", cpu: "CPUs", accelerator: "accelerators" };

/** A chooser in a place: {chosen(), choose(labels)}; `onChange` is called when somebody chooses. */
export function deviceChips(place, devices, { trained = new Set(), onChange = () => {}, only = () => true }) {
  const known = devices.filter(only);
  const families = Map.groupBy(known.toSorted((a, b) => b.kind.localeCompare(a.kind) || a.name.localeCompare(b.name)), (one) => `${one.vendor ?? "other"} ${KINDS[one.kind] ?? one.kind}`);
  let names = [];
  const chips = el("div", { class: "chips chosen", role: "group", "aria-label": "Chosen devices" });
  const search = el("input", { type: "search", placeholder: "Search devices", "aria-label": "Search devices", autocomplete: "off" });
  const list = el("div", { class: "families", tabindex: 0, role: "group", "aria-label": "Devices to choose" });
  const more = el("details", { class: "more-devices" }, el("summary", {}, "All devices"), list);

  function set(labels, isByHand = true) {
    names = labels;
    draw();
    if (isByHand) onChange(names);
  }

  function draw() {
    chips.replaceChildren(...(names.length
      ? names.map((name) => button(`${name} ×`, () => { set(names.filter((one) => one !== name)); search.focus(); }, { class: "chip", "data-chosen": name, "aria-label": `Remove ${name}` }))
      : [el("span", { class: "soft" }, "No device yet")]));
    for (const chip of list.querySelectorAll("[data-device]")) chip.setAttribute("aria-pressed", names.includes(chip.dataset.device));
  }

  function fill() {
    const wanted = search.value.trim().toLowerCase();
    const found = [...families].map(([family, some]) => [family, some.filter((one) => `${one.name} ${family} ${one.architecture}`.toLowerCase().includes(wanted))]).filter(([, some]) => some.length);
    list.replaceChildren(...found.map(([family, some]) => el("div", { class: "family" },
      el("p", {}, button(`${family} (${some.length})`, () => {
        const own = some.map((one) => one.name);
        const isAll = own.every((name) => names.includes(name));
        set(isAll ? names.filter((name) => !own.includes(name)) : [...new Set([...names, ...own])]);
      }, { class: "link", "aria-label": `Choose all ${family}` })),
      el("div", { class: "chips" }, ...some.map((one) => button(one.name, () => {
        set(names.includes(one.name) ? names.filter((name) => name !== one.name) : [...names, one.name]);
      }, { class: "chip", "data-device": one.name, title: `${one.architecture ?? one.kind}${trained.has(one.name) ? ", in the training data" : ""}` }, ))))));
    if (!found.length) list.replaceChildren(el("p", { class: "soft" }, "No device of this name"));
    draw();
  }

  search.addEventListener("input", () => { more.open = search.value !== ""; fill(); });
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    const first = list.querySelector("[data-device][aria-pressed=false]");
    if (!first || !search.value) return;
    const name = first.dataset.device;
    search.value = "";
    more.open = false;
    fill();
    set([...names, name]);
  });
  place.replaceChildren(chips, search, more);
  fill();
  return { chosen: () => names, choose: (labels) => set(labels.filter((name) => known.some((one) => one.name === name)), false), known };
}

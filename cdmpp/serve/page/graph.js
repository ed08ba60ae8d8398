// The graph of a network: its calls as nodes coloured by time, laid out by dagre, with zoom.

import { el, percent, seconds, svg, button } from "./words.js";

const { Graph, layout, select, zoom, zoomIdentity } = globalThis.libraries;
const HEIGHT = 44;

/** `pick` is called with the number of the kernel of a node that was chosen. */
export function graphOf(row, pick) {
  const calls = row.timeline;
  const total = calls.reduce((sum, one) => sum + one.time_s, 0);
  const most = Math.max(...calls.map((one) => one.time_s));
  const made = new Graph().setGraph({ rankdir: "TB", nodesep: 18, ranksep: 26, marginx: 16, marginy: 16 }).setDefaultEdgeLabel(() => ({}));
  const texts = calls.map((one) => {
    const name = row.kernels[one.kernel].name.replace(/^fused_/, "").replace(/_kernel$/, "");
    return name.length > 34 ? `${name.slice(0, 33)}…` : name;
  });
  calls.forEach((one, place) => made.setNode(String(place), { width: 30 + 7 * Math.max(texts[place].length, 12), height: HEIGHT }));
  calls.forEach((one, place) => one.after.forEach((before) => made.setEdge(String(before), String(place))));
  layout(made);
  const { width, height } = made.graph();
  const nodes = calls.map((one, place) => {
    const at = made.node(String(place));
    const name = row.kernels[one.kernel].name;
    const chosen = () => pick(one.kernel);
    return svg("g", { class: "node", "data-kernel": one.kernel, tabindex: 0, role: "button", transform: `translate(${at.x - at.width / 2},${at.y - HEIGHT / 2})`,
      "aria-label": `${name}: ${seconds(one.time_s)}, ${percent(one.time_s / total, 1)} of the time`, onclick: chosen, onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); chosen(); } } },
      svg("rect", { width: at.width, height: HEIGHT, rx: 7, class: `fill-${Math.round(10 * Math.sqrt(one.time_s / most))}` }),
      svg("text", { x: at.width / 2, y: 18, "text-anchor": "middle" }, texts[place]),
      svg("text", { x: at.width / 2, y: 34, "text-anchor": "middle" }, `${seconds(one.time_s)} · ${percent(one.time_s / total, 1)}`),
      svg("title", {}, `${name}: ${seconds(one.time_s)}`));
  });
  const edges = made.edges().map((edge) => svg("path", { class: "edge", d: `M${made.edge(edge).points.map(({ x, y }) => `${x},${y}`).join("L")}` }));
  const layer = svg("g", {}, ...edges, ...nodes);
  const picture = svg("svg", { "aria-label": `Graph of ${row.network}: ${calls.length} calls`, role: "group" }, layer);
  const move = zoom().scaleExtent([0.05, 3]).on("zoom", ({ transform }) => layer.setAttribute("transform", transform));
  const chosen = select(picture).call(move).on("wheel.zoom", null);
  picture.addEventListener("wheel", (event) => { // the page scrolls unless Ctrl is held
    if (!event.ctrlKey) return;
    event.preventDefault();
    chosen.call(move.scaleBy, 2 ** (-event.deltaY * 0.004));
  }, { passive: false });
  const fit = (isWhole) => {
    const box = picture.getBoundingClientRect();
    if (!box.width) return;
    const scale = isWhole ? Math.min(1, box.width / width, box.height / height) : Math.min(1, Math.max(0.8, box.width / width));
    chosen.call(move.transform, zoomIdentity.translate((box.width - scale * width) / 2, isWhole ? (box.height - scale * height) / 2 : 0).scale(scale));
  };
  new ResizeObserver(() => fit(false)).observe(picture);
  return el("div", {}, el("div", { class: "graph" }, picture), el("p", { class: "tools" },
    button("+", () => chosen.call(move.scaleBy, 1.4), { "aria-label": "Zoom in on the graph" }), button("−", () => chosen.call(move.scaleBy, 1 / 1.4), { "aria-label": "Zoom out of the graph" }),
    button("Slowest", () => centre(calls.findIndex((one) => one.time_s === most))), button("Whole graph", () => fit(true)),
    el("span", { class: "soft" }, "Drag to move, Ctrl and the wheel to zoom; a node leads to its kernel.")));

  function centre(place) {
    const at = made.node(String(place));
    chosen.call(move.scaleTo, 1).call(move.translateTo, at.x, at.y);
  }
}

/** Marks the calls of a kernel. */
export function markNode(box, kernel) {
  for (const node of box.querySelectorAll(".graph .node")) node.classList.toggle("chosen", Number(node.dataset.kernel) === kernel);
}

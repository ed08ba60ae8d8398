/* Says what a mark of a plot is: of the one nearest to the pointer, or step by step by arrow keys. */
const tip = Object.assign(document.createElement("div"), { className: "tip", hidden: true });
tip.setAttribute("aria-live", "polite");
document.body.append(tip);
const UNITS = [["s", 1], ["ms", 1e3], ["µs", 1e6], ["ns", 1e9]];
const NEAR = 16;

function seconds(value) {
  const [unit, scale] = UNITS.find(([, one]) => value * one >= 1) ?? UNITS[3];
  return `${(value * scale).toPrecision(3)} ${unit}`;
}

/* What elements with a title, and dots, are and where; dots by their error, largest first. */
function marksOf(svg) {
  const found = [...svg.querySelectorAll("title")].map((title) => {
    const { x, y, width, height } = title.parentNode.getBBox();
    title.remove();
    return { x, y, right: x + width, bottom: y + height, off: 0, text: () => title.textContent };
  });
  for (const path of svg.querySelectorAll("[data-name]")) {
    const at = path.parentNode.transform.baseVal[0].matrix;
    const words = JSON.parse(path.parentNode.dataset.words), which = path.dataset.which.split(" ");
    [...path.getAttribute("d").matchAll(/M(-?\d+) (-?\d+)/g)].forEach(([, h, v], place) => {
      const x = at.a * h + at.e, y = at.d * v + at.f, measured = 10 ** (h / 1e4), predicted = 10 ** (v / 1e4);
      const text = () => [words[which[place]], path.dataset.name, `measured ${seconds(measured)}`, `predicted ${seconds(predicted)}`,
        `predicted / measured ${(predicted / measured).toPrecision(3)}`].filter(Boolean).join("\n");
      found.push({ x, y, right: x, bottom: y, off: Math.abs(h - v), text });
    });
  }
  return found.sort((one, other) => other.off - one.off);
}

for (const svg of document.querySelectorAll(".plots svg")) {
  if (!svg.querySelector("title, [data-name]")) continue;
  let marks, chosen = 0;
  const ring = document.createElementNS(svg.namespaceURI, "rect");
  ring.classList.add("ring");
  const hide = () => { tip.hidden = true; ring.remove(); };
  const show = (mark) => {
    for (const [name, value] of [["x", mark.x - 3], ["y", mark.y - 3], ["width", mark.right - mark.x + 6], ["height", mark.bottom - mark.y + 6]])
      ring.setAttribute(name, value);
    svg.append(ring);
    tip.textContent = mark.text();
    tip.hidden = false;
    const at = ring.getBoundingClientRect(), { offsetWidth: width, offsetHeight: height } = tip;
    tip.style.left = `${Math.max(4, Math.min(at.left + at.width / 2 - width / 2, innerWidth - width - 4))}px`;
    tip.style.top = `${at.top > height + 10 ? at.top - height - 6 : at.bottom + 6}px`;
  };
  const point = (event) => {
    marks ??= marksOf(svg);
    const inside = svg.getScreenCTM(), { x, y } = new DOMPoint(event.clientX, event.clientY).matrixTransform(inside.inverse());
    let nearest = NEAR / inside.a, found = null;
    for (const mark of marks) {
      const away = Math.hypot(Math.max(mark.x - x, 0, x - mark.right), Math.max(mark.y - y, 0, y - mark.bottom));
      if (away < nearest) [nearest, found] = [away, mark];
    }
    if (found) show(found); else hide();
  };
  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point);
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("focus", () => { if (svg.matches(":focus-visible")) show((marks ??= marksOf(svg))[chosen]); });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") hide();
    if (!step) return;
    event.preventDefault();
    chosen = (chosen + step + marks.length) % marks.length;
    show(marks[chosen]);
  });
  svg.setAttribute("aria-label", `${svg.getAttribute("aria-label")} Arrow keys go from mark to mark.`);
}

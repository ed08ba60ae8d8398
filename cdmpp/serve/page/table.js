// Tables that are sorted by any column and kept as CSV, on TanStack Table.

import { button, download, el, scrolling } from "./words.js";

const { createTable, getCoreRowModel, getSortedRowModel } = globalThis.libraries;

/**
 * A table in its frame, with a button for CSV.
 *
 * Columns: {key, title, unit, value: row -> number, string or null, show: row -> what stands there, isText, isFixed}; what is unknown
 * comes last however it is sorted. Options: name (of the file), sort {key, down}, onSort, rowClass, tools (more buttons).
 */
export function sortable(label, columns, rows, options = {}) {
  const box = el("div", { class: "table-box" });
  let state = { sorting: options.sort?.key ? [{ id: options.sort.key, desc: options.sort.down }] : [] };
  const made = createTable({
    data: rows, state: { columnPinning: {}, ...state }, onStateChange: () => {}, renderFallbackValue: null,
    columns: columns.map((one) => ({
      id: one.key, accessorFn: (row) => one.value(row) ?? undefined, sortUndefined: "last",
      sortingFn: one.isText ? "text" : "basic", sortDescFirst: false,
    })),
    getCoreRowModel: getCoreRowModel(), getSortedRowModel: getSortedRowModel(),
  });

  function draw(focused) {
    made.setOptions((before) => ({ ...before, state: { columnPinning: {}, ...state } }));
    const lines = made.getSortedRowModel().rows.map(({ original }) =>
      el("tr", { class: options.rowClass?.(original) },
        ...columns.map((one) => el("td", { class: one.isText ? "text" : null }, shown(one, original)))));
    box.replaceChildren(
      scrolling(label, el("table", { class: options.class }, el("thead", {}, el("tr", {}, ...columns.map(heading))), el("tbody", {}, ...lines))),
      el("p", { class: "tools" }, button("CSV", () => download(`${options.name ?? "table"}.csv`, csv(columns, rows), "text/csv")), ...(options.tools ?? [])));
    if (focused) box.querySelector(`th[data-key="${CSS.escape(focused)}"] button`)?.focus();
  }

  function heading(one) {
    const sorted = state.sorting[0]?.id === one.key ? state.sorting[0] : null;
    const order = sorted === null ? "none" : sorted.desc ? "descending" : "ascending";
    const mark = { none: "", ascending: " ▲", descending: " ▼" }[order];
    return el("th", { scope: "col", class: one.isText ? "text" : null, "data-key": one.key, "aria-sort": order },
      button(one.title + mark, () => {
        state = { sorting: [{ id: one.key, desc: sorted !== null && !sorted.desc }] };
        draw(one.key);
        options.onSort?.({ key: one.key, down: state.sorting[0].desc });
      }, { class: "sort", title: one.about }));
  }

  draw();
  return box;
}

function shown(one, row) {
  if (one.show) return one.show(row) ?? "–";
  return one.value(row) ?? "–";
}

function csv(columns, rows) {
  const cell = (value) => (/[",\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const line = (cells) => cells.map((value) => cell(String(value ?? ""))).join(",");
  const kept = columns.flatMap((one) => [[one.unit ? `${one.title} (${one.unit})` : one.title, one.value], ...(one.more ?? [])]);
  return [line(kept.map(([title]) => title)), ...rows.map((row) => line(kept.map(([, value]) => value(row))))].join("\n") + "\n";
}

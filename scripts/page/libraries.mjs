// Library functions of the page: `globalThis.libraries`.

export { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
export { python } from "@codemirror/lang-python";
export { HighlightStyle, bracketMatching, indentOnInput, syntaxHighlighting } from "@codemirror/language";
export { MergeView } from "@codemirror/merge";
export { EditorState, RangeSetBuilder, StateEffect, StateField } from "@codemirror/state";
export {
  Decoration, EditorView, GutterMarker, drawSelection, gutter, highlightActiveLine, highlightActiveLineGutter, keymap,
  lineNumbers,
} from "@codemirror/view";
export { Graph, layout } from "@dagrejs/dagre";
export { tags } from "@lezer/highlight";
export * as Plot from "@observablehq/plot";
export { createTable, getCoreRowModel, getFilteredRowModel, getSortedRowModel } from "@tanstack/table-core";
export { select } from "d3-selection";
export { zoom, zoomIdentity } from "d3-zoom";

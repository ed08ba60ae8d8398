// TVMScript: an editor with lines and their shares of the time, and two programs side by side, on CodeMirror.

import { el, percent } from "./words.js";

const {
  Decoration, EditorState, EditorView, GutterMarker, HighlightStyle, MergeView, RangeSetBuilder, StateEffect, StateField, bracketMatching,
  defaultKeymap, drawSelection, gutter, highlightActiveLine, history, historyKeymap, indentOnInput, keymap, lineNumbers, python,
  syntaxHighlighting, tags,
} = globalThis.libraries;

const colours = HighlightStyle.define([
  { tag: [tags.keyword, tags.operatorKeyword, tags.definitionKeyword], color: "var(--code-word)" },
  { tag: [tags.string, tags.number, tags.bool], color: "var(--code-value)" },
  { tag: [tags.comment], color: "var(--soft)" },
  { tag: [tags.meta, tags.function(tags.variableName)], color: "var(--code-name)" },
]);
const look = EditorView.theme({
  "&": { color: "var(--ink)", backgroundColor: "var(--paper)", fontSize: "12.5px", height: "100%" },
  ".cm-content, .cm-gutters": { fontFamily: "var(--mono)", lineHeight: "1.5" },
  ".cm-gutters": { backgroundColor: "var(--wash)", color: "var(--soft)", border: "0" },
  ".cm-cursor": { borderLeftColor: "var(--ink)" },
  ".cm-activeLine": { backgroundColor: "transparent" },
  "&.cm-focused": { outline: "2px solid var(--accent)" },
  "& .cm-selectionBackground, &.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground": { backgroundColor: "var(--select)" },
});
const shared = [lineNumbers(), python(), syntaxHighlighting(colours), look];

class Share extends GutterMarker {
  constructor(share) { super(); this.share = share; }
  eq(other) { return this.share === other.share; }
  toDOM() {
    const bar = el("i");
    bar.style.width = `${Math.max(2, 100 * this.share)}%`;
    return el("span", { class: "share" }, bar, el("b", {}, this.share >= 0.005 ? percent(this.share) : "<1 %"));
  }
}

const setShares = StateEffect.define();
const shares = StateField.define({
  create: () => null,
  update(value, transaction) {
    for (const effect of transaction.effects) if (effect.is(setShares)) return effect.value;
    return transaction.docChanged ? null : value;
  },
});
const painted = EditorView.decorations.compute([shares], (state) => {
  const builder = new RangeSetBuilder();
  for (const [number, share] of state.field(shares) ?? []) {
    const { from } = state.doc.line(number);
    builder.add(from, from, Decoration.line({ class: `heat-${Math.min(10, Math.round(10 * share))}` }));
  }
  return builder.finish();
});
const shareGutter = gutter({
  class: "cm-shares",
  lineMarker(view, line) {
    const share = view.state.field(shares)?.get(view.state.doc.lineAt(line.from).number);
    return share === undefined ? null : new Share(share);
  },
  lineMarkerChange: (update) => update.startState.field(shares) !== update.state.field(shares),
});

/** An editor in a place: {text(), put(text), paint(lines)}; `onEdit` is called when somebody types, `onRun` by Ctrl+Enter. */
export function editor(place, { onEdit, onRun }) {
  const view = new EditorView({
    parent: place,
    extensions: [
      keymap.of([{ key: "Mod-Enter", run: () => (onRun(), true) }, ...defaultKeymap, ...historyKeymap]),
      shared, shares, painted, shareGutter, history(), drawSelection(), highlightActiveLine(), indentOnInput(), bracketMatching(),
      EditorView.contentAttributes.of({ "aria-label": "Program", id: "program", spellcheck: "false" }),
      EditorView.updateListener.of((update) => {
        if (update.docChanged && update.transactions.some((one) => one.isUserEvent("input") || one.isUserEvent("delete") || one.isUserEvent("undo") || one.isUserEvent("redo"))) onEdit();
      }),
    ],
  });
  view.scrollDOM.tabIndex = 0;
  view.scrollDOM.setAttribute("role", "region");
  view.scrollDOM.setAttribute("aria-label", "Editor");
  return {
    text: () => view.state.doc.toString(),
    put: (text) => view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text } }),
    /** Paints lines {text, share}; returns whether all that have a share were found in the program, in order. */
    paint(lines) {
      const found = new Map();
      let next = 1;
      for (const { text, share } of lines.filter((one) => one.share !== null)) {
        while (next <= view.state.doc.lines && view.state.doc.line(next).text.trim() !== text.trim()) next += 1;
        if (next > view.state.doc.lines) return false;
        found.set(next++, share);
      }
      const [hottest] = [...found].sort((a, b) => b[1] - a[1])[0] ?? [1];
      view.dispatch({ effects: setShares.of(found) });
      view.scrollDOM.scrollTop = view.lineBlockAt(view.state.doc.line(hottest).from).top - view.scrollDOM.clientHeight / 2; // and not the page
      return true;
    },
  };
}

/** Two programs side by side with their differences marked. */
export function sideBySide(before, after) {
  const box = el("div", { class: "diff" });
  const side = (doc, label) => ({
    doc, extensions: [shared, EditorState.readOnly.of(true), EditorView.editable.of(false), EditorView.contentAttributes.of({ "aria-label": label, tabindex: "0" })],
  });
  new MergeView({ a: side(before, "Now"), b: side(after, "Changed"), parent: box, highlightChanges: true, collapseUnchanged: { margin: 3, minSize: 6 } });
  return box;
}

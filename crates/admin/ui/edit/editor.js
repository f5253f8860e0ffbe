// A text field for JSON: colours, line numbers, marks in the margin. The browser's own textarea takes the typing.

import { h, put } from "../dom.js";

const COLOURED_CHARS_MAX = 60_000;
const TOKEN = /("(?:[^"\\\n]|\\.)*"?)(\s*:)?|\b(true|false|null)\b|(-?\d[\d.eE+-]*)/g;

/** `{element, text(), set(text), mark(lines), reveal(start, end)}`; `on_input(text)` on every change by hand. */
export function editor({ label, text = "", on_input, read_only = false, describedby }) {
  const area = h("textarea", {
    "aria-label": label,
    "aria-describedby": describedby,
    spellcheck: "false",
    autocomplete: "off",
    autocapitalize: "off",
    wrap: "off",
    readonly: read_only,
    value: text,
  });
  const colours = h("code");
  const backdrop = h("pre", { class: "editor-colours", "aria-hidden": "true" }, colours);
  const gutter = h("ol", { class: "editor-gutter", "aria-hidden": "true" });
  const element = h("div", { class: "editor" }, gutter, h("div", { class: "editor-body" }, backdrop, area));
  let marked = new Map();

  function paint() {
    put(colours, ...coloured(area.value), "\n");
    const lines = area.value.split("\n").length;
    while (gutter.childElementCount > lines) gutter.lastChild.remove();
    while (gutter.childElementCount < lines) gutter.append(h("li"));
    [...gutter.children].forEach((line, i) => {
      line.className = marked.get(i + 1) ?? "";
    });
    follow();
  }
  function follow() {
    backdrop.scrollTop = gutter.scrollTop = area.scrollTop;
    backdrop.scrollLeft = area.scrollLeft;
  }
  area.addEventListener("scroll", follow);
  area.addEventListener("input", () => {
    paint();
    on_input?.(area.value);
  });
  paint();
  return {
    element,
    area,
    text: () => area.value,
    set(given) {
      if (given === area.value) return;
      const { scrollTop, selectionStart } = area;
      area.value = given;
      area.setSelectionRange(Math.min(selectionStart, given.length), Math.min(selectionStart, given.length));
      paint();
      area.scrollTop = scrollTop;
      follow();
    },
    /** Lines to mark: a map of line, from 1, to a class. */
    mark(lines) {
      marked = lines;
      paint();
    },
    /** Scrolls a line into sight. */
    reveal(line) {
      const height = Number.parseFloat(getComputedStyle(area).lineHeight);
      const top = (line - 1) * height;
      if (top < area.scrollTop || top > area.scrollTop + area.clientHeight - 3 * height)
        area.scrollTop = Math.max(0, top - area.clientHeight / 3);
    },
    /** Selects a range and takes the focus. */
    select(start, end) {
      area.focus();
      area.setSelectionRange(start, end);
    },
  };
}

/** JSON as coloured pieces. */
export function coloured(text) {
  if (text.length > COLOURED_CHARS_MAX) return [text];
  const pieces = [];
  let from = 0;
  for (const found of text.matchAll(TOKEN)) {
    if (found.index > from) pieces.push(text.slice(from, found.index));
    const [all, string, colon, word] = found;
    const part = string === undefined ? all : string;
    // The text must stay exactly as wide as the textarea's: no character is replaced here.
    const piece = document.createElement("span");
    piece.className = string === undefined ? (word ? "j-word" : "j-number") : colon ? "j-key" : "j-string";
    piece.textContent = part;
    pieces.push(piece);
    if (colon) pieces.push(colon);
    from = found.index + all.length;
  }
  if (from < text.length) pieces.push(text.slice(from));
  return pieces;
}

/** JSON to read only. */
export const json_view = (text, label) =>
  h("pre", { class: "json", tabindex: "0", "aria-label": label }, h("code", {}, coloured(text)));

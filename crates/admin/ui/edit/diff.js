// The difference of two texts, line by line, and how it is shown.

import { h } from "../dom.js";

const CELLS_MAX = 4_000_000;
const CONTEXT = 3;

/** Lines of both texts in order: `{sign: " " | "-" | "+", text, old, new}`, numbers from 1. */
export function diff(before, after) {
  const a = before === "" ? [] : before.split("\n");
  const b = after === "" ? [] : after.split("\n");
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  const lines = [];
  const same = (i, j) => lines.push({ sign: " ", text: a[i], old: i + 1, new: j + 1 });
  for (let i = 0; i < head; i++) same(i, i);
  middle(a.slice(head, a.length - tail), b.slice(head, b.length - tail), (sign, i, j) => {
    if (sign === " ") same(head + i, head + j);
    else if (sign === "-") lines.push({ sign, text: a[head + i], old: head + i + 1 });
    else lines.push({ sign, text: b[head + j], new: head + j + 1 });
  });
  for (let i = tail; i > 0; i--) same(a.length - i, b.length - i);
  return lines;
}

// Longest common subsequence by table; texts too long for one are replaced whole.
function middle(a, b, tell) {
  const width = b.length + 1;
  if (a.length * b.length > CELLS_MAX) {
    a.forEach((_, i) => tell("-", i));
    b.forEach((_, j) => tell("+", 0, j));
    return;
  }
  const table = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      table[i * width + j] =
        a[i] === b[j]
          ? table[(i + 1) * width + j + 1] + 1
          : Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
    }
  }
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) tell(" ", i++, j++);
    else if (i < a.length && (j === b.length || table[(i + 1) * width + j] >= table[i * width + j + 1])) tell("-", i++);
    else tell("+", 0, j++);
  }
}

/** The difference as a list with some lines around each change. */
export function diff_view(before, after, { equal = "Nothing differs." } = {}) {
  const lines = diff(before, after);
  const changed = lines.map(({ sign }) => sign !== " ");
  if (!changed.includes(true)) return h("p", { class: "quiet" }, equal);
  const near = lines.map((_, i) => changed.slice(Math.max(0, i - CONTEXT), i + CONTEXT + 1).includes(true));
  const rows = [];
  let skipped = 0;
  lines.forEach((line, i) => {
    if (!near[i]) return void skipped++;
    if (skipped) rows.push(h("li", { class: "diff-skip" }, `${skipped} equal lines`));
    skipped = 0;
    const tag = { "+": "ins", "-": "del", " ": "span" }[line.sign];
    const said = { "+": "added: ", "-": "removed: ", " ": "" }[line.sign];
    rows.push(
      h(
        "li",
        { class: { "+": "is-added", "-": "is-removed", " ": "" }[line.sign] },
        h("span", { class: "diff-number", "aria-hidden": "true" }, line.old ?? ""),
        h("span", { class: "diff-number", "aria-hidden": "true" }, line.new ?? ""),
        h("span", { class: "diff-sign", "aria-hidden": "true" }, line.sign),
        h(tag, {}, said && h("span", { class: "visually-hidden" }, said), line.text),
      ),
    );
  });
  if (skipped) rows.push(h("li", { class: "diff-skip" }, `${skipped} equal lines`));
  return h("ol", { class: "diff", tabindex: "0", "aria-label": "Difference" }, rows);
}

/** How many lines a difference adds and removes. */
export function diff_size(before, after) {
  const lines = diff(before, after);
  const of = (sign) => lines.filter((line) => line.sign === sign).length;
  return { added: of("+"), removed: of("-") };
}

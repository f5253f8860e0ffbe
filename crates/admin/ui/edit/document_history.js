// What is undone and redone while a document is edited, and the versions of it that were saved before.

import { get, path_of } from "../api.js";
import { diff_view } from "./diff.js";
import { h, link, put } from "../dom.js";
import { ago } from "../format.js";
import { author_words, no_history } from "../history_view.js";
import { pretty } from "./json.js";
import { failure_view, loading } from "../parts.js";

const STEPS_MAX = 200;
const TYPING_MS = 700;
const PAGES_MAX = 5;
const PAGE = 100;
const VERSIONS_MAX = 12;

/** Texts that were, and that can come back. What is typed in one place without a pause is one step. */
export function steps(first) {
  let texts = [first];
  let at = 0;
  let last_typed = 0;
  let last_place = null;
  return {
    add(text, place = null) {
      if (text === texts[at]) return;
      const now = Date.now();
      const is_same_step =
        place !== null && place === last_place && now - last_typed < TYPING_MS && at === texts.length - 1 && at > 0;
      last_typed = now;
      last_place = place;
      texts = texts.slice(0, is_same_step ? at : at + 1).slice(-STEPS_MAX);
      texts.push(text);
      at = texts.length - 1;
    },
    undo: () => (at > 0 ? texts[--at] : null),
    redo: () => (at < texts.length - 1 ? texts[++at] : null),
    get can_undo() {
      return at > 0;
    },
    get can_redo() {
      return at < texts.length - 1;
    },
  };
}

/** Earlier versions of a resource; `use(text, revision)` puts one into the editor. */
export async function versions(root, { key, current, use, app, signal }) {
  const why = await no_history(app);
  if (why) return put(root, h("p", { class: "quiet" }, why));
  put(root, loading("Looking for earlier versions"));
  const found = [];
  let before = null;
  let is_all = false;
  try {
    for (let page = 0; page < PAGES_MAX && found.length < VERSIONS_MAX && !is_all; page++) {
      const { changes: list } = await get(path_of("/v1/history", [], { before, count: PAGE }), signal);
      found.push(...list.filter(({ keys }) => keys.includes(key)));
      before = list.at(-1)?.revision;
      is_all = list.length < PAGE;
    }
  } catch (failure) {
    if (failure.name === "AbortError") return;
    put(root, failure_view(failure, "Loading the history"));
    return;
  }
  if (!found.length) {
    put(
      root,
      h("p", { class: "quiet" }, is_all ? "This is the first version." : "The latest 500 changes did not affect it."),
    );
    return;
  }
  put(
    root,
    h(
      "ol",
      { class: "versions" },
      found.slice(0, VERSIONS_MAX).map(({ revision, unix_ms, author }) => {
        const shown = h("div", { hidden: true });
        const after = async () => {
          const { edits } = await get(path_of("/v1/history", [revision]), signal);
          const value = edits.find((change) => change.key === key)?.after;
          return value ? pretty(without_times(value)) : null;
        };
        const compare = h(
          "button",
          {
            type: "button",
            "aria-expanded": "false",
            onclick: async () => {
              shown.hidden = !shown.hidden;
              compare.setAttribute("aria-expanded", String(!shown.hidden));
              if (shown.hidden) return;
              put(shown, loading());
              await after().then(
                (text) =>
                  put(
                    shown,
                    text === null
                      ? h("p", {}, "It was deleted by this change.")
                      : diff_view(text, current(), { equal: "The editor shows exactly this version." }),
                  ),
                (failure) => put(shown, failure_view(failure, "Loading the version")),
              );
            },
          },
          "Compare",
        );
        const take = h(
          "button",
          {
            type: "button",
            onclick: () =>
              after().then(
                (text) =>
                  text === null
                    ? put(shown, "It was deleted by this change.") && (shown.hidden = false)
                    : use(text, revision),
                (failure) => {
                  put(shown, failure_view(failure, "Loading the version"));
                  shown.hidden = false;
                },
              ),
          },
          "Load into the editor",
        );
        return h(
          "li",
          {},
          link(["history", revision], `r${revision}`, { class: "mono" }),
          h("span", { class: "quiet" }, `${author_words(author)} · ${ago(unix_ms)}`),
          h("span", { class: "actions" }, compare, take),
          h("div", { class: "version-diff" }, shown),
        );
      }),
    ),
  );
}

/** Times of a document are the server's to write. */
export function without_times(value) {
  if (!value || typeof value !== "object" || Array.isArray(value)) return value;
  const { create_time, update_time, ...rest } = value;
  return rest;
}

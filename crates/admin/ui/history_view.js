// The history of the configuration, as a list that can be continued, and how one goes back.

import { ask, get, path_of } from "./api.js";
import { h, link, put } from "./dom.js";
import { ago, count, date_time, plural } from "./format.js";
import { empty, failure_view, notice } from "./parts.js";

const PAGE = 25;

/** Why there is no history, where only a store keeps one; null: there is. */
export async function no_history(app) {
  await app.known().catch(() => {});
  const { kind } = app.source;
  return kind === "store" ? null : `Only a store keeps a history; this gateway's source is ${kind}.`;
}

/** Fills `root` with changes, newest first. */
export async function history_list(root, app, signal) {
  const why = await no_history(app);
  if (why) return put(root, notice("note", "There is no history here", why));
  const list = h("ol", { class: "timeline" });
  const more = h("div");
  let before = null;
  const load = async () => {
    try {
      const { changes } = await get(path_of("/v1/history", [], { before, count: PAGE }), signal);
      if (before === null)
        put(
          root,
          changes.length
            ? [list, more]
            : empty(
                "No changes yet",
                "Every change made through the Admin API or this page appears here, with its author.",
              ),
        );
      list.append(...changes.map((change) => row(change, app)));
      before = changes.at(-1)?.revision;
      put(more, changes.length === PAGE && h("button", { type: "button", onclick: load }, "Show older changes"));
    } catch (failure) {
      if (failure.name === "AbortError") return;
      put(
        before === null ? root : more,
        failure_view(failure, "Loading the history", load),
      );
    }
  };
  await load();
}

function row({ revision, unix_ms: time, author, keys, keys_total: all }, app) {
  return h(
    "li",
    {},
    h("i", { class: "diamond", "aria-hidden": "true" }),
    link(["history", revision], `r${revision}`, { class: "mono", title: `Revision ${revision}` }),
    h(
      "span",
      { class: "keys" },
      keys.slice(0, 3).map((key, i) => [i > 0 && ", ", h("code", {}, key)]),
      all > 3 && ` and ${count(all - 3)} more`,
      h("span", { class: "quiet" }, ` · ${author_words(author)} · `, h("time", { title: date_time(time) }, ago(time))),
    ),
    app.can_write &&
      h(
        "span",
        { class: "actions" },
        h("button", { type: "button", onclick: () => roll_back(app, revision) }, "Roll back to this"),
      ),
  );
}

/** Who, by what and from where. */
export function author_words(author, { from = true } = {}) {
  const [method, path] = (author?.action ?? "").split(" ");
  const verb = ACTIONS.find(([of, at]) => method === of && (!at || path === at))?.[2] ?? "changed";
  return [verb, "by", author?.name || "unknown", from && author?.address && `from ${author.address}`]
    .filter(Boolean)
    .join(" ");
}

// An action is a method and a path of the Admin API.
const ACTIONS = [
  ["POST", "/v1/rollback", "rolled back"],
  ["POST", "/v1/batch", "changed in a batch"],
  ["PUT", "/apisix/admin/configs", "replaced as a whole"],
  ["POST", null, "created"],
  ["PUT", null, "written"],
  ["PATCH", null, "changed"],
  ["DELETE", null, "deleted"],
];

/** Asks, then makes everything as it was after a revision: one atomic change, itself part of the history. */
export async function roll_back(app, revision) {
  const later = await later_keys(revision).catch(() => null);
  const is_done = await app.confirm({
    title: `Roll back to revision ${revision}?`,
    action: "Roll back",
    tone: "danger",
    body: [
      h(
        "p",
        {},
        "One change brings all resources back to this revision. Later changes stay in the history, so you can undo the rollback.",
      ),
      later &&
        later.keys.length > 0 &&
        h(
          "div",
          {},
          h(
            "h3",
            {},
            `${plural(later.keys.length, "resource")} changed since then${later.is_all ? "" : " (at least)"}`,
          ),
          h(
            "ul",
            { class: "effects" },
            later.keys.slice(0, 12).map((key) => h("li", {}, h("code", {}, key))),
            later.keys.length > 12 && h("li", { class: "quiet" }, `and ${count(later.keys.length - 12)} more`),
          ),
        ),
      later && later.keys.length === 0 && h("p", { class: "quiet" }, "Nothing has changed since then."),
    ],
    run: () => ask("POST", "/v1/rollback", { body: { to: revision } }),
  });
  if (!is_done) return;
  app.tell(`Rolled back to revision ${revision}.`);
  await app.refresh().catch(() => {});
  app.go(["status"], { at: Date.now() });
}

async function later_keys(revision) {
  const { changes: list } = await get("/v1/history?count=100");
  const later = list.filter((change) => change.revision > revision);
  return { keys: [...new Set(later.flatMap(({ keys }) => keys))], is_all: later.length < list.length };
}

// One change of the history: who, when, and what each resource had before and has after it.

import { get, path_of } from "../api.js";
import { address, h } from "../dom.js";
import { ago, date_time, plural } from "../format.js";
import { diff_view } from "../edit/diff.js";
import { author_words, roll_back } from "../history_view.js";
import { pretty } from "../edit/json.js";
import { card, fill, page_head } from "../parts.js";

const SHOWN = 50;

export const title = ([, revision]) => `Revision ${revision}`;

export async function show({ root, params: [, revision], app, signal }) {
  await fill(
    root,
    `Loading revision ${revision}`,
    () => Promise.all([get(path_of("/v1/history", [revision]), signal), app.status ?? app.refresh().catch(() => null)]),
    ([change]) => [
      page_head(`Revision ${change.revision}`, {
        crumbs: [["Status", ["status"]]],
        lead: [
          author_words(change.author),
          " · ",
          h("time", { title: date_time(change.unix_ms) }, `${date_time(change.unix_ms)}, ${ago(change.unix_ms)}`),
        ],
        actions: app.can_write && [
          h(
            "button",
            { type: "button", onclick: () => roll_back(app, change.revision - 1) },
            "Undo this and all later changes",
          ),
          h("button", { type: "button", onclick: () => roll_back(app, change.revision) }, "Roll back to this"),
        ],
      }),
      h(
        "div",
        { class: "stack" },
        change.edits.slice(0, SHOWN).map(({ key, before, after }) =>
          card(
            `${key} ${before === null ? "was created" : after === null ? "was deleted" : "was changed"}`,
            diff_view(text_of(before), text_of(after)),
            {
              aside:
                app.can_write &&
                h(
                  "a",
                  {
                    href: address(
                      [
                        after === null ? "new" : "edit",
                        ...(after === null ? key.split("/").slice(0, -1) : key.split("/")),
                      ],
                      { from: change.revision, key: after === null ? key : "" },
                    ),
                  },
                  after === null ? "Restore" : "Edit",
                ),
            },
          ),
        ),
        change.edits.length > SHOWN &&
          h("p", { class: "quiet" }, `and ${plural(change.edits.length - SHOWN, "more resource")}`),
      ),
    ],
  );
}

const text_of = (value) =>
  value === null || value === undefined ? "" : typeof value === "string" ? value : pretty(value);

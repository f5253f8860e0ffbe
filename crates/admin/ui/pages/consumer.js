// One consumer: the requests it sends, its plugins, and its credentials.

import { admin_path, get } from "../api.js";
import { bar, icon } from "../chart.js";
import { address, h, link } from "../dom.js";
import { remove } from "../edit/saving.js";
import { json_view } from "../edit/editor.js";
import { ago, count, plural, short } from "../format.js";
import { pretty } from "../edit/json.js";
import { card, chips, empty, facts, fill, page_head, read_only_notice } from "../parts.js";
import { errors_view, last_seen, seen_of } from "./consumers.js";

export const title = ([, name]) => `Consumer ${name}`;

export async function show({ root, params: [, name], app, signal }) {
  const load = () =>
    Promise.all([
      get(admin_path(["consumers", name]), signal),
      get(admin_path(["consumers", name, "credentials"]), signal).catch((failure) =>
        failure.status === 404 ? { list: [] } : Promise.reject(failure),
      ),
      seen_of([name], signal, { name }),
      app.status ?? app.refresh().catch(() => null),
    ]);
  const remove_it = (segments, what, why) => remove(app, segments, what, { why });
  const again = () => fill(root, `Loading consumer ${name}`, load, view);
  await again();

  function view([{ value, line }, { list }, seen]) {
    return [
      page_head(name, {
        crumbs: [["Consumers", ["consumers"]]],
        lead: value.desc,
        actions: app.can_write && [
          h(
            "button",
            {
              type: "button",
              class: "is-danger",
              onclick: () =>
                remove_it(
                  ["consumers", name],
                  `consumer ${name}`,
                  "Its credentials are deleted, too. Requests that use them are refused.",
                ).then((done) => done && app.go(["consumers"])),
            },
            "Delete",
          ),
          h("a", { class: "button is-primary", href: address(["edit", "consumers", name]) }, "Edit"),
        ],
      }),
      read_only_notice(app),
      h(
        "div",
        { class: "stack" },
        traffic_card(seen),
        card(
          "Credentials",
          list.length
            ? h(
                "ul",
                { class: "versions" },
                list.map((credential) => credential_row(credential)),
              )
            : empty(
                "No credentials",
                "A credential is a key, password or token for one plugin. It can be replaced without changing the consumer.",
                null,
              ),
          {
            note: plural(list.length, "credential"),
            aside:
              app.can_write &&
              h(
                "a",
                { class: "button", href: address(["new", "consumers", name, "credentials"]) },
                icon("plus"),
                "New credential",
              ),
          },
        ),
        card("Document", json_view(pretty(value), `Consumer ${name} as JSON`), { note: line && `line ${line}` }),
      ),
    ];
  }

  function traffic_card(seen) {
    const of = seen.by_name.get(name);
    return card(
      "Requests",
      [
        facts([
          ["Last seen", last_seen(seen, name)],
          of && ["Per second", h("strong", {}, short(of.requests))],
          of && ["Errors", errors_view(of)],
          of && ["Since the start", count(of.requests_total)],
        ]),
        of?.routes.length > 0 && [
          h("h3", { class: "facts-more" }, "Routes, by requests since the start"),
          h(
            "ul",
            { class: "shares-list" },
            of.routes.map(({ id, requests_total: number }) =>
              h(
                "li",
                {},
                id ? link(["routes", id], id) : h("span", { class: "quiet" }, "no route"),
                bar([{ value: number, tone: "traffic" }], of.requests_total),
                h("span", { class: "figure" }, count(number)),
              ),
            ),
          ),
          of.routes_total > of.routes.length &&
            h("p", { class: "quiet" }, `and ${plural(of.routes_total - of.routes.length, "more route")}`),
        ],
      ],
      { note: of ? "per second: mean of the last minute" : null },
    );
  }

  function credential_row({ key, value, modifiedIndex: revision }) {
    const id = value.id ?? key.split("/").at(-1);
    const segments = ["consumers", name, "credentials", id];
    return h(
      "li",
      {},
      h("strong", {}, value.name || id),
      chips(Object.keys(value.plugins ?? {})),
      value.desc && h("span", {}, value.desc),
      h(
        "span",
        { class: "quiet" },
        value.update_time ? `changed ${ago(value.update_time)}` : revision ? `revision ${revision}` : "",
      ),
      app.can_write &&
        h(
          "span",
          { class: "actions" },
          h("a", { class: "button", href: address(["edit", ...segments]) }, "Edit"),
          h(
            "button",
            {
              type: "button",
              class: "is-danger",
              onclick: () =>
                remove_it(segments, `credential ${id}`, "Requests that use it are refused.").then(
                  (done) => done && again(),
                ),
            },
            "Delete",
          ),
        ),
    );
  }
}

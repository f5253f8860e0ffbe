// Every kind of resource that the Admin API has, as plain lists.

import { admin_path, get, segments_of } from "../api.js";
import { icon } from "../chart.js";
import { address, h, put } from "../dom.js";
import { ago, plural } from "../format.js";
import { KINDS } from "../edit/kinds.js";
import {
  chips,
  empty,
  failure_view,
  page_head,
  pager,
  read_only_notice,
  search_field,
  table,
} from "../parts.js";

const PAGE_SIZE = 50;

/** Where a resource is in the file. */
const IN_FILE = [{ title: "Line", class: "is-number", show: ({ line }) => line }];
const STORED = [
  { title: "Revision", class: "is-number", show: ({ modifiedIndex }) => modifiedIndex },
  { title: "Changed", show: ({ value }) => (value.update_time ? ago(value.update_time) : null) },
];

export const title = ([, kind]) => KINDS.find(([one]) => one === kind)?.[1] ?? "All resources";

export async function show({ root, params: [, kind = "services"], query, app, signal }) {
  const [, name, noun, what] = KINDS.find(([one]) => one === kind) ?? [kind, kind, kind, ""];
  let search = query.get("search") ?? "";
  let page = Math.max(1, Number(query.get("page")) || 1);
  const list = h("div", { class: "card is-flush" });
  const found = h("p", { class: "quiet", role: "status" });
  if (!app.status) await app.refresh().catch(() => {});
  put(
    root,
    page_head(name, {
      lead: what,
      actions:
        app.can_write &&
        h("a", { class: "button is-primary", href: address(["new", kind]) }, icon("plus"), `New ${noun}`),
    }),
    h(
      "nav",
      { class: "kinds", "aria-label": "Kinds of resources" },
      KINDS.map(([one, text]) =>
        h("a", { href: address(["resources", one]), "aria-current": one === kind ? "page" : null }, text),
      ),
    ),
    read_only_notice(app),
    h(
      "div",
      { class: "toolbar" },
      search_field({
        label: `Search ${name}`,
        placeholder: "Name, id, plugin, anything else …",
        value: search,
        on_search(text) {
          search = text;
          page = 1;
          app.remember(["resources", kind], { search });
          app.replaced();
          load();
        },
      }),
      found,
    ),
    list,
  );

  async function load() {
    try {
      const answer = await get(admin_path([kind], { page, page_size: PAGE_SIZE, search }), signal);
      put(found, plural(answer.total, noun));
      if (!answer.list?.length) {
        put(
          list,
          empty(
            search ? `No ${noun} matches` : `There is no ${noun}`,
            what,
            app.can_write &&
              !search &&
              h("a", { class: "button", href: address(["new", kind]) }, `Create the first ${noun}`),
          ),
        );
        return;
      }
      put(
        list,
        table(
          name,
          [
            {
              title: "Id",
              show: ({ key, value }) => {
                const segments = segments_of(key);
                const text = value.name || value.username || segments.slice(1).join("/");
                return [
                  h(
                    "a",
                    {
                      class: "row-title clamped",
                      title: text,
                      href: address(
                        kind === "routes"
                          ? ["routes", segments[1]]
                          : kind === "consumers"
                            ? ["consumers", segments[1]]
                            : ["edit", ...segments],
                      ),
                    },
                    text,
                  ),
                  text !== segments.slice(1).join("/") && h("div", { class: "quiet" }, segments.slice(1).join("/")),
                ];
              },
            },
            {
              title: "About",
              show: ({ value }) =>
                value.desc ??
                value.uri ??
                value.uris?.slice(0, 3).join(", ") ??
                value.snis?.slice(0, 3).join(", ") ??
                null,
            },
            { title: "Plugins", show: ({ value }) => chips(Object.keys(value.plugins ?? {})) },
            ...(app.source.kind === "file" ? IN_FILE : STORED),
          ],
          answer.list,
        ),
        pager({
          page,
          page_size: PAGE_SIZE,
          total: answer.total,
          segments: ["resources", kind],
          parameters: { search },
        }),
      );
    } catch (failure) {
      if (failure.name !== "AbortError") put(list, failure_view(failure, `Loading ${name}`, load));
    }
  }
  await load();
}

// Consumers: who may send requests, and the plugins by which they authenticate.

import { admin_path, get } from "../api.js";
import { icon } from "../chart.js";
import { address, h, link, put } from "../dom.js";
import { ago, plural } from "../format.js";
import {
  chips,
  empty,
  failure_view,
  not_listed,
  page_head,
  pager,
  read_only_notice,
  search_field,
  table,
} from "../parts.js";

const PAGE_SIZE = 50;

export const title = () => "Consumers";

export async function show({ root, query, app, signal }) {
  let search = query.get("search") ?? "";
  let page = Math.max(1, Number(query.get("page")) || 1);
  const list = h("div", { class: "card is-flush" });
  const found = h("p", { class: "quiet", role: "status" });
  if (!app.status) await app.refresh().catch(() => {});
  put(
    root,
    page_head("Consumers", {
      lead: "Who sends requests, and how they authenticate.",
      actions:
        app.can_write && h("a", { class: "button is-primary", href: "#/new/consumers" }, icon("plus"), "New consumer"),
    }),
    read_only_notice(app),
    h(
      "div",
      { class: "toolbar" },
      search_field({
        label: "Search consumers",
        placeholder: "Name, description, plugin, group, label …",
        value: search,
        on_search(text) {
          search = text;
          page = 1;
          app.remember(["consumers"], { search });
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
      const { total, list: consumers } = await get(
        admin_path(["consumers"], { page, page_size: PAGE_SIZE, search }),
        signal,
      );
      put(found, plural(total, "consumer"));
      if (!consumers.length) {
        put(
          list,
          search
            ? empty("No consumer matches", "The search covers everything that you may see of a consumer.")
            : not_listed(app, "Consumers") ??
                empty(
                  "There are no consumers",
                  "Routes with an authentication plugin admit nobody until there is one.",
                  app.can_write &&
                    h("a", { class: "button is-primary", href: "#/new/consumers" }, "Create the first consumer"),
                ),
        );
        return;
      }
      put(
        list,
        table(
          "Consumers",
          [
            {
              title: "Consumer",
              show: ({ value }) => [
                link(["consumers", value.username], value.username, { class: "row-title" }),
                value.desc && h("div", { class: "quiet" }, value.desc),
              ],
            },
            {
              title: "Plugins",
              show: ({ value }) => chips(Object.keys(value.plugins ?? {}), { none: "none of its own" }),
            },
            {
              title: "Group",
              show: ({ value }) =>
                value.group_id
                  ? h("a", { href: address(["edit", "consumer_groups", value.group_id]) }, value.group_id)
                  : null,
            },
            {
              title: "Labels",
              show: ({ value }) => chips(Object.entries(value.labels ?? {}).map(([key, text]) => `${key}: ${text}`)),
            },
            { title: "Changed", show: ({ value }) => (value.update_time ? ago(value.update_time) : null) },
          ],
          consumers,
        ),
        pager({ page, page_size: PAGE_SIZE, total, segments: ["consumers"], parameters: { search } }),
      );
    } catch (failure) {
      if (failure.name !== "AbortError") put(list, failure_view(failure, "Loading consumers", load));
    }
  }
  await load();
}

// Consumers: who may ask, and by which plugins they prove it.

import { admin_path, get } from "../api.js";
import { icon } from "../chart.js";
import { address, h, link, put } from "../dom.js";
import { ago, plural } from "../format.js";
import { chips, empty, failure_view, page_head, pager, read_only_notice, search_field, table } from "../parts.js";

const PAGE_SIZE = 50;

export const title = () => "Consumers";

export async function show({ root, query, app, signal }) {
  let name = query.get("name") ?? "";
  let page = Math.max(1, Number(query.get("page")) || 1);
  const list = h("div", { class: "card is-flush" });
  const found = h("p", { class: "quiet", role: "status" });
  if (!app.status) await app.refresh().catch(() => {});
  put(
    root,
    page_head("Consumers", {
      lead: "Who sends requests, and how they prove it.",
      actions:
        app.can_write && h("a", { class: "button is-primary", href: "#/new/consumers" }, icon("plus"), "New consumer"),
    }),
    read_only_notice(app),
    h(
      "div",
      { class: "toolbar" },
      search_field({
        label: "Search consumers",
        placeholder: "Name",
        value: name,
        on_search(text) {
          name = text;
          page = 1;
          app.remember(["consumers"], { name });
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
        admin_path(["consumers"], { page, page_size: PAGE_SIZE, name }),
        signal,
      );
      put(found, plural(total, "consumer"));
      if (!consumers.length) {
        put(
          list,
          name
            ? empty("No consumer fits", "Search looks in names.")
            : empty(
                "There are no consumers",
                "Routes with an authentication plugin let nobody in until there is one.",
                app.can_write &&
                  h("a", { class: "button is-primary", href: "#/new/consumers" }, "Make the first consumer"),
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
        pager({ page, page_size: PAGE_SIZE, total, segments: ["consumers"], parameters: { name } }),
      );
    } catch (failure) {
      if (failure.name !== "AbortError") put(list, failure_view(failure, "Asking for consumers", load));
    }
  }
  await load();
}

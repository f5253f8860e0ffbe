// Consumers: who may send requests, and who does: how many, how many fail, when the last one was, and to which routes.

import { admin_path, get, path_of } from "../api.js";
import { badge, icon } from "../chart.js";
import { h, link, put } from "../dom.js";
import { ago, count, date_time, percent, plural, short, span } from "../format.js";
import { chips, empty, failure_view, page_head, pager, read_only_notice, search_field, table } from "../parts.js";

const PAGE_SIZE = 50;
/** The most that one answer has. */
const SEEN_MAX = 500;
const REFRESH_MS = 10_000;
const OTHERS = "__other__";

export const title = () => "Consumers";

export async function show({ root, query, app, signal }) {
  let search = query.get("search") ?? "";
  let page = Math.max(1, Number(query.get("page")) || 1);
  let answer = null;
  const list = h("div", { class: "card is-flush" });
  const verdict = h("div", { class: "verdict" });
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
    verdict,
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
      answer = await get(admin_path(["consumers"], { page, page_size: PAGE_SIZE, search }), signal);
      put(found, plural(answer.total, "consumer"));
      await measure();
    } catch (failure) {
      if (failure.name !== "AbortError") put(list, failure_view(failure, "Loading consumers", load));
    }
  }

  async function measure() {
    const names = answer.list.map(({ value }) => value.username);
    const seen = await seen_of(names, signal);
    put(verdict, verdict_of(seen));
    put(list, answer.list.length ? consumer_table(seen) : none());
  }

  const none = () =>
    search
      ? empty("No consumer matches", "The search covers everything that you may see of a consumer.")
      : empty(
          "There are no consumers",
          "Routes with an authentication plugin admit nobody until there is one.",
          app.can_write && h("a", { class: "button is-primary", href: "#/new/consumers" }, "Create the first consumer"),
        );

  const consumer_table = (seen) => [
    table(
      "Consumers",
      [
        {
          title: "Consumer",
          class: "c-consumer",
          show: ({ value: { username: name, desc, labels = {}, group_id: group } }) => [
            link(["consumers", name], name, { class: "row-title clamped", title: name }),
            desc && h("div", { class: "quiet" }, desc),
            group && h("div", { class: "quiet" }, "group ", link(["edit", "consumer_groups", group], group)),
            Object.keys(labels).length > 0 && chips(Object.entries(labels).map(([key, text]) => `${key}: ${text}`)),
          ],
        },
        { title: "Last seen", show: ({ value }) => last_seen(seen, value.username) },
        {
          title: "Requests",
          class: "is-number",
          show: ({ value }) => {
            const of = seen.by_name.get(value.username);
            return (
              of &&
              h(
                "div",
                {},
                h("div", { class: "figure" }, `${short(of.requests)}/s`),
                h("div", { class: "quiet" }, `${short(of.requests_total)} in total`),
              )
            );
          },
        },
        {
          title: "Errors",
          class: "is-number",
          show: ({ value }) => {
            const of = seen.by_name.get(value.username);
            return of && errors_view(of);
          },
        },
        {
          title: "Routes",
          class: "c-routes",
          show: ({ value }) => routes_view(seen.by_name.get(value.username)),
        },
        {
          title: "Plugins",
          show: ({ value }) => chips(Object.keys(value.plugins ?? {}), { none: "none of its own" }),
        },
      ],
      answer.list,
    ),
    pager({ page, page_size: PAGE_SIZE, total: answer.total, segments: ["consumers"], parameters: { search } }),
  ];

  await load();
  if (signal.aborted) return;
  const timer = setInterval(() => {
    if (!document.hidden && answer && !list.contains(document.activeElement)) measure().catch(() => {});
  }, REFRESH_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
}

/**
 * What is known of the traffic of these consumers: `{is_known, since, total, list, by_name, trouble}`; `list` is of all that
 * `parameters` ask for.
 */
export async function seen_of(names, signal, parameters = { page: 1, page_size: SEEN_MAX }) {
  try {
    return await traffic_of(names, signal, parameters);
  } catch (failure) {
    if (failure.name === "AbortError") throw failure;
    return { is_known: false, list: [], by_name: new Map(), trouble: failure.message };
  }
}

async function traffic_of(names, signal, parameters) {
  const ask = (given) => get(path_of("/v1/consumers", [], given), signal);
  const { known, since_unix_s: since, total, list } = await ask(parameters);
  const by_name = new Map(list.map((one) => [one.name, one]));
  const missing = total > list.length ? names.filter((name) => !by_name.has(name)) : [];
  for (const { list: found } of await Promise.all(missing.map((name) => ask({ name }))))
    for (const one of found) by_name.set(one.name, one);
  return { is_known: known, since, total, list, by_name };
}

/** When a consumer sent its last request. */
export function last_seen({ is_known, by_name }, name) {
  if (!is_known) return h("span", { class: "quiet" }, "not known");
  const at = by_name.get(name)?.last_seen_unix_s;
  if (at) return h("time", { title: date_time(at) }, ago(at));
  if (by_name.has(name)) return h("span", { class: "quiet" }, "not known");
  // Once the label has collapsed, a consumer can be among the others.
  return h("span", { class: "quiet" }, by_name.has(OTHERS) ? "not known" : "not seen since the start");
}

export const errors_view = ({ errors, requests }) =>
  errors > 0
    ? h(
        "span",
        { class: ["figure", errors / requests > 0.01 && "is-bad"] },
        percent(Math.min(errors, requests), requests),
      )
    : h("span", { class: "quiet" }, requests > 0 ? "none" : "");

const routes_view = (of) =>
  of &&
  h(
    "span",
    { class: "chips" },
    of.routes.map(({ id }) =>
      id ? link(["routes", id], id, { class: "chip" }) : h("span", { class: "chip" }, "no route"),
    ),
    of.routes_total > of.routes.length &&
      h("span", { class: "quiet" }, `+${count(of.routes_total - of.routes.length)}`),
  );

function verdict_of({ is_known, since, total, list, by_name, trouble }) {
  if (trouble) return badge("warn", h("span", {}, `The figures of consumers are not available: ${trouble}`));
  if (!is_known)
    return h(
      "p",
      { class: "lead verdict-words" },
      "Which consumer sends requests is not known: the metrics are off, or have no label ",
      h("code", {}, "consumer"),
      ".",
    );
  const start = since ? `, ${span(Math.max(1, Date.now() / 1000 - since))} ago` : "";
  const busiest = list.reduce((most, one) => (one.requests > (most?.requests ?? 0) ? one : most), null);
  const failing = list.filter(({ errors, requests }) => errors / requests > 0.05);
  return [
    h(
      "p",
      { class: "lead verdict-words" },
      total
        ? [
            h("strong", {}, plural(total, "consumer")),
            ` ${total === 1 ? "has" : "have"} sent requests since the start${start}.`,
          ]
        : `No consumer has sent a request since the start${start}.`,
      busiest && [" Most come from ", h("strong", {}, cut(busiest.name)), `: ${short(busiest.requests)} per second.`],
    ),
    failing
      .slice(0, 3)
      .map((one) =>
        badge("warn", h("span", {}, `${percent(one.errors, one.requests)} of the requests of ${cut(one.name)} fail.`)),
      ),
    by_name.has(OTHERS) &&
      h(
        "p",
        { class: "quiet" },
        "There are more consumers than the metrics keep apart: the rest is counted as __other__. ",
        h("a", { href: "#/cardinality" }, "Cardinality"),
      ),
  ];
}

const cut = (text) => (text.length > 60 ? `${text.slice(0, 60)}…` : text);

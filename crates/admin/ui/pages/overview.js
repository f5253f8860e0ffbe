// The first page: is all well, what is going on, and what changed when.

import { get, rejected_of } from "../api.js";
import { badge, icon, sparkline, time_chart } from "../chart.js";
import { address, h, link, put, set } from "../dom.js";
import { ago, count, instant, percent, plural, seconds, short, span } from "../format.js";
import { author_words, no_history } from "../history_view.js";
import { LATENCY_NOTE, live, of_route, recent_routes, watch } from "../live.js";
import { card, metrics_off, page_head } from "../parts.js";
import { no_nodes_words } from "./upstreams.js";

const CERTIFICATE_SOON_S = 14 * 86400;
const ATTENTION_MS = 60_000;
const ROUTES_SHOWN = 6;

export const title = () => "Overview";

export function show({ root, app, signal }) {
  const sentence = h("p", { class: "lead verdict-words" }, "Waiting for the first figures …");
  const attention = h("div", { class: "attention" });
  const requests = time_chart({
    title: "Requests per second",
    format: short,
    height: 210,
    series: [{ key: "requests", name: "requests", tone: "traffic", area: true }],
  });
  const errors = time_chart({
    title: "Errors per second",
    format: short,
    height: 110,
    series: [{ key: "errors", name: "5xx", tone: "bad", area: true }],
  });
  const latency = time_chart({
    title: "Latency",
    note: LATENCY_NOTE,
    format: seconds,
    scale: "log",
    floor: 1e-5,
    height: 210,
    series: [
      { key: "p999", name: "p99.9", tone: "p999" },
      { key: "p99", name: "p99", tone: "p99" },
      { key: "max", name: "max", tone: "p99" },
      { key: "p50", name: "p50", tone: "p50" },
    ],
  });
  const connections = time_chart({
    title: "Connections",
    format: short,
    height: 110,
    series: [{ key: "connections", name: "open", tone: "connections", area: true }],
  });
  const tunnels = time_chart({
    title: "Tunnels",
    format: short,
    height: 110,
    series: [{ key: "tunnels", name: "open", tone: "tunnels", area: true }],
  });
  const busiest = ranking("The busiest routes, by requests per second");
  const worst = ranking("The routes with the most errors per second");
  const changes = h("div", {});
  const chart_card = ({ element }, third) => h("section", { class: ["card", third && "is-third"] }, element);
  const measured = [
    chart_card(latency),
    chart_card(errors, true),
    card("Busiest routes", busiest.element, { note: "last 10 seconds" }),
    card("Most errors", worst.element, { note: "last 10 seconds" }),
  ];
  const [latency_card, errors_card, ...route_cards] = measured;
  const off = card(null, metrics_off("Latency, errors and figures of routes are not known."));
  off.hidden = true;

  put(
    root,
    page_head("Overview", { lead: null }),
    h("section", { class: "verdict", "aria-label": "Summary" }, sentence, attention),
    h(
      "div",
      { class: "grid" },
      chart_card(requests),
      latency_card,
      off,
      errors_card,
      chart_card(connections, true),
      chart_card(tunnels, true),
      route_cards,
      card("What changed", changes, { wide: true, aside: h("a", { href: "#/status" }, "Full history") }),
    ),
  );

  let marks = [];
  let generation = null;
  let known = null;
  let failing = false;
  const draw_attention = () => known && put(attention, attention_list(...known, failing));
  const draw = () => {
    const shown = marks.length ? marks : generation_marks(live.seconds);
    for (const chart of [requests, latency, errors]) chart.update(live.seconds, shown);
    for (const chart of [connections, tunnels]) chart.update(live.seconds);
    if (!live.last) {
      if (live.state === "lost")
        put(sentence, "Live figures are not available. Trying again every few seconds.");
      return;
    }
    for (const element of measured) element.hidden = !live.has_metrics;
    off.hidden = live.has_metrics;
    put(sentence, words_of(live.seconds.slice(-10)));
    if (failing !== do_most_fail(live.seconds.slice(-10))) {
      failing = !failing;
      draw_attention();
    }
    const recent = recent_routes();
    busiest.update(recent, "requests");
    worst.update(
      recent.filter(({ errors }) => errors > 0),
      "errors",
    );
    if (generation !== null && live.last.generation !== generation) load_changes();
    generation = live.last.generation ?? null;
  };

  async function load_changes() {
    const why = await no_history(app);
    if (why) return put(changes, h("p", { class: "quiet" }, why, " ", changed_words()));
    try {
      const { changes: list } = await get("/v1/history?count=30", signal);
      marks = list.map((change) => ({
        t: change.unix_ms / 1000,
        title: `${change.author?.name || "?"}: ${change.keys.slice(0, 4).join(", ")}`,
      }));
      put(changes, change_list(list));
    } catch (failure) {
      if (failure.name === "AbortError") return;
      put(changes, h("p", { class: "quiet" }, `The history is not available: ${failure.message} `, changed_words()));
    }
  }
  const load_attention = async () => {
    const [status, upstreams] = await Promise.all([
      app.refresh().catch((failure) => failure),
      get("/v1/upstreams", signal).catch((failure) => failure),
    ]);
    known = [status, upstreams];
    if (!signal.aborted) draw_attention();
  };
  load_changes();
  load_attention();
  const timer = setInterval(() => !document.hidden && load_attention(), ATTENTION_MS);
  const end = watch(draw);
  signal.addEventListener("abort", () => (clearInterval(timer), end()));
}

function words_of(recent) {
  const mean = (key) => recent.reduce((sum, second) => sum + (second[key] ?? 0), 0) / recent.length;
  const [requests, errors] = [mean("requests"), mean("errors")];
  const last = recent.at(-1);
  const timed = recent.findLast(({ p50 }) => p50 !== null);
  if (requests === 0)
    return [
      "No requests in the last 10 seconds. ",
      h("strong", {}, plural(last.connections ?? 0, "connection")),
      " open.",
    ];
  return [
    h("strong", {}, short(requests)),
    " requests per second",
    last.errors === null
      ? "."
      : [
          ", ",
          h("strong", { class: errors / requests > 0.01 ? "is-bad" : null }, errors ? percent(errors, requests) : "none"),
          " fail.",
        ],
    timed && [
      " Half are answered within ",
      h("strong", {}, seconds(timed.p50)),
      timed.p99 === null ? `, the slowest of ${plural(timed.timed, "request")} within ` : ", 99 % within ",
      h("strong", {}, seconds(timed.p99 ?? timed.max)),
      ".",
    ],
  ];
}

function do_most_fail(recent) {
  const sum = (key) => recent.reduce((sum, second) => sum + (second[key] ?? 0), 0);
  return sum("errors") * 2 > sum("requests");
}

function attention_list(status, upstreams, failing) {
  const items = [];
  const add = (tone, segments, ...text) =>
    items.push(
      h("a", { class: ["attention-item", `is-${tone}`], href: address(segments) }, icon(tone), h("span", {}, ...text)),
    );
  if (failing) add("bad", ["routes"], "Failing: most requests are answered with an error");
  if (status instanceof Error) add("bad", ["status"], `The status is not available: ${status.message}`);
  else {
    const rejected = rejected_of(status);
    if (rejected.length)
      add(
        "bad",
        ["status"],
        plural(rejected.length, "resource"),
        rejected.length === 1 ? " is rejected" : " are rejected",
      );
    if (status.config?.last_error) add("bad", ["status"], "The last configuration was refused");
    if (status.pending_restart?.length)
      add("warn", ["status"], `Takes effect at the next start: ${status.pending_restart.join(", ")}`);
    for (const { id, not_after } of status.certificates ?? []) {
      const left = (instant(not_after) - Date.now()) / 1000;
      if (left < 0) add("bad", ["certificates"], `Certificate ${id} has expired`);
      else if (left < CERTIFICATE_SOON_S) add("warn", ["certificates"], `Certificate ${id} expires in ${span(left)}`);
    }
    if (status.draining) add("warn", ["status"], "The gateway is shutting down");
  }
  if (upstreams instanceof Error) {
    if (upstreams.name !== "AbortError") add("warn", ["upstreams"], `The health of nodes is not available: ${upstreams.message}`);
  } else {
    const without = upstreams.upstreams.filter(({ endpoints }) => !endpoints.length);
    for (const upstream of without.slice(0, 3))
      add("bad", ["upstreams"], `Upstream ${upstream.id}: ${no_nodes_words(upstream)}`);
    if (without.length > 3) add("bad", ["upstreams"], `and ${plural(without.length - 3, "more upstream")} without nodes`);
    const unresolved = upstreams.upstreams.filter(({ endpoints, unresolved = [] }) => endpoints.length && unresolved.length);
    for (const { id, unresolved: names } of unresolved.slice(0, 3))
      add("warn", ["upstreams"], `Upstream ${id}: ${plural(names.length, "name")} of nodes not resolved`);
    if (unresolved.length > 3)
      add("warn", ["upstreams"], `and names of ${plural(unresolved.length - 3, "more upstream")} not resolved`);
    const out = upstreams.upstreams
      .map(({ id, endpoints }) => ({
        id,
        out: endpoints.filter(({ state }) => state !== "healthy").length,
        all: endpoints.length,
      }))
      .filter(({ out }) => out);
    for (const { id, out: away, all } of out.slice(0, 3))
      add(
        away === all ? "bad" : "warn",
        ["upstreams"],
        `Upstream ${id}: ${away} of ${plural(all, "node")} out`,
      );
    if (out.length > 3) add("warn", ["upstreams"], `and nodes of ${plural(out.length - 3, "more upstream")}`);
  }
  return items.length ? items : badge("good", "All resources are served, all nodes are healthy.");
}

function ranking(label) {
  const list = h("ol", { class: "ranking", "aria-label": label });
  const rows = [];
  const none = h("p", { class: "quiet" }, "None.");
  const element = h("div", {}, list, none);
  const update = (routes, key) => {
    const top = routes.sort((a, b) => b[key] - a[key]).slice(0, ROUTES_SHOWN);
    none.hidden = top.length > 0;
    const most = top[0]?.[key] ?? 1;
    while (rows.length < top.length) rows.push(ranking_row(list));
    rows.forEach((row, i) => row.show(top[i], key, most));
  };
  return { element, update };
}

function ranking_row(list) {
  const name = h("a", { class: "ranking-name" });
  const figure = h("span", { class: "figure" });
  const about = h("span", { class: "quiet ranking-about" });
  const spark = sparkline({});
  const parts = [h("i", { class: "tone-bad" }), h("i", { class: "tone-traffic" })];
  const row = h(
    "li",
    {},
    name,
    h("span", { class: "bar", "aria-hidden": "true" }, parts),
    spark.element,
    figure,
    about,
  );
  list.append(row);
  let id = null;
  const show = (route, key, most) => {
    row.hidden = !route;
    if (!route) return;
    if (id !== route.id) {
      id = route.id;
      put(name, id);
      set(name, "href", address(["routes", id]));
    }
    const by_errors = key === "errors";
    set(parts[0], "vars", { part: route.errors / most });
    set(parts[1], "vars", { part: by_errors ? 0 : (route.requests - route.errors) / most });
    figure.textContent = `${short(route[key])}/s`;
    about.textContent = by_errors
      ? `${percent(route.errors, route.requests)} of ${short(route.requests)}/s`
      : `${slowest_words(route)}${route.errors ? ` · ${percent(route.errors, route.requests)} fail` : ""}`;
    set(spark.element, "class", ["spark", by_errors && "is-bad"]);
    spark.update(of_route(id, key));
  };
  return { show };
}

const slowest_words = ({ p99, max }) => (p99 === null ? `max ${seconds(max)}` : `p99 ${seconds(p99)}`);

function changed_words() {
  const times = generation_marks(live.seconds).length;
  if (!times) return "";
  return `The configuration changed ${times === 1 ? "once" : `${times} times`} in the last 15 minutes; see the marks in the charts.`;
}

function generation_marks(known) {
  const marks = [];
  for (let at = 1; at < known.length; at++) {
    const { t, generation } = known[at];
    if (generation !== undefined && generation !== known[at - 1].generation)
      marks.push({ t, title: `generation ${generation}` });
  }
  return marks;
}

const change_list = (list) =>
  list.length
    ? h(
        "ol",
        { class: "changes" },
        list
          .slice(0, 6)
          .map((change) =>
            h(
              "li",
              {},
              h("i", { class: "diamond", "aria-hidden": "true" }),
              link(
                ["history", change.revision],
                change.keys_total > 3
                  ? `${change.keys.slice(0, 3).join(", ")} and ${count(change.keys_total - 3)} more`
                  : change.keys.join(", "),
              ),
              h("span", { class: "quiet" }, author_words(change.author, { from: false })),
              h("time", { class: "quiet" }, ago(change.unix_ms)),
            ),
          ),
      )
    : h("p", { class: "quiet" }, "No changes yet.");

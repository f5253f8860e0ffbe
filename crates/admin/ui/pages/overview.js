// The first page: is all well, what is going on, and what changed when.

import { get, path_of, rejected_of } from "../api.js";
import { badge, icon, sparkline, time_chart } from "../chart.js";
import { address, h, link, put, set } from "../dom.js";
import { ago, count, instant, percent, plural, seconds, short, span } from "../format.js";
import { author_words, no_history } from "../history_view.js";
import { LATENCY_BAND, LATENCY_NOTE, generation_marks, live, of_route, recent_routes, slowest_of, watch } from "../live.js";
import { card, metrics_off, page_head } from "../parts.js";
import { no_nodes_words } from "./upstreams.js";

const CERTIFICATE_SOON_S = 14 * 86400;
const ATTENTION_MS = 60_000;
const SLOWEST_MS = 5000;
const ROUTES_SHOWN = 6;
const UNKNOWN_ROUTES = "None is known. If the label route has too many values, Cardinality says so.";

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
    series: [
      { key: "client_errors", name: "4xx", tone: "warn" },
      { key: "errors", name: "5xx", tone: "bad", area: true },
    ],
  });
  const latency = time_chart({
    title: "Latency",
    note: LATENCY_NOTE,
    format: seconds,
    scale: "log",
    floor: 1e-5,
    height: 210,
    band: LATENCY_BAND,
    series: [
      { key: "p999", name: "p99.9", tone: "p999", thin: true },
      { key: "p99", name: "p99", tone: "p99" },
      { key: "max", name: "max", tone: "p99", thin: true },
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
    title: "WebSockets",
    note: "and other upgrades",
    format: short,
    height: 110,
    series: [{ key: "tunnels", name: "open", tone: "tunnels", area: true }],
  });
  const slowest = ranking("The slowest routes, by the 99th percentile", slow_row);
  const busiest = ranking("The busiest routes, by requests per second", busy_row);
  const worst = ranking("The routes with the most errors per second", error_row);
  const changes = h("div", {});
  const changes_card = card("What changed", changes, { aside: h("a", { href: "#/status" }, "Full history") });
  const chart_card = ({ element }, third) => h("section", { class: ["card", third && "is-third"] }, element);
  const measured = [
    chart_card(latency),
    chart_card(errors, true),
    card("Slowest routes", slowest.element, {
      note: "last minute",
      aside: h("a", { href: address(["routes"], { sort: "p99", order: "desc" }) }, "All"),
    }),
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
      changes_card,
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
    set(changes_card, "class", ["card", !live.has_metrics && "is-wide"]);
    put(sentence, words_of(live.seconds.slice(-10)));
    if (failing !== do_most_fail(live.seconds.slice(-10))) {
      failing = !failing;
      draw_attention();
    }
    const recent = recent_routes();
    const unknown = live.last.requests > 0 ? UNKNOWN_ROUTES : undefined;
    busiest.update(
      recent.sort((a, b) => b.requests - a.requests),
      unknown,
    );
    worst.update(
      recent
        .filter(({ errors, client_errors }) => errors + client_errors > 0)
        .sort((a, b) => b.errors - a.errors || b.client_errors - a.client_errors),
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
  const slowest_path = path_of("/v1/routes", [], { sort: "p99", order: "desc", page_size: ROUTES_SHOWN });
  const load_slowest = async () => {
    const found = await get(slowest_path, signal).catch(() => null);
    if (found) slowest.update(found.list.filter(({ traffic }) => traffic?.timed > 0));
  };
  load_changes();
  load_attention();
  load_slowest();
  const timers = [
    setInterval(() => !document.hidden && load_attention(), ATTENTION_MS),
    setInterval(() => !document.hidden && live.has_metrics && load_slowest(), SLOWEST_MS),
  ];
  const end = watch(draw);
  signal.addEventListener("abort", () => (timers.forEach(clearInterval), end()));
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

/** A list of routes. `show(row, route, routes)` draws one into the elements of its row. */
function ranking(label, show) {
  const list = h("ol", { class: "ranking", "aria-label": label });
  const rows = [];
  const none = h("p", { class: "quiet" });
  const element = h("div", {}, list, none);
  const update = (routes, why = "None.") => {
    const top = routes.slice(0, ROUTES_SHOWN);
    none.hidden = top.length > 0;
    none.textContent = why;
    while (rows.length < top.length) rows.push(ranking_row(list));
    rows.forEach((row, i) => {
      row.element.hidden = !top[i];
      if (!top[i]) return;
      const { id } = top[i];
      if (row.id !== id) {
        row.id = id;
        put(row.name, id);
        set(row.name, "href", address(["routes", id]));
        set(row.why, "href", address(["slow"], { route: id }));
        set(row.why, "aria-label", `Why ${id} is slow`);
      }
      show(row, top[i], top);
    });
  };
  return { element, update };
}

function ranking_row(list) {
  const name = h("a", { class: "ranking-name" });
  const figure = h("span", { class: "figure" });
  const about = h("span", {});
  const why = h("a", { hidden: true }, "why");
  const spark = sparkline({});
  const parts = [0, 1, 2].map(() => h("i", {}));
  const element = h(
    "li",
    {},
    name,
    h("span", { class: "bar", "aria-hidden": "true" }, parts),
    spark.element,
    figure,
    h("span", { class: "quiet ranking-about" }, about, why),
  );
  list.append(element);
  const bar = (shares) =>
    parts.forEach((part, i) => {
      const [tone, share] = shares[i] ?? ["away", 0];
      set(part, "class", `tone-${tone}`);
      set(part, "vars", { part: Number.isFinite(share) ? share : 0 });
      part.hidden = !share;
    });
  return { element, name, figure, about, why, spark, bar, id: null };
}

/** By requests per second. */
function busy_row({ figure, about, spark, bar }, { id, requests, client_errors, errors, p99, max }, [{ requests: most }]) {
  bar([
    ["bad", errors / most],
    ["warn", client_errors / most],
    ["traffic", (requests - errors - client_errors) / most],
  ]);
  figure.textContent = `${short(requests)}/s`;
  about.textContent = [
    p99 === null ? `max ${seconds(max)}` : `p99 ${seconds(p99)}`,
    errors && `${percent(errors, requests)} 5xx`,
    client_errors && `${percent(client_errors, requests)} 4xx`,
  ]
    .filter(Boolean)
    .join(" · ");
  spark.update(of_route(id, "requests"));
}

/** By responses with 5xx per second, then by those with 4xx. */
function error_row({ figure, about, spark, bar }, { id, requests, client_errors, errors }, top) {
  const most = Math.max(...top.map((route) => route.errors + route.client_errors));
  bar([
    ["bad", errors / most],
    ["warn", client_errors / most],
  ]);
  const [name, key, value] = errors ? ["5xx", "errors", errors] : ["4xx", "client_errors", client_errors];
  figure.textContent = `${short(value)}/s`;
  about.textContent = `${name}: ${percent(value, requests)} of ${short(requests)}/s${
    errors && client_errors ? ` · 4xx ${percent(client_errors, requests)}` : ""
  }`;
  set(spark.element, "class", ["spark", errors ? "is-bad" : "is-warn"]);
  spark.update(of_route(id, key));
}

/** By the 99th percentile; the bar is the share of the time of all requests. */
function slow_row({ figure, about, why, spark, bar }, { traffic }) {
  const [name, value] = slowest_of(traffic);
  bar([["p99", traffic.time_share]]);
  figure.textContent = `${name === "max" ? "max " : ""}${seconds(value)}`;
  about.textContent = traffic.time_share === null ? "" : `${percent(traffic.time_share, 1)} of all time · `;
  why.hidden = false;
  spark.update(traffic.spark);
}

function changed_words() {
  const times = generation_marks(live.seconds).length;
  if (!times) return "";
  return `The configuration changed ${times === 1 ? "once" : `${times} times`} in the last 15 minutes; see the marks in the charts.`;
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

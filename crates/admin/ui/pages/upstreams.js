// Nodes of every upstream: which take requests, which are out and why, and how fast they answer.

import { get } from "../api.js";
import { badge, bar } from "../chart.js";
import { address, h, put } from "../dom.js";
import { ago, count, plural, seconds } from "../format.js";
import { empty, failure_view, loading, notice, page_head, search_field } from "../parts.js";

const REFRESH_MS = 5000;
const SHOWN = 40;
const NODES_SHOWN = 30;
const RANK = { unhealthy: 0, set_aside: 1, healthy: 2 };
const NO_NODES_RANK = -1;
const UNRESOLVED_SHOWN = 5;

export const title = () => "Upstreams";

export async function show({ root, query, app, signal }) {
  let search = query.get("search") ?? "";
  let only_out = query.get("out") === "1";
  let shown = SHOWN;
  let answer = null;
  const summary = h("p", { class: "quiet", role: "status" });
  const list = h("div", { class: "upstreams" }, loading("Loading the health of nodes"));
  const actions = h("div", { class: "actions" });
  const toggle = h(
    "button",
    {
      type: "button",
      "aria-pressed": String(only_out),
      onclick: () => {
        only_out = !only_out;
        toggle.setAttribute("aria-pressed", String(only_out));
        toggle.classList.toggle("is-primary", only_out);
        draw();
      },
    },
    "Only with failing nodes",
  );
  put(
    root,
    page_head("Upstreams", { actions }),
    h(
      "div",
      { class: "toolbar" },
      search_field({
        label: "Search upstreams and nodes",
        placeholder: "Upstream, node address …",
        value: search,
        on_search(text) {
          search = text;
          shown = SHOWN;
          app.remember(["upstreams"], { search });
          app.replaced();
          draw();
        },
      }),
      toggle,
      summary,
    ),
    list,
  );
  const allowed = () =>
    put(actions, app.can_write && h("a", { class: "button is-primary", href: "#/new/upstreams" }, "New upstream"));
  app.status ? allowed() : app.refresh().then(allowed, () => {});

  function draw() {
    if (!answer || list.contains(document.activeElement)) return;
    const text = search.toLowerCase();
    const all = answer.upstreams;
    const fitting = all
      .filter(
        ({ id, endpoints, unresolved = [] }) =>
          !text ||
          id.toLowerCase().includes(text) ||
          endpoints.some(({ address: at, host }) => at.includes(text) || host.toLowerCase().includes(text)) ||
          unresolved.some(({ name }) => name.toLowerCase().includes(text)),
      )
      .filter((upstream) => !only_out || is_failing(upstream))
      .map((upstream) => ({ upstream, worst: worst_of(upstream) }))
      .sort((a, b) => a.worst - b.worst);
    const out = all.reduce(
      (sum, { endpoints }) => sum + endpoints.filter(({ state }) => state !== "healthy").length,
      0,
    );
    const nodes = all.reduce((sum, { endpoints }) => sum + endpoints.length, 0);
    const without = all.filter(({ endpoints }) => !endpoints.length).length;
    const unresolved = all.reduce((sum, upstream) => sum + (upstream.unresolved ?? []).length, 0);
    const problems = [
      out && `${count(out)} out`,
      without && `${plural(without, "upstream")} without nodes`,
      unresolved && `${plural(unresolved, "name")} not resolved`,
    ].filter(Boolean);
    put(
      summary,
      `${plural(all.length, "upstream")}, ${plural(nodes, "node")}, ${problems.join(", ") || "all healthy"}`,
    );
    put(
      list,
      answer.silent_workers?.length > 0 &&
        notice(
          "warn",
          `${plural(answer.silent_workers.length, "worker")} did not answer in time`,
          "Their figures are missing. They are asked again in 5 seconds.",
        ),
      fitting.slice(0, shown).map(({ upstream }) => upstream_card(upstream, app)),
      !fitting.length &&
        (all.length
          ? empty("No upstream matches", "The search covers ids, addresses and host names.")
          : empty("There are no upstreams", "A route with its own nodes is listed here, too, as routes/ID.")),
      fitting.length > shown &&
        h(
          "button",
          { type: "button", onclick: () => ((shown += SHOWN), document.activeElement.blur(), draw()) },
          `Show ${count(Math.min(SHOWN, fitting.length - shown))} more of ${count(fitting.length - shown)}`,
        ),
    );
  }
  const load = async () => {
    try {
      answer = await get("/v1/upstreams", signal);
      draw();
    } catch (failure) {
      if (failure.name === "AbortError") return;
      // Figures that are a little old are better than none.
      if (answer) put(summary, badge("warn", `Not up to date: ${failure.message}`));
      else if (!list.querySelector(".notice")) put(list, failure_view(failure, "Loading the health of nodes", load));
    }
  };
  const timer = setInterval(() => !document.hidden && load(), REFRESH_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
  await load();
}

// What the reader opened and closed stays so while the figures change.
const opened = new Set();
const closed = new Set();
const TONES = { healthy: "good", set_aside: "warn", unhealthy: "bad" };
const WORDS = { healthy: "healthy", set_aside: "set aside", unhealthy: "unhealthy" };

const is_failing = ({ endpoints, unresolved = [] }) =>
  !endpoints.length || unresolved.length > 0 || endpoints.some(({ state }) => state !== "healthy");

const worst_of = ({ endpoints, unresolved = [] }) =>
  endpoints.length
    ? Math.min(unresolved.length ? RANK.set_aside : 3, ...endpoints.map(({ state }) => RANK[state] ?? 2))
    : NO_NODES_RANK;

/** Why an upstream has no nodes, in a few words. */
export const no_nodes_words = ({ unresolved = [] }) =>
  unresolved.length
    ? `no nodes: ${unresolved.length === 1 ? `${unresolved[0].name} does` : "the names of its nodes do"} not resolve`
    : "no nodes are configured";

function upstream_badge({ endpoints, unresolved = [] }, out) {
  if (!endpoints.length) return badge("bad", no_nodes_words({ unresolved }));
  if (out) return badge(out === endpoints.length ? "bad" : "warn", `${out} of ${endpoints.length} out`);
  if (unresolved.length) return badge("warn", `${plural(unresolved.length, "name")} not resolved`);
  return badge("good", `${plural(endpoints.length, "node")} healthy`);
}

function upstream_card({ id, requests_waiting, endpoints, unresolved = [] }, app) {
  const weights = endpoints.reduce((sum, { weight }) => sum + weight, 0);
  const out = endpoints.filter(({ state }) => state !== "healthy").length;
  const slowest = Math.max(...endpoints.map((node) => latency_of(node) ?? 0), 0);
  const sorted = [...endpoints].sort((a, b) => (RANK[a.state] ?? 2) - (RANK[b.state] ?? 2));
  const in_flight = endpoints.reduce((sum, node) => sum + node.requests_in_flight, 0);
  const editing = id.includes("/") ? id.split("/").slice(0, 2) : ["upstreams", id];
  return h(
    "div",
    { class: "card upstream" },
    app.can_write && h("a", { href: address(["edit", ...editing]), "aria-label": `Edit ${id}` }, "Edit"),
    h(
      "details",
      {
        open: opened.has(id) || (is_failing({ endpoints, unresolved }) && !closed.has(id)),
        ontoggle: ({ target }) => {
          (target.open ? opened : closed).add(id);
          (target.open ? closed : opened).delete(id);
        },
      },
      h(
        "summary",
        {},
        h("h2", {}, id),
        upstream_badge({ endpoints, unresolved }, out),
        h(
          "span",
          { class: "shares", "aria-hidden": "true" },
          endpoints
            .slice(0, 60)
            .map(({ weight, state }) =>
              h("i", { class: `tone-${TONES[state] ?? "away"}`, vars: { part: weight || 0.2 } }),
            ),
        ),
        h("span", { class: "quiet figure" }, slowest ? `≤ ${seconds(slowest)}` : ""),
        h(
          "span",
          { class: "quiet figure" },
          requests_waiting
            ? h("strong", { class: "is-bad" }, `${count(requests_waiting)} waiting`)
            : `${count(in_flight)} in flight`,
        ),
      ),
      h(
        "ul",
        { class: "nodes" },
        unresolved
          .slice(0, UNRESOLVED_SHOWN)
          .map(({ name, reason }) =>
            h(
              "li",
              { class: "node" },
              badge("bad", "not resolved"),
              h("span", { class: "node-address" }, name),
              h("span", { class: "node-why" }, reason),
            ),
          ),
        unresolved.length > UNRESOLVED_SHOWN &&
          h("li", { class: "quiet" }, `and ${count(unresolved.length - UNRESOLVED_SHOWN)} more names that do not resolve`),
        !endpoints.length &&
          h("li", { class: "quiet" }, "Requests that need this upstream are answered 503."),
        sorted.slice(0, NODES_SHOWN).map((node) => node_row(node, weights, slowest)),
        sorted.length > NODES_SHOWN &&
          h(
            "li",
            { class: "quiet" },
            `and ${count(sorted.length - NODES_SHOWN)} more nodes that are ${WORDS[sorted.at(-1).state]}`,
          ),
      ),
    ),
  );
}

/** In seconds: what the worker sees, else what the last check saw. */
const latency_of = ({ latency_ms, active_checks }) => {
  const found = latency_ms ?? active_checks?.last?.latency_ms;
  return Number.isFinite(found) ? found / 1000 : null;
};

function node_row(node, weights, slowest) {
  const latency = latency_of(node);
  return h(
    "li",
    { class: "node" },
    badge(TONES[node.state] ?? "away", WORDS[node.state] ?? node.state),
    h(
      "span",
      { class: "node-address" },
      node.address,
      node.host !== node.address && h("span", { class: "quiet" }, ` ${node.host}`),
    ),
    h("span", { class: "node-why" }, why(node, weights)),
    h(
      "span",
      { class: "node-latency" },
      latency === null
        ? null
        : [
            h(
              "span",
              { title: node.latency_ms === undefined ? "At the last active check" : null },
              seconds(latency),
              h("span", { class: "quiet" }, node.latency_ms === undefined ? " (check)" : ""),
            ),
            bar([{ value: latency, tone: "p99" }], slowest),
          ],
    ),
    h("span", { class: "quiet" }, `${count(node.requests_in_flight)} in flight`),
  );
}

function why({ state, active_checks: checks, set_aside = [], weight, priority }, weights) {
  const parts = [];
  if (checks && !checks.healthy)
    parts.push(`${checks.reason ?? "active checks fail"}${checks.since ? `, since ${ago(checks.since)}` : ""}`);
  if (checks?.last?.error && !checks.healthy && !checks.reason?.includes(checks.last.error))
    parts.push(`last check: ${checks.last.error}`);
  if (set_aside.length) {
    const longest = Math.max(...set_aside.map(({ for_ms }) => for_ms));
    // Half open: the worker's next request tests the node, or does so now.
    const half_open = set_aside.filter(({ circuit }) => circuit === "half_open");
    const is_testing = half_open.some(({ requests_in_flight }) => requests_in_flight);
    const trying = is_testing
      ? ", one request is testing it"
      : half_open.length
        ? ", ready: the next request tests it"
        : "";
    parts.push(
      `set aside by ${plural(set_aside.length, "worker")}${longest ? `, for ${seconds(longest / 1000)} more` : ""}${trying}, ${plural(Math.max(...set_aside.map(({ periods }) => periods)), "time")} in a row`,
    );
  }
  const share =
    weights && weight ? `weight ${weight}, ${Math.round((weight / weights) * 100)} %` : "weight 0: takes no requests";
  if (state === "healthy")
    return h(
      "span",
      { class: "quiet" },
      share,
      priority ? `, priority ${priority}` : "",
      checks ? `, ${count(checks.checks)} checks, ${count(checks.failures)} failed` : ", no active checks",
    );
  return [parts.join("; ") || "out", h("span", { class: "quiet" }, ` (${share})`)];
}

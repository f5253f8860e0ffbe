// The slowest requests of the last 15 minutes: how long each took, where, and what it waited for.

import { get } from "../api.js";
import { bar } from "../chart.js";
import { address, h, link, put, set } from "../dom.js";
import { clock, count, date_time, percent, plural, seconds } from "../format.js";
import { card, choice, empty, facts, failure_view, loading, page_head } from "../parts.js";

const REFRESH_MS = 10_000;
const NODES_NAMED = 3;
const ROWS_SHOWN = 50;

/** The parts of a request's time, in their order. Waiting in the queue is part of `before_ms`. */
const PARTS = [
  ["before the node", "connections", ({ before_ms, queued_ms }) => Math.max(0, before_ms - queued_ms)],
  ["queue", "p99", ({ queued_ms }) => queued_ms],
  ["node", "traffic", ({ node_ms }) => node_ms],
  ["after the node", "p999", ({ after_ms }) => after_ms],
];

/** What a request waited for: a word, a colour and a sentence. */
const CAUSES = {
  node: ["node", "traffic", "The node took most of the time."],
  queue: ["queue", "p99", "The request waited for a place at the upstream."],
  before_node: ["before the node", "connections", "Plugins, or a body that had to be read first, took most of the time."],
  client: ["client", "p999", "The client took the response slowly."],
  turn: ["event loop", "tunnels", "A plugin or the gateway blocked the worker's event loop."],
  cpu: ["CPU", "bad", "The worker waited for a CPU that other work had."],
  several: ["several", "away", "Nothing took half of the time alone."],
};
const cause_of = (cause) => (Object.hasOwn(CAUSES, cause) ? CAUSES[cause] : [cause, "away", "The cause is not known."]);

export const title = () => "Slow requests";

export async function show({ root, query, app, signal }) {
  const asked = {
    route: query.get("route") ?? "",
    cause: query.get("cause") ?? "",
    order: query.get("order") === "minute" ? "minute" : "",
  };
  let minutes = [];
  let lost = 0;
  let rows_shown = ROWS_SHOWN;
  const found = h("p", { class: "quiet", role: "status" });
  const causes = h("div", { class: "slow-causes" });
  const list = h("div", { class: "stack" }, loading("Loading slow requests"));
  const routes = choice("Route", [], "", "is-small", (route) => look({ route }));
  const order = choice(
    "Order",
    [
      ["", "Slowest first"],
      ["minute", "By minute"],
    ],
    asked.order,
    "is-small",
    (chosen) => look({ order: chosen }),
  );
  const toolbar = h("div", { class: "toolbar" }, routes, order, found);
  put(
    root,
    page_head("Slow requests", { lead: "Up to 20 requests of each minute, the slowest ones, and what they waited for." }),
    toolbar,
    causes,
    list,
  );
  toolbar.hidden = true;

  function look(change) {
    Object.assign(asked, change);
    rows_shown = ROWS_SHOWN;
    app.remember(["slow"], asked);
    app.replaced();
    draw();
  }

  async function load() {
    try {
      const answer = await get("/v1/slow", signal);
      minutes = answer.minutes;
      lost = answer.lost;
    } catch (failure) {
      if (failure.name === "AbortError") return;
      if (!toolbar.hidden && failure.status !== 404) return void put(found, `Not up to date: ${failure.message}`);
      toolbar.hidden = true;
      put(causes);
      put(list, failure.status === 404 ? switched_off() : failure_view(failure, "Loading slow requests", load));
      return;
    }
    const is_read = list.matches(":hover, :focus-within") || list.querySelector("details[open]");
    if (toolbar.hidden || !is_read) draw();
  }

  function draw() {
    toolbar.hidden = false;
    const all = minutes.flatMap(({ requests }) => requests);
    const is_of_route = ({ route }) => !asked.route || route === asked.route;
    const is_wanted = (request) => is_of_route(request) && (!asked.cause || request.cause === asked.cause);
    const of_route = all.filter(is_of_route);
    const wanted = all.filter(is_wanted);
    draw_routes(all);
    const focused = causes.contains(document.activeElement) ? document.activeElement.dataset.cause : null;
    put(causes, of_route.length > 0 && causes_view(of_route, wanted, asked.cause, (cause) => look({ cause })));
    if (focused) [...causes.querySelectorAll("button")].find(({ dataset }) => dataset.cause === focused)?.focus();
    found.textContent = `${plural(wanted.length, "request")} of the last 15 minutes · as of ${clock(Date.now() / 1000)}${
      lost ? ` · ${count(lost)} more were too many to keep` : ""
    }`;
    if (!wanted.length) return void put(list, none(all.length));
    const most = Math.max(...wanted.map(({ took_ms }) => took_ms));
    const rows = (requests) =>
      h(
        "div",
        { class: "slow-list" },
        requests.map((request) => row(request, most)),
      );
    if (asked.order === "minute")
      put(
        list,
        minutes
          .map(({ minute_unix_s, requests }) => [minute_unix_s, requests.filter(is_wanted)])
          .filter(([, requests]) => requests.length)
          .map(([minute, requests]) =>
            card(clock(minute).slice(0, 5), rows(requests), { note: plural(requests.length, "request") }),
          ),
      );
    else {
      const sorted = wanted.sort((a, b) => b.took_ms - a.took_ms);
      put(
        list,
        card("Slowest first", rows(sorted.slice(0, rows_shown)), { note: legend() }),
        sorted.length > rows_shown &&
          h("button", { type: "button", onclick: () => ((rows_shown = Infinity), draw()) }, `Show all ${count(sorted.length)}`),
      );
    }
  }

  function draw_routes(all) {
    const counts = counted(all.map(({ route }) => route).filter(Boolean));
    if (asked.route && !counts.some(([route]) => route === asked.route)) counts.push([asked.route, 0]);
    put(
      routes,
      h("option", { value: "" }, "All routes"),
      counts.map(([route, times]) => h("option", { value: route }, `${route} (${count(times)})`)),
    );
    routes.value = asked.route;
  }

  const none = (known) =>
    known
      ? empty(
          "No slow request matches",
          "None of the slowest requests of the last 15 minutes has this route and cause.",
          h("button", { type: "button", onclick: () => look({ route: "", cause: "" }) }, "Show all"),
        )
      : empty("No requests in the last 15 minutes", "The slowest ones are listed here a few seconds after they end.");

  const timer = setInterval(() => !document.hidden && load(), REFRESH_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
  await load();
}

const switched_off = () =>
  empty(
    "Slow requests are not recorded",
    [
      h("code", {}, "gateway.debug.slow"),
      " is false. Set it to true, or remove the line, and reload the configuration.",
    ],
  );

const legend = () =>
  h(
    "ul",
    { class: "legend" },
    PARTS.map(([name, tone]) => h("li", {}, h("i", { class: ["swatch", `tone-${tone}`] }), name)),
  );

/** How often each value is in a list, the most frequent first. */
function counted(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]);
}

/** How many requests had which cause: a bar, a button for each, and a sentence about the most frequent one. */
function causes_view(of_route, wanted, chosen, choose) {
  const counts = counted(of_route.map(({ cause }) => cause));
  const [most, times] = counted(wanted.map(({ cause }) => cause))[0] ?? [];
  const nodes = counted(wanted.filter(({ cause, node }) => cause === "node" && node).map(({ node }) => node));
  return [
    bar(
      counts.map(([cause, value]) => ({ value, tone: cause_of(cause)[1] })),
      of_route.length,
    ),
    h(
      "div",
      { class: "chips", role: "group", "aria-label": "Cause" },
      counts.map(([cause, value]) =>
        h(
          "button",
          {
            type: "button",
            "data-cause": cause,
            "aria-pressed": String(cause === chosen),
            onclick: () => choose(cause === chosen ? "" : cause),
          },
          cause_badge(cause),
          h("span", { class: "quiet" }, count(value)),
        ),
      ),
    ),
    most &&
      h(
        "p",
        {},
        wanted.length > 1 && h("strong", {}, `${count(times)} of ${count(wanted.length)}: `),
        cause_of(most)[2],
        most === "node" &&
          nodes.length > 0 && [
            " ",
            nodes
              .slice(0, NODES_NAMED)
              .map(([node, of_node], i) => [i > 0 && ", ", h("code", {}, node), ` (${count(of_node)})`]),
            nodes.length > NODES_NAMED && ` and ${plural(nodes.length - NODES_NAMED, "more node")}`,
            ".",
          ],
      ),
  ];
}

const cause_badge = (cause) => {
  const [name, tone] = cause_of(cause);
  return h("span", { class: "cause" }, h("i", { class: ["swatch", `tone-${tone}`], "aria-hidden": "true" }), name);
};

const time = (ms) => seconds(ms / 1000);

function row(request, most) {
  const parts = PARTS.map(([name, tone, of]) => ({ name, tone, value: of(request) }));
  const words = parts.map(({ name, value }) => `${name} ${time(value)}`).join(", ");
  const stacked = bar(parts, request.took_ms, words);
  set(stacked, "title", words);
  const details = h(
    "details",
    { class: "slow" },
    h(
      "summary",
      {},
      h("span", { class: "figure" }, time(request.took_ms)),
      h("span", { class: "slow-bar", vars: { length: Math.max(0.15, request.took_ms / most) } }, stacked),
      cause_badge(request.cause),
      h(
        "span",
        { class: "slow-path", title: `${request.method} ${request.path}` },
        h("span", { class: "method" }, request.method),
        " ",
        request.path,
      ),
      h("span", { class: "slow-route quiet", title: request.route }, request.route ?? "no route"),
      h("span", { class: ["slow-status", request.status >= 500 && "is-bad"] }, request.status),
      h("span", { class: "slow-time quiet" }, clock(request.ended_unix_ms / 1000)),
    ),
  );
  const body = h("div", { class: "slow-body" });
  details.append(body);
  details.addEventListener("toggle", () => details.open && !body.firstChild && put(body, explained(request, parts)));
  return details;
}

/** What an opened row says. */
const explained = (request, parts) => [
  h("p", {}, h("strong", {}, cause_of(request.cause)[2]), " ", detail_of(request)),
  facts([
    ...parts.map(({ name, value }) => [
      name,
      [time(value), h("span", { class: "quiet" }, ` ${percent(value, request.took_ms)}`)],
    ]),
    ["Node address", request.node ? h("a", { href: address(["upstreams"]) }, request.node) : "none"],
    ["Worker", request.worker],
    ["Longest turn of its event loop", time(request.longest_turn_ms)],
    ["Wait for a CPU", h("span", { title: "While the request took, and up to a second before" }, time(request.cpu_wait_ms))],
    ["Ended", date_time(request.ended_unix_ms)],
    request.route && ["Route", link(["routes", request.route], request.route)],
  ]),
  request.turns.map(turn_view),
  request.cause === "turn" &&
    !request.turns.length &&
    h(
      "p",
      { class: "quiet" },
      "No stack was taken. A profile of stalls shows what blocks the event loop: ",
      h("a", { href: address(["profiles"]) }, "Profiles"),
      ".",
    ),
];

function detail_of({ cause, node, node_ms, queued_ms, cpu_wait_ms, longest_turn_ms, after_ms }) {
  if (cause === "node" && node) return [h("code", {}, node), ` took ${time(node_ms)}.`];
  if (cause === "queue") return `${time(queued_ms)} in the queue. The upstream's limits.requests sets how many run at once.`;
  if (cause === "cpu") return `For ${time(cpu_wait_ms)}.`;
  if (cause === "turn") return `For ${time(longest_turn_ms)}; all requests of this worker waited.`;
  if (cause === "client") return `${time(after_ms)} after the node's answer was there.`;
  return null;
}

/** One long turn of the event loop, with its stacks. */
const turn_view = ({ took_ms, stacks }) =>
  h(
    "section",
    { class: "slow-turn" },
    h("h3", {}, `A turn of the event loop took ${time(took_ms)}`),
    stacks.map(({ seen, frames }) => [
      h("p", { class: "quiet" }, `Seen ${seen === 1 ? "once" : plural(seen, "time")}, the innermost function first`),
      h(
        "ol",
        { class: "frames", tabindex: "0", "aria-label": "Stack, the innermost function first" },
        frames.map(frame_view),
      ),
    ]),
    !stacks.length && h("p", { class: "quiet" }, "No stack was taken."),
  );

/** `FUNCTION FILE:LINE`; without line tables the function alone. */
function frame_view(frame) {
  const [, name, place] = /^(.+) (\S+:\d+)$/s.exec(frame) ?? [null, frame, ""];
  return h("li", {}, name, place && h("span", { class: "quiet", title: place }, ` ${place.split("/").slice(-2).join("/")}`));
}
